//! Sets parameters of a chat request that are the host's, and reports what it was told.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct ReservedParam;

impl Workflow for ReservedParam {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        let mut told = Map::new();
        for name in ["model", "messages", "tools", "stream", "stream_options", "n", "temperature"] {
            let answer = match sample.chat(ctx.prompt()).param(name, 1).send() {
                Ok(_) => "sent".to_owned(),
                Err(error) => error.to_string(),
            };
            told.insert(name.to_owned(), answer.into());
        }
        Ok(report(&ctx, told))
    }
}

export!(workflow = ReservedParam, grader = Honest);
