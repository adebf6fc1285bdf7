//! What happened between a run and the world outside of it, in the order in which it did: enough
//! to make the run again.
//!
//! An event is written as one line of JSON, and after it the bytes that it is about as they are. This
//! module knows no file and no rollout.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::exchange::WrittenRequest;
use super::host_tools::ToolAnswer;
use rollout_core::telemetry::{Label, Limit, ToolOutcome};
use rollout_outbound::{ChatFailure, ChatReply};
use rollout_wire::openai::Completion;

/// One event. `at` is the guest's move at which it happened: how often the guest had called the
/// host by then, or given a call up.
#[derive(Debug)]
pub enum RunEvent {
    /// The guest asked a model or a tool.
    Asked {
        /// The guest's move.
        at: u64,
        /// Which of the run's calls it is, from 1.
        call: u32,
        /// When.
        time: SystemTime,
        /// All that decides on the answer, as JSON; two calls are the same where this is.
        what: Bytes,
    },
    /// An answer came.
    Answered {
        /// The guest's last move before it.
        at: u64,
        /// The call.
        call: u32,
        /// How long it took.
        took: Duration,
        /// What came.
        answer: Answer,
    },
    /// The guest waited, and its own time was over before anything came. Kept where an answer came
    /// before its next move, or its run was over: any other wait that nothing is known of timed out.
    TimedOut {
        /// The guest's move.
        at: u64,
    },
    /// The guest was given the time that it has left, and it was not what it was given before.
    TimeLeft {
        /// The guest's move.
        at: u64,
        /// The time; none where there is no deadline.
        left: Option<Duration>,
    },
}

/// What came of a call.
#[derive(Debug)]
pub enum Answer {
    /// Of a model.
    Model(Result<ChatReply, ChatFailure>),
    /// Of a host-provided tool.
    Tool(ToolAnswer),
}

impl Answer {
    /// The bytes of memory that it takes, but for its place.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Model(Ok(reply)) => reply.completion.body().len(),
            Self::Model(Err(
                ChatFailure::Refused { body: text, .. }
                | ChatFailure::Unavailable { reason: text, .. }
                | ChatFailure::Forbidden { reason: text }
                | ChatFailure::Host { reason: text, .. },
            )) => text.len(),
            Self::Tool(answer) => answer.content.len(),
        }
    }
}

/// What is written as an event and is none.
#[derive(Debug, thiserror::Error)]
#[error("an event of kind {kind} that is not one: {reason}")]
pub struct NoEvent {
    kind: u8,
    reason: String,
}

/// The line of an event.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<u32>,
    /// Nanoseconds, since 1970 or of a time that passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nanos: Option<u64>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    answer: Option<AnswerLine<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerLine<'a> {
    /// The body follows.
    Reply { attempts: u32 },
    /// The answer's beginning follows.
    Refused { status: u16 },
    /// The reason follows.
    Unavailable { attempts: u32 },
    /// The reason follows.
    Forbidden,
    /// The reason follows.
    Host { attempts: u32 },
    /// The content follows.
    Tool {
        #[serde(borrow)]
        outcome: Cow<'a, str>,
        #[serde(borrow)]
        limit: Option<Cow<'a, str>>,
    },
}

