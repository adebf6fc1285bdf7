//! Runs the attempts of every row and writes each result as soon as it is known.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lines::{LimitLine, LineOutcome, ResultLine, SampleLine};
use super::results::{ResultsDir, ResultsError, TEXT_BYTES_MAX};
use super::rollout_journal::{self, Attempt, RolloutJournal, UnreportedRollout};
use super::rows::Row;
use super::stats::Tally;
use super::trajectory;
use rollout_outbound::{InvalidEndpoint, ModelEndpoint, Secret};
use rollout_rollout::{
    self as rollout, AdmitError, AfterWorkflow, Continuation, Failure, FailureKind, Finished, FinishedSample,
    Host, LimitUse, LoopOptions, ModelAddress, Next, RequestSecrets, Resources, Rollout, RolloutEnd,
    RolloutLog, RolloutRequest, Steps, drive,
};
use rollout_wire::id::RolloutId;
use rollout_wire::openai::content_text;
use rollout_wire::text::beginning;

/// The attempts that an evaluation runs.
pub struct Work {
    /// The rows.
    pub rows: Vec<Row>,
    /// Number of attempts on each row.
    pub runs_per_row: usize,
    /// Maximum number of concurrent rollouts; at most that of the host.
    pub concurrency: usize,
    /// The model that is evaluated.
    pub model: Model,
    /// The journal of the rollouts, including those that an earlier process left. Without one, no rollout is stored.
    pub journal: Option<RolloutJournal>,
}

/// Address of a model, and the connection that all rollouts share.
#[derive(Clone)]
pub struct Model {
    address: ModelAddress,
    endpoint: Arc<ModelEndpoint>,
}

impl Model {
    /// Creates the model `name` of a server, whose address does not include `/chat/completions`.
    pub fn new(base_url: &str, name: &str, key: Option<Secret>) -> Result<Self, InvalidEndpoint> {
        let (address, secrets) = ModelAddress::split(base_url, name, key);
        let endpoint = Arc::new(secrets.endpoint(&address)?);
        Ok(Self { address, endpoint })
    }

    /// Returns the address and the connection.
    pub fn parts(&self) -> (ModelAddress, Arc<ModelEndpoint>) {
        (self.address.clone(), self.endpoint.clone())
    }

    /// Returns the connection.
    pub fn endpoint(&self) -> &Arc<ModelEndpoint> {
        &self.endpoint
    }
}

/// The way in which an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every rollout has a result.
    Complete,
    /// The evaluation was stopped; the results so far are stored.
    Stopped,
}

/// Error that ends an evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A result could not be stored.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The host did not admit a rollout.
    #[error("the host did not admit a rollout for row {row}")]
    NotAdmitted {
        /// Index of the row.
        row: usize,
        /// The host's reason.
        #[source]
        source: AdmitError,
    },
}

/// Runs the attempts without a result and resumes those that an earlier process left unfinished. Calls
/// `on_result` after each result.
pub async fn run(
    host: &Host,
    mut work: Work,
    results: &mut ResultsDir,
    tally: &mut Tally,
    stop: CancellationToken,
    on_result: impl FnMut(&Tally),
) -> Result<End, RunError> {
    let todo: Vec<(usize, usize)> = (0..work.runs_per_row)
        .flat_map(|run| (0..work.rows.len()).map(move |at| (at, run)))
        .filter(|(at, run)| !results.is_finished(work.rows[*at].index, *run))
        .collect();
    let rows = std::mem::take(&mut work.rows);
    let mut sink = Sink { rows: &rows, root: results.dir().to_owned(), results, tally, on_result };
    if let Some(journal) = &mut work.journal {
        sink.add_unreported(journal)?;
    }
    let ran = run_all(host, &mut work, &mut sink, todo, &stop).await;
    if let Some(journal) = &work.journal {
        journal.close().await;
    }
    ran?;
    sink.results.sync()?;
    Ok(if stop.is_cancelled() { End::Stopped } else { End::Complete })
}

