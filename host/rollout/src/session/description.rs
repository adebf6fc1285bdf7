//! The checked description of an environment, and its tasks.

#![expect(
    clippy::disallowed_types,
    reason = "a description is limited in size by the memory of its guest, and is read once a deployment"
)]

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::host::Host;
use crate::model::{EnvironmentFacts, Failure, FailureKind, Stage};
use rollout_core::error::Fault;
use rollout_guest::imports::{Imports, Record, Role};
use rollout_guest::instance::{self, Bounds, EnvironmentDescription, Permit, RunError};
use rollout_wire::function::FunctionTool;

/// Error of describing an environment or of finding its task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// The guest did not return.
    #[error("the environment {0}")]
    Run(#[from] RunError),
    /// A part of the description is invalid.
    #[error("the environment describes {part} that is {problem}")]
    Invalid {
        /// The part.
        part: String,
        /// The problem.
        problem: String,
    },
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Closed,
}

impl DescribeError {
    /// Returns the failure of a rollout that needs the description. An error of the run stays one, so that limits and faults of
    /// the host stay distinct.
    pub(crate) fn into_failure(self) -> Result<Failure, RunError> {
        match self {
            Self::Run(error) => Err(error),
            Self::Invalid { .. } => {
                let kind = FailureKind::Invalid;
                Ok(Failure::new(Stage::Workflow, kind, Fault::Plugin, self.to_string()))
            }
            Self::Closed => Ok(Failure::host(Stage::Workflow, self.to_string())),
        }
    }
}

impl Host {
    /// Returns the environment's description. The guest is called only once for each deployment.
    pub async fn environment(&self) -> Result<Arc<EnvironmentFacts>, DescribeError> {
        let cell = &self.0.deployment.environment;
        let facts = cell.get_or_try_init(async || {
            let (imports, bounds) = self.description_parts().await?;
            let linked = self.0.deployment.workflow.linked();
            check(instance::describe_environment(linked, imports, bounds).await?).map(Arc::new)
        });
        facts.await.cloned()
    }

    /// Returns a task of a split of the environment's tasks.
    pub async fn environment_task(
        &self,
        split: &str,
        index: u64,
    ) -> Result<Map<String, Value>, DescribeError> {
        let (imports, bounds) = self.description_parts().await?;
        let linked = self.0.deployment.workflow.linked();
        let task = instance::environment_task(linked, imports, bounds, split.to_owned(), index).await?;
        object(&format!("a task {index} of the split '{split}'"), &task)
    }

    /// Returns imports and bounds of an instance that describes the environment.
    async fn description_parts(&self) -> Result<(Imports, Bounds), DescribeError> {
        let permit = self.0.runtime.slots().declaration().await.ok_or(DescribeError::Closed)?;
        let holder = self.budget().holder(CancellationToken::new());
        let record = Arc::new(Record::without_rollout(holder));
        let (imports, bounds) = self.0.deployment.imports_without_rollout(
            "environment",
            Role::Declaration,
            self.metrics(),
            record,
        )?;
        Ok((imports, Bounds { permit: Permit::counted(permit), ..bounds }))
    }
}

/// Checks a description.
fn check(description: EnvironmentDescription) -> Result<EnvironmentFacts, DescribeError> {
    let EnvironmentDescription { name, description, version, action, observation, state, tools, splits } =
        description;
    let tools = tools.iter().map(|tool| {
        let invalid = |problem| DescribeError::Invalid { part: "a tool".to_owned(), problem };
        let text = FunctionTool::parse(tool).map_err(invalid)?.text();
        match object("a tool", &text)?.remove("function") {
            Some(Value::Object(function)) => Ok(function),
            _ => Err(invalid("without a function".to_owned())),
        }
    });
    Ok(EnvironmentFacts {
        tools: tools.collect::<Result<_, _>>()?,
        action: action.map(|schema| object("a schema of actions", &schema)).transpose()?,
        observation: object("a schema of observations", &observation)?,
        state: state.map(|schema| object("a schema of states", &schema)).transpose()?,
        name,
        description,
        version,
        splits,
    })
}

/// Parses a part of the description, which must be an object.
fn object(part: &str, text: &str) -> Result<Map<String, Value>, DescribeError> {
    let invalid = |problem| DescribeError::Invalid { part: part.to_owned(), problem };
    let raw = rollout_wire::object(text).map_err(invalid)?;
    serde_json::from_str(raw.get()).map_err(|error| invalid(error.to_string()))
}
