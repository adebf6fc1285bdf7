//! Sessions of environments in the journal: each episode has a log with its caller's calls and their answers.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::{RolloutLog, events_of, json, kind, kinds};
use rollout_core::storage::{OverStorage, StorageAccount};
use rollout_guest::imports::Role;
use rollout_transcript::Event;

/// A part of an episode's history.
pub(crate) enum SessionEvent {
    /// A call of the caller.
    Called(Bytes),
    /// The answer to the call before it.
    Answered(Bytes),
}

/// The history of an episode.
pub(crate) struct SessionHistory {
    /// Calls and answers, in order.
    pub calls: Vec<SessionEvent>,
    /// The events of the environment's run.
    pub run: Vec<Event>,
}

/// Returns whether events of this kind are part of an episode's history.
fn is_part(event: u8) -> bool {
    matches!(event, kind::CALLED | kind::ANSWERED) || kinds(Role::Workflow).contains(&event)
}

impl RolloutLog {
    /// Appends a call of a session's caller, if `storage` has room for it. Returns its size in bytes.
    pub(crate) fn append_call(
        &self,
        call: &impl Serialize,
        storage: Option<&Arc<StorageAccount>>,
    ) -> Result<usize, OverStorage> {
        self.append_charged(kind::CALLED, call, storage)
    }

    /// Appends the answer to the last call, if `storage` has room for it. Returns its size in bytes.
    pub(crate) fn append_call_answer(
        &self,
        answer: &impl Serialize,
        storage: Option<&Arc<StorageAccount>>,
    ) -> Result<usize, OverStorage> {
        self.append_charged(kind::ANSWERED, answer, storage)
    }

    fn append_charged(
        &self,
        kind: u8,
        value: &impl Serialize,
        storage: Option<&Arc<StorageAccount>>,
    ) -> Result<usize, OverStorage> {
        let text = json(value);
        let bytes = text.len();
        let _charge = storage.map(|storage| storage.charge(bytes)).transpose()?;
        // The charge is dropped after the event counts as written.
        self.append(kind, vec![text]);
        Ok(bytes)
    }

    /// Waits while too much data is unwritten.
    pub(crate) async fn room(&self) {
        self.0.room().await;
    }

    /// Returns the size of the episode's history in files. Reads files and blocks.
    pub(crate) fn session_bytes(&self) -> io::Result<u64> {
        self.0.bytes_of(is_part)
    }

    /// Returns the history of the episode. Reads files and blocks.
    pub(crate) fn session_history(&self) -> io::Result<SessionHistory> {
        let events = self.0.read(is_part)?.events;
        let run = events_of(&events, Role::Workflow).map_err(io::Error::other)?;
        let calls = events.into_iter().filter_map(|event| match event.kind {
            kind::CALLED => Some(SessionEvent::Called(event.payload)),
            kind::ANSWERED => Some(SessionEvent::Answered(event.payload)),
            _ => None,
        });
        Ok(SessionHistory { calls: calls.collect(), run })
    }
}
