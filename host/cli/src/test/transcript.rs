//! Prints the conversation of a rollout as it happens.
//!
//! The transcript observes the calls of the model and of the judge. A request repeats the conversation so
//! far, so only the messages that follow those of the sample's previous call are printed.

use crate::print::{out, outln};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::prompt::{Command, Prompt};
use super::style::{Part, Style};
use rollout_core::telemetry::ModelRole;
use rollout_guest::imports::{ClockStart, LogEntry, LogLevel, RefusedUse};
use rollout_outbound::{ChatFailure, Observer, Retry, Watched};
use rollout_rollout::{FailureKind, Finished, Outcome};
use rollout_wire::openai::Completion;
use rollout_wire::text::printable;

/// Width of the column with the roles.
const ROLE_WIDTH: usize = 11;

/// Prints the conversation and, with a prompt, stops after each reply.
#[derive(Debug)]
pub(crate) struct Transcript {
    style: Style,
    prompt: Option<Prompt>,
    state: Mutex<TranscriptState>,
    /// Held while a call is printed and the user is asked about it.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct TranscriptState {
    /// The printed messages of each sample.
    conversations: HashMap<String, Vec<Value>>,
    calls: u32,
    /// Time at which each unanswered request was sent, by sample and body.
    started: HashMap<(String, Bytes), Instant>,
}

/// The parts of a request's body that are shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RequestBody {
    messages: Vec<Value>,
    tools: Vec<Value>,
}

impl RequestBody {
    fn read(call: Watched<'_>) -> Self {
        serde_json::from_slice(call.request).unwrap_or_default()
    }
}

impl Transcript {
    pub(crate) fn new(style: Style, prompt: Option<Prompt>) -> Self {
        Self { style, prompt, state: Mutex::default(), turn: tokio::sync::Mutex::new(()) }
    }

    /// Prints plugin, row and model.
    pub(crate) fn begin(&self, plugin: &Path, data: &str, row: usize, model: &str, clock: ClockStart) {
        let line = format!("{}, row {row} of {data}, model {model}", plugin.display());
        outln!("{}", self.note(&line));
        outln!(
            "{}",
            self.note(&format!("the clock starts at {clock} and advances only while the guest waits"))
        );
    }

    /// Prints a log line of the plugin.
    pub(crate) fn logged(&self, entry: &LogEntry) {
        match entry {
            LogEntry::Line { level: LogLevel::Warn | LogLevel::Error, text } => {
                outln!("{}{}", self.role("log"), self.style.paint(Part::Bad, &indented(text)));
            }
            LogEntry::Line { text, .. } => outln!("{}{}", self.role("log"), self.note(&indented(text))),
            LogEntry::Event { .. } => {}
        }
    }

    /// Prints the result and, with a prompt, shows conversations on request.
    pub(crate) async fn end(&self, finished: &Finished) {
        outln!("\n{}", self.heading("result"));
        out!("{}", self.result(finished));
        let Some(prompt) = self.prompt.as_ref().filter(|prompt| prompt.is_enabled()) else { return };
        loop {
            match prompt.ask("\n[m]essages  [c]ontinue > ").await {
                Command::Messages => {
                    for sample in &finished.samples {
                        outln!("{}", self.heading(&format!("sample {}", sample.record.id)));
                        for message in sample.record.messages.iter() {
                            let message: Value = serde_json::from_str(message).unwrap_or_default();
                            self.message(&message);
                        }
                    }
                }
                Command::Next | Command::Continue | Command::Quit => return,
                _ => outln!("{}", self.note("the rollout has ended: m shows messages, c ends")),
            }
        }
    }

