//! What is said in a rollout, written down as it is said.
//!
//! The transcript watches the calls of the model and of the judge. A request repeats the
//! conversation so far, so of each only the messages are written that its sample's last
//! call did not have.

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

/// The width of the column with the roles.
const ROLE_WIDTH: usize = 11;

/// Writes what is said, and stops after each reply if somebody is to be asked.
#[derive(Debug)]
pub(crate) struct Transcript {
    style: Style,
    prompt: Option<Prompt>,
    said: Mutex<Said>,
    /// One call at a time is shown and asked about.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Said {
    /// By sample, what was written of its conversation.
    conversations: HashMap<String, Vec<Value>>,
    calls: u32,
    begun: HashMap<(String, Bytes), Instant>,
}

/// A request's body, as far as it is shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Asking {
    messages: Vec<Value>,
    tools: Vec<Value>,
}

impl Asking {
    fn read(call: Watched<'_>) -> Self {
        serde_json::from_slice(call.request).unwrap_or_default()
    }
}

impl Transcript {
    pub(crate) fn new(style: Style, prompt: Option<Prompt>) -> Self {
        Self { style, prompt, said: Mutex::default(), turn: tokio::sync::Mutex::new(()) }
    }

    /// Says what is run.
    pub(crate) fn begin(&self, plugin: &Path, data: &Path, row: usize, model: &str, clock: ClockStart) {
        let line = format!("{}, row {row} of {}, model {model}", plugin.display(), data.display());
        outln!("{}", self.note(&line));
        outln!("{}", self.note(&format!("the clock begins at {clock} and passes by waiting alone")));
    }

    /// Shows a line that the plugin printed, logged or warned of.
    pub(crate) fn logged(&self, entry: &LogEntry) {
        match entry {
            LogEntry::Line { level: LogLevel::Warn | LogLevel::Error, text } => {
                outln!("{}{}", self.role("log"), self.style.paint(Part::Bad, &indented(text)));
            }
            LogEntry::Line { text, .. } => outln!("{}{}", self.role("log"), self.note(&indented(text))),
            LogEntry::Event { .. } => {}
        }
    }

