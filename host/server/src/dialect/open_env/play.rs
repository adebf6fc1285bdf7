//! Resets, steps and tool calls in a session, in this protocol's form.

use serde_json::{Map, Value, json};

use super::frame::Refusal;
use crate::dialect::sessions::OpenSession;
use rollout_rollout::{EnvironmentFacts, EpisodeAction, Observed, Reset, SessionError};

/// Maximum length of an episode's name, which the caller chooses.
const EPISODE_ID_CHARS_MAX: usize = 255;

/// Result of a reset or a step.
pub(super) struct Observation {
    pub observation: Map<String, Value>,
    pub reward: Option<f64>,
    pub done: bool,
    pub metadata: Map<String, Value>,
}

impl Observation {
    /// Returns the frame. It has the metadata twice, because clients of older environments read it in the observation.
    pub(super) fn frame(self) -> String {
        let Self { mut observation, reward, done, metadata } = self;
        observation.entry("metadata").or_insert_with(|| metadata.clone().into());
        let mut data = json!({"observation": observation, "reward": reward, "done": done});
        if !metadata.is_empty() {
            data["metadata"] = metadata.into();
        }
        json!({"type": "observation", "data": data}).to_string()
    }

    /// Returns the body of an HTTP response.
    pub(super) fn body(self) -> Value {
        let Self { mut observation, reward, done, metadata } = self;
        observation.entry("metadata").or_insert_with(|| metadata.clone().into());
        let metadata = if metadata.is_empty() { Value::Null } else { metadata.into() };
        json!({"observation": observation, "reward": reward, "done": done, "metadata": metadata})
    }
}

impl OpenSession {
    /// Begins an episode.
    pub(super) async fn reset(&mut self, mut data: Map<String, Value>) -> Result<Observation, Refusal> {
        let seed = match data.remove("seed") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_u64().ok_or_else(|| {
                let reason = "Input should be a whole number of at least 0";
                Refusal::invalid("int_parsing", &["data", "seed"], reason, value)
            })?),
        };
        let episode_id = match data.remove("episode_id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) if id.chars().count() <= EPISODE_ID_CHARS_MAX => Some(id),
            Some(value) => {
                let reason = "Input should be a string of at most 255 characters";
                return Err(Refusal::invalid("string_type", &["data", "episode_id"], reason, value));
            }
        };
        let observed = self.session.reset(Reset { seed, episode_id, arguments: data }).await?;
        Ok(of_object(observed))
    }

    /// Takes an action.
    pub(super) async fn step(&mut self, action: Map<String, Value>) -> Result<Observation, Refusal> {
        let kind = action.get("type").and_then(Value::as_str);
        let (has_tools, has_actions) = (!self.facts.tools.is_empty(), self.facts.action.is_some());
        if kind == Some("list_tools") && has_tools {
            return Ok(listed(&self.facts));
        }
        let is_call = kind == Some("call_tool") || kind.is_none() && !has_actions;
        if is_call && (has_tools || !has_actions) {
            return self.step_tool(action).await;
        }
        let Some(schema) = &self.facts.action else {
            let reason = "Input should be 'list_tools' or 'call_tool'; actions in this environment are calls of its tools";
            return Err(Refusal::invalid("literal_error", &["data", "type"], reason, action.into()));
        };
        let action = fitting(action, schema)?;
        let observed = self.session.step(EpisodeAction::Value(Value::Object(action).to_string())).await?;
        Ok(of_object(observed))
    }

    /// Calls a tool as a step. Failures of the call are observations.
    async fn step_tool(&mut self, mut action: Map<String, Value>) -> Result<Observation, Refusal> {
        let name = match action.remove("tool_name") {
            Some(Value::String(name)) => name,
            other => {
                let input = other.unwrap_or(Value::Null);
                return Err(Refusal::invalid("missing", &["data", "tool_name"], "Field required", input));
            }
        };
        let arguments = match action.remove("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(other) => {
                let reason = "Input should be a valid dictionary";
                return Err(Refusal::invalid("dict_type", &["data", "arguments"], reason, other));
            }
        };
        let failed = |kind: &str, reason: String| {
            let error = json!({"error_type": kind, "message": reason});
            Ok(Observation {
                observation: called(&name, Value::Null, error),
                reward: None,
                done: false,
                metadata: Map::new(),
            })
        };
        match self.call_tool(&name, arguments).await {
            Ok(observed) => {
                let (result, observed) = result_of(observed);
                Ok(Observation { observation: called(&name, result, Value::Null), ..observed })
            }
            Err(ToolError::NotFound(reason)) => failed("tool_not_found", reason),
            Err(ToolError::Session(SessionError::Invalid(reason))) => failed("invalid_args", reason),
            Err(ToolError::Session(SessionError::TimedOut(reason))) => failed("timeout", reason),
            Err(ToolError::Session(SessionError::Failed(reason) | SessionError::NoEpisode(reason))) => {
                failed("execution_error", reason)
            }
            Err(ToolError::Session(error)) => Err(error.into()),
        }
    }

    /// Calls a tool.
    pub(super) async fn call_tool(
        &mut self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Observed, ToolError> {
        let is_known = |tool: &Map<String, Value>| tool.get("name").and_then(Value::as_str) == Some(name);
        if !self.facts.tools.iter().any(is_known) {
            return Err(ToolError::NotFound(format!("Tool '{name}' not found")));
        }
        let arguments = Value::Object(arguments).to_string();
        Ok(self.session.step(EpisodeAction::Call { name: name.to_owned(), arguments }).await?)
    }

    /// Returns the members of the visible state.
    pub(super) async fn state(&mut self) -> Result<Map<String, Value>, Refusal> {
        Ok(self.session.state().await?)
    }
}

