//! Sets chat parameters that only the host may set, and reports the errors.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

/// Fields of the request itself, in lower and upper case, fields that route a request at model proxies, and two
/// parameters that a guest may set.
const NAMES: [&str; 20] = [
    "model",
    "messages",
    "tools",
    "stream",
    "stream_options",
    "n",
    "Model",
    "STREAM",
    "api_base",
    "Api-Base",
    "base_url",
    "api_key",
    "mock_response",
    "fallbacks",
    "model_list",
    "custom_llm_provider",
    "extra_body",
    "num_retries",
    "temperature",
    "seed",
];

struct ReservedParam;

impl Workflow for ReservedParam {
    fn run(ctx: Context) -> Result<Output> {
        let sample = ctx.sample()?;
        let mut answers = Map::new();
        for name in NAMES {
            let answer = match sample.chat(ctx.prompt()).param(name, 1).send() {
                Ok(_) => "sent".to_owned(),
                Err(error) => error.to_string(),
            };
            answers.insert(name.to_owned(), answer.into());
        }
        Ok(report(&ctx, answers))
    }
}

export!(workflow = ReservedParam, grader = Honest);