/// Runs the attempts in `todo`, pairs of a row's position and a run, that have no result yet. Cancels the running
/// rollouts if `stop` is cancelled.
async fn run_all(
    host: &Host,
    work: &mut Work,
    sink: &mut Sink<'_, impl FnMut(&Tally)>,
    todo: Vec<(usize, usize)>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let mut todo = todo.into_iter().peekable();
    let mut running = JoinSet::new();
    // Whether the rollouts were cancelled. The token alone does not show this, because it may be set between two
    // checks.
    let mut cancelled = false;
    loop {
        // If memory is short, running rollouts finish before another one starts.
        let may_begin = |running: &JoinSet<_>, work: &Work| {
            running.is_empty() || running.len() < work.concurrency && host.budget().check_new_work(0).is_ok()
        };
        while may_begin(&running, work) && !stop.is_cancelled() {
            let Some(&(at, run)) = todo.peek() else { break };
            let row = &sink.rows[at];
            if !sink.results.is_finished(row.index, run) {
                let rollout = match work.begin(host, row, run) {
                    Ok(rollout) => rollout,
                    // A running rollout may free the room that this one needs.
                    Err(_) if !running.is_empty() => break,
                    Err(source) => return Err(RunError::NotAdmitted { row: row.index, source }),
                };
                running.spawn(run_to_end(rollout, at, run, stop.clone()));
            }
            todo.next();
        }
        let ended = tokio::select! {
            ended = running.join_next() => ended,
            () = stop.cancelled(), if !cancelled => {
                cancelled = true;
                // Rollouts that are cancelled from here on continue when the evaluation is resumed.
                if let Some(journal) = &work.journal {
                    journal.close().await;
                }
                host.cancel_all();
                continue;
            }
        };
        match ended {
            None => return Ok(()),
            // The rollout has no result and runs again on resuming; its driver has logged the reason.
            Some(Ok(None)) => {}
            Some(Ok(Some(finished))) => sink.add(finished)?,
            Some(Err(error)) => tracing::error!(%error, "the host panicked outside a rollout"),
        }
    }
}

impl Work {
    /// Starts an attempt, or resumes it if an earlier process left it unfinished.
    fn begin(&mut self, host: &Host, row: &Row, run: usize) -> Result<Box<Rollout>, AdmitError> {
        let attempt = Attempt { row: row.index, run };
        match self.journal.as_mut().and_then(|journal| journal.take_unfinished(attempt)) {
            Some(unfinished) => host.resume(unfinished.with_time_anew(), self.model.endpoint().clone()),
            None => admit_with(host, row, run, &self.model, Some(attempt.continuation())),
        }
    }
}

/// A finished rollout with the index of its row in [`Sink::rows`], its run and its log in the journal.
struct FinishedAttempt {
    at: usize,
    run: usize,
    finished: Box<Finished>,
    log: Option<RolloutLog>,
}

/// Runs a rollout to its end. Returns `None` if this process must not report it: the host panicked in it,
/// or was stopped before the outcome was in the journal.
async fn run_to_end(
    rollout: Box<Rollout>,
    at: usize,
    run: usize,
    stop: CancellationToken,
) -> Option<FinishedAttempt> {
    let log = rollout.log().cloned();
    let finished = complete(rollout).await.ok()?;
    if let Some(log) = &log {
        // The outcome is in the journal before it is in the results.
        tokio::select! {
            biased;
            written = log.written() => if let Err(error) = written {
                let id = finished.id.as_str();
                tracing::error!(%error, id, "the outcome is in the results but could not be written to the journal");
            },
            () = stop.cancelled() => return None,
        }
    }
    Some(FinishedAttempt { at, run, finished, log })
}

/// Writes results.
struct Sink<'a, S> {
    rows: &'a [Row],
    root: PathBuf,
    results: &'a mut ResultsDir,
    tally: &'a mut Tally,
    on_result: S,
}