const ASKED: u8 = 0;
const ANSWERED: u8 = 1;
const TIMED_OUT: u8 = 2;
const TIME_LEFT: u8 = 3;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl RunEvent {
    /// The guest's move.
    pub fn at(&self) -> u64 {
        match self {
            Self::Asked { at, .. }
            | Self::Answered { at, .. }
            | Self::TimedOut { at }
            | Self::TimeLeft { at, .. } => *at,
        }
    }

    /// The bytes of memory that it takes, but for its place.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Asked { what, .. } => what.len(),
            Self::Answered { answer, .. } => answer.bytes(),
            Self::TimedOut { .. } | Self::TimeLeft { .. } => 0,
        }
    }

    /// The same, as if a workflow's model had been asked under this name.
    pub fn of_model(self, name: &str) -> Self {
        match self {
            Self::Asked { at, call, time, what } => {
                Self::Asked { at, call, time, what: WrittenRequest::of_model(&what, name) }
            }
            other => other,
        }
    }

    /// How many kinds there are.
    pub const KINDS: u8 = 4;

    /// The kind of [`Self::Asked`].
    pub const ASKED: u8 = ASKED;

    /// The event as it is written: its kind, below [`Self::KINDS`], and its parts.
    pub fn parts(&self) -> (u8, [Bytes; 2]) {
        let none = Line { at: 0, call: None, nanos: None, answer: None };
        let (kind, line, rest) = match self {
            Self::Asked { at, call, time, what } => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                (ASKED, Line { at: *at, call: Some(*call), nanos: Some(nanos(since)), ..none }, what.clone())
            }
            Self::Answered { at, call, took, answer } => {
                let (answer, rest) = answer_line(answer);
                let answer = Some(answer);
                (ANSWERED, Line { at: *at, call: Some(*call), nanos: Some(nanos(*took)), answer }, rest)
            }
            Self::TimedOut { at } => (TIMED_OUT, Line { at: *at, ..none }, Bytes::new()),
            Self::TimeLeft { at, left } => {
                (TIME_LEFT, Line { at: *at, nanos: left.map(nanos), ..none }, Bytes::new())
            }
        };
        // Numbers and words.
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        (kind, [text.into(), rest])
    }

    /// Reads what was written.
    pub fn read(kind: u8, payload: &Bytes) -> Result<Self, NoEvent> {
        let wrong = |reason: &str| NoEvent { kind, reason: reason.to_owned() };
        let end = payload.iter().position(|byte| *byte == b'\n').ok_or_else(|| wrong("it has no line"))?;
        let (line, rest) = (&payload[..end], payload.slice(end + 1..));
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| wrong(&error.to_string()))?;
        let Line { at, call, nanos, answer } = line;
        let time = || nanos.map(Duration::from_nanos).ok_or_else(|| wrong("it has no time"));
        let call = || call.ok_or_else(|| wrong("it is of no call"));
        Ok(match kind {
            ASKED => Self::Asked { at, call: call()?, time: UNIX_EPOCH + time()?, what: rest },
            ANSWERED => {
                let answer = answer.ok_or_else(|| wrong("it has no answer"))?;
                let answer = read_answer(answer, rest).map_err(|reason| wrong(&reason))?;
                Self::Answered { at, call: call()?, took: time()?, answer }
            }
            TIMED_OUT => Self::TimedOut { at },
            TIME_LEFT => Self::TimeLeft { at, left: nanos.map(Duration::from_nanos) },
            _ => return Err(wrong("there is no such kind")),
        })
    }
}

fn answer_line(answer: &Answer) -> (AnswerLine<'static>, Bytes) {
    let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    match answer {
        Answer::Model(Ok(ChatReply { completion, attempts })) => {
            (AnswerLine::Reply { attempts: *attempts }, completion.body().clone())
        }
        Answer::Model(Err(ChatFailure::Refused { status, body })) => {
            (AnswerLine::Refused { status: *status }, text(body))
        }
        Answer::Model(Err(ChatFailure::Unavailable { attempts, reason })) => {
            (AnswerLine::Unavailable { attempts: *attempts }, text(reason))
        }
        Answer::Model(Err(ChatFailure::Forbidden { reason })) => (AnswerLine::Forbidden, text(reason)),
        Answer::Model(Err(ChatFailure::Host { attempts, reason })) => {
            (AnswerLine::Host { attempts: *attempts }, text(reason))
        }
        Answer::Tool(ToolAnswer { content, outcome, limit }) => {
            let limit = limit.map(|limit| limit.as_str().into());
            (AnswerLine::Tool { outcome: outcome.as_str().into(), limit }, text(content))
        }
    }
}

