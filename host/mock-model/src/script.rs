//! Scripted replies for tests: JSON Lines, one object a line.
//!
//! A line states when it applies (`when`), how often (`times`) and what happens. Lines are tried in order;
//! the first one that applies is played. Empty lines are skipped. Parsing reports all mistakes at once, each
//! with its line number.
//!
//! This module selects the line and knows no HTTP connection.

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::reply::Reply;

/// A parsed script. See [`Script::parse`] for the format.
#[derive(Clone, Debug, Default)]
pub struct Script {
    lines: Vec<ScriptLine>,
}

/// All mistakes in a script, with their line numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptError {
    mistakes: Vec<Mistake>,
}

#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    message: String,
}

impl std::error::Error for ScriptError {}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Mistake { line, message }) in self.mistakes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}script line {line}: {message}")?;
        }
        Ok(())
    }
}

/// One parsed line.
#[derive(Clone, Debug)]
pub(super) struct ScriptLine {
    when: When,
    times: Option<u64>,
    /// Delay before the action, which replaces the mock's own latency.
    pub(super) delay: Option<Duration>,
    pub(super) headers: HeaderMap,
    pub(super) action: Action,
}

/// Action of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Sends a completion with this message, streamed if the client asks for that.
    Complete { status: StatusCode, reply: Reply, usage: Option<Value> },
    /// Sends this body verbatim.
    Send { status: StatusCode, content_type: HeaderValue, body: String },
    /// Sends an error body as the OpenAI API words it.
    Fail(StatusCode),
    /// Never answers.
    Hang,
    /// Closes the connection without an answer.
    Disconnect,
}

/// A chat call, as far as `when` can refer to it.
pub(super) struct CallContext<'a> {
    pub(super) text: &'a str,
    pub(super) rollout_id: &'a str,
    /// Number of the call within its rollout and sample, from 1.
    pub(super) call: u64,
    pub(super) has_tools: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScriptLine {
    #[serde(default)]
    when: When,
    times: Option<u64>,
    status: Option<u16>,
    #[serde(default)]
    headers: Map<String, Value>,
    message: Option<Map<String, Value>>,
    body: Option<Box<RawValue>>,
    text_body: Option<String>,
    finish_reason: Option<String>,
    usage: Option<Value>,
    delay_ms: Option<u64>,
    #[serde(default)]
    hang: bool,
    #[serde(default)]
    disconnect: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    contains: Option<String>,
    rollout_id: Option<String>,
    call: Option<u64>,
    has_tools: Option<bool>,
}

impl Script {
    /// Parses a script. This is one line, wrapped here for reading; all keys are optional:
    ///
    /// ```json
    /// {"when": {"contains": "text in the last user message", "rollout_id": "r1", "call": 1,
    ///  "has_tools": true}, "times": 2, "delay_ms": 100, "status": 503,
    ///  "headers": {"retry-after": "0"}}
    /// ```
    ///
    /// `call` is the number of the call within its rollout id and sample id, from 1. `times` counts per
    /// rollout id. `delay_ms` replaces the latency. The action is exactly one of
    ///
    /// - `message`: an assistant message, optionally with `finish_reason`, `usage` and `status`,
    /// - `body`: JSON that is sent verbatim,
    /// - `text_body`: any text,
    /// - `hang`,
    /// - `disconnect`,
    /// - only a `status` of at least 400: an error body.
    ///
    /// # Errors
    ///
    /// Reports every line that is not JSON, has an unknown key or has no action.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut lines = Vec::new();
        let mut mistakes = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match read(line) {
                Ok(line) => lines.push(line),
                Err(message) => mistakes.push(Mistake { line: index + 1, message }),
            }
        }
        if mistakes.is_empty() { Ok(Self { lines }) } else { Err(ScriptError { mistakes }) }
    }

    /// Returns the line to play and its index. `played` returns how often this rollout has played a line.
    pub(super) fn pick(
        &self,
        call_context: &CallContext<'_>,
        played: impl Fn(usize) -> u64,
    ) -> Option<(usize, &ScriptLine)> {
        self.lines.iter().enumerate().find(|(index, line)| {
            line.when.is_met(call_context) && line.times.is_none_or(|times| played(*index) < times)
        })
    }
}

