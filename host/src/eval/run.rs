//! Runs every row as often as asked, and writes each result down as it comes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::results::{Journal, JournalError, LimitLine, Outcome as Scored, ResultLine, SampleLine};
use super::rows::Row;
use super::stats::Tally;
use crate::id::RolloutId;
use crate::outbound::ModelEndpoint;
use crate::rollout::{
    self, AdmitError, FailureKind, Finished, FinishedSample, Host, LimitUse, LoopOptions, RolloutRequest,
};

/// What is to be run.
pub struct Work {
    /// The rows.
    pub rows: Vec<Row>,
    /// Times that each is run.
    pub runs_per_row: usize,
    /// Rollouts at once; the host should take as many.
    pub concurrency: usize,
    /// The model that is evaluated.
    pub endpoint: Arc<ModelEndpoint>,
}

/// How an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every rollout has a result.
    Complete,
    /// It was stopped; what has a result is kept.
    Stopped,
}

/// Why an evaluation could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A result could not be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The host refused a rollout.
    #[error("the host took no rollout for row {row}")]
    Refused {
        /// The row.
        row: usize,
        /// Why.
        #[source]
        source: AdmitError,
    },
}

/// Runs what the journal has no result of. `seen` is called after each result.
pub async fn run(
    host: &Host,
    work: Work,
    journal: &mut Journal,
    tally: &mut Tally,
    stop: CancellationToken,
    mut seen: impl FnMut(&Tally),
) -> Result<End, RunError> {
    let mut todo = (0..work.runs_per_row)
        .flat_map(|run| work.rows.iter().map(move |row| (row, run)))
        .filter(|(row, run)| !journal.is_finished(row.index, *run))
        .collect::<Vec<_>>()
        .into_iter();
    let mut under_way = JoinSet::new();
    let root = journal.dir().to_owned();
    // Not read from the token: a stop between two looks at it would cancel nothing.
    let mut cancelled = false;
    loop {
        // Where memory is short, what runs ends before more is begun.
        let may_begin = |under_way: &JoinSet<_>| {
            under_way.is_empty()
                || under_way.len() < work.concurrency && host.budget().check_new_work(0).is_ok()
        };
        while may_begin(&under_way) && !stop.is_cancelled() {
            let Some((row, run)) = todo.next() else { break };
            let request = request(row, run, &work.endpoint);
            let rollout =
                host.admit(request).map_err(|source| RunError::Refused { row: row.index, source })?;
            let row = row.index;
            let span = rollout.span();
            under_way.spawn(async move { (row, run, complete(rollout).await) }.instrument(span));
        }
        let ended = tokio::select! {
            ended = under_way.join_next() => ended,
            () = stop.cancelled(), if !cancelled => {
                cancelled = true;
                host.cancel_all();
                continue;
            }
        };
        match ended {
            None => break,
            Some(Ok((row, run, finished))) => {
                let line = line(row, run, &finished, &root);
                // What was stopped from outside is no result, and is run again.
                if line.kind.as_deref() != Some(FailureKind::Cancelled.as_str()) {
                    journal.append(&line)?;
                    tally.add(&line);
                    seen(tally);
                }
            }
            // The rollout has no result and is run again on resuming.
            Some(Err(error)) => tracing::error!(%error, "the host panicked in a rollout"),
        }
    }
    journal.sync()?;
    Ok(if stop.is_cancelled() { End::Stopped } else { End::Complete })
}

/// An id that names the attempt, the same whenever the evaluation is repeated, so
/// that a model's server that is seeded by it answers the same.
fn rollout_id(row: usize, run: usize) -> RolloutId {
    let text = format!("row-{row:05}-run-{run}");
    RolloutId::parse(text).unwrap_or_else(|_| unreachable!("letters, digits and dashes are one segment"))
}

/// What is asked for one run of a row.
pub fn request(row: &Row, run: usize, endpoint: &Arc<ModelEndpoint>) -> RolloutRequest {
    RolloutRequest {
        id: rollout_id(row.index, run),
        caller_id: None,
        attempt: 1,
        prompt: row.prompt.iter().map(AsRef::as_ref).collect(),
        label: row.label.clone(),
        metadata: row.metadata.clone().map(Into::into),
        loop_options: LoopOptions::default(),
        model: endpoint.clone(),
        samples_max: u32::MAX,
        samples_must_ask: false,
        workflow_secs: None,
        grader_secs: None,
        charge: None,
        trajectory_extra: None,
    }
}

/// Runs a rollout to its end.
pub async fn complete(mut rollout: Box<rollout::Rollout>) -> Finished {
    if rollout.run_workflow().await.is_ok() {
        // The error is in the outcome.
        let _ = rollout.grade().await;
    }
    rollout.finish().await
}

fn line(row: usize, run: usize, finished: &Finished, root: &Path) -> ResultLine {
    let (outcome, reward, failure) = match &finished.outcome {
        rollout::Outcome::Scored { reward } => (Scored::Scored, Some(*reward), None),
        rollout::Outcome::Unscored(failure) => (Scored::Unscored, None, Some(failure)),
    };
    ResultLine {
        row,
        run,
        rollout_id: finished.id.as_str().to_owned(),
        reward,
        outcome,
        stage: failure.map(|failure| failure.stage.as_str().to_owned()),
        kind: failure.map(|failure| failure.kind.as_str().to_owned()),
        fault: failure.map(|failure| failure.fault.as_str().to_owned()),
        reason: failure.map(|failure| failure.reason.clone()),
        metrics: finished.metrics(),
        samples: finished.samples.iter().map(sample).collect(),
        chat_calls: finished.spent.chat_calls,
        prompt_tokens: finished.spent.prompt_tokens,
        completion_tokens: finished.spent.completion_tokens,
        guest_cpu_ms: millis(finished.spent.guest_cpu),
        memory_bytes_peak: finished.spent.memory_bytes_peak as u64,
        host_calls: finished.spent.host_calls,
        waited_ms: millis(finished.spent.waited()),
        model_ms: millis(finished.spent.model_time),
        limits_fired: finished.limits.iter().filter(|limit| limit.fired > 0).map(fired).collect(),
        duration_ms: millis(finished.duration),
        trajectory: finished
            .trajectory()
            .map(|path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()),
    }
}

fn fired(limit: &LimitUse) -> (String, LimitLine) {
    let LimitUse { name, max, used, fired, asked } = *limit;
    (name.to_owned(), LimitLine { max, used, asked, times: fired })
}

fn sample(sample: &FinishedSample) -> SampleLine {
    SampleLine {
        id: sample.record.id.as_str().to_owned(),
        reward: sample.reward,
        withdrawn: sample.record.withdrawn,
        metrics: sample.record.metrics.clone().into_iter().collect::<BTreeMap<_, _>>(),
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
