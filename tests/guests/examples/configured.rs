//! Requires a configuration, and answers from it.

use rollout_sdk::*;
use rollout_test_guests::Honest;

struct Configured;

#[derive(serde::Deserialize)]
struct Config {
    answer: u32,
    greeting: Option<String>,
}

impl Workflow<Config> for Configured {
    fn run(ctx: Context<Config>) -> Result<Output> {
        let Config { answer, greeting } = ctx.config();
        let greeting = greeting.as_deref().unwrap_or("Hello.");
        let mut messages = ctx.prompt().to_vec();
        messages.push(Message::assistant(format!("{greeting} #### {answer}")));
        Ok(messages.into())
    }
}

export!(workflow = Configured, grader = Honest);
