//! Chat messages as steps, with the host's observations of the calls behind them.
//!
//! A conversation may have millions of messages. One pass finds which messages belong together and which reply each
//! step came from; the steps are then written one by one. Memory holds one byte for each message.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::layout::Marks;
use super::replies::{Matcher, Reply};
use crate::model::StepOffsets;
use rollout_wire::atif::Source;
use rollout_wire::messages::Messages;
use rollout_wire::openai::{TOOL_CALLS_MAX, WireCall, content_text};
use rollout_wire::stream::{Stopped, Text, each, members, text};

/// The fields of a message that a step needs.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    role: Option<Text<'a>>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_call_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<&'a RawValue>,
}

/// Role of a message in a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    System,
    User,
    Agent,
    /// Result of a tool, which belongs to the agent's step before it.
    Result,
    /// A message with a role that the format does not have.
    Other,
    /// An object whose fields have other types, or that has too many calls. It is written as text.
    Odd,
}

impl<'a> Message<'a> {
    fn read(raw: &'a str) -> Option<Self> {
        let message: Self = serde_json::from_str(raw).ok()?;
        let mut count = 0;
        // A model's reply never has so many calls, and they would take forty times their bytes on disk.
        each(message.tool_calls.map_or("[]", RawValue::get), |_: WireCall<'_>| {
            count += 1;
            if count > TOOL_CALLS_MAX { Err(()) } else { Ok(()) }
        })
        .ok()?;
        Some(message)
    }

    fn role(&self) -> &str {
        self.role.as_ref().map_or("", |Text(role)| role)
    }

    fn kind(&self) -> Kind {
        match self.role() {
            "system" | "developer" => Kind::System,
            "user" => Kind::User,
            "assistant" => Kind::Agent,
            "tool" | "function" => Kind::Result,
            _ => Kind::Other,
        }
    }

    fn text(&self) -> Cow<'a, str> {
        self.content.map_or(Cow::Borrowed(""), |content| content_text(content.get()))
    }
}

/// A conversation after the pass over its messages.
pub(super) struct Conversation<'a> {
    messages: Vec<&'a str>,
    kinds: Vec<Kind>,
    replies: &'a [Reply<'a>],
    /// The messages of the agent whose reply is known, in order, with the index of the reply.
    known: Vec<(usize, usize)>,
    /// For each reply, the index of its message, if the workflow registered it.
    pub(super) message_of_reply: Vec<Option<usize>>,
}

