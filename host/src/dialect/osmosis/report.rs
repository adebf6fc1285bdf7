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
                let ids: Vec<&str> = unmatched.keys().copied().collect();
                tracing::warn!(
                    ids = ids.join(", "),
                    "the caller reported on samples that this rollout does not have"
                );
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
        if self.files.is_empty() {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A document with these sources of steps.
    fn document(sources: &[&str]) -> Trajectory {
        let steps: Vec<Value> = sources
            .iter()
            .map(|source| json!({"step_id": 1, "source": source, "message": "", "metrics": {"prompt_tokens": 7}}))
            .collect();
        let document = json!({
            "schema_version": "ATIF-v1.7", "session_id": "r", "trajectory_id": "r",
            "agent": {"name": "a", "version": "1"}, "steps": steps,
            "final_metrics": {"total_prompt_tokens": 7, "total_steps": sources.len()},
        });
        serde_json::from_value(document).expect("it is a document")
    }

    fn report(report: Value) -> Report {
        Report::read(json!({ "trajectory": report }).to_string().as_bytes()).expect("it is a report")
    }

    /// The documents of these samples with a report.
    fn with_report(samples: &[Option<&str>], sources: &[&str], of: Value) -> Vec<Value> {
        let mut documents: Vec<Trajectory> = samples.iter().map(|_| document(sources)).collect();
        report(of).apply(samples.iter().copied().zip(&mut documents));
        documents.iter().map(|document| serde_json::to_value(document).expect("it can be written")).collect()
    }

    #[test]
    fn what_is_no_report_is_left_out() {
        fn check(body: &str, is_report: bool) {
            assert_eq!(Report::read(body.as_bytes()).is_some(), is_report, "{body}");
        }
        check("", false);
        check("{", false);
        check("[]", false);
        check("{}", false);
        check(r#"{"trajectory":null}"#, false);
        check(r#"{"trajectory":{"samples":[]}}"#, false);
        check(r#"{"trajectory":{"samples":{"s":{"llm_call_metrics":[{"prompt_tokens":-1}]}}}}"#, false);
        check(r#"{"trajectory":{}}"#, true);
        check(r#"{"trajectory":{"samples":{"s":{"unknown":1}},"unknown":2}}"#, true);
    }

    #[test]
    fn calls_go_to_the_agents_steps_only_where_there_are_as_many() {
        let calls = |count: u64| {
            let calls: Vec<_> = (0..count).map(|at| json!({"prompt_tokens": 10 + at})).collect();
            json!({"samples": {"s": {"llm_call_metrics": calls}}})
        };
        let sources = ["user", "agent", "user", "agent"];
        let [fits] = &with_report(&[None], &sources, calls(2))[..] else { panic!("one document") };
        let tokens: Vec<_> = (0..4).map(|at| fits["steps"][at]["metrics"]["prompt_tokens"].clone()).collect();
        assert_eq!(tokens, [7, 10, 7, 11]);
        assert_eq!(fits["final_metrics"], json!({"total_prompt_tokens": 21, "total_steps": 4}));
        assert_eq!(fits.get("extra"), None);

        let [unfit] = &with_report(&[None], &sources, calls(3))[..] else { panic!("one document") };
        assert_eq!(unfit["steps"][1]["metrics"]["prompt_tokens"], 7);
        assert_eq!(
            unfit["extra"]["osmosis"]["unmatched_llm_call_metrics"],
            json!([{"prompt_tokens": 10}, {"prompt_tokens": 11}, {"prompt_tokens": 12}])
        );
        assert_eq!(unfit["final_metrics"]["total_prompt_tokens"], 33);
    }

    #[test]
    fn what_the_caller_says_of_the_whole_goes_before_sums() {
        let told = |final_metrics: Value| {
            let of = json!({"samples": {"s": {"llm_call_metrics": [{"cost_usd": 0.5}], "final_metrics": final_metrics}}});
            with_report(&[None], &["agent"], of)[0]["final_metrics"].clone()
        };
        assert_eq!(
            told(json!({"total_cost_usd": 2.0, "total_steps": 99, "extra": {"a": 1}})),
            json!({"total_cost_usd": 2.0, "total_steps": 1, "extra": {"a": 1}})
        );
        assert_eq!(told(json!({})), json!({"total_cost_usd": 0.5, "total_steps": 1}));
        assert_eq!(told(json!({"total_cost_usd": "much"})), json!({"total_cost_usd": 0.5, "total_steps": 1}));
    }

    #[test]
    fn a_call_of_which_nothing_is_said_keeps_what_was_observed() {
        let of = json!({"samples": {"s": {"llm_call_metrics": [{}, {"model_name": "engine"}]}}});
        let told = &with_report(&[None], &["agent", "agent"], of)[0];
        for at in 0..2 {
            assert_eq!(told["steps"][at]["metrics"], json!({"prompt_tokens": 7}));
        }
        assert_eq!(told["steps"][1]["model_name"], "engine");
    }

    #[test]
    fn a_sample_gets_the_report_under_its_id_or_the_only_one_there_is() {
        let named = |ids: &[&str]| {
            let of = |id: &&str| ((*id).to_owned(), json!({"model_name": format!("of-{id}")}));
            json!({"samples": ids.iter().map(of).collect::<Map<String, Value>>()})
        };
        fn models(documents: &[Value]) -> Vec<Value> {
            documents.iter().map(|document| document["agent"]["model_name"].clone()).collect()
        }
        let check = |samples: &[Option<&str>], ids: &[&str], expected: Value| {
            let documents = with_report(samples, &["agent"], named(ids));
            assert_eq!(json!(models(&documents)), expected, "{samples:?} {ids:?}");
            documents[0]["extra"]["osmosis"]["unmatched_sample_reports"].clone()
        };
        assert_eq!(check(&[Some("a")], &["a"], json!(["of-a"])), Value::Null);
        assert_eq!(check(&[Some("a")], &["x"], json!(["of-x"])), Value::Null);
        assert_eq!(check(&[None], &["x"], json!(["of-x"])), Value::Null);
        assert_eq!(check(&[Some("a"), Some("b")], &["b", "x"], json!([null, "of-b"])), Value::Null);
        let kept = check(&[Some("a")], &["x", "y"], json!([null]));
        assert_eq!(kept.as_object().map(Map::len), Some(2), "{kept}");
        let kept = check(&[Some("a")], &["a", "y"], json!(["of-a"]));
        assert_eq!(kept["y"]["model_name"], "of-y");
    }
}
