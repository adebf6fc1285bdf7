//! From the cells of one row to a prompt, a label and metadata.
//!
//! The same for every format: a reader gives the columns it found, and this module
//! says what they mean. It knows no file.

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

/// How many column names a message lists. More would bury what it says.
const COLUMNS_LISTED_MAX: usize = 16;

/// One value, as a reader found it.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// Absent.
    Null,
    /// Text.
    Text(String),
    /// Any other JSON value: a number, a boolean, a list or an object.
    Json(Box<RawValue>),
}

/// What a row says.
#[derive(Debug)]
pub(super) struct Content {
    pub prompt: Vec<Box<RawValue>>,
    pub label: Option<String>,
    pub metadata: Option<Box<RawValue>>,
}

/// Reads one row. With `text_holds_json`, a text in `prompt` may be the JSON text of a
/// list of messages. The error says what is wrong and what to do.
pub(super) fn interpret(columns: Vec<(String, Cell)>, text_holds_json: bool) -> Result<Content, String> {
    let mut columns = Columns::new(columns);
    let system_prompt = text(columns.take("system_prompt")?, "system_prompt")?;
    let user_prompt = text(columns.take("user_prompt")?, "user_prompt")?;
    let prompt = columns.take("prompt")?;
    let ground_truth = label(columns.take("ground_truth")?);
    let label = match (ground_truth, label(columns.take("label")?)) {
        (Some(one), Some(other)) if one != other => {
            return Err("has both `ground_truth` and `label`, and they differ; keep one of them".to_owned());
        }
        (one, other) => one.or(other),
    };
    let metadata = metadata(columns.take("metadata")?)?;
    let messages = match (user_prompt, prompt) {
        (Some(_), Some(_)) => {
            return Err("has both `user_prompt` and `prompt`; keep one of them".to_owned());
        }
        (None, None) => return Err(no_prompt(&columns.names)),
        (Some(user_prompt), None) => vec![message("user", &user_prompt)],
        (None, Some(prompt)) => messages(prompt, text_holds_json)?,
    };
    let prompt = with_system(system_prompt, messages)?;
    Ok(Content { prompt, label, metadata })
}

/// Whether a row with these columns can have a prompt at all; else what to say.
pub(super) fn check_names(names: &[String]) -> Result<(), String> {
    let has = |wanted| names.iter().any(|name| same(name, wanted));
    if has("user_prompt") || has("prompt") { Ok(()) } else { Err(no_prompt(names)) }
}

/// Whether a column of this name is read.
pub(super) fn is_known(name: &str) -> bool {
    const KNOWN: [&str; 6] = ["system_prompt", "user_prompt", "prompt", "ground_truth", "label", "metadata"];
    KNOWN.into_iter().any(|known| same(name, known))
}

/// The message of a JSON error without the place that serde_json appends to it.
pub(super) fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn same(name: &str, wanted: &str) -> bool {
    name.trim().eq_ignore_ascii_case(wanted)
}

struct Columns {
    names: Vec<String>,
    cells: Vec<Cell>,
}

impl Columns {
    fn new(columns: Vec<(String, Cell)>) -> Self {
        let (names, cells) = columns.into_iter().unzip();
        Self { names, cells }
    }

    fn take(&mut self, wanted: &str) -> Result<Option<Cell>, String> {
        let mut at = (0..self.names.len()).filter(|&at| same(&self.names[at], wanted));
        let Some(first) = at.next() else {
            return Ok(None);
        };
        if let Some(second) = at.next() {
            return Err(format!(
                "column `{wanted}` is there twice, as `{}` and `{}`; keep one of them",
                self.names[first], self.names[second]
            ));
        }
        match std::mem::replace(&mut self.cells[first], Cell::Null) {
            Cell::Null => Ok(None),
            cell => Ok(Some(cell)),
        }
    }
}

fn no_prompt(names: &[String]) -> String {
    let found = match names {
        [] => "none".to_owned(),
        names => {
            let listed: Vec<&str> = names.iter().take(COLUMNS_LISTED_MAX).map(|name| name.as_str()).collect();
            let more = names.len() - listed.len();
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{}{more}", listed.join(", "))
        }
    };
    format!(
        "no `user_prompt` and no `prompt` (columns found: {found}); \
         give the question as `user_prompt`, or a list of chat messages as `prompt`"
    )
}