impl<'a> Conversation<'a> {
    /// Reads the messages and finds the reply behind each of them. If no message is an unchanged reply, and there are
    /// as many replies as steps of the agent, each step gets the usage of the reply at its position.
    pub(super) fn new(messages: Vec<&'a str>, replies: &'a [Reply<'a>]) -> Self {
        let mut matcher = Matcher::new(&messages, replies);
        let mut kinds = Vec::with_capacity(messages.len());
        for (at, raw) in messages.iter().enumerate() {
            let message = Message::read(raw);
            let kind = message.as_ref().map_or(Kind::Odd, Message::kind);
            kinds.push(kind);
            if let Some(message) = message.filter(|_| kind == Kind::Agent) {
                matcher.note(at, || message.text(), message.tool_calls);
            }
        }
        let message_of_reply = matcher.finish(replies);
        let is_agent = |at: &usize| kinds[*at] == Kind::Agent;
        let agents = kinds.iter().filter(|kind| **kind == Kind::Agent).count();
        let found = message_of_reply.iter().enumerate();
        let mut known: Vec<(usize, usize)> =
            found.filter_map(|(reply, at)| Some((at.filter(is_agent)?, reply))).collect();
        known.sort_unstable();
        if known.is_empty() && agents == replies.len() {
            let steps = (0..kinds.len()).filter(is_agent);
            known = steps.enumerate().map(|(reply, at)| (at, reply)).collect();
        }
        Self { messages, kinds, replies, known, message_of_reply }
    }

    /// Returns the messages of the agent that are replies of the model, unchanged: index of the message, and the reply.
    pub(super) fn unchanged_replies(&self) -> Vec<(usize, &'a Reply<'a>)> {
        let found = self.message_of_reply.iter().zip(self.replies);
        let mut found: Vec<(usize, &'a Reply<'a>)> = found
            .filter_map(|(at, reply)| Some((at.filter(|at| self.kinds[*at] == Kind::Agent)?, reply)))
            .collect();
        found.sort_unstable_by_key(|(at, _)| *at);
        found
    }

    /// Returns for each reply whether its step is known.
    pub(super) fn matched(&self) -> Vec<bool> {
        let mut matched = vec![false; self.replies.len()];
        self.known.iter().for_each(|(_, reply)| matched[*reply] = true);
        matched
    }

    /// Returns the steps: the index of the message, if there is one, and the indices of the results that belong to it.
    /// A trajectory must have a step, so an empty conversation has one empty step.
    fn steps(&self) -> impl Iterator<Item = (Option<usize>, Range<usize>)> {
        let mut at = 0;
        let empty = self.kinds.is_empty().then_some((None, 0..0));
        empty.into_iter().chain(std::iter::from_fn(move || {
            let start = at;
            let kind = *self.kinds.get(start)?;
            at += 1;
            match kind {
                // A result without an agent's step before it gets an empty step.
                Kind::Result => Some((None, start..at)),
                Kind::Agent => {
                    let results = self.kinds[at..].iter().take_while(|kind| **kind == Kind::Result).count();
                    at += results;
                    Some((Some(start), start + 1..at))
                }
                _ => Some((Some(start), at..at)),
            }
        }))
    }

    /// Returns the number of steps.
    pub(super) fn step_count(&self) -> usize {
        self.steps().count()
    }
}

/// The steps of a conversation, written one by one.
pub(super) struct Steps<'a> {
    pub conversation: &'a Conversation<'a>,
    pub marks: &'a Marks,
}

impl Serialize for Steps<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Conversation { messages, kinds, replies, known, .. } = self.conversation;
        let mut known = known.iter().peekable();
        let mut count = 0;
        let mut list = to.serialize_seq(None)?;
        for (at, results) in self.conversation.steps() {
            count += 1;
            let reply = known.next_if(|(message, _)| Some(*message) == at);
            let reply = reply.and_then(|(_, reply)| replies.get(*reply));
            let raw = at.map(|at| messages[at]);
            let message = at.filter(|at| kinds[*at] != Kind::Odd).and_then(|at| Message::read(messages[at]));
            let results = &messages[results];
            list.serialize_element(&Step { id: count, raw, message, results, reply, marks: self.marks })?;
        }
        self.marks.note(|layout| layout.total_steps = count);
        list.end()
    }
}

struct Step<'a> {
    id: usize,
    raw: Option<&'a str>,
    message: Option<Message<'a>>,
    results: &'a [&'a str],
    reply: Option<&'a Reply<'a>>,
    marks: &'a Marks,
}

impl Serialize for Step<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let kind = match (&self.message, self.raw) {
            (Some(message), _) => message.kind(),
            (None, Some(_)) => Kind::Odd,
            (None, None) => Kind::System,
        };
        let source = match kind {
            Kind::System | Kind::Result => Source::System,
            Kind::Agent => Source::Agent,
            Kind::User | Kind::Other | Kind::Odd => Source::User,
        };
        let mut step = to.serialize_map(None)?;
        step.serialize_entry("step_id", &self.id)?;
        step.serialize_entry("source", &source)?;
        let content = match (&self.message, self.raw) {
            (Some(message), _) => message.text(),
            (None, Some(raw)) => Cow::Borrowed(raw),
            (None, None) => Cow::Borrowed(""),
        };
        step.serialize_entry("message", &content)?;
        drop(content);
        let calls = self.message.as_ref().filter(|_| kind == Kind::Agent);
        if let Some(thought) = calls.and_then(|message| text(message.reasoning_content?.get())) {
            step.serialize_entry("reasoning_content", &thought)?;
        }
        let calls = calls.and_then(|message| message.tool_calls).filter(|calls| !is_empty_list(calls));
        if let Some(calls) = calls {
            step.serialize_entry("tool_calls", &ToolCalls(calls))?;
        }
        let stray = Cell::new(None);
        if !self.results.is_empty() {
            let results = Observation { results: self.results, calls, stray: &stray };
            step.serialize_entry("observation", &results)?;
        }
        self.serialize_extra::<S>(&mut step, kind, stray.get())?;
        if kind == Kind::Agent {
            self.serialize_cost::<S>(&mut step)?;
        }
        step.end()
    }
}

