//! The report of a bench, for programs (serde) and for people ([`Report::render`]).

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::Generation;
use super::outcome::ErrorKind;
use super::stats::median;

/// CPU use of the bench, in cores, above which the bench itself may be the bottleneck.
const BENCH_CORES_SUSPECT: f64 = 0.9;

/// All results of a bench.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Generation of the protocol.
    pub generation: Generation,
    /// Delay before each answer of the stub model, in milliseconds.
    pub model_latency_ms: f64,
    /// Number of chat calls per rollout.
    pub turns: u32,
    /// Length of a tool result that was requested, in bytes.
    pub tool_bytes: Option<usize>,
    /// Whether rollouts started in waves, instead of one by one.
    pub wave: bool,
    /// Number of measurements of each server at each number in flight.
    pub rounds: usize,
    /// Number of processors available to the bench, usually shared with the servers.
    pub cores: usize,
    /// The servers, in the order of the results.
    pub targets: Vec<TargetSeen>,
    /// Results by number in flight.
    pub levels: Vec<Level>,
}

/// A measured server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetSeen {
    /// Name from the settings.
    pub name: String,
    /// Actual URL.
    pub url: String,
    /// Process that CPU time and memory belong to.
    pub pid: Option<u32>,
    /// Command that started the server, if the bench did.
    pub command: Option<String>,
}

/// Results at one number in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// Number of concurrent rollouts.
    pub in_flight: usize,
    /// Results of each server.
    pub servers: Vec<ServerLevel>,
    /// Ratios of the first server's medians to the second's, if there are two servers.
    pub ratios: Option<Ratios>,
}

/// Results of one server at one number in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerLevel {
    /// Medians of the rounds, and sums of counts.
    pub median: Figures,
    /// Results of each round.
    pub rounds: Vec<Figures>,
}

/// Results of one measurement. Per-rollout figures are `None` if no rollout ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Number of rollouts that ended with the right reward.
    pub scored: u64,
    /// Time from the start of the first rollout to the end of the last, in seconds.
    pub elapsed_secs: f64,
    /// `scored` divided by `elapsed_secs`.
    pub rollouts_per_sec: f64,
    /// Median latency of the scored rollouts in milliseconds, from the first attempt at admission to the
    /// result. Waits after a 429 are included.
    pub p50_ms: Option<f64>,
    /// 95th percentile of the latency, in milliseconds.
    pub p95_ms: Option<f64>,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Median time of an admission that was not refused, in milliseconds.
    pub admission_p50_ms: Option<f64>,
    /// 99th percentile of that time, in milliseconds.
    pub admission_p99_ms: Option<f64>,
    /// Rollouts that failed.
    pub errors: Errors,
    /// Number of 429 answers. Each was retried after a wait and is not an error.
    pub refused: u64,
    /// Whether the measurement stopped early because every rollout failed.
    pub gave_up: bool,
    /// Reads of the result (generation D) per ended rollout.
    pub polls_per_rollout: Option<f64>,
    /// Chat calls per ended rollout.
    pub model_calls_per_rollout: Option<f64>,
    /// Number of chat calls without the key of their rollout.
    pub model_calls_without_key: u64,
    /// CPU time of the bench itself per ended rollout, in milliseconds.
    pub bench_cpu_ms_per_rollout: Option<f64>,
    /// CPU use of the bench itself, in cores.
    pub bench_cpu_cores: Option<f64>,
    /// Figures of the server's process, if it is known.
    pub server: Option<ServerFigures>,
}

/// Figures of a server's process, without its children.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerFigures {
    /// CPU time (user and system, all threads) per ended rollout, in milliseconds.
    pub cpu_ms_per_rollout: Option<f64>,
    /// CPU use, in cores.
    pub cpu_cores: f64,
    /// Maximum resident memory during the measurement, in MiB.
    pub rss_mib: f64,
    /// Peak resident memory since the process started, in MiB.
    pub rss_peak_mib: f64,
    /// Maximum proportional memory during the measurement, in MiB: a page that is mapped many times counts once, as it
    /// does in a control group. `None` if the kernel does not report it.
    pub pss_mib: Option<f64>,
    /// Maximum number of memory mappings.
    pub mappings: f64,
    /// Maximum number of open descriptors.
    pub fds: f64,
}

