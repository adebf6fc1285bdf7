//! Requests and replies of OpenAI's chat completions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::params::read_params;
pub use super::params::{AllowedParams, CallerParams, InvalidRequest};
use super::stream::{First, Text, each, text};
use super::{object, strict};
use crate::text::beginning;

/// Beginning of a body.
const MODEL: &str = "{\"model\":";

/// The body of a request without its messages, which are in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyTemplate {
    text: Bytes,
    messages_at: usize,
}

impl BodyTemplate {
    /// Creates a template with these fields after the messages.
    pub fn new(model: &str, fields: &impl Serialize) -> Result<Self, InvalidRequest> {
        let wrong = |error: serde_json::Error| InvalidRequest::Params(error.to_string());
        let mut text = MODEL.as_bytes().to_vec();
        serde_json::to_writer(&mut text, model).map_err(wrong)?;
        text.extend_from_slice(b",\"messages\":");
        let messages_at = text.len();
        // Every part is valid JSON, and every key is a string.
        serde_json::to_writer(&mut text, fields).map_err(wrong)?;
        match text.get(messages_at..) {
            Some(b"{}") => drop(text.remove(messages_at)),
            _ => text[messages_at] = b',',
        }
        text.shrink_to_fit();
        Ok(Self { text: text.into(), messages_at })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the stored form.
    pub fn written(&self) -> StoredTemplate<'static> {
        let body = String::from_utf8(self.around(std::iter::empty(), 0)).unwrap_or_default();
        StoredTemplate { messages_at: self.messages_at, body: body.into() }
    }

    /// Reads the stored form. Returns `None` if the body has no empty list of messages at the stored position.
    pub fn read(written: &StoredTemplate<'_>) -> Option<Self> {
        let StoredTemplate { messages_at, body } = written;
        let (before, rest) = body.as_bytes().split_at_checked(*messages_at)?;
        let text = [before, rest.strip_prefix(b"[]")?].concat();
        Some(Self { text: text.into(), messages_at: *messages_at })
    }

    /// Returns the size of a body with `messages` messages of `text_bytes` bytes together.
    pub fn body_bytes(&self, messages: usize, text_bytes: usize) -> usize {
        self.text.len() + 2 + text_bytes + messages.saturating_sub(1)
    }

    /// Returns the body with these messages of about `text_bytes` bytes.
    pub fn around<'a>(&self, messages: impl Iterator<Item = &'a str>, text_bytes: usize) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.text.len() + text_bytes + 2);
        self.add_around(messages, &mut body);
        body
    }

    /// Appends the body with these messages.
    pub fn add_around<'a>(&self, messages: impl Iterator<Item = &'a str>, body: &mut Vec<u8>) {
        let (before, after) = self.text.split_at(self.messages_at);
        body.extend_from_slice(before);
        body.push(b'[');
        for (at, message) in messages.enumerate() {
            if at > 0 {
                body.push(b',');
            }
            body.extend_from_slice(message.as_bytes());
        }
        body.push(b']');
        body.extend_from_slice(after);
    }
}

/// The stored form of a template.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredTemplate<'a> {
    /// Position of the messages in the body.
    pub messages_at: usize,
    /// The body without messages, exactly as it is sent.
    #[serde(borrow)]
    pub body: Cow<'a, str>,
}

impl StoredTemplate<'_> {
    /// Returns the same template with another model name. A template that does not begin with a model stays unchanged.
    pub fn with_model(self, name: &str) -> StoredTemplate<'static> {
        let Self { messages_at, body } = self;
        let renamed = || {
            let rest = body.strip_prefix(MODEL)?;
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
            values.next()?.ok()?;
            let (old, rest) = rest.split_at(values.byte_offset());
            let new = serde_json::to_string(name).ok()?;
            let messages_at = (messages_at + new.len()).checked_sub(old.len())?;
            Some(StoredTemplate { messages_at, body: format!("{MODEL}{new}{rest}").into() })
        };
        renamed().unwrap_or_else(|| StoredTemplate { messages_at, body: body.clone().into_owned().into() })
    }
}

