//! Scripted replies for tests: JSON Lines, one object a line.
//!
//! A line says *when* it applies, *how often*, and *what* happens. Lines are tried in
//! order; the first whose `when` holds and whose `times` are not used up is played. Empty
//! lines are skipped. Every mistake in a file is reported at once, with its line.
//!
//! This module decides which line is played, and knows no HTTP connection.

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::reply::Reply;

/// Scripted replies, checked. See [`Script::parse`] for the form.
#[derive(Clone, Debug, Default)]
pub struct Script {
    lines: Vec<Line>,
}

/// What is wrong with a script: every mistake, with its line.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptError {
    mistakes: Vec<Mistake>,
}

#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    what: String,
}

impl std::error::Error for ScriptError {}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Mistake { line, what }) in self.mistakes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}script line {line}: {what}")?;
        }
        Ok(())
    }
}

/// One line, ready to be played.
#[derive(Clone, Debug)]
pub(super) struct Line {
    when: When,
    times: Option<u64>,
    /// Waited before the action, in place of the stand-in's own latency.
    pub(super) delay: Option<Duration>,
    pub(super) headers: HeaderMap,
    pub(super) action: Action,
}

/// What a line does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// A completion around this message, streamed if the client asks.
    Say { status: StatusCode, reply: Reply, usage: Option<Value> },
    /// A body as it is, streamed or not.
    Send { status: StatusCode, content_type: HeaderValue, body: String },
    /// An error as the API words it.
    Refuse(StatusCode),
    /// No answer, ever.
    Hang,
    /// The connection ends without an answer.
    Disconnect,
}

/// What a line's `when` is held against.
pub(super) struct Moment<'a> {
    pub(super) text: &'a str,
    pub(super) rollout_id: &'a str,
    /// Which call of this rollout and sample it is, from 1.
    pub(super) call: u64,
    pub(super) has_tools: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
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
    /// Reads and checks a script. One line (broken here to be read), all keys optional:
    ///
    /// ```json
    /// {"when": {"contains": "text in the last user message", "rollout_id": "r1", "call": 1,
    ///  "has_tools": true}, "times": 2, "delay_ms": 100, "status": 503,
    ///  "headers": {"retry-after": "0"}}
    /// ```
    ///
    /// `call` counts the calls of one rollout id and sample id, from 1; `times` is per
    /// rollout id. What happens is exactly one of `message` (an assistant message, with
    /// `finish_reason`, `usage` and `status` if need be), `body` (JSON sent as it is),
    /// `text_body` (any text), `hang`, `disconnect`, or else a `status` of at least 400
    /// alone, which answers with an error body. `delay_ms` replaces the latency.
    ///
    /// # Errors
    ///
    /// Every line that is not JSON, has an unknown key or does not say what happens.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut lines = Vec::new();
        let mut mistakes = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match read(line) {
                Ok(line) => lines.push(line),
                Err(what) => mistakes.push(Mistake { line: index + 1, what }),
            }
        }
        if mistakes.is_empty() { Ok(Self { lines }) } else { Err(ScriptError { mistakes }) }
    }

    /// The line to play, with its index. `played` says how often a line was played for
    /// this rollout already.
    pub(super) fn pick(&self, moment: &Moment<'_>, played: impl Fn(usize) -> u64) -> Option<(usize, &Line)> {
        self.lines.iter().enumerate().find(|(index, line)| {
            line.when.holds(moment) && line.times.is_none_or(|times| played(*index) < times)
        })
    }
}

impl When {
    fn holds(&self, moment: &Moment<'_>) -> bool {
        let Self { contains, rollout_id, call, has_tools } = self;
        contains.as_ref().is_none_or(|text| moment.text.contains(text.as_str()))
            && rollout_id.as_ref().is_none_or(|id| id.as_str() == moment.rollout_id)
            && call.is_none_or(|call| call == moment.call)
            && has_tools.is_none_or(|has_tools| has_tools == moment.has_tools)
    }
}

