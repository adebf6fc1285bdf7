//! Logs of Inspect, the evaluation framework `inspect_ai`: one JSON document for all samples.
//!
//! The figures of the whole log must precede the samples, so samples are in a temporary file until the last one is
//! known. A message that several calls of the model repeat is written once, in the sample's list of messages, and calls
//! refer to it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::document::Exchange;
use crate::messages::{Call, Message, parse};
use crate::reply::Reply;
use crate::row::Row;

/// Version of the format.
const VERSION: u32 = 2;

/// Name of the score that has the reward.
const REWARD: &str = "reward";

/// Name of a model that no trajectory names.
const UNKNOWN_MODEL: &str = "unknown";

/// A log in the process of being written.
pub(crate) struct InspectLog<W> {
    to: W,
    /// The samples, in a file without a name.
    file: BufWriter<File>,
    samples: usize,
    errors: usize,
    model: Option<String>,
    rewards: (usize, f64),
    usage: Usage,
    /// Times of the first and last call.
    times: Option<(f64, f64)>,
    ids: HashSet<(String, u32)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Usage {
    input_tokens: i64,
    output_tokens: i64,
    total_tokens: i64,
}

impl Usage {
    fn of(reply: &Reply<'_>) -> Self {
        let (input, output) = (reply.prompt_tokens.unwrap_or(0), reply.completion_tokens.unwrap_or(0));
        Self { input_tokens: input, output_tokens: output, total_tokens: input.saturating_add(output) }
    }

    fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.total_tokens = self.total_tokens.saturating_add(other.total_tokens);
    }
}

#[derive(Serialize)]
struct Sample<'a> {
    id: &'a str,
    epoch: u32,
    input: Vec<ChatMessage<'a>>,
    target: &'a str,
    messages: Vec<ChatMessage<'a>>,
    output: Output<'a>,
    scores: BTreeMap<&'a str, Score<'a>>,
    metadata: Metadata<'a>,
    events: Vec<Event<'a>>,
    events_data: EventsData<'a>,
    model_usage: BTreeMap<&'a str, Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_time: Option<f64>,
    uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<SampleError>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    rollout_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin_digest: Option<&'a str>,
    withdrawn: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct SampleError {
    message: String,
    traceback: &'static str,
    traceback_ansi: &'static str,
}

#[derive(Serialize)]
struct Score<'a> {
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a str>,
}

#[derive(Serialize)]
struct EventsData<'a> {
    messages: Vec<ChatMessage<'a>>,
    calls: [(); 0],
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'static str,
    content: Content<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<OtherRole<'a>>,
}

#[derive(Serialize)]
struct OtherRole<'a> {
    role: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<ContentPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentPart<'a> {
    Reasoning { reasoning: Cow<'a, str> },
    Text { text: Cow<'a, str> },
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: Cow<'a, str>,
    function: Cow<'a, str>,
    arguments: Arguments,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parse_error: Option<&'static str>,
}

/// The arguments of a call: an object, or the text of something else as the member `raw`.
type Arguments = BTreeMap<String, Box<RawValue>>;

#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Choice<'a> {
    message: ChatMessage<'a>,
    stop_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Logprobs>,
}

#[derive(Serialize, Deserialize)]
struct Logprobs {
    content: Vec<Logprob>,
}

#[derive(Serialize, Deserialize)]
struct Logprob {
    token: String,
    logprob: f64,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Model {
        timestamp: String,
        completed: String,
        working_time: f64,
        model: &'a str,
        input: [(); 0],
        /// Ranges of the sample's list of messages.
        input_refs: Vec<(usize, usize)>,
        tools: Vec<Tool>,
        tool_choice: &'static str,
        config: Empty,
        output: Output<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retries: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
    Tool {
        timestamp: String,
        completed: String,
        working_time: f64,
        id: &'a str,
        function: &'a str,
        arguments: Arguments,
        result: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<ToolError<'a>>,
    },
}

#[derive(Serialize)]
struct ToolError<'a> {
    r#type: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct Tool {
    name: String,
    description: String,
}

#[derive(Serialize)]
struct Empty {}

fn time(unix_ms: f64) -> String {
    // Times of this host are milliseconds since 1970.
    let time = DateTime::<Utc>::from_timestamp_millis(unix_ms as i64).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, false)
}

fn stop_reason(finish_reason: Option<&str>) -> &'static str {
    match finish_reason {
        Some("stop") => "stop",
        Some("length") => "max_tokens",
        Some("tool_calls" | "function_call") => "tool_calls",
        Some("content_filter") => "content_filter",
        _ => "unknown",
    }
}