/// Builds a request without its messages. Tools and parameters are unchanged; the caller's parameters apply unless the
/// guest sets them.
pub fn request_template(
    model: &str,
    tools: &[String],
    params: Option<&str>,
    caller: &CallerParams,
    allowed: &AllowedParams,
) -> Result<BodyTemplate, InvalidRequest> {
    #[derive(Serialize)]
    struct Fields<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tools: Vec<&'a RawValue>,
        // Some servers stream if `stream` is missing.
        stream: bool,
        #[serde(flatten)]
        params: BTreeMap<Cow<'a, str>, &'a RawValue>,
    }

    let tools = read_objects(tools, InvalidRequest::Tool)?;
    let mut params = read_params(params, allowed, caller)?;
    for (name, value) in caller.defaults() {
        params.entry(name.into()).or_insert(value);
    }
    BodyTemplate::new(model, &Fields { tools, stream: false, params })
}

/// Parses texts, each of which must be one JSON object.
fn read_objects(
    texts: &[String],
    wrong: impl Fn(usize, String) -> InvalidRequest,
) -> Result<Vec<&RawValue>, InvalidRequest> {
    texts.iter().enumerate().map(|(at, text)| object(text).map_err(|what| wrong(at, what))).collect()
}

/// Tokens as counted by the model's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TokenUsage {
    /// Tokens of the request.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    #[serde(default)]
    pub completion_tokens: u64,
}

impl TokenUsage {
    /// Returns the number of tokens of request and reply together.
    pub fn total(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// A tool call requested by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Id for the result; `call_<index>` if the model sent none.
    pub id: String,
    /// Name of the function; empty if the model sent none.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}

/// Maximum number of tool calls in a reply. A call takes hundreds of bytes in guest and host, and three bytes in the
/// reply. Servers offer a model at most 128 functions.
pub const TOOL_CALLS_MAX: usize = 1024;

/// Maximum size of a stored finish reason in bytes. Usually it is a word.
const FINISH_REASON_BYTES_MAX: usize = 256;

/// A parsed reply: the positions of its parts in the body. The default is a reply without a body.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    body: Bytes,
    message: Part,
    content: Part,
    tool_calls: Part,
    /// The reason for which the model stopped.
    pub finish_reason: Option<String>,
    /// Token counts, if the server sent them.
    pub usage: Option<TokenUsage>,
}

impl Completion {
    /// Reads the body of a reply. The error says why it is not a completion.
    pub fn parse(body: &Bytes) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Reply<'a> {
            #[serde(borrow)]
            choices: First<Choice<'a>>,
            #[serde(borrow, default)]
            usage: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Choice<'a> {
            #[serde(borrow)]
            message: &'a RawValue,
            #[serde(borrow, default)]
            finish_reason: Option<Text<'a>>,
        }

        let reply: Reply<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let First(choice) = reply.choices;
        let choice = choice.ok_or("its 'choices' is empty")?;
        let message = choice.message.get();
        let MessageParts { content, tool_calls } = MessageParts::read(message)?;
        let part = |text: &str| Part(body.slice_ref(text.as_bytes()));
        Ok(Self {
            body: body.clone(),
            message: part(message),
            content: content.map(part).unwrap_or_default(),
            tool_calls: tool_calls.map(part).unwrap_or_default(),
            finish_reason: choice.finish_reason.map(|Text(word)| beginning(&word, FINISH_REASON_BYTES_MAX)),
            // An unknown form of usage does not make the reply invalid.
            usage: reply.usage.and_then(|raw| serde_json::from_str(raw.get()).ok()),
        })
    }

    /// Returns the unchanged body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the assistant's message as the server wrote it: a JSON object that [all readers accept](super::strict), without
    /// surrounding white space. Empty for a reply without a body.
    pub fn message(&self) -> &str {
        self.message.text()
    }

    /// Returns the text of the message; empty if it has none.
    pub fn text(&self) -> Cow<'_, str> {
        content_text(self.content.text())
    }

    /// Returns the tool calls of the message.
    pub fn tool_calls(&self) -> Vec<ToolCall> {
        let mut calls = Vec::new();
        self.each_tool_call(|at, call| calls.push(call.owned(at)));
        calls
    }

    /// Passes each tool call with its index to `take`.
    pub fn each_tool_call(&self, mut take: impl FnMut(usize, WireCall<'_>)) {
        let mut index = 0_usize;
        // `parse` has parsed the calls, so this cannot fail.
        let _ = each(self.tool_calls.text(), |call: WireCall<'_>| {
            take(index, call);
            index += 1;
            Ok::<(), Infallible>(())
        });
    }
}

/// A part of a body that was parsed as a JSON value; the default is no part.
#[derive(Clone, Debug, Default)]
struct Part(Bytes);

