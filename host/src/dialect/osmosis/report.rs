//! What a caller reports of the model's calls when it acknowledges a callback, and how that
//! comes into the trajectories.
//!
//! Only the caller, whose endpoint the model is behind, knows what a call cost or which
//! tokens it was made of, unless its endpoint says so in each reply. A report goes into the
//! steps in place of what the host observed, which stays under `extra.rollout_host`.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use crate::rollout::{Finished, TrajectoryFile};
use crate::wire::atif::{FinalMetrics, Metrics, Source, Step, Trajectory};

/// A body that may have a report in it.
#[derive(Deserialize)]
struct Acknowledgement {
    #[serde(default)]
    trajectory: Option<Value>,
}

/// What a caller says of a rollout's calls of the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Report {
    #[serde(default)]
    model_name: Option<String>,
    #[serde(default)]
    samples: BTreeMap<String, SampleReport>,
}

/// What it says of one sample's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct SampleReport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model_name: Option<String>,
    /// In the order in which they were made.
    #[serde(default)]
    llm_call_metrics: Vec<CallReport>,
    /// In place of sums over the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    final_metrics: Option<Map<String, Value>>,
}

/// What it says of one call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct CallReport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completion_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completion_token_ids: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    extra: Option<Map<String, Value>>,
}

impl Report {
    /// The report in the body of an acknowledgement. Other bodies have none, and one that is
    /// malformed is none: a delivery is a delivery whatever was said to it.
    pub fn read(body: &[u8]) -> Option<Self> {
        let Acknowledgement { trajectory } = serde_json::from_slice(body).ok()?;
        match serde_json::from_value(trajectory?) {
            Ok(report) => Some(report),
            Err(error) => {
                tracing::warn!(%error, "the caller's report of the model's calls is malformed and left out");
                None
            }
        }
    }

    /// Puts the report into the trajectories of a rollout, one for each of these samples.
    fn apply<'a>(&'a self, documents: impl Iterator<Item = (Option<&'a str>, &'a mut Trajectory)>) {
        let mut documents: Vec<_> = documents.collect();
        let mut unmatched: BTreeMap<&str, &SampleReport> =
            self.samples.iter().map(|(id, report)| (id.as_str(), report)).collect();
        let mut matched: Vec<Option<&SampleReport>> =
            documents.iter().map(|(id, _)| id.and_then(|id| unmatched.remove(id))).collect();
        // Callers that know no sample ids give their one entry any key.
        if let ([only @ None], 1) = (matched.as_mut_slice(), unmatched.len()) {
            *only = unmatched.pop_first().map(|(_, report)| report);
        }
        for ((_, document), report) in documents.iter_mut().zip(matched) {
            if let Some(name) =
                report.and_then(|report| report.model_name.as_ref()).or(self.model_name.as_ref())
            {
                document.agent.model_name = Some(name.clone());
            }
            if let Some(report) = report {
                report.apply(document);
            }
        }
        match documents.as_mut_slice() {
            _ if unmatched.is_empty() => {}
            [(_, only)] => note(only, "unmatched_sample_reports", json!(unmatched)),
            _ => {
                let ids: Vec<_> = unmatched.keys().collect();
                tracing::warn!(?ids, "the caller reported on samples that this rollout does not have");
            }
        }
    }
}

impl SampleReport {
    fn apply(&self, document: &mut Trajectory) {
        let agent = |step: &&mut Step| step.source == Source::Agent;
        let steps: Vec<&mut Step> = document.steps.iter_mut().filter(agent).collect();
        let calls = &self.llm_call_metrics;
        if calls.is_empty() {
            // Nothing is said of any call.
        } else if steps.len() == calls.len() {
            for (step, call) in steps.into_iter().zip(calls) {
                call.apply(step);
            }
        } else {
            // Nobody can tell which call was which step.
            note(document, "unmatched_llm_call_metrics", json!(calls));
        }
        if let Some(sums) = self.sums() {
            let total_steps = document.final_metrics.total_steps;
            document.final_metrics = FinalMetrics { total_steps, ..sums };
        }
    }

