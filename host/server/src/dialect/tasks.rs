//! Tasks of an environment, which protocols list for their callers.

use serde_json::{Map, Value};

use rollout_rollout::{DescribeError, EnvironmentFacts, Host};

/// Maximum number of tasks in one answer. The plugin returns each in an instance of its own.
const TASKS_MAX: u64 = 1000;

/// Error of a list of tasks.
#[derive(Debug, thiserror::Error)]
pub(super) enum TasksError {
    /// There is no such split.
    #[error("unknown split '{name}'; there are: {names}")]
    NoSplit {
        /// The requested name.
        name: String,
        /// The names that exist.
        names: String,
    },
    /// The list is too long.
    #[error("{0} tasks are more than the {TASKS_MAX} of one answer; use task_range")]
    TooMany(u64),
    /// The environment returned no task.
    #[error(transparent)]
    Describe(#[from] DescribeError),
}

/// Returns the number of tasks of a split.
pub(super) fn count_of(facts: &EnvironmentFacts, name: &str) -> Result<u64, TasksError> {
    let split = facts.splits.iter().find(|split| split.name == name);
    split.map(|split| split.tasks).ok_or_else(|| {
        let names: Vec<&str> = facts.splits.iter().map(|split| &*split.name).collect();
        TasksError::NoSplit { name: name.to_owned(), names: names.join(", ") }
    })
}

/// Returns a bound of a slice by Python's rules: a negative one counts from the end.
pub(super) fn in_slice(bound: i64, count: u64) -> u64 {
    let from_end = count.saturating_sub(bound.unsigned_abs());
    if bound < 0 { from_end } else { bound.unsigned_abs().min(count) }
}

/// Returns a task.
pub(super) async fn task_of(host: &Host, split: &str, index: u64) -> Result<Map<String, Value>, TasksError> {
    Ok(host.environment_task(split, index).await?)
}

/// Returns the tasks with these indices.
pub(super) async fn tasks_of(host: &Host, split: &str, from: u64, to: u64) -> Result<Vec<Value>, TasksError> {
    let count = to.saturating_sub(from);
    if count > TASKS_MAX {
        return Err(TasksError::TooMany(count));
    }
    let mut tasks = Vec::new();
    for index in from..to {
        tasks.push(task_of(host, split, index).await?.into());
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_tasks_are_those_of_python() {
        let check = |bound, expected| assert_eq!(in_slice(bound, 4), expected, "{bound}");
        check(0, 0);
        check(3, 3);
        check(9, 4);
        check(-1, 3);
        check(-9, 0);
    }
}