    /// Renders the outcome of a rollout with its samples, warnings and usage.
    fn result(&self, finished: &Finished) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: &str| out += &format!("{name:<ROLE_WIDTH$}{text}\n");
        match &finished.outcome {
            Outcome::Scored { reward } => {
                line("reward", &self.style.paint(Part::Good, &reward.to_string()));
            }
            Outcome::Unscored(failure) => {
                if failure.kind == FailureKind::NotGraded {
                    line("reward", &self.note("none: the plugin has no grader"));
                } else {
                    line("reward", &self.style.paint(Part::Bad, "none"));
                    let (stage, kind) = (failure.stage.as_str(), failure.kind.as_str());
                    line("why", &format!("{stage}, {kind}, at fault: {}", failure.fault));
                    line("", &indented(&failure.reason));
                }
            }
        }
        for sample in &finished.samples {
            let id = printable(sample.record.id.as_str());
            let reward = sample.reward.map_or("no reward".to_owned(), |reward| format!("reward {reward}"));
            let withdrawn = if sample.record.withdrawn { ", excluded from training" } else { "" };
            let metrics: String = sample
                .record
                .metrics
                .iter()
                .map(|(name, value)| format!(", {} {value}", printable(name)))
                .collect();
            line(
                "sample",
                &format!("{id}: {} messages, {reward}{withdrawn}{metrics}", sample.record.messages.len()),
            );
        }
        for (kind, RefusedUse { count, first }) in finished.refused_uses.iter() {
            let times = if *count == 1 { String::new() } else { format!(", {count} times") };
            let warning = printable(&format!("it {}{times}: {first}", kind.description()));
            line("warning", &self.style.paint(Part::Bad, &warning));
        }
        if finished.refused_uses.failures() > 0 && matches!(finished.outcome, Outcome::Scored { .. }) {
            line("", &self.note("a component can do none of this; if the plugin ignored the error, the reward may mean nothing"));
        }
        if finished.samples.iter().any(rollout_rollout::FinishedSample::lacks_reply) {
            line("warning", &self.style.paint(Part::Bad, "a sample has no reply of the model"));
        }
        let usage = &finished.usage;
        let judged = match usage.judge_calls {
            0 => String::new(),
            calls => format!(", {} of the judge ({} tokens)", calls, usage.judge_tokens),
        };
        line(
            "used",
            &format!(
                "{} of the model ({} + {} tokens){judged}, {:.1} ms of CPU, {:.1} MiB, {}",
                calls(usage.chat_calls),
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.guest_cpu.as_secs_f64() * 1e3,
                usage.memory_bytes_peak as f64 / f64::from(1 << 20),
                duration(finished.duration)
            ),
        );
        if let Some(path) = finished.trajectory() {
            line("trajectory", &path.display().to_string());
        }
        out
    }

    fn heading(&self, text: &str) -> String {
        self.note(&format!("── {text} {}", "─".repeat(60_usize.saturating_sub(text.chars().count()))))
    }

    fn note(&self, text: &str) -> String {
        self.style.paint(Part::Note, &printable(text))
    }

    fn role(&self, role: &str) -> String {
        let part = match role {
            "system" | "developer" => Part::System,
            "assistant" => Part::Assistant,
            "tool" => Part::Tool,
            "judge" => Part::Judge,
            _ => Part::User,
        };
        self.style.paint(part, &format!("{:<ROLE_WIDTH$}", printable(role)))
    }

    /// Prints a message: its text, and a line for each call.
    fn message(&self, message: &Value) {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("?");
        self.message_as(role, message);
    }

    fn message_as(&self, role: &str, message: &Value) {
        let mut lines = Vec::new();
        for name in ["reasoning_content", "content"] {
            let text = text_of(message.get(name));
            if !text.is_empty() {
                lines.push(if name == "content" { indented(&text) } else { self.note(&indented(&text)) });
            }
        }
        for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let function = &call["function"];
            let name = function["name"].as_str().unwrap_or("?");
            let arguments = match &function["arguments"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            lines.push(format!("→ {}", indented(&format!("{name}({arguments})"))));
        }
        if lines.is_empty() {
            lines.push(self.note("(empty)"));
        }
        outln!("{}{}", self.role(role), lines.join(&format!("\n{}", " ".repeat(ROLE_WIDTH))));
    }

    /// Prints the new messages of a request.
    fn request(&self, call: Watched<'_>) {
        let body = RequestBody::read(call);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.calls += 1;
        let number = state.calls;
        state.started.insert((call.sample_id.to_owned(), call.request.clone()), Instant::now());
        let title = match call.asked {
            ModelRole::Policy => format!("call {number}, sample {}", call.sample_id),
            ModelRole::Judge => format!("call {number}, of the judge"),
        };
        outln!("\n{}", self.heading(&title));
        let before = state.conversations.entry(call.sample_id.to_owned()).or_default();
        let same = before.iter().zip(&body.messages).take_while(|(a, b)| a == b).count();
        if same < before.len() {
            outln!("{}", self.note(&format!("(the conversation differs after {same} messages)")));
        }
        body.messages[same..].iter().for_each(|message| self.message(message));
        *before = body.messages;
    }

    /// Prints the outcome of a call with the time that it took.
    fn replied(&self, call: Watched<'_>, outcome: Result<&Bytes, &ChatFailure>) {
        let started = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.started.remove(&(call.sample_id.to_owned(), call.request.clone()))
        };
        let took = started.map(|started| duration(started.elapsed())).unwrap_or_default();
        self.reply(call, outcome, &took);
    }

    fn reply(&self, call: Watched<'_>, outcome: Result<&Bytes, &ChatFailure>, took: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let completion = outcome.map(Completion::parse);
        match completion {
            Err(failure) => outln!("{}", self.style.paint(Part::Bad, &printable(&failure.to_string()))),
            Ok(Err(reason)) => outln!("{}", self.style.paint(Part::Bad, &printable(&reason))),
            Ok(Ok(completion)) => {
                let message: Value = serde_json::from_str(completion.message()).unwrap_or_default();
                self.message_as(if call.asked == ModelRole::Judge { "judge" } else { "assistant" }, &message);
                let usage = completion.usage.unwrap_or_default();
                let stop = completion.finish_reason.as_deref().unwrap_or("no finish reason");
                let (prompt, reply) = (usage.prompt_tokens, usage.completion_tokens);
                let line = format!("{stop}, {prompt} + {reply} tokens, {took}");
                outln!("{}{}", " ".repeat(ROLE_WIDTH), self.note(&line));
                state.conversations.entry(call.sample_id.to_owned()).or_default().push(message);
            }
        }
    }

    /// Prints a recorded reply and, with a prompt, stops at it. The reply cannot be edited.
    pub(crate) async fn show_reply(
        &self,
        call: Watched<'_>,
        took: Duration,
        outcome: Result<&Bytes, &ChatFailure>,
    ) {
        self.reply(call, outcome, &duration(took));
        let Some(prompt) = self.prompt.as_ref().filter(|prompt| prompt.is_enabled()) else { return };
        self.stop(prompt, call, outcome.ok(), false).await;
    }

    /// Prints a call of a host-provided tool.
    pub(crate) fn tool_call(&self, name: &str, arguments: &str) {
        outln!("{}→ {}", self.role("tool"), indented(&format!("{name}({arguments})")));
    }

    /// Prints the result of a host-provided tool.
    pub(crate) fn tool_result(&self, name: &str, content: &str) {
        outln!("{}{}: {}", self.role("tool"), printable(name), indented(content));
    }

    /// Runs the user's commands until one continues the rollout. Returns the body of an edited reply.
    async fn stop(
        &self,
        prompt: &Prompt,
        call: Watched<'_>,
        reply: Option<&Bytes>,
        may_edit: bool,
    ) -> Option<Bytes> {
        let mut edited = None;
        let edit = if may_edit { "[e]dit  " } else { "" };
        loop {
            let command =
                prompt.ask(&format!("[n]ext  [c]ontinue  [m]essages  [t]ools  {edit}[q]uit > ")).await;
            let body = edited.as_ref().or(reply);
            match command {
                Command::Next => return edited,
                Command::Continue => {
                    prompt.disable();
                    return edited;
                }
                Command::Quit => {
                    prompt.quit();
                    // Cancelling the rollout drops this future.
                    return std::future::pending().await;
                }
                Command::Messages => {
                    RequestBody::read(call).messages.iter().for_each(|message| self.message(message));
                    if let Some(completion) = body.and_then(|body| Completion::parse(body).ok()) {
                        self.message_as(
                            "assistant",
                            &serde_json::from_str(completion.message()).unwrap_or_default(),
                        );
                    }
                }
                Command::Tools => self.tools(&RequestBody::read(call).tools),
                Command::Edit(_) if !may_edit => {
                    outln!("{}", self.note("a recorded reply cannot be edited"));
                }
                Command::Edit(text) => match self.edit(prompt, text, body).await {
                    Ok(body) => {
                        if let Ok(completion) = Completion::parse(&body) {
                            let message = serde_json::from_str(completion.message()).unwrap_or_default();
                            self.message_as("assistant", &message);
                        }
                        edited = Some(body);
                    }
                    Err(reason) => outln!("{}", self.style.paint(Part::Bad, &printable(&reason))),
                },
                Command::Unknown(line) => outln!(
                    "{}",
                    self.note(&format!("unknown command '{line}'; use n (or Enter), c, m, t, e TEXT or q"))
                ),
            }
        }
    }

    fn tools(&self, tools: &[Value]) {
        if tools.is_empty() {
            outln!("{}", self.note("the request offers no tools"));
        }
        for tool in tools {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or("?");
            let about = function["description"].as_str().unwrap_or_default();
            outln!("{}{}", self.role("tool"), indented(&format!("{name}: {about}")));
            let properties = function["parameters"]["properties"].as_object();
            for (name, schema) in properties.into_iter().flatten() {
                let kind = match &schema["type"] {
                    Value::String(kind) => kind.clone(),
                    Value::Null => "any".to_owned(),
                    other => other.to_string(),
                };
                let about = schema["description"].as_str().unwrap_or_default();
                let line = format!("  {name} ({kind}) {about}");
                outln!("{}{}", " ".repeat(ROLE_WIDTH), indented(line.trim_end()));
            }
        }
    }

    /// Returns the reply's body with another message: the text, or the message itself if the text is a JSON
    /// object.
    async fn edit(&self, prompt: &Prompt, text: String, reply: Option<&Bytes>) -> Result<Bytes, String> {
        let text = if text.is_empty() {
            outln!(
                "{}",
                self.note(
                    "enter the reply's text, or a message as JSON; end with a line that is only a full stop"
                )
            );
            prompt.text().await.ok_or("the input ended; the reply is not changed")?
        } else {
            text
        };
        let message = match serde_json::from_str::<Map<String, Value>>(&text) {
            Ok(mut message) => {
                message.entry("role").or_insert_with(|| "assistant".into());
                Value::Object(message)
            }
            Err(_) => json!({"role": "assistant", "content": text}),
        };
        let mut body: Value = reply
            .and_then(|body| serde_json::from_slice(body).ok())
            .unwrap_or_else(|| json!({"object": "chat.completion"}));
        let calls =
            message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        let finish_reason = if calls { "tool_calls" } else { "stop" };
        body["choices"] = json!([{"index": 0, "message": message, "finish_reason": finish_reason}]);
        let body = Bytes::from(body.to_string());
        Completion::parse(&body)
            .map_err(|reason| format!("the text is not a valid reply: {reason}"))
            .map(|_| body)
    }
}

