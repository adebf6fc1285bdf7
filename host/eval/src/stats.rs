//! Figures of an evaluation: rewards, pass@k, what was not scored and why, cost.
//!
//! A [`Tally`] takes result lines one by one, in any order, and can say at any time how
//! things stand; a [`Summary`] is what it says at the end. An unscored attempt has no
//! part in any figure about rewards: it is neither a pass nor a failure. What that leaves
//! out is said beside the figure, and for pass@k also what it would be if every such
//! attempt had failed.
//!
//! Errors are standard errors over rows, because the rows are the sample: another
//! evaluation of the same kind would have other rows, and the attempts on one row have
//! that row in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::results::{Outcome, ResultLine};
use rollout_core::imports::RefusedKind;
use rollout_core::moments::{Moments, clustered_error};

/// The kind under which an unscored attempt is counted that names none.
pub(crate) const KIND_UNKNOWN: &str = "unknown";

/// The figures of one evaluation, as `summary.json` has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Rows with at least one finished rollout.
    pub rows: usize,
    /// Rows that are to be run; more than `rows` where the run was stopped.
    #[serde(default)]
    pub rows_planned: usize,
    /// Attempts asked for on each row.
    pub n: usize,
    /// Finished rollouts, scored or not.
    pub rollouts: usize,
    /// Rollouts that are to be run; more than `rollouts` where the run was stopped.
    #[serde(default)]
    pub rollouts_planned: usize,
    /// Rollouts with a reward.
    pub scored: usize,
    /// Scored rollouts with a reward of at least `pass_threshold`.
    pub passed: usize,
    /// Rollouts without a reward.
    pub unscored: usize,
    /// The same, by kind of failure; `KIND_UNKNOWN` where a result names none.
    pub unscored_by_kind: BTreeMap<String, UnscoredKind>,
    /// Rollouts in which the guests' own runtimes refused something, by what that was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_uses: BTreeMap<RefusedKind, Suspects>,
    /// Rollouts with a sample without a reply of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_unanswered: Option<Suspects>,
    /// The least reward that counts as a pass.
    pub pass_threshold: f64,
    /// By k; see `ks`.
    pub pass_at_k: BTreeMap<usize, PassAtK>,
    /// Over scored rollouts; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardStats>,
    /// Mean of each metric over the rollouts that report it, scored or not.
    pub metrics: BTreeMap<String, f64>,
    /// Model calls of all rollouts.
    pub chat_calls: u64,
    /// Tries of those after the first.
    #[serde(default)]
    pub chat_retries: u64,
    /// Prompt tokens of all rollouts.
    pub prompt_tokens: u64,
    /// Completion tokens of all rollouts.
    pub completion_tokens: u64,
    /// Wall time of a rollout, over all rollouts, scored or not; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<Latency>,
    /// Wall time of the command that wrote this, in seconds; of an evaluation that was
    /// resumed, only of its last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_secs: Option<f64>,
}

/// The probability that at least one of k attempts passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassAtK {
    /// The mean of `pass_at_k` over the rows with at least k scored attempts, in 0..=1;
    /// absent if there is no such row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<f64>,
    /// Its standard error over those rows; absent if there are fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// How many rows that is.
    pub rows: usize,
    /// Rows that have finished rollouts and fewer than k scored ones, and so no part in it.
    pub rows_left_out: usize,
    /// The same where every unscored attempt counts as a failure. There only if there are
    /// unscored ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unscored_as_failed: Option<Estimate>,
}

/// A mean over rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub estimate: f64,
    /// Its standard error; absent if there are fewer than two rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// How many rows.
    pub rows: usize,
}

impl Estimate {
    /// Of one value a row; none of no rows.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Moments = values.into_iter().collect();
        let (estimate, standard_error) = (values.mean()?, values.standard_error());
        Some(Self { estimate, standard_error, rows: usize::try_from(values.count()).unwrap_or(usize::MAX) })
    }
}

/// Unscored rollouts of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnscoredKind {
    /// How many.
    pub rollouts: usize,
    /// How many by whose fault it was: `plugin`, `model`, `host` or `caller`. A result
    /// that names none is in `rollouts` only.
    pub faults: BTreeMap<String, usize>,
    /// The reason of the first one, in its own words, which may be a guest's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_reason: Option<String>,
    /// The id of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_rollout: Option<String>,
}

/// Rollouts whose rewards may mean nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspects {
    /// How many.
    pub rollouts: usize,
    /// Where it was in the first of them, in a guest's words, where that is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub first: String,
    /// The id of that one.
    pub first_rollout: String,
}

impl Suspects {
    fn add(&mut self, place: &str, line: &ResultLine) {
        if self.rollouts == 0 {
            place.clone_into(&mut self.first);
            line.rollout_id.clone_into(&mut self.first_rollout);
        }
        self.rollouts += 1;
    }
}

/// Spread of the rewards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardStats {
    /// Arithmetic mean.
    pub mean: f64,
    /// Its standard error, clustered by row; absent if fewer than two rows have a reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Standard deviation of the population, not of a sample: divided by the count.
    pub std: f64,
    /// Least.
    pub min: f64,
    /// Middle one, or mean of the two middle ones.
    pub median: f64,
    /// Greatest.
    pub max: f64,
}

