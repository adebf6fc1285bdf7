//! The actions of an environment as tools, for a model or a protocol that has only calls of tools.

#![expect(clippy::disallowed_types, reason = "descriptions are limited in size")]

use serde_json::{Map, Value, json};

use super::model::EnvironmentFacts;
use rollout_guest::instance::EpisodeAction;

/// Names for the tool whose arguments are an action. The first name that no tool of the environment has is used.
const ACTION_TOOLS: [&str; 4] = ["step", "act", "take_action", "environment_step"];

/// The tools by which a model or a caller acts in an environment.
#[derive(Clone, Debug)]
pub struct Moves {
    /// The tools, each as the member `function` of OpenAI's function tools.
    functions: Vec<Map<String, Value>>,
    /// Name of the tool whose arguments are an action.
    action_tool: Option<String>,
}

impl Moves {
    /// Creates the tools of an environment: its own, and one for its actions if they have a schema.
    pub fn new(facts: &EnvironmentFacts) -> Self {
        let mut functions = facts.tools.clone();
        let action_tool = facts.action.as_ref().map(|action| {
            let is_free = |name: &str| !functions.iter().any(|function| name_of(function) == name);
            let numbered = || (2..).map(|number| format!("step_{number}")).find(|name| is_free(name));
            let name = ACTION_TOOLS.into_iter().find(|name| is_free(name)).map(str::to_owned);
            let name = name.or_else(numbered).unwrap_or_default();
            let description = action.get("description").and_then(Value::as_str);
            let description = description.unwrap_or("Takes an action in the environment.");
            functions.push(Map::from_iter([
                ("name".to_owned(), name.as_str().into()),
                ("description".to_owned(), description.into()),
                ("parameters".to_owned(), action.clone().into()),
            ]));
            name
        });
        Self { functions, action_tool }
    }

    /// Returns the tools, each as the member `function` of OpenAI's function tools.
    pub fn functions(&self) -> &[Map<String, Value>] {
        &self.functions
    }

    /// Returns OpenAI function tools.
    pub(crate) fn tools(&self) -> Vec<String> {
        let tool = |function| json!({"type": "function", "function": function}).to_string();
        self.functions.iter().map(tool).collect()
    }

    /// Returns whether there is a tool with this name.
    pub fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|function| name_of(function) == name)
    }

    /// Returns the names of the tools.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.functions.iter().map(name_of).collect();
        names.join(", ")
    }

    /// Returns the action that a call requests, or the reason why the call is invalid.
    pub fn action(&self, name: &str, arguments: &str) -> Result<EpisodeAction, String> {
        if !self.has(name) {
            return Err(format!("there is no tool '{name}'; there are: {}", self.names()));
        }
        // Models write an empty text for a function without parameters.
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let arguments =
            rollout_wire::object(arguments).map_err(|wrong| format!("the arguments are {wrong}"))?;
        let arguments = arguments.get().to_owned();
        Ok(match self.action_tool.as_deref() == Some(name) {
            true => EpisodeAction::Value(arguments),
            false => EpisodeAction::Call { name: name.to_owned(), arguments },
        })
    }
}

fn name_of(function: &Map<String, Value>) -> &str {
    function.get("name").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_a_tool_beside_those_of_the_environment() {
        let check = |tools: &[&str], expected: &str| {
            let tool = |name: &&str| Map::from_iter([("name".to_owned(), Value::from(*name))]);
            let moves = Moves::new(&EnvironmentFacts {
                name: "e".to_owned(),
                description: String::new(),
                version: None,
                action: Some(Map::new()),
                observation: Map::new(),
                state: None,
                tools: tools.iter().map(tool).collect(),
                splits: Vec::new(),
            });
            assert_eq!(moves.names().split(", ").last(), Some(expected));
            let action = moves.action(expected, "").unwrap();
            assert!(matches!(action, EpisodeAction::Value(value) if value == "{}"));
            for tool in tools {
                let action = moves.action(tool, "{\"a\": 1}").unwrap();
                assert!(matches!(action, EpisodeAction::Call { name, .. } if name == *tool));
            }
            let unknown = moves.action("none", "{}").unwrap_err();
            assert!(unknown.contains("there is no tool 'none'; there are: "), "{unknown}");
            assert!(moves.action(expected, "[]").unwrap_err().contains("the arguments are "));
        };
        check(&[], "step");
        check(&["move"], "step");
        check(&["step"], "act");
        check(&["step", "act", "take_action", "environment_step"], "step_2");
    }
}
