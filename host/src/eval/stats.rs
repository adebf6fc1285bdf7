//! Figures of an evaluation: rewards, pass@k, what was not scored and why, cost.
//!
//! A [`Tally`] takes result lines one by one, in any order, and can say at any time how
//! things stand; a [`Summary`] is what it says at the end. An unscored attempt has no
//! part in any figure about rewards: it is neither a pass nor a failure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::results::{Outcome, ResultLine};

/// The kind under which an unscored attempt is counted that names none.
pub const KIND_UNKNOWN: &str = "unknown";

/// The figures of one evaluation, as `summary.json` has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Rows with at least one finished rollout.
    pub rows: usize,
    /// Attempts asked for on each row.
    pub n: usize,
    /// Finished rollouts, scored or not.
    pub rollouts: usize,
    /// Rollouts with a reward.
    pub scored: usize,
    /// Scored rollouts with a reward of at least `pass_threshold`.
    pub passed: usize,
    /// Rollouts without a reward.
    pub unscored: usize,
    /// The same, by kind of failure; [`KIND_UNKNOWN`] where a result names none.
    pub unscored_by_kind: BTreeMap<String, UnscoredKind>,
    /// The least reward that counts as a pass.
    pub pass_threshold: f64,
    /// By k, in 0..=1; see [`pass_at_k`] and [`ks`]. Averaged over the rows with at
    /// least k scored attempts; a k without such a row is not there.
    pub pass_at_k: BTreeMap<usize, f64>,
    /// Over scored rollouts; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardStats>,
    /// Mean of each metric over the rollouts that report it, scored or not.
    pub metrics: BTreeMap<String, f64>,
    /// Model calls of all rollouts.
    pub chat_calls: u64,
    /// Prompt tokens of all rollouts.
    pub prompt_tokens: u64,
    /// Completion tokens of all rollouts.
    pub completion_tokens: u64,
    /// Wall time of a rollout, over all rollouts, scored or not; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<Latency>,
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
}

/// Spread of the rewards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardStats {
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the population, not of a sample: divided by the count.
    pub std: f64,
    /// Least.
    pub min: f64,
    /// Middle one, or mean of the two middle ones.
    pub median: f64,
    /// Greatest.
    pub max: f64,
}

/// Percentiles in milliseconds, by nearest rank ([`percentile`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half took at most this, ms.
    pub p50: f64,
    /// 90 of 100 took at most this, ms.
    pub p90: f64,
    /// 99 of 100 took at most this, ms.
    pub p99: f64,
}