/// Ratios of the first server's figures to the second's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    /// Above 1, the first is faster.
    pub rollouts_per_sec: Option<f64>,
    /// Below 1, the first is faster.
    pub p50: Option<f64>,
    /// Below 1, the first is faster.
    pub p95: Option<f64>,
    /// Below 1, the first is faster.
    pub p99: Option<f64>,
    /// Below 1, the first is cheaper.
    pub cpu_per_rollout: Option<f64>,
    /// Below 1, the first is smaller.
    pub rss: Option<f64>,
    /// Below 1, the first is smaller.
    pub pss: Option<f64>,
}

/// Errors by the name of their [`ErrorKind`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Errors(pub BTreeMap<String, ErrorCount>);

/// Errors of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ErrorCount {
    /// Number of errors.
    pub count: u64,
    /// Description of the first error.
    pub first: String,
}

impl Errors {
    pub(super) fn of(errors: &BTreeMap<ErrorKind, (u64, String)>) -> Self {
        let named = |(kind, (count, first)): (&ErrorKind, &(u64, String))| {
            (kind.to_string(), ErrorCount { count: *count, first: first.clone() })
        };
        Self(errors.iter().map(named).collect())
    }

    /// Returns the number of errors of all kinds.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(|error| error.count).sum()
    }
}

impl Level {
    /// Combines the rounds of each server.
    pub(super) fn new(in_flight: usize, rounds: Vec<Vec<Figures>>) -> Self {
        let servers = rounds.into_iter().map(|rounds| ServerLevel { median: medians(&rounds), rounds });
        let servers: Vec<ServerLevel> = servers.collect();
        let ratios = match servers.as_slice() {
            [first, second] => Some(Ratios::of(&first.median, &second.median)),
            _ => None,
        };
        Self { in_flight, servers, ratios }
    }
}

impl Ratios {
    fn of(first: &Figures, second: &Figures) -> Self {
        let ratio = |figure: fn(&Figures) -> Option<f64>| {
            let second = figure(second).filter(|&value| value > 0.0)?;
            Some(figure(first)? / second)
        };
        Self {
            rollouts_per_sec: ratio(|it| Some(it.rollouts_per_sec)),
            p50: ratio(|it| it.p50_ms),
            p95: ratio(|it| it.p95_ms),
            p99: ratio(|it| it.p99_ms),
            cpu_per_rollout: ratio(|it| it.server.as_ref()?.cpu_ms_per_rollout),
            rss: ratio(|it| Some(it.server.as_ref()?.rss_mib)),
            pss: ratio(|it| it.server.as_ref()?.pss_mib),
        }
    }
}

/// Returns the medians of the rounds, with sums of counts and maxima of peaks.
fn medians(rounds: &[Figures]) -> Figures {
    let middle = |figure: fn(&Figures) -> Option<f64>| median(rounds.iter().filter_map(figure));
    let sum = |count: fn(&Figures) -> u64| rounds.iter().map(count).sum();
    let mut errors = Errors::default();
    for (kind, error) in rounds.iter().flat_map(|round| &round.errors.0) {
        let all = errors.0.entry(kind.clone()).or_default();
        all.count += error.count;
        if all.first.is_empty() {
            all.first.clone_from(&error.first);
        }
    }
    let servers = || rounds.iter().filter_map(|round| round.server.as_ref());
    let of_servers = |figure: fn(&ServerFigures) -> f64| median(servers().map(figure));
    let server = of_servers(|it| it.cpu_cores).map(|cpu_cores| ServerFigures {
        cpu_ms_per_rollout: middle(|it| it.server.as_ref()?.cpu_ms_per_rollout),
        cpu_cores,
        rss_mib: of_servers(|it| it.rss_mib).unwrap_or_default(),
        rss_peak_mib: servers().map(|it| it.rss_peak_mib).fold(0.0, f64::max),
        pss_mib: middle(|it| it.server.as_ref()?.pss_mib),
        mappings: of_servers(|it| it.mappings).unwrap_or_default(),
        fds: of_servers(|it| it.fds).unwrap_or_default(),
    });
    Figures {
        scored: sum(|it| it.scored),
        elapsed_secs: middle(|it| Some(it.elapsed_secs)).unwrap_or_default(),
        rollouts_per_sec: middle(|it| Some(it.rollouts_per_sec)).unwrap_or_default(),
        p50_ms: middle(|it| it.p50_ms),
        p95_ms: middle(|it| it.p95_ms),
        p99_ms: middle(|it| it.p99_ms),
        admission_p50_ms: middle(|it| it.admission_p50_ms),
        admission_p99_ms: middle(|it| it.admission_p99_ms),
        errors,
        refused: sum(|it| it.refused),
        gave_up: rounds.iter().any(|it| it.gave_up),
        polls_per_rollout: middle(|it| it.polls_per_rollout),
        model_calls_per_rollout: middle(|it| it.model_calls_per_rollout),
        model_calls_without_key: sum(|it| it.model_calls_without_key),
        bench_cpu_ms_per_rollout: middle(|it| it.bench_cpu_ms_per_rollout),
        bench_cpu_cores: middle(|it| it.bench_cpu_cores),
        server,
    }
}

