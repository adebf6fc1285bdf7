//! An environment over arithmetic tasks: the model guesses the result and learns whether it is higher or lower, until it
//! has found it or used up its guesses. Fewer guesses earn a higher reward.

use rollout_sdk::*;

/// Number of guesses in an episode.
const GUESSES_MAX: u32 = 8;

/// The tasks, one row a line.
const ROWS: &str = include_str!("../../rows.jsonl");

/// Number of tasks that train; the others test.
const TRAIN_TASKS: usize = 12;

/// A guess.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Guess {
    /// The number.
    number: f64,
}

/// Answer to the model.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct Hint {
    /// The task, or the answer to the last guess.
    text: String,
    /// Number of guesses that are left.
    guesses_left: u32,
}

/// A row of the data set.
#[derive(serde::Deserialize)]
struct Row {
    user_prompt: String,
    ground_truth: String,
}

/// Arguments of a reset: a row, or the name of a task.
#[derive(serde::Deserialize)]
struct Arguments {
    user_prompt: Option<String>,
    ground_truth: Option<String>,
    #[serde(default = "train")]
    split: String,
    index: Option<u64>,
}

fn train() -> String {
    "train".to_owned()
}

struct NumberHunt {
    hidden: f64,
    guesses: Vec<f64>,
}

impl NumberHunt {
    fn guesses_left(&self) -> u32 {
        GUESSES_MAX.saturating_sub(self.guesses.len() as u32)
    }

    fn hint(&self, text: impl Into<String>) -> Turn<Hint> {
        Turn::new(Hint { text: text.into(), guesses_left: self.guesses_left() })
    }
}

/// Returns the rows of a split.
fn rows(split: &str) -> Result<Vec<&'static str>> {
    let rows: Vec<&str> = ROWS.lines().collect();
    let (train, test) = rows.split_at(TRAIN_TASKS);
    match split {
        "train" => Ok(train.to_vec()),
        "test" => Ok(test.to_vec()),
        other => Err(Error::invalid(format_args!("there is no split '{other}'; there are: train, test"))),
    }
}

/// Returns a row of a split.
fn row(split: &str, index: u64) -> Result<Row> {
    let rows = rows(split)?;
    let row = usize::try_from(index).ok().and_then(|index| rows.get(index));
    let row = row.ok_or_else(|| {
        Error::invalid(format_args!("the split '{split}' has no task {index}; it has {}", rows.len()))
    })?;
    serde_json::from_str(row).or_invalid("a row of the component")
}

impl Environment for NumberHunt {
    type Action = Guess;
    type Observation = Hint;
    const NAME: &str = "number-hunt";
    const DESCRIPTION: &str = "Find the result of an arithmetic problem with hints: higher or lower.";

    fn reset(episode: EpisodeStart) -> Result<(Self, Turn<Hint>)> {
        let arguments: Arguments = episode.arguments()?;
        let row = match (arguments.user_prompt, arguments.ground_truth) {
            (Some(user_prompt), Some(ground_truth)) => Row { user_prompt, ground_truth },
            (None, Some(_)) => return Err(Error::invalid("a row needs user_prompt")),
            (_, None) => {
                // Without a task, the seed selects one.
                let tasks = rows(&arguments.split)?.len() as u64;
                row(&arguments.split, arguments.index.unwrap_or(episode.seed().unwrap_or_default() % tasks))?
            }
        };
        let hidden = parse_number(&row.ground_truth);
        let hidden = hidden.ok_or_else(|| Error::invalid("ground_truth: it is not a number"))?;
        let hunt = Self { hidden, guesses: Vec::new() };
        let turn = hunt.hint(row.user_prompt);
        Ok((hunt, turn))
    }

    fn step(&mut self, Guess { number }: Guess) -> Result<Turn<Hint>> {
        self.guesses.push(number);
        if (number - self.hidden).abs() < 1e-9 {
            let reward = 1.0 / self.guesses.len() as f64;
            return Ok(self.hint("That is it.").reward(reward).done());
        }
        if self.guesses_left() == 0 {
            return Ok(self.hint("That was the last guess.").reward(0.0).done());
        }
        Ok(self.hint(if number < self.hidden { "The number is higher." } else { "The number is lower." }))
    }

    fn state(&self) -> Value {
        json!({"guesses": self.guesses})
    }

    fn splits() -> Vec<Split> {
        let tasks = ROWS.lines().count();
        vec![
            Split::new("train", SplitKind::Train, TRAIN_TASKS as u64),
            Split::new("test", SplitKind::Test, (tasks - TRAIN_TASKS) as u64),
        ]
    }

    fn task(split: &str, index: u64) -> Result<Value> {
        // The label stays here: a reset finds it by the task's name.
        let Row { user_prompt, ground_truth: _ } = row(split, index)?;
        Ok(json!({"split": split, "index": index, "user_prompt": user_prompt}))
    }
}

export!(environment = NumberHunt);
