//! Alternates between short computations and short waits, forever.

use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, compute_briefly, requests_misbehaviour};

struct BusyStints;

impl Workflow for BusyStints {
    fn run(ctx: Context) -> Result<Output> {
        while requests_misbehaviour(&ctx) {
            compute_briefly();
            sleep(Duration::from_millis(1));
        }
        ask_once(&ctx)
    }
}

export!(workflow = BusyStints, grader = Honest);
