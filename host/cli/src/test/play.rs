//! An episode of an environment that a person plays, or a script on standard input.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::prompt::Prompt;
use super::style::{Part, Style};
use crate::Exit;
use crate::print::{out, outln};
use rollout_core::error::Fault;
use rollout_core::limits::SessionLimits;
use rollout_eval::Row;
use rollout_rollout::{EnvironmentFacts, EpisodeAction, Host, Observed, Reset, Session, SessionError};
use rollout_wire::id::RolloutId;
use rollout_wire::text::printable;

/// Width of the column with the kinds of lines.
const KIND_WIDTH: usize = 13;

/// Plays one episode of a host's environment. `row` has the arguments of the reset.
pub(super) async fn play(
    host: &Host,
    limits: SessionLimits,
    row: Option<&Row>,
    style: Style,
) -> Result<Exit> {
    let facts = host.environment().await?;
    let quit = CancellationToken::new();
    let prompt = Prompt::new(quit);
    let session = host.open_session(RolloutId::parse("test")?, limits).await?;
    let mut player = Player { facts, session, style, steps: 0, reward: None, is_done: false };
    player.begin(row).await?;
    player.help();
    loop {
        if player.is_done {
            return Ok(player.end());
        }
        let Some(line) = prompt.line("\n> ").await else {
            outln!("{}", style.paint(Part::Note, "the input ended before the episode did"));
            return Ok(Exit::NotDone);
        };
        // A person sees the own line.
        if !std::io::stdin().is_terminal() {
            outln!("{}", printable(&line));
        }
        if player.obey(line.trim(), row).await? == Goes::Quit {
            return Ok(Exit::NotDone);
        }
    }
}

/// Returns the error of a command, with the party at fault.
fn blamed(error: &SessionError, text: String) -> anyhow::Error {
    match error.fault() {
        Fault::Plugin => crate::PluginFault(text).into(),
        _ => anyhow::Error::msg(text),
    }
}

/// Whether the game goes on after a line.
#[derive(PartialEq, Eq)]
enum Goes {
    On,
    Quit,
}

struct Player {
    facts: Arc<EnvironmentFacts>,
    session: Session,
    style: Style,
    steps: u32,
    /// Sum of the rewards, if there was any.
    reward: Option<f64>,
    is_done: bool,
}

impl Player {
    async fn begin(&mut self, row: Option<&Row>) -> Result<()> {
        let reset = row.map_or_else(Reset::default, Row::reset);
        (self.steps, self.reward, self.is_done) = (0, None, false);
        let first = self.session.reset(reset).await;
        let first = first.map_err(|error| blamed(&error, format!("the reset failed: {error}")))?;
        self.show(&first);
        Ok(())
    }

    /// Follows one line of input.
    async fn obey(&mut self, line: &str, row: Option<&Row>) -> Result<Goes> {
        match line {
            "" => {}
            "/quit" | "/q" => return Ok(Goes::Quit),
            "/help" | "/tools" | "/?" => self.help(),
            "/state" => match self.session.state().await {
                Ok(state) => self.line("state", Part::Note, &Value::Object(state).to_string()),
                Err(error) => self.line("error", Part::Bad, &error.to_string()),
            },
            "/reset" => self.begin(row).await?,
            line if line.starts_with('/') => {
                self.line("error", Part::Bad, &format!("there is no command {line}; /help lists them"));
            }
            line => match action(&self.facts, line) {
                Ok(action) => return self.act(action).await,
                Err(wrong) => self.line("error", Part::Bad, &wrong),
            },
        }
        Ok(Goes::On)
    }

    async fn act(&mut self, action: EpisodeAction) -> Result<Goes> {
        match self.session.step(action).await {
            Ok(observed) => {
                self.steps += 1;
                self.show(&observed);
            }
            Err(error @ (SessionError::EpisodeOver { .. } | SessionError::SessionOver(_))) => {
                return Err(blamed(&error, error.to_string()));
            }
            Err(error) => self.line("error", Part::Bad, &error.to_string()),
        }
        Ok(Goes::On)
    }

