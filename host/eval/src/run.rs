//! Runs every row as often as asked, and writes each result down as it comes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::kept::{self, Attempt, Kept, Unreported};
use super::results::{
    Journal, JournalError, LimitLine, Outcome as Scored, ResultLine, SampleLine, TEXT_BYTES_MAX,
};
use super::rows::Row;
use super::stats::Tally;
use super::trajectory;
use rollout_core::id::RolloutId;
use rollout_core::outbound::{InvalidEndpoint, ModelEndpoint, Secret};
use rollout_core::rollout::{
    self, AdmitError, AfterWorkflow, Continuation, Ended, Failure, FailureKind, Finished, FinishedSample,
    Host, LimitUse, LoopOptions, ModelAddress, Next, RequestSecrets, Resources, Rollout, RolloutLog,
    RolloutRequest, Steps, drive,
};
use rollout_core::text::beginning;
use rollout_core::wire::openai::content_text;

/// What is to be run.
pub struct Work {
    /// The rows.
    pub rows: Vec<Row>,
    /// Times that each is run.
    pub runs_per_row: usize,
    /// Rollouts at once; the host should take as many.
    pub concurrency: usize,
    /// The model that is evaluated.
    pub model: Model,
    /// Where the rollouts are kept, and what a process before left; none keeps none.
    pub kept: Option<Kept>,
}

/// A model that many rollouts ask: where it is, and the connection to it that they share.
#[derive(Clone)]
pub struct Model {
    address: ModelAddress,
    endpoint: Arc<ModelEndpoint>,
}

impl Model {
    /// The model of this name at a server, whose address is without `/chat/completions`.
    pub fn new(base_url: &str, name: &str, key: Option<Secret>) -> Result<Self, InvalidEndpoint> {
        let (address, secrets) = ModelAddress::split(base_url, name, key);
        let endpoint = Arc::new(secrets.endpoint(&address)?);
        Ok(Self { address, endpoint })
    }

    /// Its address, and the connection to it.
    pub fn parts(&self) -> (ModelAddress, Arc<ModelEndpoint>) {
        (self.address.clone(), self.endpoint.clone())
    }

    /// The connection to it.
    pub fn endpoint(&self) -> &Arc<ModelEndpoint> {
        &self.endpoint
    }
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

/// Runs what the results have no row of, and goes on with what a process before left. `seen` is called
/// after each result.
pub async fn run(
    host: &Host,
    mut work: Work,
    journal: &mut Journal,
    tally: &mut Tally,
    stop: CancellationToken,
    seen: impl FnMut(&Tally),
) -> Result<End, RunError> {
    let todo: Vec<(usize, usize)> = (0..work.runs_per_row)
        .flat_map(|run| (0..work.rows.len()).map(move |at| (at, run)))
        .filter(|(at, run)| !journal.is_finished(work.rows[*at].index, *run))
        .collect();
    let rows = std::mem::take(&mut work.rows);
    let mut results = Results { rows: &rows, root: journal.dir().to_owned(), journal, tally, seen };
    if let Some(kept) = &mut work.kept {
        results.add_unreported(kept)?;
    }
    let ran = run_all(host, &mut work, &mut results, todo, &stop).await;
    if let Some(kept) = &work.kept {
        kept.close().await;
    }
    ran?;
    results.journal.sync()?;
    Ok(if stop.is_cancelled() { End::Stopped } else { End::Complete })
}

async fn run_all(
    host: &Host,
    work: &mut Work,
    results: &mut Results<'_, impl FnMut(&Tally)>,
    todo: Vec<(usize, usize)>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let mut todo = todo.into_iter().peekable();
    let mut under_way = JoinSet::new();
    // Not read from the token: a stop between two looks at it would cancel nothing.
    let mut cancelled = false;
    loop {
        // Where memory is short, what runs ends before more is begun.
        let may_begin = |under_way: &JoinSet<_>, work: &Work| {
            under_way.is_empty()
                || under_way.len() < work.concurrency && host.budget().check_new_work(0).is_ok()
        };
        while may_begin(&under_way, work) && !stop.is_cancelled() {
            let Some(&(at, run)) = todo.peek() else { break };
            let row = &results.rows[at];
            if !results.journal.is_finished(row.index, run) {
                let rollout = match work.begin(host, row, run) {
                    Ok(rollout) => rollout,
                    // What is under way may hold what there is no room for, and gives it back.
                    Err(_) if !under_way.is_empty() => break,
                    Err(source) => return Err(RunError::Refused { row: row.index, source }),
                };
                under_way.spawn(over(rollout, at, run, stop.clone()));
            }
            todo.next();
        }
        let ended = tokio::select! {
            ended = under_way.join_next() => ended,
            () = stop.cancelled(), if !cancelled => {
                cancelled = true;
                // What is ended now goes on when the evaluation does.
                if let Some(kept) = &work.kept {
                    kept.close().await;
                }
                host.cancel_all();
                continue;
            }
        };
        match ended {
            None => return Ok(()),
            // The rollout has no result and is run again on resuming; the driver said so.
            Some(Ok(None)) => {}
            Some(Ok(Some(over))) => results.add(over)?,
            Some(Err(error)) => tracing::error!(%error, "the host panicked beside a rollout"),
        }
    }
}

impl Work {
    /// Begins an attempt, or goes on with what a process before left of it.
    fn begin(&mut self, host: &Host, row: &Row, run: usize) -> Result<Box<Rollout>, AdmitError> {
        let attempt = Attempt { row: row.index, run };
        match self.kept.as_mut().and_then(|kept| kept.left_of(attempt)) {
            Some(left) => host.resume(left.with_time_anew(), self.model.endpoint().clone()),
            None => admit_with(host, row, run, &self.model, Some(attempt.continuation())),
        }
    }
}

/// A rollout that is over: the place of its row and its run, what came of it, and where it is kept.
struct Over {
    at: usize,
    run: usize,
    finished: Box<Finished>,
    log: Option<RolloutLog>,
}

/// Runs a rollout to its end. Nothing where nothing is to be said of it by this process: the host
/// panicked in it, or was stopped before it was in the journal.
async fn over(rollout: Box<Rollout>, at: usize, run: usize, stop: CancellationToken) -> Option<Over> {
    let log = rollout.log().cloned();
    let finished = complete(rollout).await.ok()?;
    if let Some(log) = &log {
        // Results have no row of which the journal does not have the rest.
        tokio::select! {
            biased;
            written = log.written() => if let Err(error) = written {
                let id = finished.id.as_str();
                tracing::error!(%error, id, "the rollout is in the results and not in the journal");
            },
            () = stop.cancelled() => return None,
        }
    }
    Some(Over { at, run, finished, log })
}

/// Where results go.
struct Results<'a, S> {
    rows: &'a [Row],
    root: PathBuf,
    journal: &'a mut Journal,
    tally: &'a mut Tally,
    seen: S,
}