    /// What the caller says that all of it came to, or else the sums over the calls.
    fn sums(&self) -> Option<FinalMetrics> {
        let mut told = self.final_metrics.clone().unwrap_or_default();
        told.remove("total_steps");
        if !told.is_empty() {
            told.insert("total_steps".to_owned(), 0.into());
            match serde_json::from_value(told.into()) {
                Ok(sums) => return Some(sums),
                Err(error) => tracing::warn!(%error, "the caller's final metrics are malformed and left out"),
            }
        }
        if self.llm_call_metrics.is_empty() {
            return None;
        }
        let calls = self.llm_call_metrics.as_slice();
        let tokens = |tokens: fn(&CallReport) -> Option<u64>| {
            calls.iter().filter_map(tokens).reduce(u64::saturating_add)
        };
        Some(FinalMetrics {
            total_prompt_tokens: tokens(|call| call.prompt_tokens),
            total_completion_tokens: tokens(|call| call.completion_tokens),
            total_cached_tokens: tokens(|call| call.cached_tokens),
            total_cost_usd: calls.iter().filter_map(|call| call.cost_usd).reduce(|sum, cost| sum + cost),
            ..FinalMetrics::default()
        })
    }
}

impl CallReport {
    fn apply(&self, step: &mut Step) {
        step.llm_call_count = Some(1);
        if self.model_name.is_some() {
            step.model_name.clone_from(&self.model_name);
        }
        if *self == (Self { model_name: self.model_name.clone(), ..Self::default() }) {
            return;
        }
        let ids = |ids: &Option<Vec<i64>>| ids.as_ref().and_then(|ids| to_raw_value(ids).ok());
        step.metrics = Some(Metrics {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.cached_tokens,
            cost_usd: self.cost_usd,
            prompt_token_ids: ids(&self.prompt_token_ids),
            completion_token_ids: ids(&self.completion_token_ids),
            logprobs: self.logprobs.clone(),
            extra: self.extra.clone().unwrap_or_default(),
        });
    }
}

/// Puts a value where this protocol's evaluators look for it.
fn note(document: &mut Trajectory, key: &str, value: Value) {
    let ours = document.extra.entry("osmosis").or_insert_with(|| json!({}));
    if let Some(ours) = ours.as_object_mut() {
        ours.insert(key.to_owned(), value);
    }
}

/// The trajectories of a rollout into which reports are merged.
pub(super) struct Trajectories<'a> {
    files: &'a [TrajectoryFile],
    /// As they were before the first report, because a later one takes its place.
    unmerged: Option<Vec<Trajectory>>,
}

impl<'a> Trajectories<'a> {
    /// Those that were written of this rollout.
    pub fn of(finished: &'a Finished) -> Self {
        Self { files: &finished.trajectories, unmerged: None }
    }

    /// Merges a report, in place of any that was merged before. Where that fails the
    /// trajectories stay as they are, and the outcome is none the worse.
    pub async fn merge(&mut self, report: &Report) {
        if let Err(error) = self.try_merge(report).await {
            tracing::error!(%error, "the caller's report was not merged into the trajectory");
        }
    }

    async fn try_merge(&mut self, report: &Report) -> io::Result<()> {
        let unmerged = match self.unmerged.take() {
            Some(unmerged) => unmerged,
            None => {
                let mut read = Vec::new();
                for file in self.files {
                    read.push(file.read().await?);
                }
                read
            }
        };
        let mut merged = unmerged.clone();
        self.unmerged = Some(unmerged);
        let ids = self.files.iter().map(|file| file.sample().map(|id| id.as_str()));
        report.apply(ids.zip(&mut merged));
        for (file, document) in self.files.iter().zip(&merged) {
            file.replace(document).await?;
        }
        Ok(())
    }
}
