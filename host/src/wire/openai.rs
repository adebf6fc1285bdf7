//! The OpenAI chat completion exchange: building the request, reading the reply.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::object;

/// Fields of a request that the host decides, so that no guest may set them through
/// its sampling parameters. `n` is among them because one reply is read.
pub const RESERVED_PARAMS: [&str; 6] = ["model", "messages", "tools", "stream", "stream_options", "n"];

/// Why a chat request was not sent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// A message is no JSON object.
    #[error("messages[{0}] is {1}")]
    Message(usize, String),
    /// There is no message.
    #[error("messages is empty")]
    NoMessages,
    /// A tool is no JSON object.
    #[error("tools[{0}] is {1}")]
    Tool(usize, String),
    /// The parameters are no JSON object.
    #[error("params is {0}")]
    Params(String),
    /// A parameter is the host's to set.
    #[error("params sets '{0}', which the host decides; leave it out")]
    Reserved(String),
    /// A parameter is not what the server takes.
    #[error("params sets '{0}' to {2}; it has to be {1}")]
    Param(String, &'static str, &'static str),
    /// The server cannot be told of tools.
    #[error(
        "tools cannot be sent: the model's server takes them only before a rollout begins, which an agent loop \
         can tell it and a workflow cannot; offer none, or export an agent loop"
    )]
    ToolsNotTaken,
}

/// Sampling parameters by name, each as it was written.
pub type Params = BTreeMap<String, Box<RawValue>>;

/// A caller's parameters for all requests of a rollout, without those that the host
/// decides. What is no object has none.
pub fn caller_params(params: &RawValue) -> Params {
    let mut params: Params = serde_json::from_str(params.get()).unwrap_or_default();
    params.retain(|name, _| !RESERVED_PARAMS.contains(&name.as_str()));
    params
}

/// Builds the body of a request. Messages, tools and parameters go in as they are;
/// defaults where the parameters do not have them.
pub fn request_body(
    model: &str,
    messages: &[String],
    tools: &[String],
    params: Option<&str>,
    defaults: &Params,
) -> Result<Bytes, InvalidRequest> {
    #[derive(Serialize)]
    struct Body<'a> {
        model: &'a str,
        messages: Vec<&'a RawValue>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tools: Vec<&'a RawValue>,
        // A missing `stream` means true to some servers of this protocol.
        stream: bool,
        #[serde(flatten)]
        params: BTreeMap<Cow<'a, str>, &'a RawValue>,
    }

    if messages.is_empty() {
        return Err(InvalidRequest::NoMessages);
    }
    let messages = read_objects(messages, InvalidRequest::Message)?;
    let tools = read_objects(tools, InvalidRequest::Tool)?;
    let mut params = read_params(params)?;
    for (name, value) in defaults {
        params.entry(name.as_str().into()).or_insert(value);
    }
    let body = Body { model, messages, tools, stream: false, params };
    // Every part is valid JSON already, and no key is anything but a string.
    serde_json::to_vec(&body).map(Bytes::from).map_err(|error| InvalidRequest::Params(error.to_string()))
}

/// Texts that are each one JSON object.
pub(super) fn read_objects(
    texts: &[String],
    wrong: impl Fn(usize, String) -> InvalidRequest,
) -> Result<Vec<&RawValue>, InvalidRequest> {
    texts.iter().enumerate().map(|(at, text)| object(text).map_err(|what| wrong(at, what))).collect()
}

/// A guest's parameters, none of which is the host's to set.
pub(super) fn read_params(params: Option<&str>) -> Result<BTreeMap<Cow<'_, str>, &RawValue>, InvalidRequest> {
    let Some(text) = params else { return Ok(BTreeMap::new()) };
    let raw = object(text).map_err(InvalidRequest::Params)?;
    let params: BTreeMap<Cow<'_, str>, &RawValue> =
        serde_json::from_str(raw.get()).map_err(|error| InvalidRequest::Params(error.to_string()))?;
    match RESERVED_PARAMS.iter().find(|name| params.contains_key(**name)) {
        Some(name) => Err(InvalidRequest::Reserved((*name).to_owned())),
        None => Ok(params),
    }
}

/// Tokens as the model's server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Usage {
    /// Tokens of the request.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    #[serde(default)]
    pub completion_tokens: u64,
}

impl Usage {
    /// Tokens of both.
    pub fn total(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// A call that the model wants made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the result has to carry; `call_<place>` where the model gave none.
    pub id: String,
    /// The function's name, empty where the model gave none.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}

/// What a guest needs of a reply. The whole body is kept beside it.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The assistant's message as the server wrote it.
    pub message: Box<RawValue>,
    /// Its text, empty where it has none.
    pub text: String,
    /// The tool calls in it.
    pub tool_calls: Vec<ToolCall>,
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// What it cost, where the server said.
    pub usage: Option<Usage>,
}

impl Completion {
    /// Reads a reply's body. The error says what keeps it from being a completion.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Reply<'a> {
            #[serde(borrow)]
            choices: Vec<Choice<'a>>,
            #[serde(borrow, default)]
            usage: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Choice<'a> {
            #[serde(borrow)]
            message: &'a RawValue,
            #[serde(default)]
            finish_reason: Option<String>,
        }

        let reply: Reply<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let choice = reply.choices.into_iter().next().ok_or("its 'choices' is empty")?;
        let message = object(choice.message.get()).map_err(|what| format!("choices[0].message is {what}"))?;
        let (text, tool_calls) = read_message(message.get())?;
        Ok(Self {
            message: message.to_owned(),
            text,
            tool_calls,
            finish_reason: choice.finish_reason,
            // A usage in a shape of the server's own is no reason to lose the reply.
            usage: reply.usage.and_then(|raw| serde_json::from_str(raw.get()).ok()),
        })
    }
}

