//! Soak test: many rollouts at one number in flight, with regular readings of the server's memory, mappings
//! and descriptors, to see whether they grow.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::load::Workers;
use super::outcome::ErrorKind;
use super::proc_fs::Footprint;
use super::report::{Errors, TargetSeen};
use super::stats::median;
use super::tally::Amount;
use super::trainer::TrainerContext;
use super::{BenchError, Progress};

/// Number of readings, each after the same number of rollouts.
const LOOKS: usize = 100;

/// Maximum growth between the first and the last tenth of the readings, as a share. Growth below the floors
/// is normal fluctuation of the allocator and the runtime.
const GROWTH_MAX: f64 = 0.05;
const RSS_MIB_FLOOR: f64 = 16.0;
const MAPPINGS_FLOOR: f64 = 200.0;
const FDS_FLOOR: f64 = 16.0;

/// A reading of the server's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// Number of rollouts that ended since the first reading.
    pub rollouts: usize,
    /// Resident memory, in MiB.
    pub rss_mib: f64,
    /// Number of memory mappings.
    pub mappings: f64,
    /// Number of open descriptors.
    pub fds: f64,
}

/// Growth of one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Growth {
    /// Median of the first tenth of the readings.
    pub first: f64,
    /// Median of the last tenth of the readings.
    pub last: f64,
    /// Slope of a regression line through all readings, per 100,000 rollouts.
    pub per_100_000: f64,
    /// Whether the growth exceeds normal fluctuation.
    pub grows: bool,
}

/// Result of a soak test.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SoakReport {
    /// The server.
    pub target: TargetSeen,
    /// Number of concurrent rollouts.
    pub in_flight: usize,
    /// Number of rollouts that ended since the first reading.
    pub rollouts: usize,
    /// Time between the first and the last reading, in seconds.
    pub elapsed_secs: f64,
    /// Rollouts that failed.
    pub errors: Errors,
    /// Whether the test stopped early because every rollout failed.
    pub gave_up: bool,
    /// Resident memory, in MiB.
    pub rss_mib: Growth,
    /// Memory mappings.
    pub mappings: Growth,
    /// Open descriptors.
    pub fds: Growth,
    /// All readings.
    pub looks: Vec<Reading>,
}

impl SoakReport {
    /// Returns whether no figure grew and no rollout failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let grows = [&self.rss_mib, &self.mappings, &self.fds].iter().any(|growth| growth.grows);
        !grows && !self.gave_up && self.errors.count() == 0
    }

    /// Formats the report for people.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let rate = self.rollouts as f64 / self.elapsed_secs.max(f64::EPSILON);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}: {} rollouts, {} in flight, {:.0} s, {rate:.0} rollouts/s, {} errors\n",
            self.target.name,
            self.rollouts,
            self.in_flight,
            self.elapsed_secs,
            self.errors.count()
        );
        let _ = writeln!(text, "{:<14}{:>14}{:>14}{:>18}", "", "first tenth", "last tenth", "per 100,000");
        for (name, growth) in
            [("memory, MiB", self.rss_mib), ("mappings", self.mappings), ("descriptors", self.fds)]
        {
            let Growth { first, last, per_100_000, grows } = growth;
            let mark = if grows { "  GROWS" } else { "" };
            let _ = writeln!(text, "{name:<14}{first:>14.1}{last:>14.1}{per_100_000:>+18.2}{mark}");
        }
        for (kind, error) in &self.errors.0 {
            let _ = writeln!(text, "\n{} × {kind}, first: {}", error.count, error.first);
        }
        let verdict = if self.is_clean() { "nothing grows" } else { "not clean" };
        let _ = writeln!(text, "\n{verdict}");
        text
    }
}

