//! The load of the last hour, as plots.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::format::{bytes, duration, number};

/// Minimum time that present rates cover, if there are samples of as long a time.
const RATE_TIME: Duration = Duration::from_secs(15);

/// Width and height of a plot. A style sheet stretches it.
const SIZE: [f64; 2] = [300.0, 70.0];

/// The load of a tenant or of the process at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadSample {
    /// Time since the start of the samples.
    pub at: Duration,
    /// Number of slots in use.
    pub running: u64,
    /// Bytes of memory that are charged, if the reader may see them.
    pub memory_bytes: Option<u64>,
    /// Number of all rollouts that have ended.
    pub ended: u64,
    /// Their tokens.
    pub tokens: u64,
    /// CPU time of their guests.
    pub guest_cpu: Duration,
}

/// Present rates of a tenant or of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRates {
    /// Rollouts that end in a minute.
    pub ended_per_minute: f64,
    /// Tokens in a minute.
    pub tokens_per_minute: f64,
    /// Cores that guests keep busy.
    pub guest_cores: f64,
}

impl LoadRates {
    /// Returns the rates between the last sample and the latest one that is at least [`RATE_TIME`] older, or the first one.
    pub(crate) fn new(samples: &[LoadSample]) -> Self {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Self::default() };
        let is_older = |sample: &&LoadSample| sample.at + RATE_TIME <= last.at;
        let before = samples.iter().rev().find(is_older).unwrap_or(first);
        let secs = last.at.saturating_sub(before.at).as_secs_f64();
        if secs <= 0.0 {
            return Self::default();
        }
        let per_minute = |before: u64, last: u64| last.saturating_sub(before) as f64 / secs * 60.0;
        Self {
            ended_per_minute: per_minute(before.ended, last.ended),
            tokens_per_minute: per_minute(before.tokens, last.tokens),
            guest_cores: last.guest_cpu.saturating_sub(before.guest_cpu).as_secs_f64() / secs,
        }
    }
}

/// A plot of one figure.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlot {
    /// The figure's name.
    pub name: &'static str,
    /// The latest value.
    pub now: String,
    /// The highest value.
    pub highest: String,
    /// The points of the line.
    pub line: String,
    /// The points of the area below the line.
    pub area: String,
}

/// The plots of all figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadPlots {
    /// The plots.
    pub plots: Vec<LoadPlot>,
    /// The time that the plots cover.
    pub time: String,
}

impl LoadPlots {
    /// Makes the plots of samples, which are in the order of their times.
    pub(crate) fn new(samples: &[LoadSample]) -> Self {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Self::default() };
        let times = |sample: &LoadSample| {
            let whole = last.at.saturating_sub(first.at).as_secs_f64().max(1e-3);
            sample.at.saturating_sub(first.at).as_secs_f64() / whole
        };
        let amounts = |amount: &dyn Fn(&LoadSample) -> f64| -> Vec<(f64, f64)> {
            samples.iter().map(|sample| (times(sample), amount(sample))).collect()
        };
        // A rate covers the time since the previous sample.
        let rates = |amount: &dyn Fn(&LoadSample) -> f64| -> Vec<(f64, f64)> {
            let rate = |pair: &[LoadSample]| {
                let secs = pair[1].at.saturating_sub(pair[0].at).as_secs_f64().max(1e-3);
                let rate = (amount(&pair[1]) - amount(&pair[0])).max(0.0) / secs;
                [(times(&pair[0]), rate), (times(&pair[1]), rate)]
            };
            samples.windows(2).flat_map(rate).collect()
        };
        let whole = |value: f64| number(value.round() as u64);
        let mut plots = vec![plot("running", &amounts(&|sample| sample.running as f64), whole)];
        if samples.iter().any(|sample| sample.memory_bytes.is_some()) {
            let memory = amounts(&|sample| sample.memory_bytes.unwrap_or(0) as f64);
            plots.push(plot("memory", &memory, |value| bytes(value as u64)));
        }
        let tokens = rates(&|sample| sample.tokens as f64 * 60.0);
        plots.push(plot("tokens per minute", &tokens, whole));
        let cpu = rates(&|sample| sample.guest_cpu.as_secs_f64());
        plots.push(plot("cores of guests", &cpu, |value| format!("{value:.2}")));
        Self { plots, time: duration(last.at.saturating_sub(first.at)) }
    }
}

