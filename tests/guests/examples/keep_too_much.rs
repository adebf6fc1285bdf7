//! Fills artifacts and its sample until it reaches a limit, and reports the error.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct KeepTooMuch;

const MIB: usize = 1 << 20;

impl Workflow for KeepTooMuch {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        let artifacts = (0..).find_map(|number| {
            artifact::write(&format!("part-{number}"), vec![0; MIB]).err().map(|error| error.to_string())
        });
        let message = Message::user("x".repeat(MIB));
        let messages = (0..).find_map(|_| sample.push(&message).err().map(|error| error.to_string()));
        sample.replace(&[])?;
        Ok(report(&ctx, json!({"artifacts": artifacts, "messages": messages})))
    }
}

export!(workflow = KeepTooMuch, grader = Honest);