/// A text column. Empty text is no text: a model has nothing to answer to it.
fn text(cell: Option<Cell>, name: &str) -> Result<Option<String>, String> {
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

fn label(cell: Option<Cell>) -> Option<String> {
    match cell? {
        Cell::Null => None,
        Cell::Text(text) => Some(text),
        Cell::Json(value) => Some(value.get().to_owned()),
    }
}

fn metadata(cell: Option<Cell>) -> Result<Option<Box<RawValue>>, String> {
    let value = match cell {
        None | Some(Cell::Null) => return Ok(None),
        Some(Cell::Text(text)) if matches!(text.trim(), "" | "null") => return Ok(None),
        Some(Cell::Text(text)) => RawValue::from_string(text).map_err(|error| {
            format!(
                "`metadata` is text that is not JSON ({} at line {}, column {} of it); \
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
        Err(format!("`metadata` is {}; make it an object", kind(&value)))
    }
}

fn messages(prompt: Cell, text_holds_json: bool) -> Result<Vec<Box<RawValue>>, String> {
    let list = match prompt {
        Cell::Null => return Err(empty_prompt()),
        Cell::Text(text) if text.is_empty() => return Err(empty_prompt()),
        Cell::Text(text) if text_holds_json && looks_like_messages(&text) => text,
        Cell::Text(text) => return Ok(vec![message("user", &text)]),
        Cell::Json(value) if value.get().starts_with('[') => value.get().to_owned(),
        Cell::Json(value) => {
            return Err(format!("`prompt` is {}; make it a list of messages, or text", kind(&value)));
        }
    };
    let messages: Vec<Box<RawValue>> = serde_json::from_str(&list).map_err(|error| {
        format!(
            "`prompt` begins like a list of messages and is not JSON ({} at line {}, column {} \
             of it); correct it, or give plain text as `user_prompt`",
            json_problem(&error),
            error.line(),
            error.column()
        )
    })?;
    if messages.is_empty() {
        return Err(empty_prompt());
    }
    for (at, message) in messages.iter().enumerate() {
        check_message(message).map_err(|what| {
            format!("message {at} (counted from 0) of `prompt` {what}; give it a text `role`")
        })?;
    }
    Ok(messages)
}

fn empty_prompt() -> String {
    "`prompt` is empty; give at least one message".to_owned()
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
    mut messages: Vec<Box<RawValue>>,
) -> Result<Vec<Box<RawValue>>, String> {
    if let Some(system_prompt) = system_prompt {
        if role(&messages[0]).is_ok_and(|role| role == "system") {
            return Err("has a `system_prompt`, and `prompt` begins with a system message; keep one of them"
                .to_owned());
        }
        messages.insert(0, message("system", &system_prompt));
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
mod tests {
    use super::*;

    fn row(json: &str) -> Vec<(String, Cell)> {
        let columns: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).unwrap();
        let cell = |value| match value {
            serde_json::Value::Null => Cell::Null,
            serde_json::Value::String(text) => Cell::Text(text),
            value => Cell::Json(to_raw_value(&value).unwrap()),
        };
        columns.into_iter().map(|(k, v)| (k, cell(v))).collect()
    }

    fn described(result: Result<Content, String>) -> String {
        match result {
            Err(what) => format!("error: {what}"),
            Ok(content) => {
                let prompt: Vec<&str> = content.prompt.iter().map(|m| m.get()).collect();
                let metadata = content.metadata.as_ref().map_or("-", |m| m.get());
                format!("{} | {:?} | {metadata}", prompt.join(" "), content.label)
            }
        }
    }

    fn check(json: &str, expected: &str) {
        let got = described(interpret(row(json), false));
        assert!(got.contains(expected), "{json}\n got: {got}");
    }

    fn check_text(json: &str, expected: &str) {
        let got = described(interpret(row(json), true));
        assert!(got.contains(expected), "{json}\n got: {got}");
    }

    #[test]
    fn prompts_become_messages() {
        check(r#"{"user_prompt":"a\"b"}"#, r#"{"role":"user","content":"a\"b"} | None | -"#);
        check(
            r#"{"System_Prompt":"s"," USER_PROMPT ":"u"}"#,
            r#"{"role":"system","content":"s"} {"role":"user","content":"u"} |"#,
        );
        check(r#"{"system_prompt":"","user_prompt":"u"}"#, r#"{"role":"user","content":"u"} |"#);
        check(r#"{"prompt":"u"}"#, r#"{"role":"user","content":"u"} | None"#);
        check(
            r#"{"prompt":[{"role":"user","content":[1],"x":null}],"system_prompt":"s","user_prompt":null}"#,
            r#"{"role":"system","content":"s"} {"role":"user","content":[1],"x":null} |"#,
        );
        check(
            r#"{"prompt":"[{\"role\":\"user\"}]"}"#,
            r#"{"role":"user","content":"[{\"role\":\"user\"}]"}"#,
        );
    }

    #[test]
    fn text_cells_hold_lists_of_messages() {
        check_text(
            r#"{"prompt":" [ {\"role\":  \"user\", \"n\": 1.0}]"}"#,
            r#"{"role":  "user", "n": 1.0} | None | -"#,
        );
        check_text(r#"{"prompt":"[INST] hi"}"#, r#""content":"[INST] hi"}"#);
        check_text(r#"{"prompt":"[1,2] sort"}"#, r#""content":"[1,2] sort"}"#);
        check_text(
            r#"{"prompt":"[{'role': 1}]"}"#,
            "error: `prompt` begins like a list of messages and is not JSON (key must be a string at line 1, column 3",
        );
    }

    #[test]
    fn labels_become_text() {
        let cases = [
            (r#""42""#, r#"Some("42")"#),
            (r#""""#, r#"Some("")"#),
            ("42", r#"Some("42")"#),
            ("-1.50", r#"Some("-1.5")"#),
            ("true", r#"Some("true")"#),
            (r#"["a"]"#, r#"Some("[\"a\"]")"#),
            ("null", "None"),
        ];
        for (value, expected) in cases {
            for name in ["label", "Ground_Truth"] {
                let json = format!(r#"{{"user_prompt":"u","{name}":{value}}}"#);
                check(&json, &format!("| {expected} |"));
            }
        }
        check(r#"{"user_prompt":"u","label":null,"ground_truth":"g"}"#, r#"Some("g")"#);
        check(r#"{"user_prompt":"u","label":"1","ground_truth":1}"#, r#"Some("1")"#);
        check(
            r#"{"user_prompt":"u","label":"1","ground_truth":"2"}"#,
            "error: has both `ground_truth` and `label`, and they differ",
        );
    }

    #[test]
    fn metadata_is_an_object_or_absent() {
        check(r#"{"user_prompt":"u","metadata":{"a":1}}"#, r#"| {"a":1}"#);
        check(r#"{"user_prompt":"u","metadata":"{\"a\": 1}"}"#, r#"| {"a": 1}"#);
        check(r#"{"user_prompt":"u","metadata":" "}"#, "| -");
        check(r#"{"user_prompt":"u","metadata":"null"}"#, "| -");
        check(r#"{"user_prompt":"u","metadata":null}"#, "| -");
        check(r#"{"user_prompt":"u","metadata":[1]}"#, "error: `metadata` is a list; make it an object");
        check(
            r#"{"user_prompt":"u","metadata":"{'a': 1}"}"#,
            "error: `metadata` is text that is not JSON (key must be a string",
        );
    }

    #[test]
    fn a_row_without_a_usable_prompt_is_refused() {
        check(
            r#"{"question":"q","answer":1}"#,
            "error: no `user_prompt` and no `prompt` (columns found: question, answer); give the",
        );
        check("{}", "(columns found: none)");
        check(r#"{"user_prompt":""}"#, "error: no `user_prompt`");
        check(r#"{"prompt":""}"#, "error: `prompt` is empty");
        check(r#"{"prompt":[]}"#, "error: `prompt` is empty");
        check(r#"{"prompt":"a","user_prompt":"b"}"#, "error: has both `user_prompt` and `prompt`; keep one");
        check(
            r#"{"user_prompt":"a","User_Prompt":"b"}"#,
            "error: column `user_prompt` is there twice, as `user_prompt` and `User_Prompt`",
        );
        check(
            r#"{"user_prompt":[{"role":"user"}]}"#,
            "error: `user_prompt` is a list; make it text, or give a list of messages as `prompt`",
        );
        check(
            r#"{"prompt":{"role":"user"}}"#,
            "error: `prompt` is an object; make it a list of messages, or text",
        );
        check(
            r#"{"prompt":[{"role":"user"},3]}"#,
            "error: message 1 (counted from 0) of `prompt` is a number, not an object",
        );
        check(r#"{"prompt":[{"content":"c"}]}"#, "missing field `role`");
        check(
            r#"{"prompt":[{"role":1}]}"#,
            "error: message 0 (counted from 0) of `prompt` has no usable role (invalid type: integer",
        );
        check(
            r#"{"system_prompt":"s","prompt":[{"role":"system","content":"t"}]}"#,
            "error: has a `system_prompt`, and `prompt` begins with a system message",
        );
    }
}