impl When {
    fn is_met(&self, call_context: &CallContext<'_>) -> bool {
        let Self { contains, rollout_id, call, has_tools } = self;
        contains.as_ref().is_none_or(|text| call_context.text.contains(text.as_str()))
            && rollout_id.as_ref().is_none_or(|id| id.as_str() == call_context.rollout_id)
            && call.is_none_or(|call| call == call_context.call)
            && has_tools.is_none_or(|has_tools| has_tools == call_context.has_tools)
    }
}

/// Parses a line.
fn read(line: &str) -> Result<ScriptLine, String> {
    let raw: RawScriptLine = serde_json::from_str(line).map_err(|error| {
        // The parser counts lines within this one line.
        let text = error.to_string();
        let message = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message);
        format!("column {}: {message}", error.column())
    })?;
    if raw.when.call == Some(0) {
        return Err("`when.call` counts from 1".to_owned());
    }
    let status = raw.status.map(read_status).transpose()?;
    let headers = read_headers(&raw.headers)?;
    let quiet = raw.hang || raw.disconnect;
    if quiet && (status.is_some() || !headers.is_empty()) {
        return Err("`hang` and `disconnect` send neither `status` nor `headers`".to_owned());
    }
    if raw.message.is_none() && (raw.finish_reason.is_some() || raw.usage.is_some()) {
        return Err("`finish_reason` and `usage` need a `message`".to_owned());
    }
    Ok(ScriptLine {
        times: raw.times,
        delay: raw.delay_ms.map(Duration::from_millis),
        headers,
        when: raw.when.clone(),
        action: read_action(raw, status)?,
    })
}

/// Returns the line's action, of which there must be exactly one.
fn read_action(raw: RawScriptLine, status: Option<StatusCode>) -> Result<Action, String> {
    let status_or_ok = status.unwrap_or(StatusCode::OK);
    let mut actions = Vec::new();
    if let Some(message) = raw.message {
        actions.push(Action::Complete {
            status: status_or_ok,
            reply: read_message(message, raw.finish_reason),
            usage: raw.usage,
        });
    }
    if let Some(body) = raw.body {
        actions.push(Action::Send {
            status: status_or_ok,
            content_type: HeaderValue::from_static("application/json"),
            body: body.get().to_owned(),
        });
    }
    if let Some(body) = raw.text_body {
        actions.push(Action::Send {
            status: status_or_ok,
            content_type: HeaderValue::from_static("text/plain; charset=utf-8"),
            body,
        });
    }
    if raw.hang {
        actions.push(Action::Hang);
    }
    if raw.disconnect {
        actions.push(Action::Disconnect);
    }
    const CHOICES: &str = "`message`, `body`, `text_body`, `hang`, `disconnect`";
    match (actions.pop(), status) {
        (Some(action), _) if actions.is_empty() => Ok(action),
        (Some(_), _) => Err(format!("more than one of {CHOICES}")),
        (None, Some(status)) if status.as_u16() >= 400 => Ok(Action::Fail(status)),
        (None, Some(status)) => {
            Err(format!("`status` {} needs a `message`, `body` or `text_body`", status.as_u16()))
        }
        (None, None) => Err(format!("the line has no action: add one of {CHOICES}, `status`")),
    }
}

/// Completes a message with the default role, content and finish reason.
fn read_message(mut message: Map<String, Value>, finish_reason: Option<String>) -> Reply {
    message.entry("role").or_insert_with(|| "assistant".into());
    message.entry("content").or_insert(Value::Null);
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let calls = calls.is_some_and(|calls| !calls.is_empty());
    let usual = if calls { "tool_calls" } else { "stop" };
    Reply { message, finish_reason: finish_reason.unwrap_or_else(|| usual.to_owned()) }
}

fn read_status(status: u16) -> Result<StatusCode, String> {
    match StatusCode::from_u16(status) {
        // An informational status does not end an exchange.
        Ok(code) if (200..600).contains(&status) => Ok(code),
        _ => Err(format!("`status` {status} is not in 200..599")),
    }
}

