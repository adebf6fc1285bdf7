//! The messages of a conversation, in the form that trainers read.
//!
//! The workflow decides which messages exist by registering them. The wording of each comes from the request
//! or reply that the host observed, if there is one, because a step of a trajectory cannot hold all of it.
//! The writer of a trajectory has decided which messages are replies of the model.

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
    /// The message as JSON, if the other fields do not contain all of it.
    pub raw: Option<&'a str>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call<'a> {
    pub id: Cow<'a, str>,
    pub name: Cow<'a, str>,
    /// The arguments as JSON.
    pub arguments: Cow<'a, str>,
}

impl Message<'_> {
    /// Returns the message as a struct of a row.
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

    /// Returns a hash of the parts that identify a message: role, text, calls, and the call that it answers.
    fn key(&self, hasher: &RandomState) -> u64 {
        let role = match &*self.role {
            "developer" => "system",
            "function" => "tool",
            role => role,
        };
        let ids: Vec<&str> = self.calls.iter().map(|call| &*call.id).collect();
        hasher.hash_one((
            role,
            self.content.as_deref().unwrap_or_default(),
            ids,
            self.tool_call_id.as_deref(),
        ))
    }
}

impl Call<'_> {
    fn cell(&self) -> Cell<'_> {
        let function = Cell::Struct(vec![Cell::Text(&self.name), Cell::Text(&self.arguments)]);
        Cell::Struct(vec![Cell::Text(&self.id), Cell::Text("function"), function])
    }
}

/// Parses a message of a request or reply. Returns `None` if it is not an object with a role.
pub(crate) fn parse(json: &str) -> Option<Message<'_>> {
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
                is_whole &= message.reasoning.is_some() || is_empty(value);
            }
            "tool_calls" if is_empty(value) => {}
            "tool_calls" => match calls(value) {
                Some((calls, are_whole)) => {
                    message.calls = calls;
                    is_whole &= are_whole;
                }
                None => is_whole = false,
            },
            "tool_call_id" => message.tool_call_id = text(value),
            "name" => message.name = text(value),
            _ => is_whole &= is_empty(value),
        }
        Ok::<(), ()>(())
    });
    read.ok()?;
    message.raw = (!is_whole).then_some(json);
    Some(message)
}

/// Returns whether a value is empty. Servers send such members with every message.
fn is_empty(value: &RawValue) -> bool {
    matches!(value.get(), "null" | "[]" | "{}" | "\"\"")
}

/// Parses the calls of a message. Returns them and whether they contain everything in the JSON.
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
                _ => are_whole &= is_empty(value),
            }
            Ok::<(), ()>(())
        });
        read.map_err(drop)?;
        let Function { name: Text(name), arguments } = function.ok_or(())?;
        let arguments = arguments.map_or(Cow::Borrowed("{}"), |given| {
            // Some servers send an object instead of its text.
            text(given).unwrap_or(Cow::Borrowed(given.get()))
        });
        let id = id.unwrap_or_else(|| format!("call_{}", found.len()).into());
        found.push(Call { id, name, arguments });
        Ok::<(), ()>(())
    });
    read.ok().map(|()| (found, are_whole))
}

/// Replaces each message that the workflow registered by the same message in an observed request, if there is one.
pub(crate) fn take_wording<'a>(messages: &mut [Message<'a>], requested: impl Iterator<Item = &'a RawValue>) {
    let hasher = RandomState::new();
    let mut seen: HashMap<u64, Message<'a>> = HashMap::new();
    for message in requested.filter_map(|json| parse(json.get())) {
        seen.entry(message.key(&hasher)).or_insert(message);
    }
    for message in messages {
        if let Some(seen) = seen.get(&message.key(&hasher)) {
            message.clone_from(seen);
        }
    }
}
