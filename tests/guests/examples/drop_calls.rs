//! Starts chat calls, drops some and forgets the others, and returns successfully.

use rollout_sdk::*;
use rollout_test_guests::{Honest, with_reply};

struct DropCalls;

impl Workflow for DropCalls {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        drop(sample.chat(ctx.prompt()).start()?);
        std::mem::forget(sample.chat(ctx.prompt()).start()?);
        Ok(with_reply(&ctx, Message::assistant("done without them #### 5")))
    }
}

export!(workflow = DropCalls, grader = Honest);
