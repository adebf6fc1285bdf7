//! An environment with a tool and a grader, and with actions that misbehave.

use std::time::{SystemTime, UNIX_EPOCH};

use rollout_sdk::*;
use rollout_test_guests::random_number;

/// Instruction for a step.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Do {
    what: String,
}

/// Everything that the environment was given.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct Given {
    text: String,
    arguments: Value,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Add {
    number: i64,
}

struct Acts {
    total: i64,
    /// Everything that came from outside of the instance.
    drawn: Vec<String>,
}

impl Acts {
    fn says(text: impl Into<String>) -> Turn<Given> {
        Turn::new(Given { text: text.into(), arguments: json!({}) })
    }

    /// Draws a random number, reads the clock and calls the host's tool `ask`.
    fn draw(&mut self) -> Turn<Given> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let call = ToolCall { id: "ask-1".to_owned(), name: "ask".to_owned(), arguments: "{}".to_owned() };
        let answer =
            host_tools::execute(&[call]).into_iter().map(|result| result.content).collect::<String>();
        self.drawn.push(format!("{} {now} {answer}", random_number()));
        Self::says(self.drawn.join(", "))
    }
}

impl Environment for Acts {
    type Action = Do;
    type Observation = Given;
    const NAME: &str = "acts";
    const DESCRIPTION: &str = "Does what it is told.";

    fn reset(episode: EpisodeStart) -> Result<(Self, Turn<Given>)> {
        let arguments: Value = episode.arguments()?;
        if arguments.get("fail").is_some() {
            return Err(Error::invalid("it should fail"));
        }
        Ok((Self { total: 0, drawn: Vec::new() }, Turn::new(Given { text: "ready".to_owned(), arguments })))
    }

    fn step(&mut self, Do { what }: Do) -> Result<Turn<Given>> {
        match what.as_str() {
            "panic" => panic!("told to panic"),
            "spin" => loop {
                std::hint::black_box(());
            },
            "nan" => Ok(Self::says("nan").reward(f64::NAN)),
            "fail" => Err(Error::failed("told to fail")),
            "draw" => Ok(self.draw()),
            "end" => Ok(Self::says(format!("total {}", self.total)).done()),
            other => Ok(Self::says(other).reward(7.0)),
        }
    }

    fn state(&self) -> Value {
        json!({"total": self.total})
    }

    fn tools() -> Vec<EnvironmentTool<Self>> {
        let add = |acts: &mut Self, Add { number }: Add| {
            acts.total += number;
            Ok(Turn::new(acts.total))
        };
        vec![EnvironmentTool::new("add", "Adds a number to the total.", add)]
    }
}

/// Pays 1 if the last observation has the label's total.
impl Grader for Acts {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let label = format!("total {}", ctx.require_label()?);
        let last = ctx.sample()?.messages().last().map(Message::text).unwrap_or_default();
        Ok(last.contains(&label).into())
    }
}

export!(environment = Acts, grader = Acts);
