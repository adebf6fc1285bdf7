//! Sleeps forever in every rollout, so that a check of it lasts until the check's deadline.

use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::Honest;

struct SleepAlways;

impl Workflow for SleepAlways {
    fn run(ctx: Context) -> Result<Output> {
        sleep(Duration::MAX);
        Ok(ctx.prompt().to_vec().into())
    }
}

export!(workflow = SleepAlways, grader = Honest);