fn arguments(json: &str) -> (Arguments, Option<&'static str>) {
    match serde_json::from_str(json) {
        Ok(arguments) => (arguments, None),
        Err(_) => {
            let raw = serde_json::value::to_raw_value(json).ok();
            (raw.map(|raw| ("raw".to_owned(), raw)).into_iter().collect(), Some("not a JSON object"))
        }
    }
}

fn tool_call<'a>(call: &Call<'a>) -> ToolCall<'a> {
    let (arguments, parse_error) = arguments(&call.arguments);
    ToolCall { id: call.id.clone(), function: call.name.clone(), arguments, r#type: "function", parse_error }
}

impl<'a> ChatMessage<'a> {
    fn of(message: &'a Message<'_>) -> Self {
        Self {
            tool_call_id: message.tool_call_id.as_deref(),
            function: message.name.as_deref().filter(|_| message.role == "tool"),
            ..Self::with(message)
        }
    }

    /// Creates a message without the parts of results of tools.
    fn with(message: &'a Message<'_>) -> Self {
        let role = match &*message.role {
            "system" | "developer" => "system",
            "assistant" => "assistant",
            "tool" | "function" => "tool",
            _ => "user",
        };
        let text = || Cow::Borrowed(message.content.as_deref().unwrap_or_default());
        let content = match (&message.reasoning, role) {
            (Some(reasoning), "assistant") => Content::Parts(vec![
                ContentPart::Reasoning { reasoning: Cow::Borrowed(reasoning) },
                ContentPart::Text { text: text() },
            ]),
            _ => Content::Text(text()),
        };
        let is_other = !matches!(&*message.role, "system" | "user" | "assistant" | "tool");
        let calls = message.calls.iter().filter(|_| role == "assistant");
        Self {
            role,
            content,
            tool_calls: calls.map(tool_call).collect(),
            tool_call_id: None,
            function: None,
            metadata: is_other.then_some(OtherRole { role: &message.role }),
        }
    }
}

/// Returns the log-probabilities of a reply, if it has those of every token.
fn logprobs(exchange: &Exchange<'_>) -> Option<Logprobs> {
    #[derive(Deserialize)]
    struct Body {
        choices: Vec<BodyChoice>,
    }
    #[derive(Deserialize)]
    struct BodyChoice {
        #[serde(default)]
        logprobs: Option<Logprobs>,
    }
    let body: Body = serde_json::from_str(exchange.reply?.get()).ok()?;
    body.choices.into_iter().next()?.logprobs
}

fn tools(exchange: &Exchange<'_>) -> Vec<Tool> {
    #[derive(Deserialize)]
    struct Offered {
        function: Function,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
        #[serde(default)]
        description: Option<String>,
    }
    let offered = exchange.tools().and_then(|tools| serde_json::from_str::<Vec<Offered>>(tools.get()).ok());
    let tool = |offered: Offered| Tool {
        name: offered.function.name,
        description: offered.function.description.unwrap_or_default(),
    };
    offered.unwrap_or_default().into_iter().map(tool).collect()
}

/// Splits a rollout's id into the row and the number of the run, from 1, if an evaluation generated the id. Any other
/// id is returned whole.
fn id_and_epoch(rollout_id: &str) -> (&str, u32) {
    let parts = rollout_id.rsplit_once("-run-").filter(|(row, _)| row.starts_with("row-"));
    let run = parts.and_then(|(row, run)| Some((row, run.parse::<u32>().ok()?.checked_add(1)?)));
    run.unwrap_or((rollout_id, 1))
}

/// The messages of the calls of a sample, each once.
#[derive(Default)]
struct Pool<'a> {
    messages: Vec<Message<'a>>,
    /// Indices of the messages of the latest call.
    latest: Vec<usize>,
}

impl<'a> Pool<'a> {
    /// Adds a call, and returns the ranges of its messages.
    fn add(&mut self, exchange: &Exchange<'a>) -> Vec<(usize, usize)> {
        self.latest.truncate(exchange.request.messages_repeated);
        for json in &exchange.request.messages_new {
            let unknown =
                || Message { role: "user".into(), content: Some(json.get().into()), ..Message::default() };
            self.messages.push(parse(json.get()).unwrap_or_else(unknown));
            self.latest.push(self.messages.len() - 1);
        }
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for index in &self.latest {
            match ranges.last_mut() {
                Some((_, end)) if end == index => *end += 1,
                _ => ranges.push((*index, index + 1)),
            }
        }
        ranges
    }
}

impl<W: Write> InspectLog<W> {
    /// Begins a log.
    pub(crate) fn new(to: W) -> io::Result<Self> {
        Ok(Self {
            to,
            file: BufWriter::new(tempfile::tempfile()?),
            samples: 0,
            errors: 0,
            model: None,
            rewards: (0, 0.0),
            usage: Usage::default(),
            times: None,
            ids: HashSet::new(),
        })
    }