impl Report {
    /// Formats the report as a table with remarks for people. Ends with a line break.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        self.heading(&mut text);
        self.table(&mut text);
        self.errors(&mut text);
        self.remarks(&mut text);
        text
    }

    /// Returns whether every rollout ended with the right reward.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let figures = || self.levels.iter().flat_map(|level| &level.servers).map(|server| &server.median);
        figures().all(|it| it.errors.count() == 0 && it.model_calls_without_key == 0 && it.scored > 0)
    }

    fn heading(&self, text: &mut String) {
        let turns = match (self.turns, self.tool_bytes) {
            (1, _) => "1 turn".to_owned(),
            (turns, None) => format!("{turns} turns"),
            (turns, Some(bytes)) => format!("{turns} turns with tool results of {bytes} bytes"),
        };
        let pace = if self.wave { "in waves" } else { "steady" };
        let rounds = if self.rounds == 1 { "1 round" } else { &format!("medians of {} rounds", self.rounds) };
        line(
            text,
            &format!(
                "Generation {}, model latency {} ms, {turns}, {pace}, {rounds}, {} cores",
                self.generation, self.model_latency_ms, self.cores
            ),
        );
        for target in &self.targets {
            let pid = target.pid.map_or("pid not given".to_owned(), |pid| format!("pid {pid}"));
            line(text, &format!("  {}: {}, {pid}", clean(&target.name), clean(&target.url)));
        }
        line(text, "");
    }

    fn table(&self, text: &mut String) {
        let header = [
            "in flight",
            "server",
            "rollouts/s",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "errors",
            "429s",
            "CPU ms each",
            "bench CPU ms",
            "RSS MiB",
            "PSS MiB",
            "mappings",
            "fds",
        ];
        let mut rows = vec![header.map(str::to_owned)];
        for level in &self.levels {
            for (at, (server, target)) in level.servers.iter().zip(&self.targets).enumerate() {
                let in_flight = if at == 0 { level.in_flight.to_string() } else { String::new() };
                rows.push(row(in_flight, clean(&target.name), &server.median));
            }
            rows.extend(level.ratios.as_ref().map(ratio_row));
        }
        let widths: [usize; 14] = std::array::from_fn(|column| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        for row in &rows {
            let mut out = String::new();
            for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
                // Names are aligned to the left, numbers to the right.
                let cell =
                    if column == 1 { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
                out.push_str(&cell);
            }
            line(text, out.trim_end());
        }
    }

    fn errors(&self, text: &mut String) {
        let mut lines = Vec::new();
        for (in_flight, name, figures) in self.each() {
            for (kind, error) in &figures.errors.0 {
                let first = clean(&error.first);
                lines.push(format!("  {name} at {in_flight}: {} {kind}, first: {first}", error.count));
            }
        }
        if !lines.is_empty() {
            line(text, "");
            line(text, "Errors");
            lines.iter().for_each(|error| line(text, error));
        }
    }

    /// Adds a note about each figure that makes a measurement doubtful.
    fn remarks(&self, text: &mut String) {
        let mut remarks = Vec::new();
        for (in_flight, name, figures) in self.each() {
            if figures.gave_up {
                remarks.push(format!("{name} at {in_flight}: stopped early, after failures only"));
            }
            if figures.model_calls_without_key > 0 {
                let calls = figures.model_calls_without_key;
                remarks.push(format!(
                    "{name} at {in_flight}: {calls} chat calls without the key of their rollout"
                ));
            }
            let per_rollout = figures.model_calls_per_rollout;
            if let Some(calls) = per_rollout.filter(|calls| (calls - f64::from(self.turns)).abs() > 0.005) {
                remarks.push(format!(
                    "{name} at {in_flight}: {calls:.2} chat calls a rollout, not {}",
                    self.turns
                ));
            }
            if let Some(cores) = figures.bench_cpu_cores.filter(|cores| *cores > BENCH_CORES_SUSPECT) {
                remarks.push(format!(
                    "{name} at {in_flight}: the bench itself used {cores:.2} cores and may be the bottleneck"
                ));
            }
        }
        if !remarks.is_empty() {
            line(text, "");
            remarks.iter().for_each(|remark| line(text, &format!("Note: {remark}")));
        }
    }

    fn each(&self) -> impl Iterator<Item = (usize, String, &Figures)> {
        self.levels.iter().flat_map(|level| {
            let named = level.servers.iter().zip(&self.targets);
            named.map(move |(server, target)| (level.in_flight, clean(&target.name), &server.median))
        })
    }
}