impl Part {
    fn text(&self) -> &str {
        // SAFETY: The bytes were text when they were parsed, and do not change.
        unsafe { std::str::from_utf8_unchecked(&self.0) }
    }
}

/// A tool call in a message.
#[derive(Clone, Debug, Deserialize)]
pub struct WireCall<'a> {
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(borrow, default)]
    function: Option<WireFunction<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
struct WireFunction<'a> {
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

impl<'a> WireCall<'a> {
    /// Returns the id of the call, or `call_<index>` if it has none.
    pub fn id(&self, index: usize) -> Cow<'_, str> {
        match &self.id {
            Some(Text(id)) => Cow::Borrowed(id),
            None => Cow::Owned(format!("call_{index}")),
        }
    }

    /// Returns the name of the function, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.function.as_ref()?.name.as_ref().map(|Text(name)| &**name)
    }

    /// Returns the unchanged arguments, usually a string with JSON.
    pub fn arguments(&self) -> Option<&'a RawValue> {
        self.function.as_ref()?.arguments
    }

    fn owned(&self, index: usize) -> ToolCall {
        ToolCall {
            id: self.id(index).into_owned(),
            name: self.name().unwrap_or_default().to_owned(),
            arguments: self.arguments().map_or_else(|| "{}".to_owned(), unquote),
        }
    }
}

/// Content and tool calls of an assistant's message, unless they are absent or null.
#[derive(Default)]
struct MessageParts<'a> {
    content: Option<&'a str>,
    tool_calls: Option<&'a str>,
}

impl<'a> MessageParts<'a> {
    /// Checks a message, which is valid JSON, and finds its parts in the same pass.
    fn read(message: &'a str) -> Result<Self, String> {
        if !message.starts_with('{') {
            let what = object(message).err().unwrap_or_default();
            return Err(format!("choices[0].message is {what}"));
        }
        let mut parts = Self::default();
        let (mut has_content, mut has_calls, mut twice) = (false, false, None);
        let split = strict::members(message, |name, value| {
            let (part, is_there, name) = match text(name).as_deref() {
                Some("content") => (&mut parts.content, &mut has_content, "content"),
                Some("tool_calls") => (&mut parts.tool_calls, &mut has_calls, "tool_calls"),
                _ => return,
            };
            if std::mem::replace(is_there, true) {
                twice = Some(name);
            }
            *part = Some(value).filter(|value| *value != "null");
        });
        split.map_err(|unfit| format!("choices[0].message is {unfit}"))?;
        let what = |error: String| format!("choices[0].message: {error}");
        if let Some(name) = twice {
            return Err(what(format!("duplicate field `{name}`")));
        }
        let mut count = 0_usize;
        let counted = each(parts.tool_calls.unwrap_or("[]"), |_: WireCall<'_>| {
            count += 1;
            if count > TOOL_CALLS_MAX {
                return Err(format!("it has more than {TOOL_CALLS_MAX} tool calls"));
            }
            Ok(())
        });
        counted.map_err(|stopped| what(stopped.into()))?;
        Ok(parts)
    }
}

/// Returns the value of a JSON string, or the text of other JSON, which some servers send instead of a string.
fn unquote(raw: &RawValue) -> String {
    text(raw.get()).map_or_else(|| raw.get().to_owned(), Cow::into_owned)
}

/// Returns the text of a message's `content`: a string unchanged, text parts joined by newlines, an empty text for
/// null, and the text of other JSON.
pub fn content_text(json: &str) -> Cow<'_, str> {
    match json.as_bytes().first() {
        Some(b'"') => text(json).unwrap_or(Cow::Borrowed(json)),
        Some(b'n') | None => Cow::Borrowed(""),
        Some(b'[') => text_parts(json).map_or(Cow::Borrowed(json), Cow::Owned),
        Some(_) => Cow::Borrowed(json),
    }
}

