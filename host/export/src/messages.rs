//! The messages of a conversation, in the form in which trainers take them.
//!
//! Which messages there are is what the workflow registered. How each was worded is taken from what the host saw
//! sent or received, where it saw it: a trajectory's step has no place for some of it. Which of them the model wrote
//! is the host's to say, too.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use rollout_wire::openai::content_text;
use rollout_wire::stream::{Text, each, members};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::columns::Cell;
use crate::reply::text;

/// A message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message<'a> {
    pub role: Cow<'a, str>,
    pub content: Option<Cow<'a, str>>,
    pub reasoning: Option<Cow<'a, str>>,
    pub calls: Vec<Call<'a>>,
    pub tool_call_id: Option<Cow<'a, str>>,
    pub name: Option<Cow<'a, str>>,
    /// The message as JSON, where the other fields do not have all of it.
    pub raw: Option<&'a str>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call<'a> {
    pub id: Cow<'a, str>,
    pub name: Cow<'a, str>,
    /// JSON.
    pub arguments: Cow<'a, str>,
}

impl Message<'_> {
    /// The struct that it is in a row.
    pub(crate) fn cell(&self) -> Cell<'_> {
        let calls = self.calls.iter().map(Call::cell).collect();
        Cell::Struct(vec![
            Cell::Text(&self.role),
            Cell::text(self.content.as_ref()),
            Cell::text(self.reasoning.as_ref()),
            if self.calls.is_empty() { Cell::Null } else { Cell::List(calls) },
            Cell::text(self.tool_call_id.as_ref()),
            Cell::text(self.name.as_ref()),
            self.raw.map_or(Cell::Null, Cell::Text),
        ])
    }

    /// By what a message is known again: who says it, the text, the calls, and which call it answers.
    fn key(&self, of: &RandomState) -> u64 {
        let role = match &*self.role {
            "developer" => "system",
            "function" => "tool",
            role => role,
        };
        let ids: Vec<&str> = self.calls.iter().map(|call| &*call.id).collect();
        of.hash_one((role, self.content.as_deref().unwrap_or_default(), ids, self.tool_call_id.as_deref()))
    }
}

impl Call<'_> {
    fn cell(&self) -> Cell<'_> {
        let function = Cell::Struct(vec![Cell::Text(&self.name), Cell::Text(&self.arguments)]);
        Cell::Struct(vec![Cell::Text(&self.id), Cell::Text("function"), function])
    }
}

/// A message as it was sent or received. None where it is no object with a role.
pub(crate) fn sent(json: &str) -> Option<Message<'_>> {
    let mut message = Message::default();
    let mut is_whole = true;
    let read = members(json, |name, value: &RawValue| {
        match &*name {
            "role" => message.role = text(value).ok_or(())?,
            "content" if value.get() == "null" => {}
            "content" => {
                is_whole &= value.get().starts_with('"');
                message.content = Some(content_text(value.get()));
            }
            "reasoning_content" | "reasoning" if message.reasoning.is_none() => {
                message.reasoning = text(value);
                is_whole &= message.reasoning.is_some() || says_nothing(value);
            }
            "tool_calls" if says_nothing(value) => {}
            "tool_calls" => match calls(value) {
                Some((calls, are_whole)) => {
                    message.calls = calls;
                    is_whole &= are_whole;
                }
                None => is_whole = false,
            },
            "tool_call_id" => message.tool_call_id = text(value),
            "name" => message.name = text(value),
            _ => is_whole &= says_nothing(value),
        }
        Ok::<(), ()>(())
    });
    read.ok()?;
    message.raw = (!is_whole).then_some(json);
    Some(message)
}

/// Servers send such members with every message.
fn says_nothing(value: &RawValue) -> bool {
    matches!(value.get(), "null" | "[]" | "{}" | "\"\"")
}

/// The calls of a message, and whether they are all that was said of them.
fn calls(list: &RawValue) -> Option<(Vec<Call<'_>>, bool)> {
    #[derive(Deserialize)]
    struct Function<'a> {
        #[serde(borrow)]
        name: Text<'a>,
        #[serde(borrow, default)]
        arguments: Option<&'a RawValue>,
    }
    let (mut found, mut are_whole) = (Vec::new(), true);
    let read = each(list.get(), |call: &RawValue| {
        let (mut id, mut function) = (None, None);
        let read = members(call.get(), |name, value: &RawValue| {
            match &*name {
                "id" => id = text(value),
                "type" => are_whole &= value.get() == "\"function\"",
                "function" => function = serde_json::from_str::<Function<'_>>(value.get()).ok(),
                "index" => {}
                _ => are_whole &= says_nothing(value),
            }
            Ok::<(), ()>(())
        });
        read.map_err(drop)?;
        let Function { name: Text(name), arguments } = function.ok_or(())?;
        let arguments = arguments.map_or(Cow::Borrowed("{}"), |given| {
            // Some servers send the object itself.
            text(given).unwrap_or(Cow::Borrowed(given.get()))
        });
        let id = id.unwrap_or_else(|| format!("call_{}", found.len()).into());
        found.push(Call { id, name, arguments });
        Ok::<(), ()>(())
    });
    read.ok().map(|()| (found, are_whole))
}

/// A call of the model that was answered, as far as messages need it.
pub(crate) struct Answered<'a> {
    /// How many messages its request had.
    pub asked: usize,
    /// The message of its reply.
    pub reply: Option<&'a RawValue>,
}

/// The messages of a conversation.
pub(crate) struct Conversation<'a> {
    pub messages: Vec<Message<'a>>,
    /// For each call that was answered, which message is its reply.
    pub message_of: Vec<Option<usize>>,
}

impl<'a> Conversation<'a> {
    /// Looks for each message that the workflow registered among those that went over the wire.
    pub(crate) fn new(
        claimed: Vec<Message<'a>>,
        requested: impl Iterator<Item = &'a RawValue>,
        answered: &[Answered<'a>],
    ) -> Self {
        let hasher = RandomState::new();
        let keys: Vec<u64> = claimed.iter().map(|message| message.key(&hasher)).collect();
        let mut seen: HashMap<u64, Message<'a>> = HashMap::new();
        for message in requested.filter_map(|json| sent(json.get())) {
            seen.entry(message.key(&hasher)).or_insert(message);
        }
        let mut messages = claimed;
        for (message, key) in messages.iter_mut().zip(&keys) {
            if let Some(seen) = seen.get(key) {
                message.clone_from(seen);
            }
        }
        let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
        for (place, key) in
            keys.iter().enumerate().filter(|(place, _)| &*messages[*place].role == "assistant")
        {
            places.entry(*key).or_default().push(place);
        }
        let mut message_of = Vec::with_capacity(answered.len());
        for Answered { asked, reply } in answered {
            let said = reply.and_then(|reply| sent(reply.get()));
            let free = said.as_ref().and_then(|said| places.get_mut(&said.key(&hasher)));
            // A reply comes after what it answers. A workflow may leave some of that out of what it registers.
            let found = free.filter(|free| !free.is_empty()).map(|free| {
                let after = free.partition_point(|place| place < asked);
                free.remove(if after < free.len() { after } else { 0 })
            });
            if let (Some(place), Some(said)) = (found, said) {
                messages[place] = said;
            }
            message_of.push(found);
        }
        Self { messages, message_of }
    }
}
