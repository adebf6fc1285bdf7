//! Allocates as many MiB as each number in its prompt's text says, and holds them while it calls the model once after
//! each allocation.

use rollout_sdk::*;
use rollout_test_guests::{Honest, prompt_text, with_reply};

struct Hold;

impl Workflow for Hold {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        let mut held = Vec::new();
        let mut output = None;
        for mebibytes in prompt_text(&ctx).split_whitespace() {
            let mebibytes: usize =
                mebibytes.parse().map_err(|_| Error::invalid(format!("'{mebibytes}' is not a number")))?;
            held.push(std::hint::black_box(vec![1_u8; mebibytes << 20]));
            output = Some(with_reply(&ctx, sample.chat(ctx.prompt()).send()?.into_message()));
        }
        output.ok_or_else(|| Error::invalid("the prompt has no number"))
    }
}

export!(workflow = Hold, grader = Honest);
