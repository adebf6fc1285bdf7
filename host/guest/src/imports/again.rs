//! A record made again of the events of its runs.
//!
//! Most of what a record has of calls follows from what was asked and what came. What does not is
//! its [`Ending`]: answers that nobody took, or that it had no room for, calls that were refused
//! before anybody outside was asked, and what a guest left that is in no call.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::ask::said;
use super::exchange::{ExchangeOutcome, ModelCalls};
use super::read_calls::{ReadCall, ReadCalls};
use super::record::{ArtifactFile, LogEntry, LogLevel, RecordState, Recorded, ToolUse};
use super::run_event::{Answer, RunEvent, labelled};
use rollout_core::telemetry::{Label, ModelRole, ToolKind, ToolOutcome};

/// What of a record does not follow from the events of its runs, but for what may be large.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    policy: CallsEnding,
    judge: CallsEnding,
    /// The calls of tools, the refused among them.
    tools: usize,
    /// What is behind the names of those that were made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tool_kinds: BTreeMap<String, String>,
    /// What their results say that are not what came, by place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tool_results: BTreeMap<usize, Option<String>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    log_dropped: u64,
}

/// The same of the calls of one model.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct CallsEnding {
    /// How many there are. A run that was made again may have made fewer than are known.
    calls: usize,
    /// By place, those whose answer is not what came: why there was no room, or none where nobody took
    /// it any more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    not_taken: BTreeMap<usize, Option<String>>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A call of a tool that was refused before anybody outside was asked.
#[derive(Serialize, Deserialize)]
struct RefusedLine<'a> {
    place: usize,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    tool: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    nanos: u64,
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Cow<'a, str>,
}

/// What is left behind at the end of a rollout.
pub struct Left<'a>(pub(super) &'a RecordState);

impl<'a> Left<'a> {
    /// What does not follow from events.
    pub fn ending(&self) -> Ending {
        let kept = self.0;
        let made = || kept.tool_uses.iter().enumerate().filter(|(_, call)| call.is_made);
        let result = |(place, call): (usize, &ToolUse)| match call.outcome {
            ToolOutcome::Abandoned => Some((place, None)),
            ToolOutcome::OverLimit => Some((place, Some(call.content.clone()))),
            ToolOutcome::Answered | ToolOutcome::Failed | ToolOutcome::Unavailable => None,
        };
        Ending {
            policy: CallsEnding::of(&kept.policy),
            judge: CallsEnding::of(&kept.judge),
            tools: kept.tool_uses.len(),
            tool_kinds: made().map(|(_, call)| (call.name.clone(), call.kind.as_str().to_owned())).collect(),
            tool_results: made().filter_map(result).collect(),
            log_dropped: kept.log_dropped(),
        }
    }

    /// The calls of tools that were refused before anybody was asked, each as it is kept.
    pub fn refused(&self) -> impl Iterator<Item = Bytes> + use<'a> {
        let refused = self.0.tool_uses.iter().enumerate().filter(|(_, call)| !call.is_made);
        refused.map(|(place, call)| {
            let since = call.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let line = RefusedLine {
                place,
                id: call.call_id.as_str().into(),
                tool: call.name.as_str().into(),
                kind: call.kind.as_str().into(),
                nanos: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
                outcome: call.outcome.as_str().into(),
                content: call.content.as_str().into(),
                arguments: call.arguments.as_str().into(),
            };
            // Texts and numbers.
            serde_json::to_vec(&line).map(Bytes::from).unwrap_or_default()
        })
    }

    /// The artifacts, by name.
    pub fn artifacts(&self) -> &'a BTreeMap<String, Bytes> {
        &self.0.artifacts
    }

    /// The log.
    pub fn log(&self) -> &'a [LogEntry] {
        &self.0.log
    }
}

