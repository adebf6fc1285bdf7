//! Grades an evaluation again, from its journal: workflows are made again with what was answered then, and
//! nobody is asked for them; graders run anew.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::kept::Attempt;
use super::results::{self, Journal, JournalError, Outcome, ResultLine};
use super::run::{End, Subject, complete, line, millis};
use super::stats::Tally;
use super::{Manifest, rewards::Rewards};
use rollout_core::error::Fault;
use rollout_core::imports::Role;
use rollout_core::rollout::{
    self, AdmitError, Failure, FailureKind, Finished, Host, Replay, ReplayEnd, RequestSecrets, Stage,
    StoredRollout,
};

/// An evaluation that is over, or as far as it came.
pub struct Evaluated {
    /// What it was started with.
    pub manifest: Manifest,
    /// Its results.
    pub lines: Vec<ResultLine>,
    /// Where its rollouts are kept.
    pub journal: PathBuf,
}

impl Evaluated {
    /// Reads its results. Its journal is read while it is graded.
    pub fn read(dir: &Path, journal: PathBuf) -> Result<Self, JournalError> {
        let (manifest, lines) = results::read(dir)?;
        Ok(Self { manifest, lines, journal })
    }

    /// The rewards as they were, and as they are in these results.
    pub fn rewards(&self, now: &[ResultLine]) -> Rewards {
        Rewards::of(&self.lines, now)
    }
}

/// Why an evaluation could not be graded again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegradeError {
    /// A result could not be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What was kept cannot be read.
    #[error("the evaluation's journal in {} cannot be read", path.display())]
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A rollout cannot be made again.
    #[error("rollout {id} cannot be made again: {reason}")]
    Refused {
        /// Its id.
        id: String,
        /// Why.
        reason: String,
    },
}

/// Grades what these results have no line of, so many rollouts at once. `seen` is called after each. Gives
/// the new lines.
pub async fn run(
    host: &Host,
    evaluated: &Evaluated,
    concurrency: usize,
    results: &mut Journal,
    tally: &mut Tally,
    stop: CancellationToken,
    mut seen: impl FnMut(&Tally),
) -> Result<(End, Vec<ResultLine>), RegradeError> {
    let todo = evaluated.lines.iter().filter(|line| !results.is_finished(line.row, line.run));
    let todo: HashMap<String, ResultLine> =
        todo.map(|line| (line.rollout_id.clone(), line.clone())).collect();
    let mut stored = read(evaluated.journal.clone(), todo, concurrency);
    let mut under_way = JoinSet::new();
    let root = results.dir().to_owned();
    let (mut is_read, mut is_cancelled, mut lines) = (false, false, Vec::new());
    while !(is_read && under_way.is_empty()) {
        let takes_more = !is_read && under_way.len() < concurrency && !stop.is_cancelled();
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
                            under_way.spawn(graded(replay, before, root.clone()));
                            continue;
                        }
                        // What has no workflow to be graded stays as it is.
                        None => ResultLine { trajectory: None, ..before },
                    }
                }
            },
            Some(graded) = under_way.join_next() => match graded {
                Ok(Some(line)) => line,
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(%error, "the host panicked beside a rollout");
                    continue;
                }
            },
            () = stop.cancelled(), if !is_cancelled => {
                (is_cancelled, is_read) = (true, true);
                host.cancel_all();
                continue;
            }
        };
        // What was stopped from outside is no result, and is graded by the next.
        if stop.is_cancelled() && line.kind.as_deref() == Some(FailureKind::Cancelled.as_str()) {
            continue;
        }
        results.append(&line)?;
        tally.add(&line);
        lines.push(line);
        seen(tally);
    }
    results.sync()?;
    Ok((if stop.is_cancelled() { End::Stopped } else { End::Complete }, lines))
}

fn unreadable(evaluated: &Evaluated, source: io::Error) -> RegradeError {
    RegradeError::Unreadable { path: evaluated.journal.clone(), source }
}

/// Reads the rollouts of these lines, by their ids, as they are wanted.
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
            // Whoever wanted it may be gone.
            if sender.blocking_send(next).is_err() || is_over {
                return;
            }
        }
    });
    receiver
}

/// Whether a line is what came of this rollout: another of the same id had no reward, and was run
/// again.
fn is_of(line: &ResultLine, stored: &StoredRollout) -> bool {
    let took = stored.outcome.as_ref().map(|finished| millis(finished.duration));
    took.is_some_and(|took| (took - line.duration_ms).abs() < 1e-3)
}

/// Makes a rollout again whose workflow came to its end; none of any other.
fn begin(host: &Host, before: &ResultLine, stored: StoredRollout) -> Result<Option<Replay>, RegradeError> {
    let has_ended = stored.outcome.as_deref().is_some_and(came_to_its_end);
    if !has_ended {
        return Ok(None);
    }
    let refused = |reason: String| RegradeError::Refused { id: before.rollout_id.clone(), reason };
    let model = RequestSecrets::default().endpoint(&stored.request.model);
    let model = model.map_err(|error| refused(error.to_string()))?;
    host.regrade(stored, model).map(Some).map_err(|error: AdmitError| refused(error.to_string()))
}

/// Whether a rollout's workflow came to its end, so that there is something to be graded.
fn came_to_its_end(finished: &Finished) -> bool {
    match &finished.outcome {
        rollout::Outcome::Scored { .. } => true,
        rollout::Outcome::Unscored(failure) => failure.stage == Stage::Grader,
    }
}

/// The line of a rollout that is graded again; none where the host panicked in it, which its driver
/// said.
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
    // It waits where it was over then: it differs as much as one that asks something else.
    if let Some(ReplayEnd::PastOver(Role::Workflow)) = end.get() {
        line.outcome = Outcome::Unscored;
        line.kind = Some(FailureKind::Nondeterministic.as_str().to_owned());
        line.fault = Some(Fault::Plugin.as_str().to_owned());
        line.reason = Some("the workflow waits where it had come to its end then".to_owned());
    }
    Some(line)
}
