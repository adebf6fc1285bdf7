//! Figures of an evaluation: rewards, pass@k, unscored attempts and their reasons, cost.
//!
//! A [`Tally`] accumulates result lines in any order; [`Tally::summary`] returns the figures at any time.
//! An unscored attempt has no part in the figures about rewards: it is neither a pass nor a failure. Each
//! figure is reported with the number of attempts that it leaves out, and pass@k also as it would be if
//! every such attempt had failed.
//!
//! Errors are standard errors over rows, because the rows are the sample: another evaluation of the same
//! kind would have other rows, and the attempts on one row share that row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lines::{LineOutcome, ResultLine};
use rollout_core::moments::{Moments, clustered_error};
use rollout_guest::imports::RefusedKind;

/// Kind under which an unscored attempt without a kind is counted.
pub(crate) const KIND_UNKNOWN: &str = "unknown";

/// The figures of one evaluation, as in `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of rows with at least one finished rollout.
    pub rows: usize,
    /// Number of rows to be run; more than `rows` if the run was stopped.
    #[serde(default)]
    pub rows_planned: usize,
    /// Number of attempts on each row.
    pub n: usize,
    /// Number of finished rollouts, scored or not.
    pub rollouts: usize,
    /// Number of rollouts to be run; more than `rollouts` if the run was stopped.
    #[serde(default)]
    pub rollouts_planned: usize,
    /// Number of rollouts with a reward.
    pub scored: usize,
    /// Number of rollouts with a reward of at least `pass_threshold`.
    pub passed: usize,
    /// Number of rollouts without a reward.
    pub unscored: usize,
    /// Rollouts without a reward by kind of failure; `KIND_UNKNOWN` if a result has no kind.
    pub unscored_by_kind: BTreeMap<String, UnscoredKind>,
    /// Rollouts in which the guests' own runtimes refused a use, by kind of use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_uses: BTreeMap<RefusedKind, Suspects>,
    /// Rollouts with a sample without a reply of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_unanswered: Option<Suspects>,
    /// Minimum reward that counts as a pass.
    pub pass_threshold: f64,
    /// Estimates of pass@k by k.
    pub pass_at_k: BTreeMap<usize, PassAtK>,
    /// Figures of the rewards; absent if no rollout is scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardStats>,
    /// Mean of each metric over the rollouts that report it, scored or not.
    pub metrics: BTreeMap<String, f64>,
    /// Number of model calls of all rollouts.
    pub chat_calls: u64,
    /// Number of retries of those calls.
    #[serde(default)]
    pub chat_retries: u64,
    /// Prompt tokens of all rollouts.
    pub prompt_tokens: u64,
    /// Completion tokens of all rollouts.
    pub completion_tokens: u64,
    /// Percentiles of the wall time of rollouts, scored or not; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<Latency>,
    /// Wall time of the command that wrote this, in seconds. If the evaluation was resumed, it covers only
    /// the last command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_secs: Option<f64>,
}

/// Estimate of the probability that at least one of k attempts passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassAtK {
    /// Mean of `pass_at_k` over the rows with at least k scored attempts, in 0..=1; absent if there are no
    /// such rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<f64>,
    /// Standard error over those rows; absent if there are fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Number of those rows.
    pub rows: usize,
    /// Number of rows that are left out because fewer than k of their finished rollouts are scored.
    pub rows_left_out: usize,
    /// The estimate if every unscored attempt counted as a failure; absent if all are scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unscored_as_failed: Option<Estimate>,
}

/// A mean over rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub estimate: f64,
    /// Standard error; absent if there are fewer than two rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Number of rows.
    pub rows: usize,
}

impl Estimate {
    /// Computes the mean of one value per row; `None` if there are no rows.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Moments = values.into_iter().collect();
        let (estimate, standard_error) = (values.mean()?, values.standard_error());
        Some(Self { estimate, standard_error, rows: usize::try_from(values.count()).unwrap_or(usize::MAX) })
    }
}