impl<S: FnMut(&Tally)> Sink<'_, S> {
    /// Writes the line of a rollout and then ends its log.
    fn add(&mut self, attempt: FinishedAttempt) -> Result<(), ResultsError> {
        let FinishedAttempt { at, run, finished, log } = attempt;
        let line = line(Subject::of(&self.rows[at], run), &finished, &self.root);
        // A cancelled rollout has no result and runs again.
        if line.kind.as_deref() != Some(FailureKind::Cancelled.as_str()) {
            self.results.append(&line)?;
            self.tally.add(&line);
            (self.on_result)(self.tally);
        }
        if let Some(log) = log {
            log.end();
        }
        Ok(())
    }

    /// Writes the lines of rollouts that an earlier process finished but did not write.
    fn add_unreported(&mut self, journal: &mut RolloutJournal) -> Result<(), ResultsError> {
        let positions: HashMap<usize, usize> =
            self.rows.iter().enumerate().map(|(at, row)| (row.index, at)).collect();
        for UnreportedRollout { attempt: Attempt { row, run }, log } in journal.take_unreported() {
            // A resumed evaluation may have more rows, never fewer.
            if let Some(at) = positions.get(&row).copied() {
                let finished = rollout_journal::read_outcome(&log).map_err(|source| ResultsError::Io {
                    action: "read an outcome from the journal in",
                    path: self.root.clone(),
                    source,
                })?;
                self.add(FinishedAttempt { at, run, finished: Box::new(finished), log: Some(log) })?;
            }
        }
        Ok(())
    }
}

/// Returns the id of an attempt. It is the same in every run of the evaluation, so that a model's server that uses it
/// as a seed gives the same answers.
fn rollout_id(row: usize, run: usize) -> RolloutId {
    let text = format!("row-{row:05}-run-{run}");
    RolloutId::parse(text).unwrap_or_else(|_| unreachable!("letters, digits and dashes are one segment"))
}

/// Admits one run of a row that is not stored in a journal.
pub fn admit(host: &Host, row: &Row, run: usize, model: &Model) -> Result<Box<Rollout>, AdmitError> {
    admit_with(host, row, run, model, None)
}

fn admit_with(
    host: &Host,
    row: &Row,
    run: usize,
    model: &Model,
    continuation: Option<Continuation>,
) -> Result<Box<Rollout>, AdmitError> {
    let Model { address, endpoint } = model.clone();
    // The journal does not store the key; the command that resumes the evaluation gets it again.
    let secrets = RequestSecrets::default();
    let resources = Resources { model: endpoint, secrets, charge: None, continuation, past: None };
    host.admit(request(row, run, address), resources)
}

fn request(row: &Row, run: usize, model: ModelAddress) -> RolloutRequest {
    RolloutRequest {
        id: rollout_id(row.index, run),
        caller_id: None,
        attempt: 1,
        prompt: row.prompt.iter().map(AsRef::as_ref).collect(),
        label: row.label.clone(),
        metadata: row.metadata.clone().map(Into::into),
        loop_options: LoopOptions::default(),
        model,
        samples_max: u32::MAX,
        samples_must_ask: false,
        workflow_secs: None,
        grader_secs: None,
        trajectory_extra: Some(trajectory::extra()),
        fork: None,
        conversation: None,
        group: None,
    }
}

/// Runs a rollout to its end. Fails only if the host panicked in it.
pub async fn complete(rollout: Box<Rollout>) -> Result<Box<Finished>, Failure> {
    drive(rollout, Box::new(EvaluationSteps)).await
}

/// Steps of a rollout that is graded and notifies no caller.
struct EvaluationSteps;

impl Steps for EvaluationSteps {
    type End = Result<Box<Finished>, Failure>;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::Grade)
    }

    async fn finished(self: Box<Self>, ended: RolloutEnd) -> Self::End {
        match ended {
            RolloutEnd::Finished(finished) | RolloutEnd::Cancelled(finished) => Ok(finished),
            RolloutEnd::Crashed(failure) => Err(failure),
        }
    }
}

