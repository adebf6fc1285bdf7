//! Grades an evaluation again from its journal: workflows are replayed with the recorded answers and call
//! no model; graders run live.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lines::{LineOutcome, ResultLine};
use super::results::{self, ResultsDir, ResultsError};
use super::rollout_journal::Attempt;
use super::run::{End, Subject, complete, line, millis};
use super::stats::Tally;
use super::{Manifest, rewards::Rewards};
use rollout_core::error::Fault;
use rollout_guest::imports::Role;
use rollout_rollout::{
    self as rollout, AdmitError, Failure, FailureKind, Finished, Host, Replay, ReplayEnd, RequestSecrets,
    Stage, StoredRollout,
};

/// An earlier evaluation, complete or not.
pub struct Evaluated {
    /// Its settings.
    pub manifest: Manifest,
    /// Its results.
    pub lines: Vec<ResultLine>,
    /// Directory of the journal of its rollouts.
    pub journal: PathBuf,
}

impl Evaluated {
    /// Reads the manifest and the results in `dir`. The journal is read later, during grading.
    pub fn read(dir: &Path, journal: PathBuf) -> Result<Self, ResultsError> {
        let (manifest, lines) = results::read(dir)?;
        Ok(Self { manifest, lines, journal })
    }

    /// Compares the rewards of the evaluation with those of new results.
    pub fn rewards(&self, now: &[ResultLine]) -> Rewards {
        Rewards::of(&self.lines, now)
    }
}

/// Error of grading an evaluation again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegradeError {
    /// A result could not be stored.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The journal cannot be read.
    #[error("the evaluation's journal in {} cannot be read", path.display())]
    Unreadable {
        /// Directory of the journal.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A rollout cannot be replayed.
    #[error("rollout {id} cannot be replayed: {reason}")]
    NotReplayable {
        /// Id of the rollout.
        id: String,
        /// The reason.
        reason: String,
    },
}

/// Grades the rollouts that have no line in `results` yet, at most `concurrency` at once. Calls `on_result`
/// after each. Returns the new lines.
pub async fn run(
    host: &Host,
    evaluated: &Evaluated,
    concurrency: usize,
    results: &mut ResultsDir,
    tally: &mut Tally,
    stop: CancellationToken,
    mut on_result: impl FnMut(&Tally),
) -> Result<(End, Vec<ResultLine>), RegradeError> {
    let todo = evaluated.lines.iter().filter(|line| !results.is_finished(line.row, line.run));
    let todo: HashMap<String, ResultLine> =
        todo.map(|line| (line.rollout_id.clone(), line.clone())).collect();
    let mut stored = read(evaluated.journal.clone(), todo, concurrency);
    let mut running = JoinSet::new();
    let root = results.dir().to_owned();
    let (mut is_read, mut is_cancelled, mut lines) = (false, false, Vec::new());
    while !(is_read && running.is_empty()) {
        let takes_more = !is_read && running.len() < concurrency && !stop.is_cancelled();
        let line = tokio::select! {
            next = stored.recv(), if takes_more => match next {
                None => {
                    is_read = true;
                    continue;
                }
                Some(next) => {
                    let (before, stored) = next.map_err(|source| unreadable(evaluated, source))?;
                    match begin(host, &before, stored)? {
                        Some(replay) => {
                            running.spawn(graded(replay, before, root.clone()));
                            continue;
                        }
                        // A rollout whose workflow did not finish cannot be graded and keeps its line.
                        None => ResultLine { trajectory: None, ..before },
                    }
                }
            },
            Some(graded) = running.join_next() => match graded {
                Ok(Some(line)) => line,
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(%error, "the host panicked outside a rollout");
                    continue;
                }
            },
            () = stop.cancelled(), if !is_cancelled => {
                (is_cancelled, is_read) = (true, true);
                host.cancel_all();
                continue;
            }
        };
        // A cancelled rollout has no result; the next command grades it.
        if stop.is_cancelled() && line.kind.as_deref() == Some(FailureKind::Cancelled.as_str()) {
            continue;
        }
        results.append(&line)?;
        tally.add(&line);
        lines.push(line);
        on_result(tally);
    }
    results.sync()?;
    Ok((if stop.is_cancelled() { End::Stopped } else { End::Complete }, lines))
}