/// Percentiles in milliseconds, by nearest rank (`percentile`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half took at most this, ms.
    pub p50: f64,
    /// 90 of 100 took at most this, ms.
    pub p90: f64,
    /// 99 of 100 took at most this, ms.
    pub p99: f64,
}

#[cfg(test)]
impl Summary {
    /// The figures of `lines`, with `n` attempts asked for on each row.
    #[must_use]
    pub(crate) fn from_lines(lines: &[ResultLine], n: usize, pass_threshold: f64) -> Self {
        let mut tally = Tally::new(n, pass_threshold);
        for line in lines {
            tally.add(line);
        }
        tally.summary()
    }
}

/// Results so far. Keeps a few numbers of each rollout, not its line.
#[derive(Clone, Debug)]
pub struct Tally {
    n: usize,
    rows_planned: usize,
    pass_threshold: f64,
    rollouts: usize,
    rewards: Moments,
    passed: usize,
    by_row: BTreeMap<usize, RowTally>,
    unscored_by_kind: BTreeMap<String, UnscoredKind>,
    refused_uses: BTreeMap<RefusedKind, Suspects>,
    samples_unanswered: Option<Suspects>,
    metrics: BTreeMap<String, Moments>,
    chat_calls: u64,
    chat_retries: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    durations_ms: Vec<f64>,
}

#[derive(Clone, Debug, Default)]
struct RowTally {
    finished: usize,
    passed: usize,
    rewards: Vec<f64>,
}

impl Tally {
    /// Nothing yet, with `n` attempts asked for on each row and the least reward that
    /// counts as a pass.
    #[must_use]
    pub fn new(n: usize, pass_threshold: f64) -> Self {
        Self {
            n,
            rows_planned: 0,
            pass_threshold,
            rollouts: 0,
            rewards: Moments::default(),
            passed: 0,
            by_row: BTreeMap::new(),
            unscored_by_kind: BTreeMap::new(),
            refused_uses: BTreeMap::new(),
            samples_unanswered: None,
            metrics: BTreeMap::new(),
            chat_calls: 0,
            chat_retries: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            durations_ms: Vec::new(),
        }
    }

    /// The same, of so many rows that are to be run.
    #[must_use]
    pub fn of_rows(self, rows_planned: usize) -> Self {
        Self { rows_planned, ..self }
    }

    /// Counts one rollout. Each is to be given once.
    pub fn add(&mut self, line: &ResultLine) {
        self.rollouts += 1;
        let row = self.by_row.entry(line.row).or_default();
        row.finished += 1;
        match (line.outcome, line.reward) {
            (Outcome::Scored, Some(reward)) => {
                if reward >= self.pass_threshold {
                    row.passed += 1;
                    self.passed += 1;
                }
                row.rewards.push(reward);
                self.rewards.add(reward);
            }
            // A score without a reward cannot come from a journal, and is no score.
            (Outcome::Scored | Outcome::Unscored, _) => self.add_unscored(line),
        }
        for (kind, uses) in line.refused_uses.iter() {
            self.refused_uses.entry(kind).or_default().add(&uses.first, line);
        }
        if line.samples_unanswered > 0 {
            self.samples_unanswered.get_or_insert_default().add("", line);
        }
        for (name, &value) in &line.metrics {
            self.metrics.entry(name.clone()).or_default().add(value);
        }
        self.chat_retries = self.chat_retries.saturating_add(line.chat_retries);
        self.chat_calls = self.chat_calls.saturating_add(line.chat_calls);
        self.prompt_tokens = self.prompt_tokens.saturating_add(line.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(line.completion_tokens);
        self.durations_ms.push(line.duration_ms);
    }

    fn add_unscored(&mut self, line: &ResultLine) {
        let kind = line.kind.as_deref().unwrap_or(KIND_UNKNOWN).to_owned();
        let kind = self.unscored_by_kind.entry(kind).or_default();
        kind.rollouts += 1;
        if let Some(fault) = &line.fault {
            *kind.faults.entry(fault.clone()).or_default() += 1;
        }
        if kind.first_reason.is_none() {
            kind.first_reason.clone_from(&line.reason);
        }
        kind.first_rollout.get_or_insert_with(|| line.rollout_id.clone());
    }

    /// Finished rollouts, scored or not.
    #[must_use]
    pub fn rollouts(&self) -> usize {
        self.rollouts
    }

    /// Rollouts with a reward.
    #[must_use]
    pub(crate) fn scored(&self) -> usize {
        usize::try_from(self.rewards.count()).unwrap_or(usize::MAX)
    }

    /// Rollouts without a reward.
    #[must_use]
    pub fn unscored(&self) -> usize {
        self.rollouts - self.scored()
    }

    /// Mean reward of the scored rollouts so far, in constant time; none if there is none.
    #[must_use]
    pub fn reward_mean(&self) -> Option<f64> {
        self.rewards.mean()
    }

    /// All figures as they stand.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            rows: self.by_row.len(),
            rows_planned: self.rows_planned.max(self.by_row.len()),
            n: self.n,
            rollouts: self.rollouts,
            rollouts_planned: self.rows_planned.saturating_mul(self.n).max(self.rollouts),
            scored: self.scored(),
            passed: self.passed,
            unscored: self.unscored(),
            unscored_by_kind: self.unscored_by_kind.clone(),
            refused_uses: self.refused_uses.clone(),
            samples_unanswered: self.samples_unanswered.clone(),
            pass_threshold: self.pass_threshold,
            pass_at_k: self.pass_at_k(),
            reward: reward_stats(&self.rewards_by_row()),
            metrics: self
                .metrics
                .iter()
                .filter_map(|(name, values)| Some((name.clone(), values.mean()?)))
                .collect(),
            chat_calls: self.chat_calls,
            chat_retries: self.chat_retries,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            latency_ms: latency(&self.durations_ms),
            wall_secs: None,
        }
    }

    /// The rewards of each row that has some, in an order that is the same whichever
    /// rollout was over first.
    fn rewards_by_row(&self) -> Vec<Vec<f64>> {
        let rewards = self.by_row.values().map(|row| row.rewards.clone());
        let mut rewards: Vec<Vec<f64>> = rewards.filter(|rewards| !rewards.is_empty()).collect();
        rewards.iter_mut().for_each(|rewards| rewards.sort_by(f64::total_cmp));
        rewards
    }

    fn pass_at_k(&self) -> BTreeMap<usize, PassAtK> {
        ks(self.n).into_iter().map(|k| (k, self.pass_at(k))).collect()
    }

    fn pass_at(&self, k: usize) -> PassAtK {
        let rows = || self.by_row.values();
        let scored = Estimate::of(rows().filter_map(|row| pass_at_k(row.rewards.len(), row.passed, k)));
        let finished = Estimate::of(rows().filter_map(|row| pass_at_k(row.finished, row.passed, k)));
        let counted = scored.map_or(0, |scored| scored.rows);
        PassAtK {
            estimate: scored.map(|scored| scored.estimate),
            standard_error: scored.and_then(|scored| scored.standard_error),
            rows: counted,
            rows_left_out: self.by_row.len() - counted,
            unscored_as_failed: finished.filter(|_| self.unscored() > 0),
        }
    }
}

