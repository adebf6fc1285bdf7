//! An environment of many turns: the model walks through a text word by word, takes notes, and answers how often a letter
//! appears. The label goes to the grader only.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of steps of an episode.
const STEPS_MAX: u32 = 60;

/// The tasks, one row a line.
const ROWS: &str = include_str!("../../rows.jsonl");

/// Number of tasks that train; the others test.
const TRAIN_TASKS: usize = 16;

/// The arguments of a reset: a row. The host has taken its label out.
#[derive(Deserialize)]
struct Task {
    user_prompt: String,
}

/// The first observation.
#[derive(Serialize, JsonSchema)]
struct Opening {
    /// The task.
    text: String,
    /// Number of words of the text.
    words: usize,
}

/// A word of the text.
#[derive(Serialize, JsonSchema)]
struct Word {
    /// Its index, from 0.
    place: usize,
    word: String,
    /// The model's note about it.
    note: Option<u32>,
}

/// Arguments of `go`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Go {
    /// The index of a word, from 0.
    place: usize,
}

/// Arguments of `note` and `answer`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Count {
    /// How often the letter appears.
    count: u32,
}

/// The model's answer, which ends the episode.
#[derive(Deserialize, Serialize)]
struct Answer {
    answer: u32,
}

/// An episode.
struct WordWalk {
    letter: String,
    words: Vec<String>,
    notes: Vec<Option<u32>>,
    place: usize,
    steps: u32,
}

impl WordWalk {
    /// Returns a value as the result of a step.
    fn turn<T>(&mut self, value: T) -> Turn<T> {
        self.steps += 1;
        let turn = Turn::new(value);
        if self.steps >= STEPS_MAX { turn.done() } else { turn }
    }

    fn word(&self) -> Word {
        Word { place: self.place, word: self.words[self.place].clone(), note: self.notes[self.place] }
    }

    fn go(&mut self, Go { place }: Go) -> Result<Turn<Word>> {
        if place >= self.words.len() {
            return Err(Error::invalid(format_args!(
                "there is no word {place}; the text has {}",
                self.words.len()
            )));
        }
        self.place = place;
        let word = self.word();
        Ok(self.turn(word))
    }

    fn spell(&mut self, (): ()) -> Result<Turn<Vec<String>>> {
        let letters = self.words[self.place].chars().map(String::from).collect();
        Ok(self.turn(letters))
    }

    fn note(&mut self, Count { count }: Count) -> Result<Turn<Word>> {
        self.notes[self.place] = Some(count);
        let word = self.word();
        Ok(self.turn(word))
    }

    fn sum(&mut self, (): ()) -> Result<Turn<u32>> {
        let sum = self.notes.iter().flatten().fold(0, |sum: u32, count| sum.saturating_add(*count));
        Ok(self.turn(sum))
    }

    fn answer(&mut self, Count { count }: Count) -> Result<Turn<Answer>> {
        Ok(self.turn(Answer { answer: count }).done())
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

impl Environment for WordWalk {
    type Action = ToolsOnly;
    type Observation = Opening;
    const NAME: &str = "word-walk";
    const DESCRIPTION: &str =
        "Walk through a text word by word, and answer how often a letter appears in it.";

    fn reset(episode: EpisodeStart) -> Result<(Self, Turn<Opening>)> {
        let Task { user_prompt } = episode.arguments()?;
        // How many times does the letter "p" appear in the text: "to the poles"?
        let parts: Vec<&str> = user_prompt.split('"').collect();
        let [_, letter, _, text, _] = parts[..] else {
            return Err(Error::invalid("user_prompt: it has no letter and text in quotation marks"));
        };
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(Error::invalid("user_prompt: its text is empty"));
        }
        let notes = vec![None; words.len()];
        let walk = Self { letter: letter.to_owned(), words, notes, place: 0, steps: 0 };
        let text = format!(
            "How many times does the letter \"{letter}\" appear in the text? Read its words one by one."
        );
        let words = walk.words.len();
        Ok((walk, Turn::new(Opening { text, words })))
    }

    fn step(&mut self, action: ToolsOnly) -> Result<Turn<Opening>> {
        match action {}
    }

    fn tools() -> Vec<EnvironmentTool<Self>> {
        vec![
            EnvironmentTool::new("go", "Goes to a word and reads it.", Self::go),
            EnvironmentTool::new("spell", "Lists the letters of the current word.", Self::spell),
            EnvironmentTool::new("note", "Notes how often the letter is in the current word.", Self::note),
            EnvironmentTool::new("sum", "Returns the sum of the notes.", Self::sum),
            EnvironmentTool::new("answer", "Answers, which ends the episode.", Self::answer),
        ]
    }

    fn state(&self) -> Value {
        json!({"letter": self.letter, "place": self.place, "notes": self.notes, "steps": self.steps})
    }

    fn splits() -> Vec<Split> {
        let tests = ROWS.lines().count() - TRAIN_TASKS;
        vec![
            Split::new("train", SplitKind::Train, TRAIN_TASKS as u64),
            Split::new("test", SplitKind::Test, tests as u64),
        ]
    }

    fn task(split: &str, index: u64) -> Result<Value> {
        let rows = rows(split)?;
        let row = usize::try_from(index).ok().and_then(|index| rows.get(index));
        let row = row.ok_or_else(|| {
            Error::invalid(format_args!("the split '{split}' has no task {index}; it has {}", rows.len()))
        })?;
        let row: Value = serde_json::from_str(row).or_invalid("a row of the component")?;
        Ok(json!({"user_prompt": row["user_prompt"], "ground_truth": row["ground_truth"]}))
    }
}

/// Rewards the right answer with 1. An episode without an answer counts as wrong. If the model called several tools at
/// once, results of other tools may follow the answer.
impl Grader for WordWalk {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let label = ctx.require_label()?;
        let sample = ctx.sample()?;
        let results = sample.messages().iter().rev().filter(|message| message.role() == "tool");
        let answer = results.map(Message::text).find_map(|text| serde_json::from_str::<Answer>(&text).ok());
        Ok(answer.is_some_and(|Answer { answer }| same_number(&answer.to_string(), label)).into())
    }
}

export!(environment = WordWalk, grader = WordWalk);
