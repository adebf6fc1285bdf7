//! `[catalog]`: options of a server of many tenants.

use std::time::Duration;

use super::setting::settings;

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

impl Default for CatalogOptions {
    fn default() -> Self {
        Self { code_bytes_max: 1 << 30, checks_max: 2, check_time_max: Duration::from_secs(60) }
    }
}

settings! {
    /// `[catalog]` as written by the operator.
    RawCatalog, "catalog" => CatalogOptions {
        /// Bytes of compiled code above which idle plugins are unloaded.
        code_bytes_max: u64, "code-bytes-max", ..;
        /// Maximum number of concurrent checks of deployments.
        checks_max: u32, "checks-max", 1..;
        /// Maximum duration of a check in seconds, without compiling.
        check_time_max: Duration, "check-secs-max", ..;
    }
}