fn plot(name: &'static str, points: &[(f64, f64)], shown: impl Fn(f64) -> String) -> LoadPlot {
    let highest = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let [width, height] = SIZE;
    let scale = if highest > 0.0 { (height - 4.0) / highest } else { 0.0 };
    let place = |(time, value): &(f64, f64)| format!("{:.1},{:.1}", time * width, height - value * scale);
    let line: Vec<String> = points.iter().map(place).collect();
    let ends = [points.first(), points.last()].map(|end| end.map_or(0.0, |(time, _)| time * width));
    let line = line.join(" ");
    LoadPlot {
        name,
        now: shown(points.last().map_or(0.0, |(_, value)| *value)),
        highest: shown(highest),
        area: format!("{:.1},{height} {line} {:.1},{height}", ends[0], ends[1]),
        line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_show_amounts_and_rates() {
        let sample = |secs, running, tokens, cpu_secs| LoadSample {
            at: Duration::from_secs(secs),
            running,
            memory_bytes: None,
            ended: tokens / 100,
            tokens,
            guest_cpu: Duration::from_secs(cpu_secs),
        };
        let plots = LoadPlots::new(&[sample(0, 1, 0, 0), sample(30, 4, 600, 15), sample(60, 2, 600, 15)]);
        let shown: Vec<_> = plots.plots.iter().map(|plot| (plot.name, &*plot.now, &*plot.highest)).collect();
        assert_eq!(
            shown,
            [
                ("running", "2", "4"),
                ("tokens per minute", "0", "1\u{2009}200"),
                ("cores of guests", "0.00", "0.50")
            ]
        );
        assert_eq!(plots.plots[0].line, "0.0,53.5 150.0,4.0 300.0,37.0");
        assert_eq!(plots.plots[1].line, "0.0,4.0 150.0,4.0 150.0,70.0 300.0,70.0");
        assert_eq!(plots.time, "1 min 0 s");
        assert!(LoadPlots::new(&[]).plots.is_empty());
        // The tenant was closed and opened again, so its counts restart at zero.
        let again = LoadPlots::new(&[sample(0, 0, 500, 9), sample(30, 0, 10, 0)]);
        assert_eq!(again.plots[1].now, "0");
    }

    #[test]
    fn rates_cover_the_latest_samples() {
        let sample = |secs, ended, tokens, cpu_secs| LoadSample {
            at: Duration::from_secs(secs),
            ended,
            tokens,
            guest_cpu: Duration::from_secs(cpu_secs),
            ..LoadSample::default()
        };
        let check = |samples: &[LoadSample], expected: [f64; 3]| {
            let LoadRates { ended_per_minute, tokens_per_minute, guest_cores } = LoadRates::new(samples);
            assert_eq!([ended_per_minute, tokens_per_minute, guest_cores], expected, "{samples:?}");
        };
        check(&[], [0.0; 3]);
        check(&[sample(9, 4, 400, 4)], [0.0; 3]);
        check(&[sample(0, 0, 0, 0), sample(5, 1, 100, 10)], [12.0, 1200.0, 2.0]);
        let samples =
            [sample(0, 0, 0, 0), sample(60, 10, 500, 60), sample(70, 11, 600, 61), sample(80, 12, 700, 70)];
        check(&samples, [6.0, 600.0, 0.5]);
        // A tenant was closed and opened again, so its counts begin at zero.
        check(&[sample(0, 50, 900, 9), sample(30, 0, 10, 0)], [0.0; 3]);
    }
}
