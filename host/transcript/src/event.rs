//! Events: the interactions of a guest with the outside world, in order. Together they suffice to repeat the run.
//!
//! An event is stored as a line of JSON, which derives from the type, followed by the bytes that the event is about.
//! This module knows neither files nor rollouts.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::request::StoredRequest;
use crate::result::{CallResult, ToolAnswer};

/// One event of a run. `at` is the guest's move at which it happened: the number of host calls that the guest had made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The guest called a model or a tool.
    Started {
        /// The guest's move.
        at: u64,
        /// Number of the call in its run, from 1.
        call: u32,
        /// Time of the call.
        #[serde(with = "unix_nanos")]
        time: SystemTime,
        /// A [`StoredCall`](crate::StoredCall) as JSON: everything that determines the answer. Two calls are the same
        /// if their requests are.
        #[serde(skip)]
        request: Bytes,
    },
    /// The answer of a call arrived. The guest receives it at a later move, or never.
    Answered {
        /// The guest's last move before the answer.
        at: u64,
        /// The call.
        call: u32,
        /// Time that the call took.
        #[serde(with = "nanos")]
        took: Duration,
        /// The answer.
        result: CallResult,
    },
    /// The guest waited, and its own timeout expired before an answer arrived. Stored only if an answer arrived before
    /// the guest's next move, or the run ended: any other wait without an event is known to have timed out.
    TimedOut {
        /// The guest's move.
        at: u64,
    },
    /// The guest read its remaining time, which differed from the value that it had read before.
    TimeLeft {
        /// The guest's move.
        at: u64,
        /// The remaining time; `None` without a deadline.
        #[serde(with = "optional_nanos", default, skip_serializing_if = "Option::is_none")]
        left: Option<Duration>,
    },
    /// A call ended. A call has one such event; if its run was repeated with another end, the last one counts.
    Ended {
        /// The call.
        call: u32,
        /// The way in which it ended.
        end: End,
    },
    /// The run was repeated and ended after this many calls. Later calls, which an earlier process made, do not belong
    /// to it.
    Cut {
        /// The guest's last move.
        at: u64,
        /// Number of calls that the guest made.
        calls: u32,
    },
}

/// End of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The answer that arrived is the result.
    Kept {
        /// Position of the reply in its sample's history, if the host pushed it there for the guest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reply_at: Option<usize>,
    },
    /// An answer arrived, but the record had no room for it.
    OverLimit {
        /// The limit, with its value.
        reason: String,
    },
    /// The guest abandoned the call, or was stopped, before it received an answer.
    Abandoned,
    /// The host refused the call of a tool before anything outside was called.
    Refused(ToolAnswer),
}

impl End {
    /// Returns the bytes of memory that the end takes besides its own size.
    pub fn bytes(&self) -> usize {
        match self {
            Self::OverLimit { reason: text } | Self::Refused(ToolAnswer { content: text, .. }) => text.len(),
            Self::Kept { .. } | Self::Abandoned => 0,
        }
    }
}

/// Error of stored bytes that are not an event.
#[derive(Debug, thiserror::Error)]
#[error("invalid event of kind {kind}: {reason}")]
pub struct InvalidEvent {
    kind: u8,
    reason: String,
}

impl Event {
    /// Number of kinds.
    pub const KINDS: u8 = 6;

    const STARTED: u8 = 0;
    const CUT: u8 = 5;

    /// Returns whether events of this kind start or remove calls. They suffice to read the requests of a run.
    pub fn is_start_or_cut(kind: u8) -> bool {
        kind == Self::STARTED || kind == Self::CUT
    }

    /// Returns the kind, below [`Self::KINDS`].
    pub fn kind(&self) -> u8 {
        match self {
            Self::Started { .. } => Self::STARTED,
            Self::Answered { .. } => 1,
            Self::TimedOut { .. } => 2,
            Self::TimeLeft { .. } => 3,
            Self::Ended { .. } => 4,
            Self::Cut { .. } => Self::CUT,
        }
    }

    /// Returns the bytes of memory that the event takes besides its own size.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Started { request, .. } => request.len(),
            Self::Answered { result, .. } => result.text_bytes(),
            Self::Ended { end, .. } => end.bytes(),
            Self::TimedOut { .. } | Self::TimeLeft { .. } | Self::Cut { .. } => 0,
        }
    }

    /// Returns the same event with another name of the workflow's model.
    pub fn with_model(self, name: &str) -> Self {
        match self {
            Self::Started { at, call, time, request } => {
                Self::Started { at, call, time, request: StoredRequest::with_model(&request, name) }
            }
            other => other,
        }
    }

    /// Returns the stored form: the event's kind, and the parts of its payload.
    pub fn parts(&self) -> (u8, [Bytes; 2]) {
        // Strings and numbers cannot fail to serialize.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        let rest = match self {
            Self::Started { request, .. } => request.clone(),
            Self::Answered { result, .. } => result.text(),
            Self::Ended { end: End::Refused(answer), .. } => {
                Bytes::copy_from_slice(answer.content.as_bytes())
            }
            Self::TimedOut { .. } | Self::TimeLeft { .. } | Self::Ended { .. } | Self::Cut { .. } => {
                Bytes::new()
            }
        };
        (self.kind(), [line.into(), rest])
    }

    /// Reads the stored form.
    pub fn read(kind: u8, payload: &Bytes) -> Result<Self, InvalidEvent> {
        let wrong = |reason: String| InvalidEvent { kind, reason };
        let end = payload.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| wrong("it has no line".to_owned()))?;
        let mut event: Self =
            serde_json::from_slice(&payload[..end]).map_err(|error| wrong(error.to_string()))?;
        if event.kind() != kind {
            return Err(wrong("its line is of another kind".to_owned()));
        }
        let rest = payload.slice(end + 1..);
        match &mut event {
            Self::Started { request, .. } => *request = rest,
            Self::Answered { result, .. } => result.set_text(rest).map_err(wrong)?,
            Self::Ended { end: End::Refused(answer), .. } => {
                answer.content = String::from_utf8(rest.into()).map_err(|error| wrong(error.to_string()))?;
            }
            Self::TimedOut { .. } | Self::TimeLeft { .. } | Self::Ended { .. } | Self::Cut { .. } => {}
        }
        Ok(event)
    }
}

