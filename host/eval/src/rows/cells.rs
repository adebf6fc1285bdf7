//! Interprets the cells of a row as a prompt, a label and metadata.
//!
//! The readers of all formats pass the columns that they found; this module knows no file.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::Options;
use super::cell::{Cell, json_problem};
use super::columns::{CellPath, ColumnMap};

/// Maximum number of column names that a message lists.
const COLUMNS_LISTED_MAX: usize = 16;

/// Content of a row.
#[derive(Debug)]
pub(super) struct Content {
    pub prompt: Vec<Box<RawValue>>,
    pub label: Option<String>,
    pub metadata: Option<Box<RawValue>>,
}

/// Interprets one row. With `text_holds_json`, a text in `prompt` may be the JSON text of a
/// list of messages. The error describes the problem and how to correct it.
pub(super) fn interpret(
    columns: Vec<(String, Cell)>,
    options: &Options,
    text_holds_json: bool,
) -> Result<Content, String> {
    let mut columns = Columns { columns, text_holds_json };
    let map = &options.columns;
    let system_prompt = match map.system_prompt() {
        Some(path) => text(columns.at(path)?, path)?,
        None => text(columns.take("system_prompt")?, &"system_prompt")?,
    };
    let label = match map.label() {
        Some(path) => label(columns.at(path)?),
        None => columns.usual_label()?,
    };
    let label = match &options.label_after {
        Some(mark) => label.map(|label| label_after(&label, mark)).transpose()?,
        None => label,
    };
    let metadata = match map.metadata() {
        Some(path) => metadata(columns.at(path)?, path)?,
        None => metadata(columns.take("metadata")?, &"metadata")?,
    };
    let metadata = columns.with_members(metadata, map)?;
    let messages = match map.prompt() {
        Some(path) => match columns.at(path)? {
            Some(prompt) => messages(prompt, path, text_holds_json)?,
            None if columns.has(path.column()) => return Err(empty(path)),
            None => {
                let found = columns.names();
                return Err(format!("no `{path}`, which --map names as the prompt (columns found: {found})"));
            }
        },
        None => columns.usual_prompt()?,
    };
    let prompt = with_system(system_prompt, options.system_prompt.as_deref(), messages)?;
    Ok(Content { prompt, label, metadata })
}

/// Checks that a row with these columns can have a prompt and has every mapped column.
pub(super) fn check_names(names: &[String], map: &ColumnMap) -> Result<(), String> {
    let has = |wanted: &str| names.iter().any(|name| same(name, wanted));
    let missing: Vec<String> =
        map.cells().filter(|path| !has(path.column())).map(|path| format!("`{}`", path.column())).collect();
    if !missing.is_empty() {
        return Err(no_column(&missing, &listed(names)));
    }
    if map.prompt().is_some() || has("user_prompt") || has("prompt") { Ok(()) } else { Err(no_prompt(names)) }
}

/// Returns the message about mapped columns that are missing.
pub(super) fn no_column(missing: &[String], found: &str) -> String {
    format!("--map names {}, which no row has (columns found: {found})", missing.join(", "))
}

/// Returns whether a column of this name is read.
pub(super) fn is_known(name: &str, map: &ColumnMap) -> bool {
    const KNOWN: [&str; 6] = ["system_prompt", "user_prompt", "prompt", "ground_truth", "label", "metadata"];
    KNOWN.into_iter().chain(map.cells().map(CellPath::column)).any(|known| same(name, known))
}

/// Returns whether two names mean the same column.
pub(super) fn same(name: &str, wanted: &str) -> bool {
    name.trim().eq_ignore_ascii_case(wanted.trim())
}

struct Columns {
    columns: Vec<(String, Cell)>,
    text_holds_json: bool,
}

impl Columns {
    /// Returns the index of the column with this name. Of several that differ only in case, returns the
    /// exact match.
    fn find(&self, wanted: &str) -> Result<Option<usize>, String> {
        let with = |same: &dyn Fn(&str) -> bool| {
            let mut at = (0..self.columns.len()).filter(|&at| same(&self.columns[at].0));
            (at.next(), at.next())
        };
        if let (Some(exact), None) = with(&|name| name == wanted)
            && !is_known(wanted, &ColumnMap::default())
        {
            return Ok(Some(exact));
        }
        match with(&|name| same(name, wanted)) {
            (Some(first), Some(second)) => Err(format!(
                "column `{wanted}` exists twice, as `{}` and `{}`; keep one of them",
                self.columns[first].0, self.columns[second].0
            )),
            (found, _) => Ok(found),
        }
    }

    fn has(&self, wanted: &str) -> bool {
        self.columns.iter().any(|(name, _)| same(name, wanted))
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        listed(&names)
    }

