//! Results of workflows.

use crate::imports::bindings::exports::rollout::plugin::workflow::Outcome;

/// Result of a workflow apart from its registered samples, unchecked.
#[derive(Debug)]
pub struct WorkflowOutcome {
    /// The conversation, one JSON object a message, if the workflow returned it.
    pub messages: Option<Vec<String>>,
    /// The metrics that the workflow returned.
    pub metrics: Vec<(String, f64)>,
}

impl From<Outcome> for WorkflowOutcome {
    fn from(Outcome { messages, metrics }: Outcome) -> Self {
        Self { messages, metrics: metrics.into_iter().map(|metric| (metric.name, metric.value)).collect() }
    }
}
