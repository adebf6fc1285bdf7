//! Opens samples under names that are invalid in a header, and reports the errors.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct SampleNames;

impl Workflow for SampleNames {
    fn run(ctx: Context) -> Result<Output> {
        let mut answers = Vec::new();
        for name in ["", " ", "a b", "a\r\nx-injected: 1", "a\0", "é", "\u{7f}", &"x".repeat(129)] {
            let answer = match ctx.sample_named(name) {
                Ok(_) => "opened".to_owned(),
                Err(error) => error.to_string(),
            };
            answers.push(json!({"name": name, "answer": answer}));
        }
        let longest = ctx.sample_named(&"x".repeat(128))?;
        longest.chat(ctx.prompt()).send()?;
        Ok(report(&ctx, answers))
    }
}

export!(workflow = SampleNames, grader = Honest);