    fn show(&mut self, observed: &Observed) {
        self.line("observation", Part::User, &observed.text());
        if let Some(metadata) = &observed.metadata {
            self.line("metadata", Part::Note, metadata.get());
        }
        if let Some(reward) = observed.reward {
            self.line("reward", Part::Good, &reward.to_string());
            self.reward = Some(self.reward.unwrap_or_default() + reward);
        }
        self.is_done = observed.done;
    }

    /// Prints the end of the episode.
    fn end(&self) -> Exit {
        let steps = format!("{} step{}", self.steps, if self.steps == 1 { "" } else { "s" });
        match self.reward {
            Some(reward) => {
                self.line("done", Part::Good, &format!("after {steps}, with the reward {reward}"));
                Exit::Done
            }
            None => {
                let text = format!("after {steps}, without a reward; give one in a step or add a grader");
                self.line("done", Part::Bad, &text);
                Exit::Plugin
            }
        }
    }

    /// Prints what may be entered.
    fn help(&self) {
        for tool in &self.facts.tools {
            let part = |name: &str| tool.get(name).and_then(Value::as_str).unwrap_or_default();
            let about = part("description").lines().next().unwrap_or_default();
            let fields = tool.get("parameters").map(fields).unwrap_or_default();
            self.line("tool", Part::Tool, &format!("{} {fields}  {about}", part("name")));
        }
        if let Some(action) = &self.facts.action {
            self.line("action", Part::Tool, &fields(&Value::Object(action.clone())));
        }
        self.line("commands", Part::Note, "/state  /reset  /help  /quit");
    }

    fn line(&self, kind: &str, part: Part, text: &str) {
        let text = text.lines().map(printable).collect::<Vec<_>>().join(&format!("\n{:KIND_WIDTH$}", ""));
        out!("{kind:<KIND_WIDTH$}{}\n", self.style.paint(part, &text));
    }
}

