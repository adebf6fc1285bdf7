//! Sleeps forever.

use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour};

struct Sleep;

impl Workflow for Sleep {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            sleep(Duration::MAX);
        }
        ask_once(&ctx)
    }
}

export!(workflow = Sleep, grader = Honest);