/// Fields of a line that do not depend on the outcome.
pub(crate) struct Subject {
    pub attempt: Attempt,
    pub prompt: Option<String>,
    pub label: Option<String>,
}

impl Subject {
    fn of(row: &Row, run: usize) -> Self {
        Self {
            attempt: Attempt { row: row.index, run },
            prompt: last_text(row.prompt.iter().map(|message| message.get()), "user"),
            label: row.label.as_deref().map(|label| beginning(label, TEXT_BYTES_MAX)),
        }
    }
}

/// Creates the line of a finished rollout. Paths are relative to `root`.
pub(crate) fn line(subject: Subject, finished: &Finished, root: &Path) -> ResultLine {
    let Subject { attempt: Attempt { row, run }, prompt, label } = subject;
    let (outcome, reward, failure) = match &finished.outcome {
        rollout::Outcome::Scored { reward } => (LineOutcome::Scored, Some(*reward), None),
        rollout::Outcome::Unscored(failure) => (LineOutcome::Unscored, None, Some(failure)),
    };
    let several = finished.samples.len() > 1;
    let counts = finished.samples.iter().find(|sample| !sample.record.withdrawn);
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
        prompt,
        label,
        answer: counts.and_then(answer),
        metrics: finished.metrics(),
        samples: finished.samples.iter().map(|one| sample(one, several)).collect(),
        chat_calls: finished.usage.chat_calls,
        chat_retries: finished.usage.chat_retries,
        prompt_tokens: finished.usage.prompt_tokens,
        completion_tokens: finished.usage.completion_tokens,
        guest_cpu_ms: millis(finished.usage.guest_cpu),
        memory_bytes_peak: finished.usage.memory_bytes_peak as u64,
        host_calls: finished.usage.host_calls,
        waited_ms: millis(finished.usage.waited()),
        model_ms: millis(finished.usage.model_time),
        limits_hit: finished.limits.iter().filter(|limit| limit.hits > 0).map(limit_line).collect(),
        refused_uses: finished.refused_uses.clone(),
        samples_unanswered: finished.samples.iter().filter(|sample| sample.lacks_reply()).count(),
        duration_ms: millis(finished.duration),
        queued_ms: millis(finished.queued),
        trajectory: finished
            .trajectory()
            .map(|path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()),
    }
}

fn limit_line(limit: &LimitUse) -> (String, LimitLine) {
    let LimitUse { name, max, used, hits, requested_max } = limit.clone();
    (name.into_owned(), LimitLine { max, used, asked: requested_max, times: hits })
}

/// Returns the text of the model's last message in a sample.
fn answer(sample: &FinishedSample) -> Option<String> {
    last_text(sample.record.messages.iter(), "assistant")
}

/// Returns the text of the last message of a role that has text, truncated to the length for a line.
fn last_text<'a>(messages: impl DoubleEndedIterator<Item = &'a str>, role: &str) -> Option<String> {
    /// Part of a message.
    #[derive(Deserialize)]
    struct MessageText<'a> {
        #[serde(borrow)]
        role: std::borrow::Cow<'a, str>,
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    messages
        .rev()
        .filter_map(|message| serde_json::from_str::<MessageText<'_>>(message).ok())
        .filter(|message| message.role == role)
        .find_map(|message| {
            message.content.map(|content| content_text(content.get())).filter(|text| !text.is_empty())
        })
        .map(|text| beginning(&text, TEXT_BYTES_MAX))
}

fn sample(sample: &FinishedSample, several: bool) -> SampleLine {
    SampleLine {
        id: sample.record.id.as_str().to_owned(),
        reward: sample.reward,
        withdrawn: sample.record.withdrawn,
        answer: several.then(|| answer(sample)).flatten(),
        metrics: sample.record.metrics.clone().into_iter().collect::<BTreeMap<_, _>>(),
    }
}

/// Converts a duration to milliseconds, rounded to microseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