type Row = [String; 14];

fn row(in_flight: String, name: String, figures: &Figures) -> Row {
    let server = figures.server.as_ref();
    let server = |figure: fn(&ServerFigures) -> Option<f64>| cell(server.and_then(figure), number);
    [
        in_flight,
        name,
        number(figures.rollouts_per_sec),
        cell(figures.p50_ms, number),
        cell(figures.p95_ms, number),
        cell(figures.p99_ms, number),
        figures.errors.count().to_string(),
        figures.refused.to_string(),
        server(|it| it.cpu_ms_per_rollout),
        cell(figures.bench_cpu_ms_per_rollout, number),
        server(|it| Some(it.rss_mib)),
        server(|it| it.pss_mib),
        server(|it| Some(it.mappings.round())),
        server(|it| Some(it.fds.round())),
    ]
}

fn ratio_row(ratios: &Ratios) -> Row {
    let mut row: Row = std::array::from_fn(|_| String::new());
    let times = |ratio| cell(ratio, times);
    row[1] = "first / second".to_owned();
    row[2] = times(ratios.rollouts_per_sec);
    row[3] = times(ratios.p50);
    row[4] = times(ratios.p95);
    row[5] = times(ratios.p99);
    row[8] = times(ratios.cpu_per_rollout);
    row[10] = times(ratios.rss);
    row[11] = times(ratios.pss);
    row
}

