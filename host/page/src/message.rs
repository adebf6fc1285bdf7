//! Messages of a conversation as a page shows them.

use std::borrow::Cow;
use std::time::Duration;

use rollout_wire::openai::{WireCall, content_text};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::format::duration;
use crate::text::{Room, Text, visible};

/// Maximum number of bytes of a name or a role.
const NAME_BYTES_MAX: usize = 100;

/// Maximum number of bytes of arguments that are laid out over several lines.
const LAYOUT_BYTES_MAX: usize = 64 << 10;

/// Maximum number of calls of one message that are shown.
const CALLS_MAX: usize = 64;

/// A message.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// Its role: a word for the style sheet, one of a closed set.
    pub style: &'static str,
    /// Its role as it was written.
    pub role: String,
    /// A note beside its role.
    pub note: Option<String>,
    /// The model's reasoning, if the server sent it.
    pub reasoning: Text,
    /// Its text.
    pub text: Text,
    /// Its calls of tools.
    pub calls: Vec<Call>,
    /// Number of calls that are left out.
    pub calls_left_out: usize,
    /// Address of the whole message, if parts are left out.
    pub whole: Option<String>,
}

impl Message {
    /// Returns whether parts of it are left out.
    pub(crate) fn is_cut(&self) -> bool {
        self.text.left_out > 0
            || self.reasoning.left_out > 0
            || self.calls.iter().any(|call| call.arguments.left_out > 0)
    }

    /// Returns whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments on one line, shortened.
    pub brief: String,
    /// The arguments.
    pub arguments: Text,
    /// The result, if the conversation has it.
    pub result: Option<Text>,
    /// The host's observation, if the host provided the tool.
    pub observed: Option<ObservedCall>,
}

/// A call of a host-provided tool as the host saw it.
#[derive(Clone, Debug)]
pub struct ObservedCall {
    /// Its outcome.
    pub outcome: &'static str,
    /// Whether the model received an error.
    pub is_error: bool,
    /// The time that it took.
    pub took: Duration,
}

impl ObservedCall {
    /// Returns the time that it took, for people.
    pub fn took_shown(&self) -> String {
        duration(self.took)
    }
}

/// The parts of a message in JSON that are shown.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawMessage<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow, alias = "reasoning")]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<WireCall<'a>>>,
    #[serde(borrow)]
    tool_call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
}

impl<'a> RawMessage<'a> {
    /// Reads a message; `None` if its form is unknown.
    pub(crate) fn read(json: &'a str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// Returns the id of the call whose result it is.
    pub(crate) fn result_of(&self) -> Option<&str> {
        self.tool_call_id.as_deref().filter(|_| self.role == "tool")
    }

    pub(crate) fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// Returns the text of its content.
    pub(crate) fn text(&self) -> Cow<'a, str> {
        self.content.map_or(Cow::Borrowed(""), |content| content_text(content.get()))
    }

    fn reasoning(&self) -> Cow<'a, str> {
        self.reasoning_content.map_or(Cow::Borrowed(""), |content| content_text(content.get()))
    }

    fn calls(&self) -> &[WireCall<'a>] {
        self.tool_calls.as_deref().unwrap_or_default()
    }

    /// Returns whether another message has the same text and the same calls.
    pub(crate) fn says_the_same(&self, other: &RawMessage<'_>) -> bool {
        let same_call = |(one, other): (&WireCall<'_>, &WireCall<'_>)| {
            let arguments = |call: &WireCall<'_>| call.arguments().map(|raw| unquoted(raw).into_owned());
            one.name() == other.name() && arguments(one) == arguments(other)
        };
        self.text() == other.text()
            && self.calls().len() == other.calls().len()
            && self.calls().iter().zip(other.calls()).all(same_call)
    }
}

/// Returns the text of a JSON string, or other JSON as it is.
fn unquoted(raw: &RawValue) -> Cow<'_, str> {
    serde_json::from_str::<Cow<'_, str>>(raw.get()).unwrap_or(Cow::Borrowed(raw.get()))
}

/// Returns the word for the style sheet.
fn style(role: &str) -> &'static str {
    match role {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" | "function" => "tool",
        _ => "other",
    }
}

fn name(text: &str) -> String {
    Text::beginning(text, NAME_BYTES_MAX).shown
}