/// The k for which pass@k is reported with `n` attempts on each row: the powers of two up to
/// `n`, and `n` itself, ascending.
#[must_use]
pub(crate) fn ks(n: usize) -> Vec<usize> {
    let mut ks: Vec<usize> =
        std::iter::successors(Some(1_usize), |k| k.checked_mul(2)).take_while(|&k| k <= n).collect();
    if ks.last().is_some_and(|&last| last < n) {
        ks.push(n);
    }
    ks
}

/// The unbiased estimate, from `attempts` of which `passed` passed, of the probability
/// that at least one of `k` attempts passes: `1 - C(attempts - passed, k) / C(attempts, k)`.
///
/// None if `k` is 0 or there are fewer than `k` attempts. Computed as a product of
/// factors in 0..=1, which neither overflows nor cancels.
#[must_use]
pub(crate) fn pass_at_k(attempts: usize, passed: usize, k: usize) -> Option<f64> {
    if k == 0 || attempts < k || passed > attempts {
        return None;
    }
    let failed = attempts - passed;
    if failed < k {
        return Some(1.0);
    }
    // C(f, k) / C(a, k) = product over i in f+1..=a of (i - k) / i
    let none_passes: f64 = (failed + 1..=attempts).map(|i| (i - k) as f64 / i as f64).product();
    Some(1.0 - none_passes)
}

/// The `percent`th percentile of values in ascending order, by nearest rank: the least
/// value such that at least `percent` of 100 values are not greater. It is always one of
/// the values. None if there are no values; `percent` above 100 counts as 100.
#[must_use]
pub(crate) fn percentile(ascending: &[f64], percent: usize) -> Option<f64> {
    let rank = (ascending.len() * percent.min(100)).div_ceil(100).max(1);
    ascending.get(rank - 1).copied()
}

fn reward_stats(by_row: &[Vec<f64>]) -> Option<RewardStats> {
    let mut ascending: Vec<f64> = by_row.iter().flatten().copied().collect();
    ascending.sort_by(f64::total_cmp);
    let (&min, &max) = (ascending.first()?, ascending.last()?);
    let all: Moments = ascending.iter().copied().collect();
    let middle = ascending.len() / 2;
    let median = if ascending.len() % 2 == 1 {
        ascending[middle]
    } else {
        f64::midpoint(ascending[middle - 1], ascending[middle])
    };
    let (mean, std) = (all.mean()?, all.std()?);
    Some(RewardStats { mean, standard_error: clustered_error(by_row), std, min, median, max })
}

fn latency(durations_ms: &[f64]) -> Option<Latency> {
    let mut ascending = durations_ms.to_vec();
    ascending.sort_by(f64::total_cmp);
    Some(Latency {
        p50: percentile(&ascending, 50)?,
        p90: percentile(&ascending, 90)?,
        p99: percentile(&ascending, 99)?,
    })
}

#[cfg(test)]
mod tests;
