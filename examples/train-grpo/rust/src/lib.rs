//! An environment for the same sums as the plugin `calculator`: the trainer's model calls the calculator, and its answer ends
//! the episode. The label goes to the grader only.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of calls of an episode.
const CALLS_MAX: u32 = 8;

/// The arguments of a reset: a row. The host has taken its label out.
#[derive(Deserialize)]
struct Task {
    user_prompt: String,
}

/// The first observation.
#[derive(Serialize, JsonSchema)]
struct Question {
    /// The task.
    text: String,
}

/// Arguments of `calculator`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sum {
    /// Whole numbers with `+` and `-` between them.
    expression: String,
}

/// The model's answer, which ends the episode.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Answer {
    /// A text with the number after `####`.
    answer: String,
}

/// An episode.
struct Sums {
    calls: u32,
}

impl Sums {
    fn calculator(&mut self, Sum { expression }: Sum) -> Result<Turn<String>> {
        self.calls += 1;
        let value =
            sum(&expression).ok_or_else(|| Error::invalid(format_args!("not a sum: {expression}")))?;
        let turn = Turn::new(value.to_string());
        Ok(if self.calls >= CALLS_MAX { turn.done() } else { turn })
    }

    fn answer(&mut self, answer: Answer) -> Result<Turn<Answer>> {
        Ok(Turn::new(answer).done())
    }
}

/// Computes a sum. Returns `None` for any other text, and for numbers that are too large.
fn sum(text: &str) -> Option<i64> {
    let text = text.replace(' ', "").replace('-', "+-");
    text.trim_start_matches('+').split('+').try_fold(0_i64, |sum, term| sum.checked_add(term.parse().ok()?))
}

impl Environment for Sums {
    type Action = ToolsOnly;
    type Observation = Question;
    const NAME: &str = "sums";
    const DESCRIPTION: &str = "Answer a sum. A calculator is there.";

    fn reset(episode: EpisodeStart) -> Result<(Self, Turn<Question>)> {
        let Task { user_prompt } = episode.arguments()?;
        Ok((Self { calls: 0 }, Turn::new(Question { text: user_prompt })))
    }

    fn step(&mut self, action: ToolsOnly) -> Result<Turn<Question>> {
        match action {}
    }

    fn tools() -> Vec<EnvironmentTool<Self>> {
        vec![
            EnvironmentTool::new("calculator", "Works out a sum.", Self::calculator),
            EnvironmentTool::new("answer", "Answers, which ends the episode.", Self::answer),
        ]
    }
}

/// Rewards the right number after `####` in the answer with 1. An episode without an answer counts as wrong.
impl Grader for Sums {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let label = ctx.require_label()?;
        let sample = ctx.sample()?;
        let results = sample.messages().iter().rev().filter(|message| message.role() == "tool");
        let answer = results.map(Message::text).find_map(|text| serde_json::from_str::<Answer>(&text).ok());
        let number = answer.as_ref().and_then(|answer| answer_after(&answer.answer, "####"));
        Ok(number.is_some_and(|number| same_number(number, label)).into())
    }
}

export!(environment = Sums, grader = Sums);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_worked_out_and_other_texts_are_not() {
        let check = |text: &str, expected: Option<i64>| assert_eq!(sum(text), expected, "{text}");
        check("44 - 42", Some(2));
        check("-3+5 - 1", Some(1));
        check("7", Some(7));
        check("2 * 3", None);
        check("", None);
        check("9223372036854775807 + 1", None);
    }
}
