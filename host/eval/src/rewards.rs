//! Comparison of the rewards of an evaluation before and after it was graded again.

use std::collections::HashMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::lines::ResultLine;
use rollout_core::moments::Moments;
use rollout_wire::text::{beginning, printable};

/// Maximum number of bytes of a reason in the table.
const REASON_BYTES_MAX: usize = 100;

/// Maximum number of characters of a number that is shown with all its digits.
const SHOWN_CHARS: usize = 10;

/// Rewards of one rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// Index of the data set row.
    pub row: usize,
    /// Number of the attempt on that row, from 0.
    pub run: usize,
    /// The rollout's id.
    pub rollout_id: String,
    /// The earlier reward, if there was one.
    pub before: Option<f64>,
    /// The new reward, if there is one.
    pub after: Option<f64>,
    /// Kind of the failure if there is no new reward, as in the results; `not_in_journal` if the rollout
    /// could not be graded again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Description of the failure for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Kind of a rollout that is not in the journal.
pub(crate) const NOT_IN_JOURNAL: &str = "not_in_journal";

/// Rewards of all rollouts of an evaluation, in the order of rows and runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// The rewards of each rollout.
    pub rollouts: Vec<Reward>,
    /// Mean of the earlier rewards.
    pub mean_before: Option<f64>,
    /// Mean of the new rewards.
    pub mean_after: Option<f64>,
    /// Number of rollouts whose reward changed, appeared or disappeared.
    pub changed: usize,
    /// Number of rollouts whose replay differed from the recording.
    pub nondeterministic: usize,
    /// Number of rollouts that are not in the journal.
    pub not_in_journal: usize,
}

impl Rewards {
    /// Compares earlier and new results.
    pub fn of(before: &[ResultLine], after: &[ResultLine]) -> Self {
        let now: HashMap<(usize, usize), &ResultLine> =
            after.iter().map(|line| ((line.row, line.run), line)).collect();
        let mut rollouts: Vec<Reward> =
            before.iter().map(|then| Reward::of(then, now.get(&(then.row, then.run)).copied())).collect();
        rollouts.sort_by_key(|reward| (reward.row, reward.run));
        let mean =
            |of: fn(&Reward) -> Option<f64>| rollouts.iter().filter_map(of).collect::<Moments>().mean();
        let of_kind = |kind| rollouts.iter().filter(|reward| reward.kind.as_deref() == Some(kind)).count();
        Self {
            mean_before: mean(|reward| reward.before),
            mean_after: mean(|reward| reward.after),
            changed: rollouts.iter().filter(|reward| reward.before != reward.after).count(),
            nondeterministic: of_kind("nondeterministic"),
            not_in_journal: of_kind(NOT_IN_JOURNAL),
            rollouts,
        }
    }

    /// Renders a table with a line for each rollout and the means below it.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("{:>6} {:>4} {:>12} {:>12}\n", "row", "run", "before", "after");
        for reward in &self.rollouts {
            let Reward { row, run, before, after, kind, reason, .. } = reward;
            let mark = if before == after { "" } else { "  *" };
            let why = failure(kind.as_deref(), reason.as_deref());
            let _ =
                writeln!(text, "{row:>6} {run:>4} {:>12} {:>12}{mark}{why}", shown(*before), shown(*after));
        }
        let count = |of: fn(&Reward) -> Option<f64>| self.rollouts.iter().filter_map(of).count();
        let (before, after) = (count(|reward| reward.before), count(|reward| reward.after));
        let (was, is) = (shown(self.mean_before), shown(self.mean_after));
        let _ = writeln!(text, "{:>6} {:>4} {was:>12} {is:>12}", "mean", "");
        let _ = writeln!(text, "{:>6} {:>4} {before:>12} {after:>12}", "of", "");
        let _ = writeln!(text, "\n{} of {} rewards changed", self.changed, self.rollouts.len());
        if self.nondeterministic > 0 {
            let count = self.nondeterministic;
            let _ = writeln!(text, "{count} have no reward now because their workflow's replay differed");
        }
        if self.not_in_journal > 0 {
            let _ =
                writeln!(text, "{} were not graded because they are not in the journal", self.not_in_journal);
        }
        text
    }
}

impl Reward {
    fn of(before: &ResultLine, after: Option<&ResultLine>) -> Self {
        Self {
            row: before.row,
            run: before.run,
            rollout_id: before.rollout_id.clone(),
            before: before.reward,
            after: after.and_then(|line| line.reward),
            kind: after.map_or_else(|| Some(NOT_IN_JOURNAL.to_owned()), |line| line.kind.clone()),
            reason: after.and_then(|line| line.reason.clone()),
        }
    }
}

/// Formats a reward with all its digits, or with six after the point if it is long.
fn shown(reward: Option<f64>) -> String {
    let Some(reward) = reward else { return "none".to_owned() };
    let plain = reward.to_string();
    match reward.abs() {
        _ if plain.len() <= SHOWN_CHARS => plain,
        1e-4..1e6 => format!("{reward:.6}"),
        _ => format!("{reward:.6e}"),
    }
}

fn failure(kind: Option<&str>, reason: Option<&str>) -> String {
    let Some(kind) = kind else { return String::new() };
    let reason = reason.map_or_else(String::new, |reason| {
        format!(": {}", printable(&beginning(reason, REASON_BYTES_MAX)).replace('\n', " "))
    });
    format!("  {kind}{reason}")
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{scored, unscored};
    use super::*;

    #[test]
    fn rewards_are_compared_row_by_row_and_missing_ones_are_listed() {
        let before = [scored(1, 0, 1.0), scored(0, 1, 0.5), scored(0, 0, 0.25), scored(2, 0, 1.0)];
        let mut diverged = unscored(1, 0, "nondeterministic", "plugin");
        diverged.reason = Some("call 1, at move 3,\nasks something else".to_owned());
        let after = [scored(0, 0, 0.25), scored(0, 1, 0.75), diverged];

        let rewards = Rewards::of(&before, &after);

        assert_eq!((rewards.changed, rewards.nondeterministic, rewards.not_in_journal), (3, 1, 1));
        assert_eq!((rewards.mean_before, rewards.mean_after), (Some(0.6875), Some(0.5)));
        let text = rewards.render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "     0    0         0.25         0.25");
        assert_eq!(lines[2], "     0    1          0.5         0.75  *");
        let third = "     1    0            1         none  *  nondeterministic: call 1, at move 3, asks something else";
        assert_eq!(lines[3], third);
        assert_eq!(lines[4], "     2    0            1         none  *  not_in_journal");
        assert!(text.contains("3 of 4 rewards changed"), "{text}");
    }
}
