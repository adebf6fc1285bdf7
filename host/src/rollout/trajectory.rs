//! What is written down of a rollout: `trajectory.json`, artifacts and log.
//!
//! The steps are what the workflow claims, with what the host observed of the calls
//! behind them; `extra.rollout_host` has the observed exchanges whole.

mod steps;
mod store;
mod tools;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::RolloutRequest;
use super::outcome::{Finished, FinishedSample, Outcome};
use crate::digest::sha256_hex;
use crate::id::{RolloutId, SampleId};
use crate::imports::{Exchange, ExchangeOutcome, JudgeExchange, Recorded, RunContext, ToolUse};
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

/// A trajectory that was written.
#[derive(Clone, Debug)]
pub struct TrajectoryFile {
    path: PathBuf,
    sample: Option<SampleId>,
}

impl TrajectoryFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sample that it is of, where there is one.
    pub fn sample(&self) -> Option<&SampleId> {
        self.sample.as_ref()
    }

    /// Reads it.
    pub async fn read(&self) -> io::Result<Trajectory> {
        let text = tokio::fs::read(&self.path).await?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Puts another document in its place; a reader sees the one or the other.
    pub async fn replace(&self, document: &Trajectory) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(document)?;
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || store::replace(&path, &text)).await?
    }
}

/// A document to be written.
struct Document {
    file_name: String,
    sample: Option<SampleId>,
    trajectory: Trajectory,
}

/// The digests of what ran.
pub(super) struct Plugins {
    pub workflow: String,
    pub grader: Option<String>,
}

/// The documents of a rollout: one where it has one sample or none, else one a sample.
fn documents(
    request: &RolloutRequest,
    run: &RunContext,
    finished: &Finished,
    recorded: &Recorded,
    plugins: &Plugins,
) -> Vec<Document> {
    let owners = tools::owners(&finished.samples, &recorded.exchanges, &recorded.tool_uses);
    let document = |place: usize, sample: Option<&FinishedSample>, file_name: String| {
        let exchanges: Vec<&Exchange> = recorded
            .exchanges
            .iter()
            .filter(|exchange| sample.is_none_or(|sample| exchange.sample == sample.record.id))
            .collect();
        let sample_id = sample.map(|sample| sample.record.id.clone());
        let uses = recorded.tool_uses.iter().zip(&owners).filter(|(_, owner)| **owner == place);
        let seen = Seen {
            exchanges: &exchanges,
            tool_uses: uses.map(|(call, _)| call).collect(),
            judged: &recorded.judged,
        };
        let trajectory = build(request, run, finished, sample, &seen, plugins);
        Document { file_name, sample: sample_id, trajectory }
    };
    match finished.samples.as_slice() {
        [] => vec![document(0, None, "trajectory.json".to_owned())],
        [only] => vec![document(0, Some(only), "trajectory.json".to_owned())],
        several => {
            let mut taken = HashSet::new();
            let file_name = |id: &SampleId| {
                let part = id.file_part();
                if taken.insert(part.clone()) {
                    return format!("trajectory-{part}.json");
                }
                // Two ids may differ only in what no file name can have.
                format!("trajectory-{part}-{}.json", sha256_hex(id.as_str().as_bytes()))
            };
            let names: Vec<String> = several.iter().map(|sample| &sample.record.id).map(file_name).collect();
            let documents = several.iter().zip(names).enumerate();
            documents.map(|(place, (sample, name))| document(place, Some(sample), name)).collect()
        }
    }
}

/// The rollout's name, and where its caller takes several samples, the sample's.
fn trajectory_id(request: &RolloutRequest, finished: &Finished, sample: Option<&FinishedSample>) -> String {
    match sample {
        Some(sample) if request.samples_max > 1 => format!("{}/{}", finished.id, sample.record.id),
        _ => finished.id.to_string(),
    }
}

/// What the host saw of one document's part of a rollout.
struct Seen<'a> {
    exchanges: &'a [&'a Exchange],
    tool_uses: Vec<&'a ToolUse>,
    judged: &'a [JudgeExchange],
}