fn read_headers(raw: &Map<String, Value>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in raw {
        let header = HeaderName::try_from(name).map_err(|_| format!("invalid header name `{name}`"))?;
        // The server frames its messages itself; conflicting headers would break the connection.
        if [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].contains(&header) {
            return Err(format!("the header `{name}` is set by the server"));
        }
        let value = value
            .as_str()
            .and_then(|value| HeaderValue::from_str(value).ok())
            .ok_or_else(|| format!("invalid value for the header `{name}`: {value}"))?;
        headers.insert(header, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_line_is_reported_with_its_number_and_mistake() {
        let check = |line: &str, expected: &str| {
            let error = Script::parse(&format!("\n{line}")).expect_err(line);
            assert_eq!(error.to_string(), format!("script line 2: {expected}"));
        };
        check("{", "column 1: EOF while parsing an object");
        check(
            r#"{"hang": true, "wen": {}}"#,
            "column 20: unknown field `wen`, expected one of `when`, `times`, `status`, \
             `headers`, `message`, `body`, `text_body`, `finish_reason`, `usage`, `delay_ms`, \
             `hang`, `disconnect`",
        );
        check(
            r#"{"hang": true, "when": {"rollout": "r"}}"#,
            "column 33: unknown field `rollout`, expected one of `contains`, `rollout_id`, \
             `call`, `has_tools`",
        );
        check(
            r#"{"when": {"call": 1}}"#,
            "the line has no action: add one of `message`, `body`, `text_body`, `hang`, \
             `disconnect`, `status`",
        );
        check(
            r#"{"body": {}, "text_body": ""}"#,
            "more than one of `message`, `body`, `text_body`, `hang`, `disconnect`",
        );
        check(r#"{"status": 99}"#, "`status` 99 is not in 200..599");
        check(r#"{"status": 200}"#, "`status` 200 needs a `message`, `body` or `text_body`");
        check(
            r#"{"hang": true, "status": 500}"#,
            "`hang` and `disconnect` send neither `status` nor `headers`",
        );
        check(r#"{"status": 500, "usage": {}}"#, "`finish_reason` and `usage` need a `message`");
        check(
            r#"{"status": 500, "headers": {"retry-after": 1}}"#,
            "invalid value for the header `retry-after`: 1",
        );
        check(
            r#"{"status": 500, "headers": {"Content-Length": "1"}}"#,
            "the header `Content-Length` is set by the server",
        );
        check(r#"{"hang": true, "when": {"call": 0}}"#, "`when.call` counts from 1");
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let error = Script::parse("{}\n{\"hang\":true}\nnonsense").expect_err("two mistakes");
        let lines: Vec<usize> = error.mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 3]);
    }

    #[test]
    fn a_message_gets_default_role_content_and_finish_reason() {
        let check = |line: &str, content: Value, finish_reason: &str| {
            let script = Script::parse(line).expect(line);
            let Action::Complete { reply, status, .. } = &script.lines[0].action else {
                panic!("{line} has no completion");
            };
            assert_eq!(*status, StatusCode::OK);
            assert_eq!(reply.message["role"], "assistant");
            assert_eq!(reply.message["content"], content);
            assert_eq!(reply.finish_reason, finish_reason);
        };
        check(r#"{"message": {"content": "a"}}"#, "a".into(), "stop");
        check(r#"{"message": {"tool_calls": [{}]}}"#, Value::Null, "tool_calls");
        check(r#"{"message": {"content": "a"}, "finish_reason": "length"}"#, "a".into(), "length");
    }

    #[test]
    fn the_first_line_that_applies_and_is_not_used_up_is_played() {
        let script = Script::parse(
            r#"{"when": {"contains": "one", "has_tools": true}, "hang": true}
               {"when": {"rollout_id": "r2"}, "times": 2, "status": 503}
               {"when": {"call": 3}, "disconnect": true}"#,
        )
        .expect("a script");
        let check = |text: &str, rollout_id: &str, call, has_tools, played, expected| {
            let call_context = CallContext { text, rollout_id, call, has_tools };
            let line = script.pick(&call_context, |_| played).map(|(index, _)| index);
            assert_eq!(line, expected, "{text} {rollout_id} {call}");
        };
        check("one two", "r1", 1, true, 0, Some(0));
        check("one two", "r1", 1, false, 0, None);
        check("one two", "r2", 1, false, 0, Some(1));
        check("two", "r2", 1, false, 1, Some(1));
        check("two", "r2", 1, false, 2, None);
        check("two", "r2", 3, false, 2, Some(2));
        check("two", "r2", 4, false, 2, None);
    }
}
