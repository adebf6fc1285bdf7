//! Never returns and never calls the host.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, spin, told_to_misbehave};

struct Spin;

impl Workflow for Spin {
    fn run(ctx: Context) -> Result<Output> {
        if told_to_misbehave(&ctx) {
            spin();
        }
        ask_once(&ctx)
    }
}

export!(workflow = Spin, grader = Honest);
