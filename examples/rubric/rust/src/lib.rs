//! A judge as the reward function: the model explains something, and another model rates the explanation by a
//! rubric.
//!
//! The operator provides the judge. If it fails, `?` leaves the rollout without a reward.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// Configuration of the plugin.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// The rubric.
    rubric: String,
    /// The highest score that the judge may give; the lowest is 0.
    #[schemars(range(min = 1.0))]
    score_max: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rubric: "The answer names the right fact, and explains it in words that a child of ten \
                     understands."
                .into(),
            score_max: 10.0,
        }
    }
}

struct Explained;

impl Workflow<Config> for Explained {
    fn run(ctx: Context<Config>) -> Result<Output> {
        Ok(ctx.agent()?.system("Answer in two or three plain sentences.").run()?.into())
    }
}

impl Grader<Config> for Explained {
    fn grade(ctx: GradeContext<Config>) -> Result<Verdicts> {
        let Config { rubric: text, score_max } = ctx.config();
        let sample = ctx.sample()?;
        let asked = sample.messages().iter().find(|message| message.role() == "user");
        let rating = rubric(text)
            .range(0.0..=*score_max)
            .input(asked.map(Message::text).unwrap_or_default())
            .truth(ctx.require_label()?)
            .rate(&sample.text())?;

        log::info(format_args!("{} of {score_max}: {}", rating.score, rating.explanation));
        Ok(sample.reward(rating.score / score_max).metric("judge_score", rating.score).into())
    }
}

export!(workflow = Explained, grader = Explained, settings = Config);