impl Step<'_> {
    /// Fields that the format does not have.
    fn serialize_extra<S: Serializer>(
        &self,
        step: &mut S::SerializeMap,
        kind: Kind,
        stray: Option<usize>,
    ) -> Result<(), S::Error> {
        #[derive(Serialize)]
        struct Role<'a> {
            original_role: Option<&'a str>,
        }
        #[derive(Serialize)]
        struct Stray<'a> {
            tool_call_id: Cow<'a, str>,
        }
        let role = self.message.as_ref().map(Message::role);
        match kind {
            Kind::Odd | Kind::Other => step.serialize_entry("extra", &Role { original_role: role })?,
            _ => {}
        }
        let stray = stray.and_then(|at| Message::read(self.results[at])?.tool_call_id);
        match stray {
            Some(Text(tool_call_id)) => step.serialize_entry("extra", &Stray { tool_call_id }),
            None => Ok(()),
        }
    }

    /// Writes the usage of the step's call. It is last, and a report of the caller replaces it.
    fn serialize_cost<S: Serializer>(&self, step: &mut S::SerializeMap) -> Result<(), S::Error> {
        let at = self.marks.here();
        if let Some(reply) = self.reply {
            step.serialize_entry("metrics", &reply.metrics())?;
        }
        let metrics_end = self.marks.here();
        if self.reply.is_some() {
            step.serialize_entry("llm_call_count", &1)?;
        }
        let place = StepOffsets { at, metrics_end, end: self.marks.here() };
        self.marks.note(|layout| layout.agent_steps.push(place));
        Ok(())
    }
}

fn is_empty_list(calls: &RawValue) -> bool {
    calls.get().strip_prefix('[').is_some_and(|rest| rest.trim_start() == "]")
}

/// The tool calls of a message, written one by one.
struct ToolCalls<'a>(&'a RawValue);

impl Serialize for ToolCalls<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Call<'a> {
            tool_call_id: &'a str,
            function_name: &'a str,
            arguments: Arguments<'a>,
        }
        let mut at = 0;
        let mut list = to.serialize_seq(None)?;
        each(self.0.get(), |call: WireCall<'_>| {
            let function_name = call.name().filter(|name| !name.is_empty()).unwrap_or("unknown");
            let arguments = Arguments(call.arguments());
            let call = Call { tool_call_id: &call.id(at), function_name, arguments };
            at += 1;
            list.serialize_element(&call)
        })
        .map_err(rollout_wire::stream::Stopped::ser)?;
        list.end()
    }
}

/// Arguments of a call: the object in a text, or the object that some servers send instead, unchanged. Anything else is
/// under `_raw`.
struct Arguments<'a>(Option<&'a RawValue>);

impl Serialize for Arguments<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Raw<'a> {
            #[serde(rename = "_raw")]
            raw: &'a str,
        }
        let Some(given) = self.0 else { return to.serialize_map(Some(0))?.end() };
        if given.get().starts_with('{') {
            return given.serialize(to);
        }
        let text = text(given.get()).unwrap_or(Cow::Borrowed(given.get()));
        // This includes everything that callers' parsers refuse, such as deep nesting.
        match rollout_wire::object(&text) {
            Ok(object) => object.serialize(to),
            Err(_) => Raw { raw: &text }.serialize(to),
        }
    }
}