fn read_answer(line: AnswerLine<'_>, rest: Bytes) -> Result<Answer, String> {
    let text = |rest: Bytes| String::from_utf8(rest.into()).map_err(|error| error.to_string());
    Ok(match line {
        AnswerLine::Reply { attempts } => {
            Answer::Model(Ok(ChatReply { completion: Completion::parse(&rest)?, attempts }))
        }
        AnswerLine::Refused { status } => {
            Answer::Model(Err(ChatFailure::Refused { status, body: text(rest)? }))
        }
        AnswerLine::Unavailable { attempts } => {
            Answer::Model(Err(ChatFailure::Unavailable { attempts, reason: text(rest)? }))
        }
        AnswerLine::Forbidden => Answer::Model(Err(ChatFailure::Forbidden { reason: text(rest)? })),
        AnswerLine::Host { attempts } => {
            Answer::Model(Err(ChatFailure::Host { attempts, reason: text(rest)? }))
        }
        AnswerLine::Tool { outcome, limit } => {
            let outcome = labelled::<ToolOutcome>(&outcome)?;
            let limit = limit.map(|word| labelled::<Limit>(&word)).transpose()?;
            Answer::Tool(ToolAnswer { content: text(rest)?, outcome, limit })
        }
    })
}

pub(super) fn labelled<L: Label>(word: &str) -> Result<L, String> {
    let found = L::ALL.iter().copied().find(|label| label.as_str() == word);
    found.ok_or_else(|| format!("'{word}' is none of the words that it may be"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(event: &RunEvent) {
        let (kind, parts) = event.parts();
        let read = RunEvent::read(kind, &parts.concat().into()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{event:?}"));
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let body = r#"{"choices":[{"message":{"role":"assistant","content":"é\n"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        let completion = Completion::parse(&Bytes::from(body.to_owned())).unwrap();
        let answered = |answer| RunEvent::Answered { at: 7, call: 3, took: Duration::from_nanos(5), answer };
        let time = UNIX_EPOCH + Duration::from_nanos(1_735_689_600_000_000_123);
        round(&RunEvent::Asked { at: 1, call: 1, time, what: Bytes::from_static(b"{\"a\":\n1}") });
        round(&answered(Answer::Model(Ok(ChatReply { completion, attempts: 2 }))));
        round(&answered(Answer::Model(Err(ChatFailure::Refused { status: 400, body: "no\n".to_owned() }))));
        let reason = "connection refused".to_owned();
        let named = "its name leads nowhere".to_owned();
        round(&answered(Answer::Model(Err(ChatFailure::Forbidden { reason: named }))));
        round(&answered(Answer::Model(Err(ChatFailure::Unavailable {
            attempts: 4,
            reason: reason.clone(),
        }))));
        round(&answered(Answer::Model(Err(ChatFailure::Host { attempts: 4, reason }))));
        round(&answered(Answer::Tool(ToolAnswer::answered("5\n6".to_owned()))));
        round(&answered(Answer::Tool(ToolAnswer::over(Limit::ToolCalls, "enough"))));
        round(&RunEvent::TimedOut { at: 9 });
        round(&RunEvent::TimeLeft { at: 9, left: None });
        round(&RunEvent::TimeLeft { at: 9, left: Some(Duration::from_millis(1)) });
    }

    #[test]
    fn what_is_no_event_is_an_error_that_says_what_is_wrong() {
        fn check(kind: u8, text: &'static str, says: &str) {
            let error = RunEvent::read(kind, &Bytes::from_static(text.as_bytes())).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        check(ASKED, "{\"at\":1}", "no line");
        check(ASKED, "{\"at\":1}\n", "of no call");
        check(ANSWERED, "{\"at\":1,\"call\":1,\"nanos\":1}\n", "no answer");
        check(
            ANSWERED,
            "{\"at\":1,\"call\":1,\"nanos\":1,\"answer\":{\"reply\":{\"attempts\":1}}}\n{}",
            "choices",
        );
        let tool =
            "{\"at\":1,\"call\":1,\"nanos\":1,\"answer\":{\"tool\":{\"outcome\":\"x\",\"limit\":null}}}\n";
        check(ANSWERED, tool, "'x'");
        check(9, "{\"at\":1}\n", "no such kind");
    }
}