/// Error of a tool call.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    /// There is no such tool.
    #[error("{0}")]
    NotFound(String),
    /// The call failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Splits the result of a tool from the rest of the observation.
pub(super) fn result_of(observed: Observed) -> (Value, Observation) {
    let result = serde_json::from_str(observed.observation.get()).unwrap_or_default();
    (result, of_object(observed))
}

fn of_object(Observed { observation, reward, done, metadata }: Observed) -> Observation {
    let object = |text: &str| serde_json::from_str(text).unwrap_or_default();
    Observation {
        observation: object(observation.get()),
        reward,
        done,
        metadata: metadata.map(|metadata| object(metadata.get())).unwrap_or_default(),
    }
}

fn called(name: &str, result: Value, error: Value) -> Map<String, Value> {
    let members = [("tool_name", name.into()), ("result", result), ("error", error)];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the observation with the list of tools.
fn listed(facts: &EnvironmentFacts) -> Observation {
    let observation = Map::from_iter([("tools".to_owned(), tools(facts, "input_schema").into())]);
    Observation { observation, reward: None, done: false, metadata: Map::new() }
}

/// Returns the tools in MCP's form, with the schema of the arguments under this name.
pub(super) fn tools(facts: &EnvironmentFacts, schema: &str) -> Vec<Value> {
    let tool = |tool: &Map<String, Value>| {
        let of = |name: &str, default: Value| tool.get(name).cloned().unwrap_or(default);
        json!({
            "name": of("name", Value::Null),
            "description": of("description", "".into()),
            schema: of("parameters", json!({"type": "object", "properties": {}})),
        })
    };
    facts.tools.iter().map(tool).collect()
}

/// Checks that an action has the members that its schema requires, and no others if the schema forbids them. Returns it.
fn fitting(
    mut action: Map<String, Value>,
    schema: &Map<String, Value>,
) -> Result<Map<String, Value>, Refusal> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let is_named = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
    if !is_named("metadata") && action.get("metadata").is_some_and(Value::is_object) {
        // Every action of this protocol may have this member.
        action.remove("metadata");
    }
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !action.contains_key(name) {
            return Err(Refusal::invalid("missing", &["data", name], "Field required", action.into()));
        }
    }
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        let other = action.iter().find(|(name, _)| !is_named(name));
        if let Some((name, value)) = other {
            let reason = "Extra inputs are not permitted";
            return Err(Refusal::invalid("extra_forbidden", &["data", name], reason, value.clone()));
        }
    }
    Ok(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_checked_against_the_members_of_its_schema() {
        let check = |action: Value, expected: Result<Value, &str>| {
            let schema = json!({"properties": {"n": {}}, "required": ["n"], "additionalProperties": false});
            let (Value::Object(action), Value::Object(schema)) = (action, schema) else { panic!("objects") };
            let fitted = fitting(action, &schema).map_err(|refusal| refusal.message);
            match expected {
                Ok(expected) => assert_eq!(fitted.map(Value::Object), Ok(expected)),
                Err(part) => assert!(fitted.unwrap_err().contains(part), "{part}"),
            }
        };
        check(json!({"n": 1}), Ok(json!({"n": 1})));
        check(json!({"n": 1, "metadata": {}}), Ok(json!({"n": 1})));
        check(json!({}), Err("data.n: Field required"));
        check(json!({"n": 1, "m": 2}), Err("data.m: Extra inputs are not permitted"));
    }

    #[test]
    fn metadata_is_repeated_in_the_observation() {
        let metadata = Map::from_iter([("k".to_owned(), json!(1))]);
        let check = |metadata: Map<String, Value>, expected: Value| {
            let made = Observation { observation: Map::new(), reward: Some(1.0), done: true, metadata };
            assert_eq!(serde_json::from_str::<Value>(&made.frame()).unwrap()["data"], expected);
        };
        check(Map::new(), json!({"observation": {"metadata": {}}, "reward": 1.0, "done": true}));
        let both =
            json!({"observation": {"metadata": {"k": 1}}, "reward": 1.0, "done": true, "metadata": {"k": 1}});
        check(metadata, both);
    }
}