/// The text and the tool calls of an assistant's message.
fn read_message(message: &str) -> Result<(String, Vec<ToolCall>), String> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
        #[serde(borrow, default)]
        tool_calls: Option<Vec<WireCall<'a>>>,
    }
    #[derive(Deserialize)]
    struct WireCall<'a> {
        #[serde(default)]
        id: Option<String>,
        #[serde(borrow, default)]
        function: Option<WireFunction<'a>>,
    }
    #[derive(Deserialize)]
    struct WireFunction<'a> {
        #[serde(default)]
        name: Option<String>,
        #[serde(borrow, default)]
        arguments: Option<&'a RawValue>,
    }

    let message: Message<'_> =
        serde_json::from_str(message).map_err(|error| format!("choices[0].message: {error}"))?;
    let tool_calls = message
        .tool_calls
        .unwrap_or_default()
        .into_iter()
        .enumerate()
        .map(|(at, call)| {
            let function = call.function.unwrap_or(WireFunction { name: None, arguments: None });
            ToolCall {
                id: call.id.unwrap_or_else(|| format!("call_{at}")),
                name: function.name.unwrap_or_default(),
                arguments: function.arguments.map_or_else(|| "{}".to_owned(), unquote),
            }
        })
        .collect();
    Ok((message.content.map(|raw| content_text(raw.get())).unwrap_or_default(), tool_calls))
}

/// A JSON string's value; anything else as its JSON text, which some servers send in
/// place of a string of JSON.
fn unquote(raw: &RawValue) -> String {
    serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
}

/// The text of a message's `content`: a string as it is, text parts joined by
/// newlines, nothing for null; anything else as its JSON text.
pub fn content_text(json: &str) -> String {
    #[derive(Deserialize)]
    struct Part {
        r#type: String,
        text: String,
    }
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(json).unwrap_or_else(|_| json.to_owned()),
        Some(b'n') | None => String::new(),
        Some(b'[') => match serde_json::from_str::<Vec<Part>>(json) {
            Ok(parts) if parts.iter().all(|part| part.r#type == "text") => {
                parts.into_iter().map(|part| part.text).collect::<Vec<_>>().join("\n")
            }
            _ => json.to_owned(),
        },
        Some(_) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_request_carries_what_the_guest_wrote_and_what_the_host_decides() {
        let body = request_body(
            "osmosis-rollout",
            &strings(&[r#" {"role":"user","content":"hi","extra":1.10} "#]),
            &strings(&[r#"{"type":"function"}"#]),
            Some(r#"{"temperature":0.70,"seed":12345678901234567890123}"#),
            &Params::new(),
        )
        .unwrap();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            r#"{"model":"osmosis-rollout","messages":[{"role":"user","content":"hi","extra":1.10}],"tools":[{"type":"function"}],"stream":false,"seed":12345678901234567890123,"temperature":0.70}"#
        );
    }

    #[test]
    fn the_callers_parameters_hold_where_the_request_says_nothing_else() {
        let caller = r#"{"temperature":0.1,"top_p":0.90,"model":"x","stream":true,"n":4}"#;
        let defaults = caller_params(serde_json::from_str(caller).unwrap());
        let messages = strings(&[r#"{"role":"user"}"#]);
        let body = request_body("m", &messages, &[], Some(r#"{"temperature":0.7}"#), &defaults).unwrap();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            r#"{"model":"m","messages":[{"role":"user"}],"stream":false,"temperature":0.7,"top_p":0.90}"#
        );
    }

    #[test]
    fn a_wrong_request_is_refused_with_the_place() {
        fn check(messages: &[&str], tools: &[&str], params: Option<&str>, expected: &str) {
            let error =
                request_body("m", &strings(messages), &strings(tools), params, &Params::new()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error} / {expected}");
        }
        let ok = r#"{"role":"user"}"#;
        check(&[], &[], None, "messages is empty");
        check(&[ok, "nonsense"], &[], None, "messages[1] is not valid JSON");
        check(&[ok, "[]"], &[], None, "messages[1] is not a JSON object but an array");
        check(&[ok], &["3"], None, "tools[0] is not a JSON object but a number");
        check(&[ok], &[], Some("null"), "params is not a JSON object but null");
        for name in RESERVED_PARAMS {
            check(&[ok], &[], Some(&format!("{{\"{name}\":1}}")), &format!("params sets '{name}'"));
        }
        // An escape does not get a reserved name past the check.
        check(&[ok], &[], Some(r#"{"mod\u0065l":"gpt"}"#), "params sets 'model'");
    }

    #[test]
    fn a_reply_is_read_in_the_shapes_that_servers_send() {
        fn check(body: &str, text: &str, calls: &[(&str, &str, &str)]) {
            let completion = Completion::parse(body.as_bytes()).unwrap();
            let got: Vec<_> = completion
                .tool_calls
                .iter()
                .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
                .collect();
            assert_eq!((completion.text.as_str(), got.as_slice()), (text, calls), "{body}");
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
    fn what_is_no_completion_says_so() {
        fn check(body: &str, expected: &str) {
            let error = Completion::parse(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error} / {expected}");
        }
        check("<html>", "expected value");
        check("{}", "choices");
        check(r#"{"choices":[]}"#, "empty");
        check(r#"{"choices":[{"message":"hi"}]}"#, "not a JSON object but a string");
    }
}