    /// Says what came of it, and answers questions about it if somebody asks.
    pub(crate) async fn end(&self, finished: &Finished) {
        outln!("\n{}", self.heading("result"));
        out!("{}", self.result(finished));
        let Some(prompt) = self.prompt.as_ref().filter(|prompt| prompt.asks()) else { return };
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
                _ => outln!("{}", self.note("after the result there is only m, and c to end")),
            }
        }
    }

    fn result(&self, finished: &Finished) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: &str| out += &format!("{name:<ROLE_WIDTH$}{text}\n");
        match &finished.outcome {
            Outcome::Scored { reward } => {
                line("reward", &self.style.paint(Part::Good, &reward.to_string()));
            }
            Outcome::Unscored(failure) => {
                if failure.kind == FailureKind::NotGraded {
                    line("reward", &self.note("none: there is no grader"));
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
            let withdrawn = if sample.record.withdrawn { ", not to be trained on" } else { "" };
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
            let said = printable(&format!("it {}{times}: {first}", kind.what()));
            line("warning", &self.style.paint(Part::Bad, &said));
        }
        if finished.refused_uses.failures() > 0 && matches!(finished.outcome, Outcome::Scored { .. }) {
            line("", &self.note("a component can do none of this; where the plugin swallowed it, the reward may mean nothing"));
        }
        if finished.samples.iter().any(rollout_rollout::FinishedSample::lacks_reply) {
            line("warning", &self.style.paint(Part::Bad, "there is a sample without a reply of the model"));
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
                taken(finished.duration)
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

    /// Writes one message: its text, and its calls a line each.
    fn message(&self, message: &Value) {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("?");
        self.say(role, message);
    }

    fn say(&self, role: &str, message: &Value) {
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
            lines.push(self.note("(nothing)"));
        }
        outln!("{}{}", self.role(role), lines.join(&format!("\n{}", " ".repeat(ROLE_WIDTH))));
    }

    /// Writes what a request has that was not said yet.
    fn asked(&self, call: Watched<'_>) {
        let asking = Asking::read(call);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.calls += 1;
        let number = said.calls;
        said.begun.insert((call.sample_id.to_owned(), call.request.clone()), Instant::now());
        let what = match call.asked {
            ModelRole::Policy => format!("call {number}, sample {}", call.sample_id),
            ModelRole::Judge => format!("call {number}, of the judge"),
        };
        outln!("\n{}", self.heading(&what));
        let before = said.conversations.entry(call.sample_id.to_owned()).or_default();
        let same = before.iter().zip(&asking.messages).take_while(|(a, b)| a == b).count();
        if same < before.len() {
            outln!("{}", self.note(&format!("(another conversation after {same} messages)")));
        }
        asking.messages[same..].iter().for_each(|message| self.message(message));
        *before = asking.messages;
    }

    /// Writes what came of a call.
    fn replied(&self, call: Watched<'_>, outcome: Result<&Bytes, &ChatFailure>) {
        let begun = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.begun.remove(&(call.sample_id.to_owned(), call.request.clone()))
        };
        let took = begun.map(|begun| taken(begun.elapsed())).unwrap_or_default();
        self.reply(call, outcome, &took);
    }

    fn reply(&self, call: Watched<'_>, outcome: Result<&Bytes, &ChatFailure>, took: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let completion = outcome.map(Completion::parse);
        match completion {
            Err(failure) => outln!("{}", self.style.paint(Part::Bad, &printable(&failure.to_string()))),
            Ok(Err(what)) => outln!("{}", self.style.paint(Part::Bad, &printable(&what))),
            Ok(Ok(completion)) => {
                let message: Value = serde_json::from_str(completion.message()).unwrap_or_default();
                self.say(if call.asked == ModelRole::Judge { "judge" } else { "assistant" }, &message);
                let usage = completion.usage.unwrap_or_default();
                let stop = completion.finish_reason.as_deref().unwrap_or("no finish reason");
                let (prompt, reply) = (usage.prompt_tokens, usage.completion_tokens);
                let line = format!("{stop}, {prompt} + {reply} tokens, {took}");
                outln!("{}{}", " ".repeat(ROLE_WIDTH), self.note(&line));
                said.conversations.entry(call.sample_id.to_owned()).or_default().push(message);
            }
        }
    }

    /// Shows a reply that was given in another run and took so long, and stops at it if somebody is to
    /// be asked. It stays as it is.
    pub(crate) async fn show_reply(
        &self,
        call: Watched<'_>,
        took: Duration,
        outcome: Result<&Bytes, &ChatFailure>,
    ) {
        self.reply(call, outcome, &taken(took));
        let Some(prompt) = self.prompt.as_ref().filter(|prompt| prompt.asks()) else { return };
        self.stop(prompt, call, outcome.ok(), false).await;
    }

    /// Shows a call of a host-provided tool.
    pub(crate) fn tool_called(&self, name: &str, arguments: &str) {
        outln!("{}→ {}", self.role("tool"), indented(&format!("{name}({arguments})")));
    }

    /// Shows what it gave.
    pub(crate) fn tool_gave(&self, name: &str, content: &str) {
        outln!("{}{}: {}", self.role("tool"), printable(name), indented(content));
    }

    /// Asks what to do until something is to be done. Gives the body of a reply that is to
    /// take the place of the server's, where that may be.
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
                    prompt.go_on();
                    return edited;
                }
                Command::Quit => {
                    prompt.quit();
                    // The rollout is being cancelled, and this with it.
                    return std::future::pending().await;
                }
                Command::Messages => {
                    Asking::read(call).messages.iter().for_each(|message| self.message(message));
                    if let Some(completion) = body.and_then(|body| Completion::parse(body).ok()) {
                        self.say(
                            "assistant",
                            &serde_json::from_str(completion.message()).unwrap_or_default(),
                        );
                    }
                }
                Command::Tools => self.tools(&Asking::read(call).tools),
                Command::Edit(_) if !may_edit => {
                    outln!("{}", self.note("it is shown as it was, and cannot be edited"));
                }
                Command::Edit(text) => match self.edit(prompt, text, body).await {
                    Ok(body) => {
                        if let Ok(completion) = Completion::parse(&body) {
                            let message = serde_json::from_str(completion.message()).unwrap_or_default();
                            self.say("assistant", &message);
                        }
                        edited = Some(body);
                    }
                    Err(what) => outln!("{}", self.style.paint(Part::Bad, &printable(&what))),
                },
                Command::Unknown(line) => outln!(
                    "{}",
                    self.note(&format!("there is no '{line}'; n (or Enter), c, m, t, e TEXT, q"))
                ),
            }
        }
    }

    fn tools(&self, tools: &[Value]) {
        if tools.is_empty() {
            outln!("{}", self.note("no tools are offered"));
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

    /// The reply's body with another message in it: the text, or, where that is a JSON
    /// object, the message that it is.
    async fn edit(&self, prompt: &Prompt, text: String, reply: Option<&Bytes>) -> Result<Bytes, String> {
        let text = if text.is_empty() {
            outln!(
                "{}",
                self.note("the reply's text, or a message as JSON; a line with a full stop alone ends it")
            );
            prompt.text().await.ok_or("the input ended; the reply stays as it is")?
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
        Completion::parse(&body).map_err(|what| format!("that would be no reply: {what}")).map(|_| body)
    }
}

impl Observer for Transcript {
    fn asking<'a>(&'a self, call: Watched<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            self.asked(call);
        })
    }

    fn retrying(&self, _call: Watched<'_>, retry: &Retry<'_>) {
        let Retry { failures, attempts_max, delay, reason } = *retry;
        let line = format!("{reason}; trying again in {} ({failures} of {attempts_max})", taken(delay));
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
            let prompt = self.prompt.as_ref().filter(|prompt| prompt.asks())?;
            let edited = self.stop(prompt, call, outcome.ok(), true).await?;
            let completion = Completion::parse(&edited).ok()?;
            let message = serde_json::from_str(completion.message()).unwrap_or_default();
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            let conversation = said.conversations.entry(call.sample_id.to_owned()).or_default();
            if outcome.is_ok() {
                conversation.pop();
            }
            conversation.push(message);
            Some(edited)
        })
    }
}

fn taken(time: Duration) -> String {
    let secs = time.as_secs_f64();
    if secs < 1.0 { format!("{:.0} ms", secs * 1e3) } else { format!("{secs:.2} s") }
}

fn calls(count: u64) -> String {
    if count == 1 { "1 call".to_owned() } else { format!("{count} calls") }
}

/// Text of a guest or a model: it cannot drive the terminal, and stays in its column.
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