fn cell(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

/// Formats three significant digits, and all digits before the point.
fn number(value: f64) -> String {
    let value = value + 0.0;
    let decimals = match value.abs() {
        size if size == size.trunc() && size < 1e6 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Formats a ratio with three significant digits.
fn times(ratio: f64) -> String {
    if ratio >= 1.0 || ratio <= 0.0 {
        format!("×{}", number(ratio))
    } else {
        format!("÷{}", number(1.0 / ratio))
    }
}

fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string can be written to");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, pid: Option<u32>) -> TargetSeen {
        TargetSeen { name: name.to_owned(), url: "http://127.0.0.1:9".to_owned(), pid, command: None }
    }

    fn figures(rate: f64, p50: f64, cpu: Option<f64>) -> Figures {
        let server = ServerFigures {
            cpu_ms_per_rollout: cpu,
            rss_mib: 30.5,
            rss_peak_mib: 31.0,
            pss_mib: Some(20.25),
            mappings: 250.0,
            fds: 12.0,
            ..Default::default()
        };
        Figures {
            scored: (rate * 5.0) as u64,
            elapsed_secs: 5.0,
            rollouts_per_sec: rate,
            p50_ms: Some(p50),
            p95_ms: Some(p50 * 2.0),
            p99_ms: Some(p50 * 4.0),
            model_calls_per_rollout: Some(1.0),
            bench_cpu_ms_per_rollout: Some(0.0321),
            bench_cpu_cores: Some(0.1),
            server: cpu.map(|_| server),
            ..Default::default()
        }
    }

    fn report(targets: Vec<TargetSeen>, levels: Vec<Level>) -> Report {
        Report {
            generation: Generation::D,
            model_latency_ms: 0.0,
            turns: 1,
            tool_bytes: None,
            wave: false,
            rounds: 2,
            cores: 2,
            targets,
            levels,
        }
    }

    #[test]
    fn a_report_on_two_servers_reads_like_this() {
        let ours = vec![figures(4000.0, 15.0, Some(0.2)), figures(4400.0, 13.0, Some(0.3))];
        let theirs = vec![figures(100.0, 500.0, Some(8.0)), figures(110.0, 480.0, Some(7.0))];
        let targets = vec![target("ours", Some(7)), target("python", Some(8))];
        let report = report(targets, vec![Level::new(64, vec![ours, theirs])]);
        assert_eq!(
            report.render(),
            "\
Generation D, model latency 0 ms, 1 turn, steady, medians of 2 rounds, 2 cores
  ours: http://127.0.0.1:9, pid 7
  python: http://127.0.0.1:9, pid 8

in flight  server          rollouts/s  p50 ms  p95 ms  p99 ms  errors  429s  CPU ms each  bench CPU ms  RSS MiB  PSS MiB  mappings  fds
       64  ours                  4200      14      28      56       0     0        0.250         0.032     30.5     20.2       250   12
           python                 105     490     980    1960       0     0         7.50         0.032     30.5     20.2       250   12
           first / second         ×40     ÷35     ÷35     ÷35                        ÷30                     ×1       ×1
"
        );
        assert!(report.is_clean());
    }

    #[test]
    fn errors_and_remarks_follow_the_table() {
        let mut bad = figures(10.0, 1.0, None);
        let lost = ErrorCount { count: 3, first: "not ended\nafter 60s".to_owned() };
        bad.errors.0.insert("lost".to_owned(), lost);
        bad.gave_up = true;
        bad.model_calls_without_key = 2;
        bad.model_calls_per_rollout = Some(1.5);
        bad.bench_cpu_cores = Some(0.97);
        let nothing = Figures::default();
        let report = report(vec![target("a\u{1b}[2J", None)], vec![Level::new(8, vec![vec![bad, nothing]])]);
        let text = report.render();
        for part in [
            "pid not given",
            "a [2J at 8: 3 lost, first: not ended after 60s",
            "stopped early",
            "2 chat calls without the key of their rollout",
            "1.50 chat calls a rollout, not 1",
            "used 0.97 cores",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("NaN") && !text.contains("first / second"), "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(!report.is_clean());
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        fn check(value: f64, expected: &str) {
            assert_eq!(number(value), expected);
        }
        check(0.0, "0");
        check(-0.0, "0");
        check(0.01234, "0.012");
        check(0.9999, "1.00");
        check(1.234, "1.23");
        check(9.999, "10.0");
        check(12.34, "12.3");
        check(99.96, "100");
        check(1234.5, "1234");
        check(64.0, "64");
        assert_eq!(times(217.3), "×217");
        assert_eq!(times(0.004), "÷250");
        assert_eq!(times(0.0), "×0");
    }

    #[test]
    fn rounds_are_combined_to_medians_sums_and_maxima() {
        let mut first = figures(1.0, 10.0, Some(1.0));
        let mut second = figures(3.0, 30.0, Some(2.0));
        first.refused = 2;
        second.refused = 3;
        first.server.as_mut().unwrap().rss_peak_mib = 99.0;
        second.errors.0.insert("lost".to_owned(), ErrorCount { count: 4, first: "x".to_owned() });
        let all = medians(&[first, second]);
        assert_eq!((all.rollouts_per_sec, all.p50_ms, all.refused), (2.0, Some(20.0), 5));
        assert_eq!(all.errors.count(), 4);
        let server = all.server.unwrap();
        assert_eq!((server.cpu_ms_per_rollout, server.rss_peak_mib), (Some(1.5), 99.0));
        assert_eq!(medians(&[]).server, None);
    }
}