/// Returns the texts of a list that has only text parts.
fn text_parts(json: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Part<'a> {
        #[serde(borrow)]
        r#type: Text<'a>,
        #[serde(borrow)]
        text: Text<'a>,
    }
    let (mut joined, mut is_first) = (String::new(), true);
    let read = each(json, |Part { r#type: Text(kind), text: Text(text) }: Part<'_>| {
        if kind != "text" {
            return Err(());
        }
        if !std::mem::take(&mut is_first) {
            joined.push('\n');
        }
        joined.push_str(&text);
        Ok(())
    });
    read.ok().map(|()| joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::PARAMS_MAX;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn body(template: &BodyTemplate, messages: &[&str]) -> String {
        String::from_utf8(template.around(messages.iter().copied(), 0)).unwrap()
    }

    #[test]
    fn a_request_has_the_guests_unchanged_texts_and_the_hosts_fields() {
        let template = request_template(
            "osmosis-rollout",
            &strings(&[r#"{"type":"function"}"#]),
            Some(r#"{"temperature":0.70,"seed":12345678901234567890123}"#),
            &CallerParams::default(),
            &AllowedParams::default(),
        );
        assert_eq!(
            body(&template.unwrap(), &[r#"{"role":"user","content":"hi","extra":1.10}"#]),
            r#"{"model":"osmosis-rollout","messages":[{"role":"user","content":"hi","extra":1.10}],"tools":[{"type":"function"}],"stream":false,"seed":12345678901234567890123,"temperature":0.70}"#
        );
    }

    #[test]
    fn the_callers_parameters_apply_unless_the_guest_sets_them() {
        let caller = r#"{"temperature":0.1,"top_p":0.90,"model":"x","stream":true,"n":4}"#;
        let caller = CallerParams::read(serde_json::from_str(caller).unwrap());
        let allowed = AllowedParams::default();
        let template = request_template("m", &[], Some(r#"{"temperature":0.7}"#), &caller, &allowed).unwrap();
        assert_eq!(
            body(&template, &[r#"{"role":"user"}"#, "{}"]),
            r#"{"model":"m","messages":[{"role":"user"},{}],"stream":false,"temperature":0.7,"top_p":0.90}"#
        );
    }

    #[test]
    fn an_invalid_request_is_refused_with_the_name_of_the_part() {
        fn check(tools: &[&str], params: Option<&str>, expected: &str) {
            let (tools, allowed) = (strings(tools), AllowedParams::default());
            let error =
                request_template("m", &tools, params, &CallerParams::default(), &allowed).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error} / {expected}");
        }
        check(&["3"], None, "tools[0] is not a JSON object but a number");
        check(&[], Some("null"), "params is not a JSON object but null");
        let many: Vec<String> = (0..=PARAMS_MAX).map(|at| format!("\"p{at}\":1")).collect();
        let many = format!("{{{}}}", many.join(","));
        check(&[], Some(&many), "params is an object of more than 256 members");
        check(&[], Some(r#"{"Model":1}"#), "params sets 'Model', which the host decides");
    }

    #[test]
    fn replies_of_all_known_servers_are_parsed() {
        fn check(body: &str, text: &str, calls: &[(&str, &str, &str)]) {
            let completion = Completion::parse(&Bytes::copy_from_slice(body.as_bytes())).unwrap();
            let tool_calls = completion.tool_calls();
            let got: Vec<_> = tool_calls
                .iter()
                .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
                .collect();
            assert_eq!((&*completion.text(), got.as_slice()), (text, calls), "{body}");
        }
        check(r#"{"choices":[{"message":{"content":"é\n"}}]}"#, "é\n", &[]);
        check(r#"{"choices":[{"message":{"content":null}}],"usage":"none"}"#, "", &[]);
        check(
            r#"{"choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}}]}"#,
            "a\nb",
            &[],
        );
        check(
            r#"{"choices":[{"message":{"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"a\": 1"}},{"function":{"arguments":{"a":1}}}]}}]}"#,
            "",
            &[("x", "f", "{\"a\": 1"), ("call_1", "", "{\"a\":1}")],
        );
    }

    #[test]
    fn a_reply_that_is_not_a_completion_is_an_error() {
        fn check(body: &str, expected: &str) {
            let error = Completion::parse(&Bytes::copy_from_slice(body.as_bytes())).unwrap_err();
            assert!(error.contains(expected), "{error} / {expected}");
        }
        let calling = |count: usize| {
            format!(r#"{{"choices":[{{"message":{{"tool_calls":[{}]}}}}]}}"#, vec!["{}"; count].join(","))
        };
        check(&calling(TOOL_CALLS_MAX + 1), "choices[0].message: it has more than 1024 tool calls");
        assert!(Completion::parse(&calling(TOOL_CALLS_MAX).into()).is_ok());
        check("<html>", "expected value");
        check("{}", "choices");
        check(r#"{"choices":[]}"#, "empty");
        check(r#"{"choices":[{"message":"hi"}]}"#, "not a JSON object but a string");
    }
}
