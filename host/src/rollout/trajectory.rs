//! What is written down of a rollout: `trajectory.json`, artifacts and log.
//!
//! The steps are what the workflow claims, with what the host observed of the calls
//! behind them; `extra.rollout_host` has the observed exchanges whole.

mod steps;
mod store;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::RolloutRequest;
use super::outcome::{Finished, FinishedSample, Outcome};
use crate::id::RolloutId;
use crate::imports::{Exchange, ExchangeOutcome, Recorded, RunContext};
use crate::wire::atif::{Agent, SCHEMA_VERSION, Trajectory};

pub(super) use store::write;

/// What a protocol may say of a rollout in its trajectory's `extra`.
pub struct Facts<'a> {
    /// The rollout.
    pub rollout_id: &'a RolloutId,
    /// The sample that the trajectory is of, where there is one.
    pub sample: Option<&'a FinishedSample>,
    /// The ground truth.
    pub label: Option<&'a str>,
    /// The row's metadata.
    pub metadata: Option<&'a RawValue>,
    /// What calls of the model cost that no step is known for.
    pub unmatched_metrics: Vec<Value>,
}

/// What a protocol adds to a trajectory: a key under `extra` and what goes there.
pub type TrajectoryExtra = Option<std::sync::Arc<dyn Fn(&Facts<'_>) -> (String, Value) + Send + Sync>>;

/// The digests of what ran.
pub(super) struct Plugins {
    pub workflow: String,
    pub grader: Option<String>,
}

/// The documents of a rollout with their file names: one where it has one sample or
/// none, else one a sample.
fn documents(
    request: &RolloutRequest,
    run: &RunContext,
    finished: &Finished,
    recorded: &Recorded,
    plugins: &Plugins,
) -> Vec<(String, Trajectory)> {
    let document = |sample: Option<&FinishedSample>, id: String| {
        let exchanges: Vec<&Exchange> = recorded
            .exchanges
            .iter()
            .filter(|exchange| sample.is_none_or(|sample| exchange.sample == sample.record.id))
            .collect();
        build(request, run, finished, recorded, sample, &exchanges, plugins, id)
    };
    match finished.samples.as_slice() {
        [] => vec![("trajectory.json".to_owned(), document(None, finished.id.to_string()))],
        [only] => vec![("trajectory.json".to_owned(), document(Some(only), finished.id.to_string()))],
        several => several
            .iter()
            .map(|sample| {
                let id = &sample.record.id;
                let name = format!("trajectory-{}.json", id.file_part());
                (name, document(Some(sample), format!("{}/{id}", finished.id)))
            })
            .collect(),
    }
}

#[expect(clippy::too_many_arguments, reason = "everything that a trajectory is made of")]
fn build(
    request: &RolloutRequest,
    run: &RunContext,
    finished: &Finished,
    recorded: &Recorded,
    sample: Option<&FinishedSample>,
    exchanges: &[&Exchange],
    plugins: &Plugins,
    trajectory_id: String,
) -> Trajectory {
    // A workflow that was stopped before it registered anything still made calls; the
    // last request and its reply are then the best account of the conversation.
    let last_seen = steps::last_conversation(exchanges);
    let claimed =
        sample.map(|sample| sample.record.messages.as_slice()).filter(|messages| !messages.is_empty());
    let messages = claimed.or((!last_seen.is_empty()).then_some(&last_seen)).unwrap_or(&request.prompt);
    let steps::Account { steps, final_metrics, unmatched } = steps::account(messages, exchanges);

    let mut extra = Map::new();
    let facts = Facts {
        rollout_id: &finished.id,
        sample,
        label: request.label.as_deref(),
        metadata: run.metadata.as_deref(),
        unmatched_metrics: unmatched,
    };
    if let Some((key, value)) = request.trajectory_extra.as_ref().map(|extra| extra(&facts)) {
        extra.insert(key, value);
    }
    let mut ours = json!({
        "attempt": run.attempt,
        "plugin_digest": plugins.workflow,
        "outcome": outcome(&finished.outcome),
        "usage": {
            "chat_calls": finished.spent.chat_calls,
            "prompt_tokens": finished.spent.prompt_tokens,
            "completion_tokens": finished.spent.completion_tokens,
            "guest_cpu_ms": millis(finished.spent.guest_cpu),
            "memory_bytes_peak": finished.spent.memory_bytes_peak,
            "host_calls": finished.spent.host_calls,
            "duration_ms": millis(finished.duration),
            "queued_ms": millis(finished.queued),
        },
        "observed": steps::observed(exchanges),
    });
    if !recorded.judged.is_empty() {
        ours["judged"] = steps::judged(&recorded.judged).into();
        ours["usage"]["judge_calls"] = finished.spent.judge_calls.into();
        ours["usage"]["judge_tokens"] = finished.spent.judge_tokens.into();
    }
    if let Some(digest) = &plugins.grader {
        ours["grader_digest"] = digest.as_str().into();
    }
    if let Some(sample) = sample {
        ours["sample_id"] = sample.record.id.as_str().into();
        ours["withdrawn"] = sample.record.withdrawn.into();
        ours["claimed_messages"] = sample.record.messages.len().into();
    }
    extra.insert("rollout_host".to_owned(), ours);

    Trajectory {
        schema_version: SCHEMA_VERSION,
        session_id: finished.id.to_string(),
        trajectory_id,
        agent: Agent {
            name: "rollout-host",
            version: env!("CARGO_PKG_VERSION"),
            model_name: Some(model_name(request, exchanges)),
        },
        steps,
        final_metrics,
        extra,
    }
}

/// The model as its server calls it, or as it was asked for.
fn model_name(request: &RolloutRequest, exchanges: &[&Exchange]) -> String {
    #[derive(serde::Deserialize)]
    struct Named {
        model: String,
    }
    let named = exchanges.iter().rev().find_map(|exchange| match &exchange.outcome {
        ExchangeOutcome::Replied { body, .. } => serde_json::from_slice::<Named>(body).ok(),
        ExchangeOutcome::Failed(_) | ExchangeOutcome::Abandoned => None,
    });
    named.map_or_else(|| request.model.model().to_owned(), |named| named.model)
}

fn outcome(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Scored { reward } => json!({"outcome": "scored", "reward": reward}),
        Outcome::Unscored(failure) => json!({
            "outcome": "unscored",
            "stage": failure.stage.as_str(),
            "kind": failure.kind.as_str(),
            "fault": failure.fault.as_str(),
            "reason": failure.reason,
        }),
    }
}

fn millis(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
