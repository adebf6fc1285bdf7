//! Never returns and never calls the host.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour, spin};

struct Spin;

impl Workflow for Spin {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            spin();
        }
        ask_once(&ctx)
    }
}

export!(workflow = Spin, grader = Honest);
