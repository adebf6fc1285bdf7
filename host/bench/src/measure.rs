//! One measurement of a server at one number in flight.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::endpoint::{Counts, Endpoint};
use super::load::Workers;
use super::outcome::{ErrorKind, Failure};
use super::proc_fs::{Footprint, ProcError, cpu_secs};
use super::report::{Errors, Figures, ServerFigures};
use super::stats::percentile;
use super::tally::{Amount, Tally};
use super::trainer::{TrainerContext, Worker};

/// Interval between readings of the server's memory. Listing tens of thousands of mappings takes milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Runs a single rollout to check that the server works.
pub(super) async fn try_one(context: &Arc<TrainerContext>) -> Result<(), Failure> {
    let mut worker = Worker::new(context.clone());
    worker.rollout().await;
    match worker.tally.errors.0.pop_first() {
        None => Ok(()),
        Some((kind, (_, detail))) => Err(Failure { kind, detail }),
    }
}

/// Warms up, then measures. CPU time and rollouts cover the same period.
pub(super) async fn measure(
    context: &Arc<TrainerContext>,
    pid: Option<u32>,
    workers: &mut Workers,
    warm_up: Amount,
    amount: Amount,
) -> Result<Figures, ProcError> {
    workers.run(warm_up).await;
    let before = Reading::take(&context.endpoint, pid)?;
    let watch = pid.map(Watch::start);
    let mut tally = workers.run(amount).await;
    let after = Reading::take(&context.endpoint, pid)?;
    let footprint = watch.map(Watch::end).transpose()?;
    Ok(figures(&mut tally, &before, &after, footprint))
}

/// All counters at one moment.
#[derive(Debug)]
struct Reading {
    at: Instant,
    counts: Counts,
    server_cpu_secs: Option<f64>,
    /// `None` if it cannot be read.
    bench_cpu_secs: Option<f64>,
}

impl Reading {
    fn take(endpoint: &Endpoint, pid: Option<u32>) -> Result<Self, ProcError> {
        Ok(Self {
            at: Instant::now(),
            counts: endpoint.counts(),
            server_cpu_secs: pid.map(cpu_secs).transpose()?,
            bench_cpu_secs: cpu_secs(std::process::id()).ok(),
        })
    }
}

/// Background task that reads a process regularly and records the maximum.
struct Watch {
    pid: u32,
    greatest: Arc<Mutex<Option<Footprint>>>,
    looking: AbortHandle,
}

impl Watch {
    fn start(pid: u32) -> Self {
        let greatest = Arc::new(Mutex::new(None));
        let shared = greatest.clone();
        let looking = tokio::spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                // Runs on another thread because the kernel may be slow.
                let seen = tokio::task::spawn_blocking(move || Footprint::read(pid)).await;
                // A process that cannot be read is reported at the end.
                let Ok(Ok(seen)) = seen else { return };
                record_max(&shared, seen);
            }
        });
        Self { pid, greatest, looking: looking.abort_handle() }
    }

    fn end(self) -> Result<Footprint, ProcError> {
        Ok(record_max(&self.greatest, Footprint::read(self.pid)?))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

fn record_max(greatest: &Mutex<Option<Footprint>>, seen: Footprint) -> Footprint {
    let mut greatest = greatest.lock().unwrap_or_else(PoisonError::into_inner);
    let all = greatest.map_or(seen, |before| before.max(seen));
    *greatest.insert(all)
}

/// Computes the figures of the period between two readings.
fn figures(tally: &mut Tally, before: &Reading, after: &Reading, footprint: Option<Footprint>) -> Figures {
    let elapsed_secs = (after.at - before.at).as_secs_f64();
    let scored = tally.latencies.len() as u64;
    // Failed rollouts have a cost too.
    let ended = scored + tally.errors.count();
    let doubled = after.counts.doubled - before.counts.doubled;
    for _ in 0..doubled {
        let detail = "a grader callback arrived for a rollout that had ended";
        tally.errors.add(Failure::new(ErrorKind::Doubled, detail));
    }
    tally.latencies.sort_unstable();
    tally.admissions.sort_unstable();
    let ms = |times: &[Duration], share| percentile(times, share).map(|time| time.as_secs_f64() * 1e3);
    let latency_ms = |share| ms(&tally.latencies, share);
    let each = |total: f64| (ended > 0).then(|| total / ended as f64);
    let model_calls = after.counts.model_calls - before.counts.model_calls;
    let bench_cpu_secs =
        after.bench_cpu_secs.zip(before.bench_cpu_secs).map(|(after, before)| after - before);
    let server_cpu_secs =
        after.server_cpu_secs.zip(before.server_cpu_secs).map(|(after, before)| after - before);
    let server = server_cpu_secs.zip(footprint).map(|(cpu_secs, seen)| ServerFigures {
        cpu_ms_per_rollout: each(cpu_secs * 1e3),
        cpu_cores: cpu_secs / elapsed_secs,
        rss_mib: seen.rss_kib as f64 / 1024.0,
        rss_peak_mib: seen.rss_peak_kib as f64 / 1024.0,
        pss_mib: seen.pss_kib.map(|kib| kib as f64 / 1024.0),
        mappings: seen.mappings as f64,
        fds: seen.fds as f64,
    });
    Figures {
        scored,
        elapsed_secs,
        rollouts_per_sec: scored as f64 / elapsed_secs,
        p50_ms: latency_ms(0.50),
        p95_ms: latency_ms(0.95),
        p99_ms: latency_ms(0.99),
        admission_p50_ms: ms(&tally.admissions, 0.50),
        admission_p99_ms: ms(&tally.admissions, 0.99),
        errors: Errors::of(&tally.errors.0),
        refused: tally.refused,
        gave_up: tally.gave_up,
        polls_per_rollout: each(tally.polls as f64),
        model_calls_per_rollout: each(model_calls as f64),
        model_calls_without_key: after.counts.without_key - before.counts.without_key,
        bench_cpu_ms_per_rollout: bench_cpu_secs.and_then(|secs| each(secs * 1e3)),
        bench_cpu_cores: bench_cpu_secs.map(|secs| secs / elapsed_secs),
        server,
    }
}
