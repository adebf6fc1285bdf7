//! What a workflow gives back.

use crate::imports::bindings::exports::rollout::plugin::workflow::Outcome;

/// What came of a workflow, beside what it registered. Nothing in it is checked yet.
#[derive(Debug)]
pub struct WorkflowOutcome {
    /// The conversation, one JSON object a message, where it was given back.
    pub messages: Option<Vec<String>>,
    /// Its measurements.
    pub metrics: Vec<(String, f64)>,
}

impl From<Outcome> for WorkflowOutcome {
    fn from(Outcome { messages, metrics }: Outcome) -> Self {
        Self { messages, metrics: metrics.into_iter().map(|metric| (metric.name, metric.value)).collect() }
    }
}
