//! The history of a rollout: the events of its runs, and the [`Transcript`] that results from them.
//!
//! An [`Event`] is one interaction of a guest with the outside world. [`Transcript::apply`] adds an event
//! to the transcript. The host applies events while a guest runs, and a reader of a journal applies the same events in
//! the same order, so both have the same calls with the same results.
//!
//! A call has one event at its start and one at its end ([`End`]): its result is kept, exceeds a limit, or is
//! abandoned. [`CallResult`] is the only type of a call's result, from the connection to the trajectory.
//!
//! This crate opens no connections, reads no files and does not depend on the guest runtime.

mod calls;
mod carried;
mod event;
mod labels;
mod request;
mod result;
mod sample;
mod transcript;

pub use calls::{
    Beginning, EXCHANGE_BYTES, Exchange, Lists, ModelCalls, Owner, Part, Sent, UnassembledBody, in_common,
    text_bytes,
};
pub use carried::Carried;
pub use event::{End, Event, InvalidEvent};
pub use labels::{Fault, Label, Limit, ModelRole, Run, ToolKind, ToolOutcome};
pub use request::{StoredCall, StoredRequest, StoredToolCall};
pub use result::{CallResult, ChatFailure, ChatReply, ToolAnswer, error_text};
pub use sample::{MESSAGE_BYTES, SampleRecord, message_bytes};
pub use transcript::{ToolUse, Transcript, UnknownCall};