/// A duration in nanoseconds.
mod nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(count(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }

    pub(super) fn count(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A duration in nanoseconds, or none.
mod optional_nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        time.map(super::nanos::count).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Option::<u64>::deserialize(from).map(|nanos| nanos.map(Duration::from_nanos))
    }
}

/// A time in nanoseconds since 1970.
mod unix_nanos {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(super::nanos::count(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        Ok(UNIX_EPOCH + u64::deserialize(from).map(Duration::from_nanos)?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use rollout_wire::openai::Completion;

    use super::*;
    use crate::labels::Limit;
    use crate::result::{ChatFailure, ChatReply};

    fn round(event: &Event) {
        let (kind, parts) = event.parts();
        let read = Event::read(kind, &parts.concat().into()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{event:?}"));
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let body = r#"{"choices":[{"message":{"role":"assistant","content":"é\n"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        let completion = Completion::parse(&Bytes::from(body.to_owned())).unwrap();
        let answered = |result| Event::Answered { at: 7, call: 3, took: Duration::from_nanos(5), result };
        let failed = |failure| answered(CallResult::Model(Err(failure)));
        let ended = |end| Event::Ended { call: 3, end };
        let time = UNIX_EPOCH + Duration::from_nanos(1_735_689_600_000_000_123);
        round(&Event::Started { at: 1, call: 1, time, request: Bytes::from_static(b"{\"a\":\n1}") });
        round(&answered(CallResult::Model(Ok(ChatReply { completion, attempts: 2 }))));
        round(&failed(ChatFailure::Refused { status: 400, body: "no\n".to_owned() }));
        let reason = "connection refused".to_owned();
        round(&failed(ChatFailure::Forbidden { reason: "its name leads nowhere".to_owned() }));
        round(&failed(ChatFailure::Unavailable { attempts: 4, reason: reason.clone() }));
        round(&failed(ChatFailure::Host { attempts: 4, reason: reason.clone() }));
        round(&failed(ChatFailure::OverLimit { reason: reason.clone() }));
        round(&failed(ChatFailure::Abandoned));
        round(&answered(CallResult::Tool(ToolAnswer::answered("5\n6".to_owned()))));
        round(&answered(CallResult::Tool(ToolAnswer::over_limit(Limit::ToolCalls, "enough"))));
        round(&Event::TimedOut { at: 9 });
        round(&Event::TimeLeft { at: 9, left: None });
        round(&Event::TimeLeft { at: 9, left: Some(Duration::from_millis(1)) });
        round(&ended(End::Kept { reply_at: None }));
        round(&ended(End::Kept { reply_at: Some(4) }));
        round(&ended(End::OverLimit { reason }));
        round(&ended(End::Abandoned));
        round(&ended(End::Refused(ToolAnswer::over_limit(Limit::ToolCalls, "a\nb"))));
        round(&Event::Cut { at: 9, calls: 3 });
    }

    #[test]
    fn stored_bytes_that_are_not_an_event_are_an_error_with_its_cause() {
        fn check(kind: u8, text: &'static str, expected: &str) {
            let error = Event::read(kind, &Bytes::from_static(text.as_bytes())).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let answered = Event::Answered {
            at: 1,
            call: 1,
            took: Duration::ZERO,
            result: CallResult::Tool(ToolAnswer::abandoned()),
        };
        let answered = answered.kind();
        check(Event::STARTED, r#"{"started":{"at":1}}"#, "no line");
        check(Event::STARTED, "{\"started\":{\"at\":1,\"time\":1}}\n", "call");
        check(answered, "{\"answered\":{\"at\":1,\"call\":1,\"took\":1}}\n", "result");
        let reply = "{\"answered\":{\"at\":1,\"call\":1,\"took\":1,\"result\":{\"model\":{\"Ok\":{\"attempts\":1}}}}}\n{}";
        check(answered, reply, "choices");
        let tool =
            "{\"answered\":{\"at\":1,\"call\":1,\"took\":1,\"result\":{\"tool\":{\"outcome\":\"x\"}}}}\n";
        check(answered, tool, "`x`");
        check(9, "{\"timed_out\":{\"at\":1}}\n", "another kind");
    }
}
