//! Calls the model until it is refused, then makes more concurrent calls than allowed, and reports the errors.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct Greedy;

impl Workflow for Greedy {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        let mut answered = 0;
        let answer = loop {
            match sample.chat(ctx.prompt()).send() {
                Ok(_) => answered += 1,
                Err(error) => break error.to_string(),
            }
        };
        Ok(report(&ctx, json!({"answered": answered, "answer": answer})))
    }
}

export!(workflow = Greedy, grader = Honest);