fn read(line: &str) -> Result<Line, String> {
    let raw: RawLine = serde_json::from_str(line).map_err(|error| {
        // It counts lines within the one line it was given.
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
        format!("column {}: {what}", error.column())
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
    Ok(Line {
        times: raw.times,
        delay: raw.delay_ms.map(Duration::from_millis),
        headers,
        when: raw.when.clone(),
        action: read_action(raw, status)?,
    })
}

fn read_action(raw: RawLine, status: Option<StatusCode>) -> Result<Action, String> {
    let status_or_ok = status.unwrap_or(StatusCode::OK);
    let mut actions = Vec::new();
    if let Some(message) = raw.message {
        actions.push(Action::Say {
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
        (None, Some(status)) if status.as_u16() >= 400 => Ok(Action::Refuse(status)),
        (None, Some(status)) => {
            Err(format!("`status` {} says nothing without `message`, `body` or `text_body`", status.as_u16()))
        }
        (None, None) => Err(format!("nothing happens: give one of {CHOICES}, `status`")),
    }
}

/// Fills in what goes without saying: the role, a content, why it ended.
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
        // A status in the hundreds does not end an exchange.
        Ok(code) if (200..600).contains(&status) => Ok(code),
        _ => Err(format!("`status` {status} is not in 200..599")),
    }
}

fn read_headers(raw: &Map<String, Value>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in raw {
        let header = HeaderName::try_from(name).map_err(|_| format!("no header name: `{name}`"))?;
        // The server frames its messages; a second opinion would break the connection.
        if [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].contains(&header) {
            return Err(format!("the header `{name}` is the server's own"));
        }
        let value = value
            .as_str()
            .and_then(|value| HeaderValue::from_str(value).ok())
            .ok_or_else(|| format!("no value for the header `{name}`: {value}"))?;
        headers.insert(header, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_played_is_named_with_what_is_wrong() {
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
            "nothing happens: give one of `message`, `body`, `text_body`, `hang`, \
             `disconnect`, `status`",
        );
        check(
            r#"{"body": {}, "text_body": ""}"#,
            "more than one of `message`, `body`, `text_body`, `hang`, `disconnect`",
        );
        check(r#"{"status": 99}"#, "`status` 99 is not in 200..599");
        check(r#"{"status": 200}"#, "`status` 200 says nothing without `message`, `body` or `text_body`");
        check(
            r#"{"hang": true, "status": 500}"#,
            "`hang` and `disconnect` send neither `status` nor `headers`",
        );
        check(r#"{"status": 500, "usage": {}}"#, "`finish_reason` and `usage` need a `message`");
        check(
            r#"{"status": 500, "headers": {"retry-after": 1}}"#,
            "no value for the header `retry-after`: 1",
        );
        check(
            r#"{"status": 500, "headers": {"Content-Length": "1"}}"#,
            "the header `Content-Length` is the server's own",
        );
        check(r#"{"hang": true, "when": {"call": 0}}"#, "`when.call` counts from 1");
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let error = Script::parse("{}\n{\"hang\":true}\nnonsense").expect_err("two mistakes");
        let lines: Vec<usize> = error.mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 3]);
    }

    #[test]
    fn a_message_is_filled_in_where_it_goes_without_saying() {
        let check = |line: &str, content: Value, finish_reason: &str| {
            let script = Script::parse(line).expect(line);
            let Action::Say { reply, status, .. } = &script.lines[0].action else {
                panic!("{line} says nothing");
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
    fn the_first_line_that_holds_and_is_not_used_up_is_played() {
        let script = Script::parse(
            r#"{"when": {"contains": "one", "has_tools": true}, "hang": true}
               {"when": {"rollout_id": "r2"}, "times": 2, "status": 503}
               {"when": {"call": 3}, "disconnect": true}"#,
        )
        .expect("a script");
        let check = |text: &str, rollout_id: &str, call, has_tools, played, expected| {
            let moment = Moment { text, rollout_id, call, has_tools };
            let line = script.pick(&moment, |_| played).map(|(index, _)| index);
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