impl Observer for Transcript {
    fn asking<'a>(&'a self, call: Watched<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            self.request(call);
        })
    }

    fn retrying(&self, _call: Watched<'_>, retry: &Retry<'_>) {
        let Retry { failures, attempts_max, delay, reason } = *retry;
        let line = format!("{reason}; trying again in {} ({failures} of {attempts_max})", duration(delay));
        outln!("{}", self.style.paint(Part::Bad, &printable(&line)));
    }

    fn answered<'a>(
        &'a self,
        call: Watched<'a>,
        outcome: Result<&'a Bytes, &'a ChatFailure>,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            self.replied(call, outcome);
            let prompt = self.prompt.as_ref().filter(|prompt| prompt.is_enabled())?;
            let edited = self.stop(prompt, call, outcome.ok(), true).await?;
            let completion = Completion::parse(&edited).ok()?;
            let message = serde_json::from_str(completion.message()).unwrap_or_default();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let conversation = state.conversations.entry(call.sample_id.to_owned()).or_default();
            if outcome.is_ok() {
                conversation.pop();
            }
            conversation.push(message);
            Some(edited)
        })
    }
}

fn duration(time: Duration) -> String {
    let secs = time.as_secs_f64();
    if secs < 1.0 { format!("{:.0} ms", secs * 1e3) } else { format!("{secs:.2} s") }
}

fn calls(count: u64) -> String {
    if count == 1 { "1 call".to_owned() } else { format!("{count} calls") }
}

/// Indents a text of a guest or a model to its column and removes control characters.
fn indented(text: &str) -> String {
    let margin = " ".repeat(ROLE_WIDTH);
    let lines: Vec<String> = printable(text.trim_end())
        .lines()
        .enumerate()
        .map(
            |(at, line)| if at == 0 || line.is_empty() { line.to_owned() } else { format!("{margin}{line}") },
        )
        .collect();
    lines.join("\n")
}

fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            texts.join("\n")
        }
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}