    /// Writes a sample.
    pub(crate) fn push(&mut self, row: &Row<'_>) -> io::Result<()> {
        let document = &row.document;
        let exchanges = document.exchanges().map_err(io::Error::other)?;
        let replies: Vec<Option<Reply<'_>>> = exchanges.iter().map(Exchange::reply).collect();
        let replied: Vec<Option<Message<'_>>> = replies
            .iter()
            .map(|reply| reply.as_ref().and_then(|reply| parse(reply.message?.get())))
            .collect();
        let named = || replies.iter().flatten().find_map(|reply| reply.model.as_deref());
        let model = document.model.as_deref().or_else(named).unwrap_or(UNKNOWN_MODEL);
        let mut pool = Pool::default();
        let refs: Vec<_> = exchanges.iter().map(|exchange| pool.add(exchange)).collect();
        let (mut usage, mut output) = (Usage::default(), None);
        let mut events: Vec<(f64, Event<'_>)> = Vec::new();
        for (at, (exchange, input_refs)) in exchanges.iter().zip(refs).enumerate() {
            let reply = replies[at].as_ref();
            usage.add(reply.map(Usage::of).unwrap_or_default());
            let made = || Output {
                model: reply.and_then(|reply| reply.model.as_deref()).unwrap_or(model),
                choices: replied[at].iter().map(|message| choice(exchange, reply, message)).collect(),
                usage: reply.map(Usage::of).unwrap_or_default(),
                time: Some(exchange.duration_ms / 1e3),
                error: exchange.error.as_ref().map(|error| &*error.0),
            };
            output = Some(made());
            let (began, ended) =
                (exchange.started_at_unix_ms, exchange.started_at_unix_ms + exchange.duration_ms);
            self.cover(began, ended);
            events.push((
                began,
                Event::Model {
                    timestamp: time(began),
                    completed: time(ended),
                    working_time: exchange.duration_ms / 1e3,
                    model,
                    input: [],
                    input_refs,
                    tools: tools(exchange),
                    tool_choice: "auto",
                    config: Empty {},
                    output: made(),
                    retries: exchange
                        .attempts
                        .and_then(|attempts| attempts.checked_sub(1))
                        .filter(|n| *n > 0),
                    error: exchange.error.as_ref().map(|error| &*error.0),
                },
            ));
        }
        let called = document.tool_calls().map_err(io::Error::other)?;
        for call in &called {
            let (began, ended) = (call.started_at_unix_ms, call.started_at_unix_ms + call.duration_ms);
            let error = call.error.as_ref().map(|error| ToolError { r#type: "unknown", message: &error.0 });
            let event = Event::Tool {
                timestamp: time(began),
                completed: time(ended),
                working_time: call.duration_ms / 1e3,
                id: &call.tool_call_id.0,
                function: &call.function_name.0,
                arguments: arguments(&call.arguments.0).0,
                result: call.content.as_ref().map_or("", |content| &content.0),
                error,
            };
            events.push((began, event));
        }
        events.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let span = events.first().map(|(began, _)| (*began, *began + document.host.usage.duration_ms));

        let answer = row.messages.last().filter(|message| message.role == "assistant");
        let answer = answer.and_then(|message| message.content.as_deref());
        let mut scores: BTreeMap<&str, Score<'_>> = BTreeMap::new();
        for (name, value) in &row.metrics {
            scores.insert(name, Score { value: *value, answer: None });
        }
        if let Some(value) = row.reward {
            scores.insert(REWARD, Score { value, answer });
            self.rewards = (self.rewards.0 + 1, self.rewards.1 + value);
        }
        let outcome = &document.host.outcome;
        let part = |part: &Option<rollout_wire::stream::Text<'_>>| {
            part.as_ref().map_or("unknown", |part| &*part.0).to_owned()
        };
        let error = (outcome.outcome.0 != "scored").then(|| SampleError {
            message: format!(
                "{} in the {}, at fault: {}: {}",
                part(&outcome.kind),
                part(&outcome.stage),
                part(&outcome.fault),
                part(&outcome.reason)
            ),
            traceback: "",
            traceback_ansi: "",
        });
        self.errors += usize::from(error.is_some());
        let sample_id = document.host.sample_id.as_ref().map(|id| &*id.0);
        let (id, epoch) = id_and_epoch(&document.rollout_id);
        let mut id = id.to_owned();
        if !self.ids.insert((id.clone(), epoch)) {
            // Another sample of the same rollout.
            id = format!("{id}/{}", sample_id.unwrap_or_default());
            self.ids.insert((id.clone(), epoch));
        }
        let first_written = row.mask.iter().position(|mask| *mask == 1).unwrap_or(row.messages.len());
        let protocol = document.protocol.as_ref();
        let sample = Sample {
            id: &id,
            epoch,
            input: row.messages[..first_written].iter().map(ChatMessage::of).collect(),
            target: protocol.and_then(|protocol| protocol.label.as_ref()).map_or("", |label| &*label.0),
            messages: row.messages.iter().map(ChatMessage::of).collect(),
            output: output.unwrap_or(Output {
                model,
                choices: Vec::new(),
                usage: Usage::default(),
                time: None,
                error: None,
            }),
            scores,
            metadata: Metadata {
                rollout_id: &document.rollout_id,
                sample_id,
                plugin_digest: document.host.plugin_digest.as_ref().map(|digest| &*digest.0),
                withdrawn: document.host.withdrawn,
                request: protocol.and_then(|protocol| protocol.request_metadata),
            },
            events: events.into_iter().map(|(_, event)| event).collect(),
            events_data: EventsData {
                messages: pool.messages.iter().map(ChatMessage::of).collect(),
                calls: [],
            },
            model_usage: BTreeMap::from([(model, usage)]),
            started_at: span.map(|(began, _)| time(began)),
            completed_at: span.map(|(_, ended)| time(ended)),
            total_time: Some(document.host.usage.duration_ms / 1e3),
            uuid: format!("{}/{}", document.rollout_id, sample_id.unwrap_or_default()),
            error,
        };
        if self.samples > 0 {
            self.file.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.file, &sample)?;
        self.samples += 1;
        self.usage.add(usage);
        if self.model.is_none() && model != UNKNOWN_MODEL {
            self.model = Some(model.to_owned());
        }
        Ok(())
    }

    fn cover(&mut self, began: f64, ended: f64) {
        let (first, last) = self.times.unwrap_or((began, ended));
        self.times = Some((first.min(began), last.max(ended)));
    }

    /// Writes the log, and returns the writer.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        let model = self.model.as_deref().unwrap_or(UNKNOWN_MODEL);
        let (began, ended) = self.times.unwrap_or_default();
        let created = time(began);
        let (count, sum) = self.rewards;
        let mean = if count > 0 { sum / count as f64 } else { 0.0 };
        let text = serde_json::to_string(model)?;
        let usage = serde_json::to_string(&BTreeMap::from([(model, self.usage)]))?;
        let (samples, completed) = (self.samples, self.samples - self.errors);
        let scores = if count == 0 {
            "[]".to_owned()
        } else {
            let mean = serde_json::to_string(&mean)?;
            format!(
                r#"[{{"name":"{REWARD}","scorer":"{REWARD}","metrics":{{"mean":{{"name":"mean","value":{mean}}}}}}}]"#
            )
        };
        let to = &mut self.to;
        writeln!(
            to,
            r#"{{"version":{VERSION},"status":"success","eval":{{"created":"{created}","task":"rollouts","dataset":{{"name":"rollouts","samples":{samples}}},"model":{text},"config":{{}}}},"#
        )?;
        writeln!(to, r#""plan":{{"name":"plan","steps":[{{"solver":"workflow"}}]}},"#)?;
        writeln!(
            to,
            r#""results":{{"total_samples":{samples},"completed_samples":{completed},"scores":{scores}}},"#
        )?;
        let completed_at = time(ended);
        writeln!(
            to,
            r#""stats":{{"started_at":"{created}","completed_at":"{completed_at}","model_usage":{usage}}},"samples":["#
        )?;
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        io::copy(&mut file, &mut self.to)?;
        self.to.write_all(b"\n]}\n")?;
        Ok(self.to)
    }
}

fn choice<'a>(exchange: &Exchange<'_>, reply: Option<&Reply<'_>>, message: &'a Message<'_>) -> Choice<'a> {
    // A reply without a role is the assistant's.
    let message = ChatMessage { role: "assistant", ..ChatMessage::with(message) };
    let reason = reply.and_then(|reply| reply.finish_reason.as_deref());
    Choice { message, stop_reason: stop_reason(reason), logprobs: logprobs(exchange) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_evaluations_have_the_run_as_their_epoch() {
        fn check(id: &str, expected: (&str, u32)) {
            assert_eq!(id_and_epoch(id), expected);
        }
        check("row-00003-run-1", ("row-00003", 2));
        check("row-00003-run-x", ("row-00003-run-x", 1));
        check("mine-run-1", ("mine-run-1", 1));
    }

    #[test]
    fn arguments_that_are_not_an_object_are_written_as_text() {
        let (object, error) = arguments(r#"{"a":[1]}"#);
        assert_eq!((object["a"].get(), error), ("[1]", None));
        let (text, error) = arguments("{broken");
        assert_eq!((text["raw"].get(), error), ("\"{broken\"", Some("not a JSON object")));
    }
}
