//! Declares the current time as a default.

use std::time::{SystemTime, UNIX_EPOCH};

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

struct Dated;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Seconds since 1970 after which things count as new.
    since: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() }
    }
}

impl Workflow<Config> for Dated {
    fn run(ctx: Context<Config>) -> Result<Output> {
        Ok(ctx.prompt().to_vec().into())
    }
}

export!(workflow = Dated, settings = Config);
