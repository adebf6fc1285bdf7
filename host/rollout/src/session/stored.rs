//! Sessions in the journal. Each episode has a log of its own, with the session's id: a reset begins a log and ends the
//! previous one, so that the journal may delete past episodes.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::call::{Answer, AnswerLine, CallLine, SessionCall};
use super::{Host, SessionError, over_quota};
use crate::journal::{
    Continuation, Journal, JournalRefused, JournaledSecrets, RolloutLog, UnfinishedRollout,
};
use crate::model::{LoopOptions, ModelAddress, RolloutRequest};
use rollout_core::storage::{OverStorage, StorageAccount};
use rollout_wire::id::RolloutId;
use rollout_wire::messages::Messages;

/// A session that an earlier process stored and that is not open in this one.
pub struct StoredSession {
    id: RolloutId,
    log: RolloutLog,
    continuation: Continuation,
    resets: u32,
    /// The difference between its deployment and the host's, if there is one.
    differs: Option<String>,
}

impl StoredSession {
    /// Creates the session of an unfinished log, which a host continues.
    pub fn new(host: &Host, unfinished: UnfinishedRollout) -> Self {
        let differs = unfinished.deployment.difference(host.0.deployment.id());
        let UnfinishedRollout { log, request, driver, facts, .. } = unfinished;
        let continuation = Continuation { driver: driver.into(), facts, secret: None };
        Self { id: request.id, log, continuation, resets: request.attempt, differs }
    }

    /// Returns the id.
    pub fn id(&self) -> &RolloutId {
        &self.id
    }

    /// Returns the driver's data.
    pub fn facts(&self) -> &RawValue {
        &self.continuation.facts
    }

    /// Returns whether this log of a session is later than the other. Both exist if the process was stopped during a
    /// reset.
    pub fn is_later_than(&self, other: &Self) -> bool {
        self.resets > other.resets
    }

    /// Ends the session in the journal, and waits until that is written: no process continues it.
    pub async fn end(&self) {
        end(&self.log).await;
    }

    /// Ends a log that a later one of the same session has replaced.
    pub fn discard(&self) {
        self.log.end();
    }
}

/// An episode that an earlier process stored and this one has not repeated yet.
#[derive(Clone)]
pub(super) struct UnrepeatedEpisode {
    pub log: RolloutLog,
    /// The difference between the deployments, if there is one.
    pub differs: Option<String>,
}

/// A session in the journal.
pub(super) struct JournaledSession {
    log: RolloutLog,
    continuation: Continuation,
    /// Whether the log has a reset, so that the next one begins another.
    has_reset: bool,
    /// Bytes of calls and answers in the log.
    bytes: usize,
    /// The episode in the log, until it is repeated.
    unrepeated: Option<UnrepeatedEpisode>,
    /// The call during which the earlier process was stopped, and its answer, which no caller has received.
    interrupted: Option<(SessionCall, Result<Answer, SessionError>)>,
}

impl JournaledSession {
    /// Begins the log of a new session.
    pub(super) fn begin(
        journal: &Journal,
        host: &Host,
        id: &RolloutId,
        continuation: Continuation,
    ) -> Result<Self, JournalRefused> {
        let log = admit(journal, host, id, 0, &continuation)?;
        Ok(Self { log, continuation, has_reset: false, bytes: 0, unrepeated: None, interrupted: None })
    }

    /// Continues a log.
    pub(super) fn resume(stored: &StoredSession) -> Self {
        let StoredSession { log, continuation, differs, .. } = stored;
        Self {
            log: log.clone(),
            continuation: continuation.clone(),
            has_reset: false,
            bytes: 0,
            unrepeated: Some(UnrepeatedEpisode { log: log.clone(), differs: differs.clone() }),
            interrupted: None,
        }
    }

    /// Returns the log of the current episode.
    pub(super) fn log(&self) -> &RolloutLog {
        &self.log
    }

    /// Returns the episode in the log if it is not repeated yet.
    pub(super) fn unrepeated(&self) -> Option<UnrepeatedEpisode> {
        self.unrepeated.clone()
    }

    /// Records that the episode in the log is repeated.
    pub(super) fn set_repeated(&mut self, has_reset: bool, bytes: usize) {
        (self.unrepeated, self.has_reset, self.bytes) = (None, has_reset, bytes);
    }

    /// Stores the answer to the call during which the earlier process was stopped.
    pub(super) fn set_interrupted(&mut self, call: SessionCall, answer: Result<Answer, SessionError>) {
        self.interrupted = Some((call, answer));
    }

    /// Takes the call during which the earlier process was stopped, with its answer.
    pub(super) fn take_interrupted(&mut self) -> Option<(SessionCall, Result<Answer, SessionError>)> {
        self.interrupted.take()
    }

    /// Appends a call, which is charged to `storage`.
    pub(super) async fn add_call(
        &mut self,
        host: &Host,
        id: &RolloutId,
        line: &CallLine,
        storage: Option<&Arc<StorageAccount>>,
    ) -> Result<(), SessionError> {
        self.log.room().await;
        let is_reset = matches!(line.call, SessionCall::Reset { .. });
        if is_reset && self.has_reset {
            let refused = |error: &dyn std::fmt::Display| SessionError::Failed(error.to_string());
            let journal = host.0.runtime.journal().ok_or_else(|| refused(&"there is no journal"))?;
            let next = admit(journal, host, id, line.resets, &self.continuation);
            let next = next.map_err(|error| refused(&error))?;
            // The episode before stays in the journal until the session is ended for the quota.
            let bytes = next.append_call(line, storage).inspect_err(|_| next.end()).map_err(over_quota)?;
            let before = std::mem::replace(&mut self.log, next);
            self.bytes = bytes;
            // After the call, so that no crash leaves the session without a log.
            before.end();
        } else {
            self.bytes += self.log.append_call(line, storage).map_err(over_quota)?;
        }
        self.has_reset |= is_reset;
        Ok(())
    }

    /// Appends an answer, which is charged to `storage`. Returns false if the log has more bytes than it may have.
    pub(super) fn add_answer(
        &mut self,
        line: &AnswerLine,
        bytes_max: usize,
        storage: Option<&Arc<StorageAccount>>,
    ) -> Result<bool, OverStorage> {
        self.bytes += self.log.append_call_answer(line, storage)?;
        Ok(self.bytes <= bytes_max)
    }
}

/// Ends a log, and waits until that is written.
pub(super) async fn end(log: &RolloutLog) {
    log.end();
    if let Err(error) = log.written().await {
        tracing::error!(%error, "the end of a session is not in the journal, so another process may continue it");
    }
}

/// Begins a log.
fn admit(
    journal: &Journal,
    host: &Host,
    id: &RolloutId,
    resets: u32,
    continuation: &Continuation,
) -> Result<RolloutLog, JournalRefused> {
    let (model, _) = ModelAddress::split("", "", None);
    let request = RolloutRequest {
        id: id.clone(),
        caller_id: None,
        attempt: resets,
        prompt: Messages::default(),
        label: None,
        metadata: None,
        loop_options: LoopOptions::default(),
        model,
        samples_max: 0,
        samples_must_ask: false,
        workflow_secs: None,
        grader_secs: None,
        trajectory_extra: None,
        fork: None,
        conversation: None,
        group: None,
    };
    let deployment = host.0.deployment.id().clone();
    journal.admit(&request, deployment, &JournaledSecrets::default(), continuation.clone())
}
