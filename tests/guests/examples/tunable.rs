//! Declares its configuration, and reports it as the workflow and the grader receive it.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

struct Tunable;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// The name under which this plugin is shown.
    name: String,
    /// The most calls of the model.
    #[schemars(range(min = 1))]
    max_turns: u32,
    /// The text before the conversation.
    greeting: Option<String>,
    search: Search,
    concurrency: Concurrency,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Search {
    /// The depth of the search.
    depth: f64,
    /// The places to search.
    places: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "tunable".into(),
            max_turns: 8,
            greeting: None,
            search: Search::default(),
            concurrency: Concurrency::default(),
        }
    }
}

impl Default for Search {
    fn default() -> Self {
        Self { depth: 1.5, places: vec!["here".into()] }
    }
}

impl Workflow<Config> for Tunable {
    fn run(ctx: Context<Config>) -> Result<Output> {
        let sample = ctx.sample()?;
        sample.chat(ctx.prompt()).send()?;
        let mut messages = ctx.prompt().to_vec();
        messages.push(Message::assistant(serde_json::to_string(ctx.config())?));
        Ok(messages.into())
    }
}

impl Grader<Config> for Tunable {
    fn grade(ctx: GradeContext<Config>) -> Result<Verdicts> {
        Ok(f64::from(ctx.config().max_turns).into())
    }
}

export!(workflow = Tunable, grader = Tunable, settings = Config);