fn unreadable(evaluated: &Evaluated, source: io::Error) -> RegradeError {
    RegradeError::Unreadable { path: evaluated.journal.clone(), source }
}

/// Reads the rollouts of these lines from the journal, at most `ahead` in advance.
fn read(
    journal: PathBuf,
    mut todo: HashMap<String, ResultLine>,
    ahead: usize,
) -> mpsc::Receiver<io::Result<(ResultLine, StoredRollout)>> {
    let (sender, receiver) = mpsc::channel(ahead.max(1));
    tokio::task::spawn_blocking(move || {
        let all = match StoredRollout::all(&journal) {
            Ok(all) => all,
            Err(error) => return drop(sender.blocking_send(Err(error))),
        };
        for stored in all {
            let next = match stored {
                Err(error) => Err(error),
                Ok(stored) => {
                    let id = stored.request.id.as_str();
                    if !todo.get(id).is_some_and(|line| is_of(line, &stored)) {
                        continue;
                    }
                    let Some(line) = todo.remove(id) else { continue };
                    Ok((line, stored))
                }
            };
            let is_over = next.is_err() || todo.is_empty();
            // The receiver may have been dropped.
            if sender.blocking_send(next).is_err() || is_over {
                return;
            }
        }
    });
    receiver
}

/// Returns whether a line belongs to this rollout. The journal may have an earlier rollout of the same id, which
/// had no reward and ran again.
fn is_of(line: &ResultLine, stored: &StoredRollout) -> bool {
    let took = stored.outcome.as_ref().map(|finished| millis(finished.duration));
    took.is_some_and(|took| (took - line.duration_ms).abs() < 1e-3)
}

/// Starts the replay of a rollout; returns `None` if its workflow did not finish.
fn begin(host: &Host, before: &ResultLine, stored: StoredRollout) -> Result<Option<Replay>, RegradeError> {
    let has_ended = stored.outcome.as_deref().is_some_and(has_finished_workflow);
    if !has_ended {
        return Ok(None);
    }
    let not_replayable =
        |reason: String| RegradeError::NotReplayable { id: before.rollout_id.clone(), reason };
    let model = RequestSecrets::default().endpoint(&stored.request.model);
    let model = model.map_err(|error| not_replayable(error.to_string()))?;
    host.regrade(stored, model).map(Some).map_err(|error: AdmitError| not_replayable(error.to_string()))
}

/// Returns whether a rollout's workflow finished, so that it can be graded.
fn has_finished_workflow(finished: &Finished) -> bool {
    match &finished.outcome {
        rollout::Outcome::Scored { .. } => true,
        rollout::Outcome::Unscored(failure) => failure.stage == Stage::Grader,
    }
}

/// Runs a replay and returns its line. Returns `None` if the host panicked in it; the driver has logged the panic.
async fn graded(replay: Replay, before: ResultLine, root: PathBuf) -> Option<ResultLine> {
    let Replay { rollout, end } = replay;
    let finished: Result<Box<Finished>, Failure> = complete(rollout).await;
    let subject = Subject {
        attempt: Attempt { row: before.row, run: before.run },
        prompt: before.prompt,
        label: before.label,
    };
    let finished = finished.ok()?;
    let mut line = line(subject, &finished, &root);
    // The workflow waits after the call that was its last one in the recording.
    if let Some(ReplayEnd::PastOver(Role::Workflow)) = end.get() {
        line.outcome = LineOutcome::Unscored;
        line.kind = Some(FailureKind::Nondeterministic.as_str().to_owned());
        line.fault = Some(Fault::Plugin.as_str().to_owned());
        line.reason = Some("the workflow waits at a point where the recorded one had finished".to_owned());
    }
    Some(line)
}