impl Summary {
    /// The figures of `lines`, with `n` attempts asked for on each row.
    #[must_use]
    pub fn from_lines(lines: &[ResultLine], n: usize, pass_threshold: f64) -> Self {
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
    pass_threshold: f64,
    rollouts: usize,
    rewards: Vec<f64>,
    reward_mean: f64,
    passed: usize,
    by_row: BTreeMap<usize, RowTally>,
    unscored_by_kind: BTreeMap<String, UnscoredKind>,
    metrics: BTreeMap<String, MetricTally>,
    chat_calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    durations_ms: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RowTally {
    scored: usize,
    passed: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct MetricTally {
    count: usize,
    mean: f64,
}

impl Tally {
    /// Nothing yet, with `n` attempts asked for on each row and the least reward that
    /// counts as a pass.
    #[must_use]
    pub fn new(n: usize, pass_threshold: f64) -> Self {
        Self {
            n,
            pass_threshold,
            rollouts: 0,
            rewards: Vec::new(),
            reward_mean: 0.0,
            passed: 0,
            by_row: BTreeMap::new(),
            unscored_by_kind: BTreeMap::new(),
            metrics: BTreeMap::new(),
            chat_calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            durations_ms: Vec::new(),
        }
    }

    /// Counts one rollout. Each is to be given once.
    pub fn add(&mut self, line: &ResultLine) {
        self.rollouts += 1;
        let row = self.by_row.entry(line.row).or_default();
        match (line.outcome, line.reward) {
            (Outcome::Scored, Some(reward)) => {
                row.scored += 1;
                if reward >= self.pass_threshold {
                    row.passed += 1;
                    self.passed += 1;
                }
                self.rewards.push(reward);
                self.reward_mean = mean_with(self.reward_mean, self.rewards.len(), reward);
            }
            // A score without a reward cannot come from a journal, and is no score.
            (Outcome::Scored | Outcome::Unscored, _) => self.add_unscored(line),
        }
        for (name, &value) in &line.metrics {
            let metric = self.metrics.entry(name.clone()).or_default();
            metric.count += 1;
            metric.mean = mean_with(metric.mean, metric.count, value);
        }
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
    }

    /// Finished rollouts, scored or not.
    #[must_use]
    pub fn rollouts(&self) -> usize {
        self.rollouts
    }

    /// Rollouts with a reward.
    #[must_use]
    pub fn scored(&self) -> usize {
        self.rewards.len()
    }

    /// Rollouts without a reward.
    #[must_use]
    pub fn unscored(&self) -> usize {
        self.rollouts - self.rewards.len()
    }

    /// Mean reward of the scored rollouts so far, in constant time; none if there is none.
    #[must_use]
    pub fn reward_mean(&self) -> Option<f64> {
        (!self.rewards.is_empty()).then_some(self.reward_mean)
    }

    /// All figures as they stand.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            rows: self.by_row.len(),
            n: self.n,
            rollouts: self.rollouts,
            scored: self.scored(),
            passed: self.passed,
            unscored: self.unscored(),
            unscored_by_kind: self.unscored_by_kind.clone(),
            pass_threshold: self.pass_threshold,
            pass_at_k: self.pass_at_k(),
            reward: reward_stats(&self.rewards),
            metrics: self.metrics.iter().map(|(name, metric)| (name.clone(), metric.mean)).collect(),
            chat_calls: self.chat_calls,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            latency_ms: latency(&self.durations_ms),
        }
    }

    fn pass_at_k(&self) -> BTreeMap<usize, f64> {
        let mut means = BTreeMap::new();
        for k in ks(self.n) {
            let (mut count, mut mean) = (0, 0.0);
            for row in self.by_row.values() {
                if let Some(estimate) = pass_at_k(row.scored, row.passed, k) {
                    count += 1;
                    mean = mean_with(mean, count, estimate);
                }
            }
            if count > 0 {
                means.insert(k, mean);
            }
        }
        means
    }
}

/// The k for which pass@k is told with `n` attempts on each row: the powers of two up to
/// `n`, and `n` itself, ascending.
#[must_use]
pub fn ks(n: usize) -> Vec<usize> {
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
pub fn pass_at_k(attempts: usize, passed: usize, k: usize) -> Option<f64> {
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
pub fn percentile(ascending: &[f64], percent: usize) -> Option<f64> {
    let rank = (ascending.len() * percent.min(100)).div_ceil(100).max(1);
    ascending.get(rank - 1).copied()
}

/// The mean of `count` values, of which `value` is the last and `mean` was that of the others.
fn mean_with(mean: f64, count: usize, value: f64) -> f64 {
    mean + (value - mean) / count as f64
}

fn reward_stats(rewards: &[f64]) -> Option<RewardStats> {
    let mut ascending = rewards.to_vec();
    ascending.sort_by(f64::total_cmp);
    let (&min, &max) = (ascending.first()?, ascending.last()?);
    let count = ascending.len() as f64;
    let mean = ascending.iter().sum::<f64>() / count;
    let squares: f64 = ascending.iter().map(|reward| (reward - mean).powi(2)).sum();
    let middle = ascending.len() / 2;
    let median = if ascending.len() % 2 == 1 {
        ascending[middle]
    } else {
        f64::midpoint(ascending[middle - 1], ascending[middle])
    };
    Some(RewardStats { mean, std: (squares / count).sqrt(), min, median, max })
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
mod tests {
    use super::super::results::tests::{scored, unscored};
    use super::*;

    #[test]
    fn ks_are_powers_of_two_and_n() {
        fn check(n: usize, expected: &[usize]) {
            assert_eq!(ks(n), expected, "n = {n}");
        }
        check(0, &[]);
        check(1, &[1]);
        check(2, &[1, 2]);
        check(3, &[1, 2, 3]);
        check(4, &[1, 2, 4]);
        check(10, &[1, 2, 4, 8, 10]);
    }

    #[test]
    fn pass_at_k_is_the_unbiased_estimate() {
        fn check((attempts, passed, k): (usize, usize, usize), expected: Option<f64>) {
            let got = pass_at_k(attempts, passed, k);
            let close = match (got, expected) {
                (Some(got), Some(expected)) => (got - expected).abs() < 1e-12,
                (got, expected) => got == expected,
            };
            assert!(close, "{attempts}, {passed}, {k}: {got:?}");
        }
        check((1, 0, 1), Some(0.0));
        check((1, 1, 1), Some(1.0));
        check((4, 1, 1), Some(0.25));
        check((4, 1, 2), Some(0.5));
        check((4, 2, 2), Some(1.0 - 1.0 / 6.0));
        check((4, 1, 4), Some(1.0));
        check((4, 0, 4), Some(0.0));
        check((10, 3, 4), Some(1.0 - 35.0 / 210.0));
        check((5, 3, 4), Some(1.0));
        check((3, 1, 4), None);
        check((0, 0, 1), None);
        check((3, 1, 0), None);
        // C(10_000, 5_000) is far beyond a double; the estimate is not.
        check((10_000, 1, 5_000), Some(0.5));
        check((10_000, 9_999, 1), Some(0.9999));
    }

    #[test]
    fn percentiles_are_values_by_nearest_rank() {
        fn check(values: &[f64], percent: usize, expected: Option<f64>) {
            assert_eq!(percentile(values, percent), expected, "{percent} of {values:?}");
        }
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        check(&[], 50, None);
        check(&[7.0], 99, Some(7.0));
        check(&[1.0, 2.0], 50, Some(1.0));
        check(&[1.0, 2.0], 51, Some(2.0));
        check(&ten, 0, Some(1.0));
        check(&ten, 50, Some(5.0));
        check(&ten, 90, Some(9.0));
        check(&ten, 99, Some(10.0));
        check(&hundred, 99, Some(99.0));
        check(&hundred, 100, Some(100.0));
    }

    #[test]
    fn rewards_have_a_mean_and_a_population_spread() {
        fn check(rewards: &[f64], expected: Option<[f64; 5]>) {
            let got = reward_stats(rewards).map(|r| [r.mean, r.std, r.min, r.median, r.max]);
            assert_eq!(got, expected, "{rewards:?}");
        }
        check(&[], None);
        check(&[0.5], Some([0.5, 0.0, 0.5, 0.5, 0.5]));
        check(&[1.0, 0.0, 0.0, 1.0], Some([0.5, 0.5, 0.0, 0.5, 1.0]));
        check(&[9.0, 2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0], Some([5.0, 2.0, 2.0, 4.5, 9.0]));
        check(&[-1.0, 3.0, -2.0], Some([0.0, 14.0_f64.sqrt() / 3.0_f64.sqrt(), -2.0, -1.0, 3.0]));
    }

    #[test]
    fn unscored_attempts_are_counted_and_have_no_part_in_pass_at_k() {
        let mut lines = vec![
            scored(0, 0, 1.0),
            scored(0, 1, 0.0),
            scored(1, 0, 0.25),
            unscored(1, 1, "deadline", "plugin"),
            unscored(2, 0, "model-refused", "model"),
            unscored(2, 1, "deadline", "host"),
        ];
        lines[0].metrics.insert("turns".to_owned(), 2.0);
        lines[5].metrics.insert("turns".to_owned(), 4.0);
        lines[4].kind = None;
        let summary = Summary::from_lines(&lines, 2, 1.0);

        assert_eq!((summary.rows, summary.n, summary.rollouts), (3, 2, 6));
        assert_eq!((summary.scored, summary.passed, summary.unscored), (3, 1, 3));
        let deadline = &summary.unscored_by_kind["deadline"];
        assert_eq!(deadline.rollouts, 2);
        assert_eq!(deadline.faults["plugin"], 1);
        assert_eq!(deadline.faults["host"], 1);
        assert_eq!(summary.unscored_by_kind[KIND_UNKNOWN].rollouts, 1);
        // k = 1: rows 0 and 1 have a scored attempt; k = 2: row 0 alone has two.
        assert_eq!(summary.pass_at_k, BTreeMap::from([(1, 0.25), (2, 1.0)]));
        assert_eq!(summary.reward.unwrap().max, 1.0);
        assert_eq!(summary.metrics["turns"], 3.0);
        assert_eq!(summary.chat_calls, 6);
        assert_eq!(summary.prompt_tokens, 600);
        assert_eq!(summary.completion_tokens, 60);
        assert_eq!(summary.latency_ms.unwrap().p50, 250.0);
    }

    #[test]
    fn a_tally_gives_the_same_in_any_order_and_a_running_mean() {
        let lines: Vec<_> = (0..8).map(|i| scored(i / 2, i % 2, (i % 3) as f64)).collect();
        let mut tally = Tally::new(2, 1.0);
        assert_eq!(tally.reward_mean(), None);
        for line in lines.iter().rev() {
            tally.add(line);
        }
        assert!((tally.reward_mean().unwrap() - 7.0 / 8.0).abs() < 1e-12);
        assert_eq!(tally.summary(), Summary::from_lines(&lines, 2, 1.0));
    }

    #[test]
    fn without_a_score_there_is_no_reward_and_no_pass_at_k() {
        let summary = Summary::from_lines(&[unscored(0, 0, "deadline", "plugin")], 4, 1.0);
        assert_eq!(summary.reward, None);
        assert!(summary.pass_at_k.is_empty());
        let json = serde_json::to_string(&summary).unwrap();
        assert!(!json.contains("\"reward\""), "{json}");
        assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);

        let empty = Summary::from_lines(&[], 1, 1.0);
        assert_eq!((empty.rollouts, empty.latency_ms), (0, None));
    }
}
