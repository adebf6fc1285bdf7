//! Starts chat calls and never returns, so that they are in progress when it is stopped.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour, spin};

struct SpinWithCalls;

impl Workflow for SpinWithCalls {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            let sample = ctx.sample()?;
            let _calls = [sample.chat(ctx.prompt()).start()?, sample.chat(ctx.prompt()).start()?];
            spin();
        }
        ask_once(&ctx)
    }
}

export!(workflow = SpinWithCalls, grader = Honest);
