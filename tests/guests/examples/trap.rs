//! Panics.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, told_to_misbehave};

struct Trap;

impl Workflow for Trap {
    fn run(ctx: Context) -> Result<Output> {
        if told_to_misbehave(&ctx) {
            panic!("this guest traps");
        }
        ask_once(&ctx)
    }
}

export!(workflow = Trap, grader = Honest);
