//! Asks the model for as long as it is let, then more than it may at once, and reports
//! what it was told.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct Greedy;

impl Workflow for Greedy {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        let mut answered = 0;
        let told = loop {
            match sample.chat(ctx.prompt()).send() {
                Ok(_) => answered += 1,
                Err(error) => break error.to_string(),
            }
        };
        Ok(report(&ctx, json!({"answered": answered, "told": told})))
    }
}

export!(workflow = Greedy, grader = Honest);
