//! Outcomes in a journal.
//!
//! ```text
//! a line: by sample, the request that carried the beginning of its conversation, or null | the outcome as JSON
//! ```
//!
//! The messages that a request contains are not written again. A reader takes them from the events of the workflow's
//! run.

use std::io;

use bytes::Bytes;
use rollout_journal as store;

use super::unfinished::split_line;
use super::{events_of, json_line, kind};
use crate::model::Finished;
use rollout_guest::imports::Role;
use rollout_transcript::{Carried, Event, Transcript};
use rollout_wire as wire;

/// Returns whether an event of this kind is needed to read an outcome.
pub(super) fn is_part(kind: u8) -> bool {
    let of_workflow = kind.checked_sub(kind::OF_WORKFLOW).is_some_and(Event::is_start_or_cut);
    kind == kind::OUTCOME || of_workflow
}

/// Returns the parts of an outcome's event.
pub(super) fn written(finished: &Finished, carried: &[Option<Carried>]) -> Vec<Bytes> {
    let mut rest = finished.clone();
    for (sample, carried) in rest.samples.iter_mut().zip(carried) {
        if let Some(carried) = carried {
            sample.record.messages = carried.rest(&sample.record.messages);
        }
    }
    let bytes = rest.samples.iter().map(|sample| sample.record.messages.text_bytes()).sum();
    vec![json_line(&carried), wire::json_with(&rest, bytes)]
}

/// Reads the last outcome among the events of a rollout, if there is one.
pub(super) fn read(events: &[store::Event]) -> io::Result<Option<Finished>> {
    let Some(outcome) = events.iter().rfind(|event| event.kind == kind::OUTCOME) else { return Ok(None) };
    let (line, rest) =
        split_line(&outcome.payload).ok_or_else(|| io::Error::other("an outcome is malformed"))?;
    let carried: Vec<Option<Carried>> = serde_json::from_slice(&line).map_err(io::Error::other)?;
    let mut finished: Finished = serde_json::from_slice(&rest).map_err(io::Error::other)?;
    if carried.iter().any(Option::is_some) {
        let workflow = events_of(events, Role::Workflow).map_err(io::Error::other)?;
        let started = workflow.iter().filter(|event| Event::is_start_or_cut(event.kind()));
        let requests = Transcript::read(started, []).map_err(io::Error::other)?;
        for (sample, carried) in finished.samples.iter_mut().zip(carried) {
            if let Some(carried) = carried {
                let messages = requests.whole(carried, &sample.record.messages);
                sample.record.messages = messages.map_err(io::Error::other)?;
            }
        }
    }
    Ok(Some(finished))
}
