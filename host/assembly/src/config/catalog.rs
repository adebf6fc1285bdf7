//! `[catalog]`: options of a server of many tenants.

use std::time::Duration;

use super::secs;

/// `[catalog]` as written by the operator.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawCatalog {
    /// Bytes of compiled code above which idle plugins are unloaded.
    pub code_bytes_max: Option<u64>,
    /// Maximum number of concurrent checks of deployments.
    pub checks_max: Option<u32>,
    /// Maximum duration of a check in seconds, without compiling.
    pub check_secs_max: Option<f64>,
}

/// Options of a server of many tenants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CatalogOptions {
    /// Bytes of compiled code above which idle plugins are unloaded.
    pub code_bytes_max: u64,
    /// Maximum number of concurrent checks of deployments.
    pub checks_max: u32,
    /// Maximum duration of a check, without compiling.
    pub check_time_max: Duration,
}

const CODE_BYTES_MAX: u64 = 1 << 30;
const CHECKS_MAX: u32 = 2;
const CHECK_TIME_MAX: Duration = Duration::from_secs(60);

impl RawCatalog {
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> CatalogOptions {
        let Self { code_bytes_max, checks_max, check_secs_max } = self;
        if checks_max == Some(0) {
            problems.push("catalog.checks-max: must be at least 1".to_owned());
        }
        CatalogOptions {
            code_bytes_max: code_bytes_max.unwrap_or(CODE_BYTES_MAX),
            checks_max: checks_max.unwrap_or(CHECKS_MAX),
            check_time_max: secs("catalog.check-secs-max", check_secs_max, CHECK_TIME_MAX, problems),
        }
    }
}