/// Returns a message for a page.
pub(crate) fn shown(json: &str, room: &mut Room) -> Message {
    let Some(raw) = RawMessage::read(json) else {
        let note = Some("a message of an unknown form, as it was sent".to_owned());
        return Message {
            style: "other",
            role: "?".to_owned(),
            note,
            text: room.take(json),
            ..Message::default()
        };
    };
    let calls = raw.calls().iter().enumerate().take(CALLS_MAX);
    let calls: Vec<Call> = calls.map(|(at, call)| shown_call(at, call, room)).collect();
    let note = match (&raw.tool_call_id, &raw.name) {
        (Some(id), _) => Some(format!("result of {}", name(id))),
        (None, Some(who)) => Some(name(who)),
        (None, None) => None,
    };
    Message {
        style: style(&raw.role),
        role: name(&raw.role),
        note,
        reasoning: room.take(&raw.reasoning()),
        text: room.take(&raw.text()),
        calls_left_out: raw.calls().len() - calls.len(),
        calls,
        whole: None,
    }
}

fn shown_call(place: usize, call: &WireCall<'_>, room: &mut Room) -> Call {
    let arguments = call.arguments().map_or(Cow::Borrowed(""), unquoted);
    let brief: String = arguments.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(80).collect();
    Call {
        id: call.id(place).into_owned(),
        name: name(call.name().unwrap_or("?")),
        brief: visible(&brief),
        arguments: room.take(&laid_out(&arguments)),
        result: None,
        observed: None,
    }
}

/// Returns JSON over several lines, for people. A text that is not JSON, and a long one, stays as it is.
pub(crate) fn laid_out(json: &str) -> Cow<'_, str> {
    let is_json = json.len() <= LAYOUT_BYTES_MAX && serde_json::from_str::<&RawValue>(json).is_ok();
    if !is_json || !json.starts_with(['{', '[']) {
        return Cow::Borrowed(json);
    }
    let (mut out, mut depth, mut in_string, mut is_escaped) =
        (String::with_capacity(json.len() * 2), 0, false, false);
    let mut chars = json.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth.min(32)));
    };
    while let Some(c) = chars.next() {
        if in_string {
            out.push(c);
            in_string = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            '"' => {
                out.push(c);
                in_string = true;
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|next| next.is_whitespace()).is_some() {}
                match chars.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_shown_with_its_calls() {
        let json = r#"{"role":"assistant","content":[{"type":"text","text":"a"}],"reasoning_content":"why",
            "tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":1,\"b\":[]}"}}]}"#;
        let message = shown(json, &mut Room::new());
        assert_eq!(
            (message.style, &*message.text.shown, &*message.reasoning.shown),
            ("assistant", "a", "why")
        );
        let [call] = &message.calls[..] else { panic!("one call") };
        assert_eq!((&*call.id, &*call.name, &*call.brief), ("c1", "add", r#"{"a":1,"b":[]}"#));
        assert_eq!(call.arguments.shown, "{\n  \"a\": 1,\n  \"b\": []\n}");
    }

    #[test]
    fn a_message_of_an_unknown_form_is_shown_as_it_is() {
        for json in ["[1]", r#"{"role":1}"#, r#"{"role":"user","tool_calls":"none"}"#] {
            assert_eq!(shown(json, &mut Room::new()).text.shown, json);
        }
        let odd = shown(r#"{"role":"\u202e<b>","content":{"x":1}}"#, &mut Room::new());
        assert_eq!((odd.style, &*odd.role, &*odd.text.shown), ("other", "\\u{202e}<b>", r#"{"x":1}"#));
    }

    #[test]
    fn json_is_laid_out_and_other_text_is_not() {
        fn check(text: &str, expected: &str) {
            assert_eq!(laid_out(text), expected);
        }
        check(
            r#"{"a": "x, {y}\" [", "b":[1, {}]}"#,
            "{\n  \"a\": \"x, {y}\\\" [\",\n  \"b\": [\n    1,\n    {}\n  ]\n}",
        );
        check("{not json", "{not json");
        check("12", "12");
    }

    #[test]
    fn messages_are_compared_by_what_they_say() {
        let read = |json: &'static str| RawMessage::read(json).unwrap();
        let one = read(r#"{"role":"assistant","content":"a","extra":1}"#);
        assert!(one.says_the_same(&read(r#"{"content":[{"type":"text","text":"a"}],"role":"assistant"}"#)));
        assert!(!one.says_the_same(&read(r#"{"role":"assistant","content":"b"}"#)));
        let call =
            r#"{"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}"#;
        assert!(!one.says_the_same(&read(call)) && read(call).says_the_same(&read(call)));
    }
}