/// Runs the soak test. A tenth of the rollouts runs before the first reading, so that pools, caches and
/// connections reach their stable size.
pub(super) async fn soak(
    target: TargetSeen,
    context: &Arc<TrainerContext>,
    in_flight: usize,
    rollouts: usize,
    progress: &mut impl FnMut(Progress),
) -> Result<SoakReport, BenchError> {
    let failed = |source| BenchError::Process { name: target.name.clone(), source };
    let Some(pid) = target.pid else {
        return Err(BenchError::Invalid(vec![
            "a soak test needs the server's process: --pid PID, or --command".to_owned(),
        ]));
    };
    let exactly = |count: usize| Amount { at_least: count, at_most: count, time: std::time::Duration::ZERO };
    let mut workers = Workers::new(context, in_flight, false);
    workers.run(exactly((rollouts / 10).max(in_flight))).await;
    let chunk = rollouts.div_ceil(LOOKS).max(in_flight);
    let started = Instant::now();
    let (mut done, mut looks, mut errors, mut gave_up) = (0, Vec::new(), Vec::new(), false);
    while done < rollouts && !gave_up {
        let tally = workers.run(exactly(chunk)).await;
        done += tally.latencies.len() + usize::try_from(tally.errors.count()).unwrap_or(usize::MAX);
        gave_up = tally.gave_up;
        errors.push(tally.errors.0);
        // Runs on another thread because the kernel may be slow with many mappings.
        let seen = tokio::task::spawn_blocking(move || Footprint::read(pid)).await;
        let seen = seen.map_err(|error| BenchError::Runtime(error.into()))?.map_err(failed)?;
        let look = Reading {
            rollouts: done,
            rss_mib: seen.rss_kib as f64 / 1024.0,
            mappings: seen.mappings as f64,
            fds: seen.fds as f64,
        };
        looks.push(look);
        progress(Progress::Soaking { done, rollouts, secs: started.elapsed().as_secs_f64(), look });
    }
    Ok(SoakReport {
        in_flight,
        rollouts: done,
        elapsed_secs: started.elapsed().as_secs_f64(),
        errors: added_up(errors),
        gave_up,
        rss_mib: growth(&looks, |look| look.rss_mib, RSS_MIB_FLOOR),
        mappings: growth(&looks, |look| look.mappings, MAPPINGS_FLOOR),
        fds: growth(&looks, |look| look.fds, FDS_FLOOR),
        looks,
        target,
    })
}

/// Errors by kind, with the first example.
type KindsSeen = std::collections::BTreeMap<ErrorKind, (u64, String)>;

fn added_up(chunks: Vec<KindsSeen>) -> Errors {
    let mut all = KindsSeen::new();
    for (kind, (count, first)) in chunks.into_iter().flatten() {
        all.entry(kind).or_insert((0, first)).0 += count;
    }
    Errors::of(&all)
}

fn growth(looks: &[Reading], figure: fn(&Reading) -> f64, floor: f64) -> Growth {
    let tenth = looks.len().div_ceil(10);
    let of = |part: &[Reading]| median(part.iter().map(figure)).unwrap_or_default();
    let (first, last) = (of(&looks[..tenth]), of(&looks[looks.len() - tenth..]));
    let grows = last - first > floor.max(first * GROWTH_MAX);
    Growth { first, last, per_100_000: slope(looks, figure) * 100_000.0, grows }
}

/// Returns the slope of the least-squares line.
fn slope(looks: &[Reading], figure: fn(&Reading) -> f64) -> f64 {
    let count = looks.len() as f64;
    let mean = |value: &dyn Fn(&Reading) -> f64| looks.iter().map(value).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(&|look| look.rollouts as f64), mean(&figure));
    let (mut xy, mut xx) = (0.0, 0.0);
    for look in looks {
        let x = look.rollouts as f64 - x_mean;
        xy += x * (figure(look) - y_mean);
        xx += x * x;
    }
    if xx > 0.0 { xy / xx } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(memory: impl Fn(usize) -> f64) -> Vec<Reading> {
        (1..=100)
            .map(|at| Reading { rollouts: at * 1000, rss_mib: memory(at), mappings: 50.0, fds: 20.0 })
            .collect()
    }

    #[test]
    fn growth_is_distinguished_from_fluctuation() {
        fn check(memory: impl Fn(usize) -> f64, per_100_000: f64, grows: bool) {
            let growth = growth(&looks(memory), |look| look.rss_mib, RSS_MIB_FLOOR);
            assert_eq!(growth.grows, grows, "{growth:?}");
            assert!((growth.per_100_000 - per_100_000).abs() < 1.0, "{growth:?}");
        }
        check(|_| 100.0, 0.0, false);
        check(|at| 100.0 + at as f64, 100.0, true);
        check(|at| 100.0 + 10.0 * ((at % 2) as f64), 0.0, false);
        check(|at| 1000.0 + 0.3 * at as f64, 30.0, false);
    }

    #[test]
    fn a_single_reading_has_no_growth() {
        let one = &looks(|_| 100.0)[..1];
        assert_eq!(growth(one, |look| look.rss_mib, RSS_MIB_FLOOR).per_100_000, 0.0);
    }
}