impl<S: FnMut(&Tally)> Results<'_, S> {
    /// Writes the row of a rollout down, which is over then.
    fn add(&mut self, over: Over) -> Result<(), JournalError> {
        let Over { at, run, finished, log } = over;
        let line = line(Subject::of(&self.rows[at], run), &finished, &self.root);
        // What was stopped from outside is no result, and is run again.
        if line.kind.as_deref() != Some(FailureKind::Cancelled.as_str()) {
            self.journal.append(&line)?;
            self.tally.add(&line);
            (self.seen)(self.tally);
        }
        if let Some(log) = log {
            log.end();
        }
        Ok(())
    }

    /// Writes down what a process before came to the end with, and did not write.
    fn add_unreported(&mut self, kept: &mut Kept) -> Result<(), JournalError> {
        let places: HashMap<usize, usize> =
            self.rows.iter().enumerate().map(|(at, row)| (row.index, at)).collect();
        for Unreported { attempt: Attempt { row, run }, log } in kept.unreported() {
            // Rows are only ever added to an evaluation.
            if let Some(at) = places.get(&row).copied() {
                let finished = kept::outcome(&log).map_err(|source| JournalError::Io {
                    action: "read an outcome of the journal beside",
                    path: self.root.clone(),
                    source,
                })?;
                self.add(Over { at, run, finished: Box::new(finished), log: Some(log) })?;
            }
        }
        Ok(())
    }
}

/// An id that names the attempt, the same whenever the evaluation is repeated, so
/// that a model's server that is seeded by it answers the same.
fn rollout_id(row: usize, run: usize) -> RolloutId {
    let text = format!("row-{row:05}-run-{run}");
    RolloutId::parse(text).unwrap_or_else(|_| unreachable!("letters, digits and dashes are one segment"))
}

/// Admits one run of a row, which ends with this process.
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
    // The key is not kept: whoever goes on with the evaluation gives it again.
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
    }
}

/// Runs a rollout to its end. The error is the host's, which panicked in it.
pub async fn complete(rollout: Box<Rollout>) -> Result<Box<Finished>, Failure> {
    drive(rollout, Box::new(Graded)).await
}

/// A rollout that is graded where it can be, and notifies nobody.
struct Graded;

impl Steps for Graded {
    type End = Result<Box<Finished>, Failure>;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::Grade)
    }

    async fn finished(self: Box<Self>, ended: Ended) -> Self::End {
        match ended {
            Ended::Finished(finished) | Ended::Cancelled(finished) => Ok(finished),
            Ended::Crashed(failure) => Err(failure),
        }
    }
}

/// What a line says besides what came of a rollout.
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

/// The line of a rollout. Paths are below `root`.
pub(crate) fn line(subject: Subject, finished: &Finished, root: &Path) -> ResultLine {
    let Subject { attempt: Attempt { row, run }, prompt, label } = subject;
    let (outcome, reward, failure) = match &finished.outcome {
        rollout::Outcome::Scored { reward } => (Scored::Scored, Some(*reward), None),
        rollout::Outcome::Unscored(failure) => (Scored::Unscored, None, Some(failure)),
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
        limits_hit: finished.limits.iter().filter(|limit| limit.hits > 0).map(hits).collect(),
        refused_uses: finished.refused_uses.clone(),
        samples_unanswered: finished.samples.iter().filter(|sample| sample.lacks_reply()).count(),
        duration_ms: millis(finished.duration),
        queued_ms: millis(finished.queued),
        trajectory: finished
            .trajectory()
            .map(|path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()),
    }
}

fn hits(limit: &LimitUse) -> (String, LimitLine) {
    let LimitUse { name, max, used, hits, asked } = limit.clone();
    (name.into_owned(), LimitLine { max, used, asked, times: hits })
}

/// What the model said last in a sample.
fn answer(sample: &FinishedSample) -> Option<String> {
    last_text(sample.record.messages.iter(), "assistant")
}

/// The text of the last message of a role that has some, of the length that a line takes.
fn last_text<'a>(messages: impl DoubleEndedIterator<Item = &'a str>, role: &str) -> Option<String> {
    /// As much of a message as is needed.
    #[derive(Deserialize)]
    struct Said<'a> {
        #[serde(borrow)]
        role: std::borrow::Cow<'a, str>,
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    messages
        .rev()
        .filter_map(|message| serde_json::from_str::<Said<'_>>(message).ok())
        .filter(|said| said.role == role)
        .find_map(|said| {
            said.content.map(|content| content_text(content.get())).filter(|text| !text.is_empty())
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

/// Milliseconds, as lines have them.
pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
