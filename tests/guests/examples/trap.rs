//! Panics.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour};

struct Trap;

impl Workflow for Trap {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            panic!("this guest traps");
        }
        ask_once(&ctx)
    }
}

export!(workflow = Trap, grader = Honest);