/// Results of a step's calls.
struct Observation<'a> {
    results: &'a [&'a str],
    calls: Option<&'a RawValue>,
    /// The last result that names a call of another step.
    stray: &'a Cell<Option<usize>>,
}

impl Serialize for Observation<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut observation = to.serialize_map(Some(1))?;
        observation.serialize_entry("results", &Results(self))?;
        observation.end()
    }
}

struct Results<'a>(&'a Observation<'a>);

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Result<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            source_call_id: Option<&'a str>,
            content: Cow<'a, str>,
        }
        let Observation { results, calls, stray } = self.0;
        let known = CallIds::new(*calls);
        let mut list = to.serialize_seq(None)?;
        for (at, raw) in results.iter().enumerate() {
            let Some(message) = Message::read(raw) else { continue };
            let id = message.tool_call_id.as_ref().map(|Text(id)| &**id);
            let source_call_id = id.filter(|id| known.has(id));
            if id.is_some() && source_call_id.is_none() {
                stray.set(Some(at));
            }
            list.serialize_element(&Result { source_call_id, content: message.text() })?;
        }
        list.end()
    }
}

/// Ids of a step's calls, as sorted hashes of eight bytes each.
struct CallIds {
    hasher: RandomState,
    hashes: Vec<u64>,
}

impl CallIds {
    fn new(calls: Option<&RawValue>) -> Self {
        let (hasher, mut hashes) = (RandomState::new(), Vec::new());
        let _ = each(calls.map_or("[]", RawValue::get), |call: WireCall<'_>| {
            hashes.push(hasher.hash_one(&*call.id(hashes.len())));
            Ok::<(), ()>(())
        });
        hashes.sort_unstable();
        Self { hasher, hashes }
    }

    fn has(&self, id: &str) -> bool {
        self.hashes.binary_search(&self.hasher.hash_one(id)).is_ok()
    }
}

/// Returns the number of tool calls in these conversations that have a result. A call in several conversations (a
/// branched one) counts once, and so does a call that the host made itself, whose id is in `made`.
pub(crate) fn calls_made<'a>(
    conversations: impl Iterator<Item = &'a Messages>,
    prompt: &Messages,
    made: impl FnOnce(&RandomState) -> Vec<u64>,
) -> u64 {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow, default)]
        role: Option<Text<'a>>,
        #[serde(borrow, default)]
        tool_call_id: Option<Text<'a>>,
    }
    let hasher = RandomState::new();
    let mut most: HashMap<u64, u64> = HashMap::new();
    for id in made(&hasher) {
        *most.entry(id).or_default() += 1;
    }
    for conversation in conversations {
        // Calls in the caller's prompt were made before this rollout.
        let given = conversation.iter().zip(prompt.iter()).take_while(|(a, b)| a == b).count();
        let mut counts: HashMap<u64, u64> = HashMap::new();
        for message in conversation.iter().skip(given).filter(|message| may_be_result(message)) {
            let Ok(Head { role: Some(Text(role)), tool_call_id }) = serde_json::from_str(message) else {
                continue;
            };
            if role == "tool" || role == "function" {
                let id = tool_call_id.map_or(Cow::Borrowed(""), |Text(id)| id);
                *counts.entry(hasher.hash_one(&*id)).or_default() += 1;
            }
        }
        for (id, count) in counts {
            let most = most.entry(id).or_default();
            *most = count.max(*most);
        }
    }
    most.values().sum()
}

/// Returns false if the first role of a message is not that of a tool's result. Reads the message up to its role.
fn may_be_result(message: &str) -> bool {
    let role = members(message, |name, value: &RawValue| match &*name {
        "role" => Err(text(value.get())),
        _ => Ok(()),
    });
    !matches!(role, Err(Stopped::Taker(Some(role))) if role != "tool" && role != "function")
}