    fn take(&mut self, wanted: &str) -> Result<Option<Cell>, String> {
        let Some(at) = self.find(wanted)? else { return Ok(None) };
        Ok(match std::mem::replace(&mut self.columns[at].1, Cell::Null) {
            Cell::Null => None,
            cell => Some(cell),
        })
    }

    /// Returns a copy of the value at the path of a mapping.
    fn at(&self, path: &CellPath) -> Result<Option<Cell>, String> {
        let Some(at) = self.find(path.column())? else { return Ok(None) };
        path.within(&self.columns[at].1, self.text_holds_json)
    }

    fn usual_label(&mut self) -> Result<Option<String>, String> {
        match (label(self.take("ground_truth")?), label(self.take("label")?)) {
            (Some(one), Some(other)) if one != other => {
                Err("has both `ground_truth` and `label`, and they differ; keep one of them".to_owned())
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    fn usual_prompt(&mut self) -> Result<Vec<Box<RawValue>>, String> {
        let user_prompt = text(self.take("user_prompt")?, &"user_prompt")?;
        match (user_prompt, self.take("prompt")?) {
            (Some(_), Some(_)) => Err("has both `user_prompt` and `prompt`; keep one of them".to_owned()),
            (Some(user_prompt), None) => Ok(vec![message("user", &user_prompt)]),
            (None, Some(prompt)) => messages(prompt, &"prompt", self.text_holds_json),
            (None, None) => Err(match ["user_prompt", "prompt"].into_iter().find(|name| self.has(name)) {
                Some(name) => empty(&name),
                None => {
                    let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
                    no_prompt(&names)
                }
            }),
        }
    }

    /// Returns the metadata with the members that have columns of their own, which replace members of the
    /// same name.
    fn with_members(
        &self,
        metadata: Option<Box<RawValue>>,
        map: &ColumnMap,
    ) -> Result<Option<Box<RawValue>>, String> {
        if map.members().next().is_none() {
            return Ok(metadata);
        }
        let mut members = match metadata {
            Some(object) => serde_json::from_str::<Members>(object.get()).map_err(|e| json_problem(&e))?,
            None => Members::default(),
        };
        for (name, path) in map.members() {
            let Some(cell) = self.at(path)? else { continue };
            let value = match cell {
                Cell::Null => continue,
                Cell::Text(text) => to_raw_value(&text).map_err(|error| json_problem(&error))?,
                Cell::Json(value) => value,
            };
            members.put(name, value);
        }
        if members.0.is_empty() {
            return Ok(None);
        }
        to_raw_value(&members).map(Some).map_err(|error| json_problem(&error))
    }
}

/// Members of an object in their order, with unparsed values.
#[derive(Default)]
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    fn put(&mut self, name: &str, value: Box<RawValue>) {
        self.0.retain(|(other, _)| other != name);
        self.0.push((name.to_owned(), value));
    }
}

impl serde::Serialize for Members {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> serde::de::Visitor<'de> for MembersVisitor {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Members::default();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    members.put(&name, value);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// Lists names of columns for a message.
pub(super) fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<&str> = names.iter().take(COLUMNS_LISTED_MAX).map(String::as_str).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn no_prompt(names: &[String]) -> String {
    /// Usual names of the prompt's column, to be suggested.
    const PROMPTS: [&str; 7] = ["question", "problem", "instruction", "query", "input", "task", "text"];
    /// Usual names of the label's column.
    const LABELS: [&str; 6] = ["answer", "target", "expected_answer", "solution", "expected", "output"];
    let found = listed(names);
    let one_of = |usual: &[&str]| {
        usual.iter().find_map(|usual| names.iter().find(|name| same(name, usual))).map(String::as_str)
    };
    let map = match (one_of(&PROMPTS), one_of(&LABELS)) {
        (Some(prompt), Some(label)) => format!("prompt={prompt},label={label}"),
        (Some(prompt), None) => format!("prompt={prompt}"),
        (None, _) => "prompt=COLUMN".to_owned(),
    };
    format!(
        "no `user_prompt` and no `prompt` (columns found: {found}); \
         name the column of the prompt with `--map {map}`"
    )
}

/// Returns the text of a cell; none if it is empty.
fn text(cell: Option<Cell>, name: &dyn Display) -> Result<Option<String>, String> {
    match cell {
        None | Some(Cell::Null) => Ok(None),
        Some(Cell::Text(text)) if text.is_empty() => Ok(None),
        Some(Cell::Text(text)) => Ok(Some(text)),
        Some(Cell::Json(value)) => Err(format!(
            "`{name}` is {}; make it text{}",
            kind(&value),
            if value.get().starts_with('[') { ", or give a list of messages as `prompt`" } else { "" }
        )),
    }
}

/// Returns the part of a label after the last mark.
fn label_after(label: &str, mark: &str) -> Result<String, String> {
    match label.rfind(mark) {
        Some(at) => Ok(label[at + mark.len()..].trim().to_owned()),
        None => Err(format!("the label does not contain `{mark}`, the mark of --label-after")),
    }
}

fn label(cell: Option<Cell>) -> Option<String> {
    match cell? {
        Cell::Null => None,
        Cell::Text(text) => Some(text),
        Cell::Json(value) => Some(value.get().to_owned()),
    }
}

fn metadata(cell: Option<Cell>, name: &dyn Display) -> Result<Option<Box<RawValue>>, String> {
    let value = match cell {
        None | Some(Cell::Null) => return Ok(None),
        Some(Cell::Text(text)) if matches!(text.trim(), "" | "null") => return Ok(None),
        Some(Cell::Text(text)) => RawValue::from_string(text).map_err(|error| {
            format!(
                "`{name}` is text that is not JSON ({} at line {}, column {} of it); \
                 write a JSON object, with double quotes",
                json_problem(&error),
                error.line(),
                error.column()
            )
        })?,
        Some(Cell::Json(value)) => value,
    };
    if value.get().starts_with('{') {
        Ok(Some(value))
    } else {
        Err(format!("`{name}` is {}; make it an object", kind(&value)))
    }
}

/// Returns the messages of a prompt, which is a list of messages, or a text for one message of the user.
fn messages(prompt: Cell, name: &dyn Display, text_holds_json: bool) -> Result<Vec<Box<RawValue>>, String> {
    let list = match prompt {
        Cell::Null => return Err(empty(name)),
        Cell::Text(text) if text.is_empty() => return Err(empty(name)),
        Cell::Text(text) if text_holds_json && looks_like_messages(&text) => text,
        Cell::Text(text) => return Ok(vec![message("user", &text)]),
        Cell::Json(value) if value.get().starts_with('[') => value.get().to_owned(),
        Cell::Json(value) => {
            return Err(format!("`{name}` is {}; make it a list of messages, or text", kind(&value)));
        }
    };
    let messages: Vec<Box<RawValue>> = serde_json::from_str(&list).map_err(|error| {
        format!(
            "`{name}` begins like a list of messages but is not JSON ({} at line {}, column {} \
             of it); correct it, or put plain text into `user_prompt`",
            json_problem(&error),
            error.line(),
            error.column()
        )
    })?;
    if messages.is_empty() {
        return Err(empty(name));
    }
    for (at, message) in messages.iter().enumerate() {
        check_message(message).map_err(|what| {
            format!("message {at} (counted from 0) of `{name}` {what}; give it a text `role`")
        })?;
    }
    Ok(messages)
}

/// Returns the message about an empty prompt.
fn empty(name: &dyn Display) -> String {
    format!("`{name}` is empty; fill it in or remove the row")
}

fn looks_like_messages(text: &str) -> bool {
    text.trim_start().strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('{'))
}

#[derive(Deserialize)]
struct HasRole {
    role: String,
}

fn role(message: &RawValue) -> Result<String, serde_json::Error> {
    serde_json::from_str::<HasRole>(message.get()).map(|message| message.role)
}

fn check_message(message: &RawValue) -> Result<(), String> {
    if !message.get().starts_with('{') {
        return Err(format!("is {}, not an object", kind(message)));
    }
    match role(message) {
        Ok(role) if role.is_empty() => Err("has an empty `role`".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("has no usable role ({})", json_problem(&error))),
    }
}

fn with_system(
    system_prompt: Option<String>,
    usual: Option<&str>,
    mut messages: Vec<Box<RawValue>>,
) -> Result<Vec<Box<RawValue>>, String> {
    let has_one = role(&messages[0]).is_ok_and(|role| role == "system");
    match (system_prompt.as_deref(), usual) {
        (Some(_), _) if has_one => {
            return Err("has a `system_prompt`, and `prompt` begins with a system message; keep one of them"
                .to_owned());
        }
        (Some(system_prompt), _) => messages.insert(0, message("system", system_prompt)),
        (None, Some(usual)) if !has_one => messages.insert(0, message("system", usual)),
        (None, _) => {}
    }
    Ok(messages)
}

fn message(role: &str, content: &str) -> Box<RawValue> {
    #[derive(serde::Serialize)]
    struct Message<'a> {
        role: &'a str,
        content: &'a str,
    }
    to_raw_value(&Message { role, content }).expect("two texts can be written as JSON")
}

fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "text",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests;