impl CallsEnding {
    fn of(calls: &ModelCalls) -> Self {
        let exchanges = calls.exchanges();
        let not_taken =
            exchanges.iter().enumerate().filter_map(|(place, exchange)| match &exchange.outcome {
                ExchangeOutcome::Abandoned => Some((place, None)),
                ExchangeOutcome::NotKept(why) => Some((place, Some(why.clone()))),
                ExchangeOutcome::Replied { .. } | ExchangeOutcome::Failed(_) => None,
            });
        Self { calls: exchanges.len(), not_taken: not_taken.collect() }
    }
}

/// Reads a log as it was kept: a list.
pub fn read_log(text: &[u8]) -> Result<Vec<LogEntry>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Line<'a> {
        level: Option<LogLevel>,
        #[serde(borrow)]
        text: Option<Cow<'a, str>>,
        #[serde(borrow)]
        event: Option<Cow<'a, str>>,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    let lines: Vec<Line<'_>> = serde_json::from_slice(text)?;
    let entry = |line| match line {
        Line { event: Some(event), data, .. } => {
            LogEntry::Event { event: event.into_owned(), data: data.unwrap_or(RawValue::NULL).to_owned() }
        }
        Line { level, text, .. } => LogEntry::Line {
            level: level.unwrap_or(LogLevel::Info),
            text: text.unwrap_or_default().into_owned(),
        },
    };
    Ok(lines.into_iter().map(entry).collect())
}

/// What a record is made of again.
#[derive(Debug, Default)]
pub struct RecordParts {
    /// What does not follow from events; none where that is not known.
    pub ending: Option<Ending>,
    /// The calls of tools that were refused, each as it is kept.
    pub refused: Vec<Bytes>,
    /// The files, sorted by name.
    pub artifacts: Vec<ArtifactFile>,
    /// The log.
    pub log: Vec<LogEntry>,
}

impl Recorded {
    /// The record of a rollout in whose runs this happened, but for its samples: those of a rollout
    /// that is over are with what came of it. The error says what is missing.
    pub fn again(workflow: Vec<RunEvent>, grader: Vec<RunEvent>, parts: RecordParts) -> Result<Self, String> {
        let mut again = Again::default();
        for events in [workflow, grader] {
            again.places.clear();
            for event in events {
                again.add(event)?;
            }
        }
        let RecordParts { ending, refused, artifacts, log } = parts;
        let Again { calls: ReadCalls { mut policy, mut judge }, mut tools, .. } = again;
        let log_dropped = ending.as_ref().map_or(0, |ending| ending.log_dropped);
        if let Some(ending) = &ending {
            policy.end(&ending.policy);
            judge.end(&ending.judge);
            for call in &mut tools {
                let kind = ending.tool_kinds.get(&call.name).map(|kind| labelled::<ToolKind>(kind));
                call.kind = kind.transpose()?.unwrap_or(call.kind);
            }
        }
        let mut tool_uses = in_order(tools, &refused)?;
        if let Some(ending) = ending {
            tool_uses.truncate(ending.tools);
            for (place, content) in ending.tool_results {
                let call = tool_uses.get_mut(place).ok_or("a call of a tool is missing")?;
                call.outcome =
                    if content.is_some() { ToolOutcome::OverLimit } else { ToolOutcome::Abandoned };
                if content.is_none() {
                    call.duration = Duration::ZERO;
                }
                call.content = content.unwrap_or_default();
            }
        }
        Ok(Self { policy, judge, tool_uses, artifacts, log, log_dropped, ..Self::default() })
    }
}

/// The calls of tools with those among them that were refused, which know their places.
fn in_order(made: Vec<ToolUse>, refused: &[Bytes]) -> Result<Vec<ToolUse>, String> {
    let refused = refused.iter().map(|line| read_refused(line));
    let mut refused = refused.collect::<Result<BTreeMap<usize, ToolUse>, _>>()?;
    let mut all = Vec::with_capacity(made.len() + refused.len());
    let mut made = made.into_iter();
    while let Some(call) = refused.remove(&all.len()).or_else(|| made.next()) {
        all.push(call);
    }
    // Where a run was made again and made fewer, they follow those that are known.
    all.extend(refused.into_values());
    Ok(all)
}

