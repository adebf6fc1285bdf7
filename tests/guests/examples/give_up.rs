//! Returns an error.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, told_to_misbehave};

struct GiveUp;

impl Workflow for GiveUp {
    fn run(ctx: Context) -> Result<Output> {
        if told_to_misbehave(&ctx) {
            bail!("this guest gives up");
        }
        ask_once(&ctx)
    }
}

export!(workflow = GiveUp, grader = Honest);
