//! Whether a server grows: many rollouts at one number in flight, and now and then a look
//! at the memory, mappings and descriptors of its process.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::load::{Amount, Workers};
use super::outcome::ErrorKind;
use super::proc_fs::Footprint;
use super::report::{Errors, TargetSeen};
use super::stats::median;
use super::trainer::TrainerContext;
use super::{BenchError, Progress};

/// Looks at the process, each after as many rollouts.
const LOOKS: usize = 100;

/// What may be more in the last tenth than in the first: this part of it, or a floor below
/// which it is the allocator's and the runtime's coming and going.
const GROWTH_MAX: f64 = 0.05;
const RSS_MIB_FLOOR: f64 = 16.0;
const MAPPINGS_FLOOR: f64 = 200.0;
const FDS_FLOOR: f64 = 16.0;

/// What was seen of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Look {
    /// Rollouts that had ended since the first look.
    pub rollouts: usize,
    /// Resident memory, in MiB.
    pub rss_mib: f64,
    /// Memory mappings.
    pub mappings: f64,
    /// Open descriptors.
    pub fds: f64,
}

/// One figure at the beginning and at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Growth {
    /// The median of the first tenth of the looks.
    pub first: f64,
    /// The median of the last tenth.
    pub last: f64,
    /// What a straight line through all looks rises in 100,000 rollouts.
    pub per_100_000: f64,
    /// Whether it is more than what comes and goes.
    pub grows: bool,
}

/// What a soak found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SoakReport {
    /// The server.
    pub target: TargetSeen,
    /// Rollouts under way at a time.
    pub in_flight: usize,
    /// Rollouts that ended, those before the first look left out.
    pub rollouts: usize,
    /// From the first look to the last, in seconds.
    pub elapsed_secs: f64,
    /// Rollouts that did not end right.
    pub errors: Errors,
    /// Whether it stopped early, after failures only.
    pub gave_up: bool,
    /// Resident memory, in MiB.
    pub rss_mib: Growth,
    /// Memory mappings.
    pub mappings: Growth,
    /// Open descriptors.
    pub fds: Growth,
    /// Everything that was seen.
    pub looks: Vec<Look>,
}

impl SoakReport {
    /// Whether nothing grew and nothing went wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let grows = [&self.rss_mib, &self.mappings, &self.fds].iter().any(|growth| growth.grows);
        !grows && !self.gave_up && self.errors.count() == 0
    }

    /// The report for a person.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let rate = self.rollouts as f64 / self.elapsed_secs.max(f64::EPSILON);
        // Writing to a text does not fail.
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

/// Runs the rollouts and looks. One tenth more run before the first look, in which pools,
/// caches and connections come to the size that they keep.
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
            "a soak needs the server's process: --pid PID, or --command".to_owned(),
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
        // On another thread, because the kernel may take its time with many mappings.
        let seen = tokio::task::spawn_blocking(move || Footprint::read(pid)).await;
        let seen = seen.map_err(|error| BenchError::Runtime(error.into()))?.map_err(failed)?;
        let look = Look {
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

/// Errors by kind, as a tally has them.
type KindsSeen = std::collections::BTreeMap<ErrorKind, (u64, String)>;

fn added_up(chunks: Vec<KindsSeen>) -> Errors {
    let mut all = KindsSeen::new();
    for (kind, (count, first)) in chunks.into_iter().flatten() {
        all.entry(kind).or_insert((0, first)).0 += count;
    }
    Errors::of(&all)
}

fn growth(looks: &[Look], figure: fn(&Look) -> f64, floor: f64) -> Growth {
    let tenth = looks.len().div_ceil(10);
    let of = |part: &[Look]| median(part.iter().map(figure)).unwrap_or_default();
    let (first, last) = (of(&looks[..tenth]), of(&looks[looks.len() - tenth..]));
    let grows = last - first > floor.max(first * GROWTH_MAX);
    Growth { first, last, per_100_000: slope(looks, figure) * 100_000.0, grows }
}

/// The slope of the straight line that lies best: of least squares.
fn slope(looks: &[Look], figure: fn(&Look) -> f64) -> f64 {
    let count = looks.len() as f64;
    let mean = |value: &dyn Fn(&Look) -> f64| looks.iter().map(value).sum::<f64>() / count;
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

    fn looks(memory: impl Fn(usize) -> f64) -> Vec<Look> {
        (1..=100)
            .map(|at| Look { rollouts: at * 1000, rss_mib: memory(at), mappings: 50.0, fds: 20.0 })
            .collect()
    }

    #[test]
    fn what_rises_is_told_from_what_comes_and_goes() {
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
    fn one_look_is_no_growth() {
        let one = &looks(|_| 100.0)[..1];
        assert_eq!(growth(one, |look| look.rss_mib, RSS_MIB_FLOOR).per_100_000, 0.0);
    }
}