/// Unscored rollouts of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnscoredKind {
    /// Number of rollouts.
    pub rollouts: usize,
    /// Number of rollouts by party at fault: `plugin`, `model`, `host` or `caller`. A result without a
    /// fault is counted in `rollouts` only.
    pub faults: BTreeMap<String, usize>,
    /// Reason of the first rollout, possibly in the words of a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_reason: Option<String>,
    /// Id of the first rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_rollout: Option<String>,
}

/// Rollouts whose rewards may be meaningless.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspects {
    /// Number of rollouts.
    pub rollouts: usize,
    /// Position of the use in the first rollout, in a guest's words; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub first: String,
    /// Id of the first rollout.
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

/// Distribution of the rewards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardStats {
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard error of the mean, clustered by row; absent if fewer than two rows have a reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Population standard deviation (divided by the count).
    pub std: f64,
    /// Minimum.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Maximum.
    pub max: f64,
}

/// Percentiles of a duration in milliseconds, by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// 50th percentile.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

#[cfg(test)]
impl Summary {
    /// Computes the figures of `lines`, with `n` planned attempts on each row.
    #[must_use]
    pub(crate) fn from_lines(lines: &[ResultLine], n: usize, pass_threshold: f64) -> Self {
        let mut tally = Tally::new(n, pass_threshold);
        for line in lines {
            tally.add(line);
        }
        tally.summary()
    }
}

/// Running figures of the results so far. Stores a few numbers for each rollout instead of its line.
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
    /// Creates an empty tally with `n` planned attempts on each row and the minimum reward that counts as
    /// a pass.
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

    /// Sets the number of planned rows.
    #[must_use]
    pub fn with_rows_planned(self, rows_planned: usize) -> Self {
        Self { rows_planned, ..self }
    }

    /// Adds one rollout. Must be called once for each.
    pub fn add(&mut self, line: &ResultLine) {
        self.rollouts += 1;
        let row = self.by_row.entry(line.row).or_default();
        row.finished += 1;
        match (line.outcome, line.reward) {
            (LineOutcome::Scored, Some(reward)) => {
                if reward >= self.pass_threshold {
                    row.passed += 1;
                    self.passed += 1;
                }
                row.rewards.push(reward);
                self.rewards.add(reward);
            }
            // A scored line without a reward does not pass `ResultLine::check` and is not counted as scored.
            (LineOutcome::Scored | LineOutcome::Unscored, _) => self.add_unscored(line),
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

    /// Returns the number of finished rollouts, scored or not.
    #[must_use]
    pub fn rollouts(&self) -> usize {
        self.rollouts
    }

    /// Returns the number of rollouts with a reward.
    #[must_use]
    pub(crate) fn scored(&self) -> usize {
        usize::try_from(self.rewards.count()).unwrap_or(usize::MAX)
    }

    /// Returns the number of rollouts without a reward.
    #[must_use]
    pub fn unscored(&self) -> usize {
        self.rollouts - self.scored()
    }

    /// Returns the mean reward of the scored rollouts so far, in constant time.
    #[must_use]
    pub fn reward_mean(&self) -> Option<f64> {
        self.rewards.mean()
    }

    /// Computes all figures of the rollouts so far.
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

    /// Returns the rewards of each row that has some, in an order that does not depend on the order in
    /// which rollouts finished.
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

/// Returns the k for which pass@k is reported with `n` attempts on each row: the powers of two up to `n`,
/// and `n` itself, ascending.
#[must_use]
pub(crate) fn ks(n: usize) -> Vec<usize> {
    let mut ks: Vec<usize> =
        std::iter::successors(Some(1_usize), |k| k.checked_mul(2)).take_while(|&k| k <= n).collect();
    if ks.last().is_some_and(|&last| last < n) {
        ks.push(n);
    }
    ks
}

/// Returns the unbiased estimate, from `attempts` of which `passed` passed, of the probability
/// that at least one of `k` attempts passes: `1 - C(attempts - passed, k) / C(attempts, k)`.
///
/// Returns `None` if `k` is 0 or there are fewer than `k` attempts. Computed as a product of
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

/// Returns the `percent`th percentile of values in ascending order, by nearest rank: the smallest
/// value such that at least `percent` of 100 values are not greater. It is always one of
/// the values. Returns `None` if there are no values; `percent` above 100 counts as 100.
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
