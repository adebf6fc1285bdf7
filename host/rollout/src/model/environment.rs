//! The checked description of an environment.

#![expect(
    clippy::disallowed_types,
    reason = "a description is limited in size by the memory of its guest, and is read once a deployment"
)]

use serde_json::{Map, Value};

use rollout_guest::instance::TaskSplit;

/// The description of an environment, checked.
#[derive(Clone, Debug)]
pub struct EnvironmentFacts {
    /// The environment's name.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// The environment's own version.
    pub version: Option<String>,
    /// JSON Schema of an action. `None` if only tools are called.
    pub action: Option<Map<String, Value>>,
    /// JSON Schema of an observation.
    pub observation: Map<String, Value>,
    /// JSON Schema of the state.
    pub state: Option<Map<String, Value>>,
    /// The tools, each as the member `function` of OpenAI's function tools.
    pub tools: Vec<Map<String, Value>>,
    /// The splits of the tasks.
    pub splits: Vec<TaskSplit>,
}
