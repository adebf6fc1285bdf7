//! Calls the model as often as its prompt says (once if that is no number), with the same conversation, and keeps the last
//! reply.

use rollout_sdk::*;
use rollout_test_guests::{Honest, prompt_text, with_reply};

struct AskAgain;

impl Workflow for AskAgain {
    fn run(ctx: Context) -> Result<Output> {
        let turns: u32 = prompt_text(&ctx).parse().unwrap_or(1);
        let sample = ctx.sample()?;
        let mut reply = sample.chat(ctx.prompt()).send()?;
        for _ in 1..turns {
            reply = sample.chat(ctx.prompt()).send()?;
        }
        Ok(with_reply(&ctx, reply.into_message()))
    }
}

export!(workflow = AskAgain, grader = Honest);
