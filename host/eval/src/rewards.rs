//! Rewards of an evaluation before and after it was graded again: as data, and as a table.

use std::collections::HashMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::results::ResultLine;
use rollout_core::moments::Moments;
use rollout_core::text::{beginning, printable};

/// How much of a reason a line of the table has, in bytes.
const REASON_BYTES_MAX: usize = 100;

/// Characters of a number that is shown whole.
const SHOWN_CHARS: usize = 10;

/// What became of one rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// The data set row, from 0.
    pub row: usize,
    /// Which of the attempts on that row, from 0.
    pub run: usize,
    /// The rollout's id.
    pub rollout_id: String,
    /// Its reward before; none where it had none.
    pub before: Option<f64>,
    /// Its reward now, likewise.
    pub after: Option<f64>,
    /// Why it has none now: the kind, as in the results; `not_in_journal` where it could not be graded
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The same, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The kind of a rollout of which the journal has nothing.
pub(crate) const NOT_IN_JOURNAL: &str = "not_in_journal";

/// All of an evaluation, in the order of rows and runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// Each rollout's.
    pub rollouts: Vec<Reward>,
    /// The mean over those that had one before.
    pub mean_before: Option<f64>,
    /// The mean over those that have one now.
    pub mean_after: Option<f64>,
    /// How many have another one now, or had one or have one where the other is not.
    pub changed: usize,
    /// How many did not do again what they did.
    pub nondeterministic: usize,
    /// How many are not in the journal.
    pub not_in_journal: usize,
}

impl Rewards {
    /// What these results were and are.
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

    /// The table that a person reads, a line a rollout, with the sums below it.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("{:>6} {:>4} {:>12} {:>12}\n", "row", "run", "before", "after");
        for reward in &self.rollouts {
            let Reward { row, run, before, after, kind, reason, .. } = reward;
            let mark = if before == after { "" } else { "  *" };
            let why = why(kind.as_deref(), reason.as_deref());
            let _ =
                writeln!(text, "{row:>6} {run:>4} {:>12} {:>12}{mark}{why}", shown(*before), shown(*after));
        }
        let count = |of: fn(&Reward) -> Option<f64>| self.rollouts.iter().filter_map(of).count();
        let (before, after) = (count(|reward| reward.before), count(|reward| reward.after));
        let (was, is) = (shown(self.mean_before), shown(self.mean_after));
        let _ = writeln!(text, "{:>6} {:>4} {was:>12} {is:>12}", "mean", "");
        let _ = writeln!(text, "{:>6} {:>4} {before:>12} {after:>12}", "of", "");
        let _ = writeln!(text, "\n{} of {} rewards are others now", self.changed, self.rollouts.len());
        if self.nondeterministic > 0 {
            let count = self.nondeterministic;
            let _ = writeln!(text, "{count} did not do again what they did, and have no reward now");
        }
        if self.not_in_journal > 0 {
            let _ = writeln!(text, "{} are not in the journal, and were not graded", self.not_in_journal);
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

/// Rewards are compared by eye: as many digits as they have, or six behind the point.
fn shown(reward: Option<f64>) -> String {
    let Some(reward) = reward else { return "none".to_owned() };
    let plain = reward.to_string();
    match reward.abs() {
        _ if plain.len() <= SHOWN_CHARS => plain,
        1e-4..1e6 => format!("{reward:.6}"),
        _ => format!("{reward:.6e}"),
    }
}

fn why(kind: Option<&str>, reason: Option<&str>) -> String {
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
    fn rewards_are_compared_row_by_row_and_what_is_missing_is_said() {
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
        assert!(text.contains("3 of 4 rewards are others now"), "{text}");
    }
}
