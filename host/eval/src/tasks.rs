//! The tasks of an environment's split as rows, and a row as the arguments of a reset.

use rollout_rollout::{DescribeError, Host, Reset, reset_arguments, take_label};
use rollout_wire::digest::sha256_hex;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use crate::rows::{DataSet, Row, Selection};

/// Maximum number of selected tasks of a split. Each task is read in an instance of its own and stays in memory, and an
/// environment may claim any number of tasks.
const TASKS_MAX: u64 = 1_000_000;

/// Members of a task that may contain a text for people. The first one that exists is shown.
const TEXTS: [&str; 5] = ["user_prompt", "prompt", "question", "problem", "text"];

/// Error of reading tasks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TasksError {
    /// The environment did not describe itself, or did not return a task.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// The environment has no such split.
    #[error("the environment '{environment}' has no split '{split}'; {there_are}")]
    NoSplit {
        /// The environment's name.
        environment: String,
        /// The split.
        split: String,
        /// The splits that it has, as a sentence.
        there_are: String,
    },
    /// More tasks of the split are selected than are read.
    #[error(
        "the split '{split}' of the environment has {tasks} tasks, and at most {TASKS_MAX} are read; select fewer with --limit, \
         without --shuffle, or give rows with --data FILE"
    )]
    TooMany {
        /// The split.
        split: String,
        /// Number of its tasks, as the environment states it.
        tasks: u64,
    },
    /// The split has no tasks.
    #[error("the split '{0}' of the environment has no tasks")]
    Empty(String),
    /// The split has no such task.
    #[error("{split} has {tasks} rows, counted from 0")]
    NoTask {
        /// The split.
        split: String,
        /// Number of its tasks.
        tasks: u64,
    },
    /// A task could not be stored.
    #[error("a task of the split is no row: {0}")]
    NoRow(#[from] serde_json::Error),
}

/// Returns the number of tasks of a split.
async fn count_of(host: &Host, split: &str) -> Result<u64, TasksError> {
    let facts = host.environment().await?;
    let Some(found) = facts.splits.iter().find(|each| each.name == split) else {
        let names: Vec<&str> = facts.splits.iter().map(|each| each.name.as_str()).collect();
        let there_are = if names.is_empty() {
            "it has none".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        return Err(TasksError::NoSplit {
            environment: facts.name.clone(),
            split: split.to_owned(),
            there_are,
        });
    };
    if found.tasks == 0 {
        return Err(TasksError::Empty(split.to_owned()));
    }
    Ok(found.tasks)
}

/// Reads one task of a split, and no other. With a grader, its label is the row's.
pub async fn load_one(host: &Host, split: &str, index: usize) -> Result<Row, TasksError> {
    let tasks = count_of(host, split).await?;
    let number = u64::try_from(index).ok().filter(|number| *number < tasks);
    let Some(number) = number else { return Err(TasksError::NoTask { split: split.to_owned(), tasks }) };
    let task = host.environment_task(split, number).await?;
    Ok(row(index, task, host.grader().is_some())?)
}

/// Reads the selected tasks of a split, and returns them with the number of all. With a grader, the label of a task is the
/// row's, and the environment does not see it.
///
/// The digest is that of the split: its tasks are the component's, which has a digest of its own.
pub async fn load(host: &Host, split: &str, selected: Selection) -> Result<(DataSet, u64), TasksError> {
    let tasks = count_of(host, split).await?;
    if selected.reads(tasks) > TASKS_MAX {
        return Err(TasksError::TooMany { split: split.to_owned(), tasks });
    }
    let digest = sha256_hex(format!("{split}\n{tasks}\n").as_bytes());
    let mut rows = Vec::new();
    for index in selected.indices(usize::try_from(tasks).unwrap_or(usize::MAX)) {
        let task = host.environment_task(split, index as u64).await?;
        rows.push(row(index, task, host.grader().is_some())?);
    }
    Ok((DataSet { rows, digest }, tasks))
}

impl Row {
    /// Returns the reset of an environment with this row's arguments.
    pub fn reset(&self) -> Reset {
        let prompt = self.prompt.iter().map(|message| message.get());
        let metadata = self.metadata.as_deref().map(|metadata| metadata.get());
        let (seed, arguments) = reset_arguments(prompt, metadata, self.label.as_deref());
        Reset { seed, arguments, episode_id: None }
    }
}

fn row(index: usize, mut task: Map<String, Value>, is_graded: bool) -> Result<Row, serde_json::Error> {
    let mut public = task.clone();
    let label = take_label(&mut public);
    let text = TEXTS.iter().find_map(|name| public.get(*name).and_then(Value::as_str)).map(str::to_owned);
    let text = text.unwrap_or_else(|| Value::Object(public.clone()).to_string());
    if is_graded {
        task = public;
    }
    Ok(Row {
        index,
        prompt: vec![to_raw_value(&json!({"role": "user", "content": text}))?],
        label: label.filter(|_| is_graded),
        metadata: Some(to_raw_value(&json!({"task": task}))?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Map<String, Value> {
        let task = json!({"question": "1 + 1?", "answer": 2, "split": "train"});
        task.as_object().cloned().unwrap()
    }

    #[test]
    fn the_label_of_a_task_is_the_graders_or_stays_with_the_environment() {
        let graded = row(3, task(), true).unwrap();
        assert_eq!((graded.index, graded.label.as_deref()), (3, Some("2")));
        assert_eq!(graded.prompt[0].get(), r#"{"role":"user","content":"1 + 1?"}"#);
        let metadata: Value = serde_json::from_str(graded.metadata.unwrap().get()).unwrap();
        assert_eq!(metadata, json!({"task": {"question": "1 + 1?", "split": "train"}}));

        let own = row(0, task(), false).unwrap();
        assert_eq!(own.label, None);
        assert!(
            !own.prompt[0].get().contains("answer") && own.metadata.unwrap().get().contains("\"answer\":2")
        );
    }

    #[test]
    fn a_task_without_a_text_is_shown_as_json_without_its_label() {
        let Value::Object(task) = json!({"ground_truth": "x", "n": 1}) else { panic!("an object") };
        assert!(row(0, task, false).unwrap().prompt[0].get().contains(r#"{\"n\":1}"#));
    }
}