fn read_refused(line: &[u8]) -> Result<(usize, ToolUse), String> {
    let line: RefusedLine<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let call = ToolUse {
        call_id: line.id.into_owned(),
        name: line.tool.into_owned(),
        arguments: line.arguments.into_owned(),
        kind: labelled(&line.kind)?,
        is_made: false,
        started_at: UNIX_EPOCH + Duration::from_nanos(line.nanos),
        duration: Duration::ZERO,
        outcome: labelled(&line.outcome)?,
        content: line.content.into_owned(),
    };
    Ok((line.place, call))
}

/// A record that is being made again.
#[derive(Default)]
struct Again {
    calls: ReadCalls,
    tools: Vec<ToolUse>,
    /// Places of the run's calls, by their numbers.
    places: BTreeMap<u32, Place>,
}

#[derive(Clone, Copy)]
enum Place {
    Model(ModelRole, usize),
    Tool(usize),
}

impl Again {
    fn add(&mut self, event: RunEvent) -> Result<(), String> {
        match event {
            RunEvent::Asked { call, time, what, .. } => {
                let place = self.asked(time, &what)?;
                self.places.insert(call, place);
            }
            RunEvent::Answered { call, took, answer, .. } => {
                let place = self.places.remove(&call).ok_or("an answer is to no call")?;
                self.answered(place, took, answer);
            }
            RunEvent::TimedOut { .. } | RunEvent::TimeLeft { .. } => {}
        }
        Ok(())
    }

    fn asked(&mut self, time: SystemTime, what: &[u8]) -> Result<Place, String> {
        let call = match self.calls.add(what, time)? {
            ReadCall::Model(role, place) => return Ok(Place::Model(role, place)),
            ReadCall::Tool(call) => call,
        };
        self.tools.push(ToolUse {
            call_id: call.id.into_owned(),
            name: call.tool.into_owned(),
            arguments: call.arguments.into_owned(),
            kind: ToolKind::None,
            is_made: true,
            started_at: time,
            duration: Duration::ZERO,
            outcome: ToolOutcome::Abandoned,
            content: String::new(),
        });
        Ok(Place::Tool(self.tools.len() - 1))
    }

    fn answered(&mut self, place: Place, took: Duration, answer: Answer) {
        match (place, answer) {
            (Place::Model(asked, place), Answer::Model(result)) => {
                if let Some(exchange) = self.calls.of_mut(asked).exchange_mut(place) {
                    exchange.duration = took;
                    exchange.outcome = match result {
                        Ok(reply) => ExchangeOutcome::Replied {
                            completion: reply.completion,
                            attempts: reply.attempts,
                        },
                        Err(failure) => ExchangeOutcome::Failed(said(asked, &failure)),
                    };
                }
            }
            (Place::Tool(place), Answer::Tool(answer)) => {
                if let Some(call) = self.tools.get_mut(place) {
                    call.duration = took;
                    call.outcome = answer.outcome;
                    call.content = answer.content;
                }
            }
            // No host writes an answer of the other kind.
            (Place::Model(..), Answer::Tool(_)) | (Place::Tool(_), Answer::Model(_)) => {}
        }
    }
}

impl ModelCalls {
    fn end(&mut self, ending: &CallsEnding) {
        self.truncate(ending.calls);
        for (place, why) in &ending.not_taken {
            let Some(exchange) = self.exchange_mut(*place) else { continue };
            match why {
                Some(why) => exchange.outcome = ExchangeOutcome::NotKept(why.clone()),
                None => {
                    (exchange.duration, exchange.outcome) = (Duration::ZERO, ExchangeOutcome::Abandoned);
                }
            }
        }
    }
}
