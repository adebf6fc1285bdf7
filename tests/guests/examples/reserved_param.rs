//! Sets parameters of a chat request that are the host's, and reports what it was told.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

/// Those of the request itself, as they are and in other letters, those by which proxies of
/// models are told whom to ask, and two that are a guest's to set.
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
        let mut told = Map::new();
        for name in NAMES {
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