fn build(
    request: &RolloutRequest,
    run: &RunContext,
    finished: &Finished,
    sample: Option<&FinishedSample>,
    seen: &Seen<'_>,
    plugins: &Plugins,
) -> Trajectory {
    let exchanges = seen.exchanges;
    // A workflow that was stopped before it registered anything still made calls; the
    // last request and its reply are then the best account of the conversation.
    let last_seen = steps::last_conversation(exchanges);
    let claimed =
        sample.map(|sample| sample.record.messages.as_slice()).filter(|messages| !messages.is_empty());
    let seen_last = (!last_seen.is_empty()).then_some(last_seen.as_slice());
    let steps::Account { steps, final_metrics, unmatched } = match claimed.or(seen_last) {
        Some(messages) => steps::account(messages.iter().map(|message| message.get()), exchanges),
        None => steps::account(request.prompt.iter(), exchanges),
    };

    let mut extra = Map::new();
    let facts = Facts {
        rollout_id: &finished.id,
        sample,
        label: request.label.as_deref(),
        metadata: request.metadata.as_ref().map(|metadata| metadata.whole().as_ref()),
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
            "tool_calls": finished.spent.tool_calls,
            "prompt_tokens": finished.spent.prompt_tokens,
            "completion_tokens": finished.spent.completion_tokens,
            "guest_cpu_ms": millis(finished.spent.guest_cpu),
            "memory_bytes_peak": finished.spent.memory_bytes_peak,
            "host_calls": finished.spent.host_calls,
            "waited_ms": millis(finished.spent.waited()),
            "model_ms": millis(finished.spent.model_time),
            "duration_ms": millis(finished.duration),
            "queued_ms": millis(finished.queued),
        },
        "limits": limits(finished),
        "observed": steps::observed(exchanges),
    });
    if !seen.tool_uses.is_empty() {
        ours["observed_tool_calls"] = tools::observed(seen.tool_uses.iter().copied()).into();
    }
    if !seen.judged.is_empty() {
        ours["judged"] = steps::judged(seen.judged).into();
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
        schema_version: SCHEMA_VERSION.into(),
        session_id: finished.id.to_string(),
        trajectory_id: trajectory_id(request, finished, sample),
        agent: Agent {
            name: "rollout-host".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            model_name: Some(model_name(request, exchanges)),
        },
        steps,
        final_metrics,
        extra,
    }
}

/// Every limit under its name.
fn limits(finished: &Finished) -> Map<String, Value> {
    finished.limits.iter().map(|limit| (limit.name.to_owned(), json!(limit))).collect()
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

/// Any messages that may be pushed, with any reply of a model, make a trajectory that can
/// be read: a message or the reply's body on each line.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzzing_trajectory(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (replies, messages): (Vec<&str>, Vec<&str>) =
        text.split('\n').partition(|line| line.contains("\"choices\""));
    let messages: Vec<Box<RawValue>> = messages
        .into_iter()
        .filter_map(|line| crate::wire::object(line).ok().map(ToOwned::to_owned))
        .collect();
    let sample = crate::id::SampleId::parse("main").expect("it is one");
    let exchanges: Vec<Exchange> = replies
        .into_iter()
        .map(|body| Exchange {
            sample: sample.clone(),
            request: body.to_owned().into(),
            started_at: std::time::UNIX_EPOCH,
            duration: std::time::Duration::ZERO,
            outcome: ExchangeOutcome::Replied {
                body: body.to_owned().into(),
                finish_reason: None,
                usage: None,
                attempts: 1,
            },
        })
        .collect();
    let exchanges: Vec<&Exchange> = exchanges.iter().collect();
    let steps::Account { steps, final_metrics, unmatched } =
        steps::account(messages.iter().map(|message| message.get()), &exchanges);
    assert!(!steps.is_empty() && steps.iter().enumerate().all(|(at, step)| step.step_id == at + 1));
    assert_eq!(final_metrics.total_steps, steps.len());
    let written = json!({
        "steps": steps,
        "metrics": final_metrics,
        "unmatched": unmatched,
        "observed": steps::observed(&exchanges),
        "last": steps::last_conversation(&exchanges),
    });
    let text = serde_json::to_string(&written).expect("a trajectory can be written");
    serde_json::from_str::<&RawValue>(&text).expect("and read");
}