/// Returns the fields of a schema in the form in which they are entered.
fn fields(schema: &Value) -> String {
    let required = |name: &str| {
        let listed = schema.get("required").and_then(Value::as_array);
        listed.is_some_and(|listed| listed.iter().any(|each| each == name))
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    let shown = properties.into_iter().flatten().map(|(name, schema)| {
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("value").to_uppercase();
        if required(name) { format!("{name}={kind}") } else { format!("[{name}={kind}]") }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Reads an action: `TOOL NAME=VALUE …` or `TOOL {JSON}` for a tool, `{JSON}` or `NAME=VALUE …` for a value, or only the value of
/// an action or a tool with one field.
fn action(facts: &EnvironmentFacts, line: &str) -> Result<EpisodeAction, String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let named = |tool: &&Map<String, Value>| tool.get("name").and_then(Value::as_str) == Some(word);
    if let Some(tool) = facts.tools.iter().find(named) {
        let schema = tool.get("parameters").cloned().unwrap_or_default();
        let arguments = value(&schema, rest.trim())?.to_string();
        return Ok(EpisodeAction::Call { name: word.to_owned(), arguments });
    }
    let Some(schema) = &facts.action else {
        let names = facts.tools.iter().filter_map(|tool| tool.get("name").and_then(Value::as_str));
        let names: Vec<&str> = names.collect();
        return Err(format!("there is no tool '{word}'; there are: {}", names.join(", ")));
    };
    Ok(EpisodeAction::Value(value(&Value::Object(schema.clone()), line)?.to_string()))
}

/// Reads a value of a schema of an object.
fn value(schema: &Value, text: &str) -> Result<Value, String> {
    if text.starts_with('{') {
        return serde_json::from_str(text).map_err(|error| format!("the JSON is invalid: {error}"));
    }
    let nothing = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
    let mut names = properties.keys();
    if let (Some(only), None) = (names.next(), names.next())
        && !text.is_empty()
        && !text.starts_with(&format!("{only}="))
    {
        return Ok(json!({only: field(&properties[only], text)}));
    }
    let mut read = Map::new();
    for word in words(text)? {
        let Some((name, given)) = word.split_once('=') else {
            return Err(format!("'{word}' is not NAME=VALUE; the fields are: {}", fields(schema)));
        };
        let Some(schema) = properties.get(name) else {
            return Err(format!("there is no field '{name}'; the fields are: {}", fields(schema)));
        };
        read.insert(name.to_owned(), field(schema, given));
    }
    Ok(Value::Object(read))
}

/// Reads the value of a field: JSON unless the schema wants a text.
fn field(schema: &Value, text: &str) -> Value {
    if schema.get("type").and_then(Value::as_str) == Some("string") {
        return text.into();
    }
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// Splits a text at spaces outside of double quotes, which are removed.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for each in text.chars() {
        match each {
            '"' => is_quoted = !is_quoted,
            each if each.is_whitespace() && !is_quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            each => word.push(each),
        }
    }
    if is_quoted {
        return Err("a quotation mark is missing".to_owned());
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> EnvironmentFacts {
        let object = |value: Value| value.as_object().cloned().unwrap();
        let one =
            json!({"type": "object", "properties": {"number": {"type": "number"}}, "required": ["number"]});
        let two = json!({"properties": {"item": {"type": "string"}, "count": {"type": "integer"}}, "required": ["item"]});
        EnvironmentFacts {
            name: "shop".to_owned(),
            description: String::new(),
            version: None,
            action: Some(object(one)),
            observation: Map::new(),
            state: None,
            tools: vec![
                object(json!({"name": "buy", "parameters": two})),
                object(json!({"name": "leave", "parameters": {"properties": {}}})),
            ],
            splits: Vec::new(),
        }
    }

    #[test]
    fn lines_are_tools_with_fields_or_values_of_the_action() {
        let call = |line: &str, name: &str, arguments: Value| {
            let Ok(EpisodeAction::Call { name: called, arguments: given }) = action(&facts(), line) else {
                panic!("{line}")
            };
            assert_eq!((called.as_str(), serde_json::from_str::<Value>(&given).unwrap()), (name, arguments));
        };
        call("buy item=\"green tea\" count=2", "buy", json!({"item": "green tea", "count": 2}));
        call("buy item=7", "buy", json!({"item": "7"}));
        call("buy {\"item\": \"tea\"}", "buy", json!({"item": "tea"}));
        call("leave", "leave", json!({}));
        let value = |line: &str, expected: Value| {
            let Ok(EpisodeAction::Value(given)) = action(&facts(), line) else { panic!("{line}") };
            assert_eq!(serde_json::from_str::<Value>(&given).unwrap(), expected);
        };
        value("-230", json!({"number": -230}));
        value("number=4.5", json!({"number": 4.5}));
        value("{\"number\": 1}", json!({"number": 1}));
        value("many", json!({"number": "many"}));
    }

    #[test]
    fn a_line_that_fits_nothing_is_explained() {
        let check = |line: &str, text: &str| {
            let wrong = action(&facts(), line).unwrap_err();
            assert!(wrong.contains(text), "{wrong}");
        };
        check("buy tea", "'tea' is not NAME=VALUE; the fields are: ");
        check("buy cost=3", "there is no field 'cost'; the fields are: ");
        check("buy item=\"tea", "a quotation mark is missing");
        check("{number", "the JSON is invalid");
        let facts = EnvironmentFacts { action: None, ..facts() };
        assert_eq!(action(&facts, "sell").unwrap_err(), "there is no tool 'sell'; there are: buy, leave");
        assert_eq!(fields(&facts.tools[0]["parameters"]), "item=STRING [count=INTEGER]");
    }
}
