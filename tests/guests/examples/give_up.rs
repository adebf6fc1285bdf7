//! Returns an error.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour};

struct GiveUp;

impl Workflow for GiveUp {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            bail!("this guest gives up");
        }
        ask_once(&ctx)
    }
}

export!(workflow = GiveUp, grader = Honest);
