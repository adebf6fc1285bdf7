//! Callers' reports of model calls, sent in acknowledgements of callbacks and merged into trajectories.
//!
//! The model is behind the caller's endpoint, so only the caller knows the cost and tokens of a call, unless its endpoint
//! sends them in each reply. A report replaces the host's observations in the steps; the observations stay under
//! `extra.rollout_host`. A report is stored unchanged, and read call by call when it is merged.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::sample::UNMATCHED;
use rollout_rollout::{
    Amendable, AmendedDocument, Amendment, Finished, Member, StepAmendment, TakeStep, TrajectoryFile,
};
use rollout_wire as wire;
use rollout_wire::atif::{FinalMetrics, Metrics};
use rollout_wire::id::SampleId;
use rollout_wire::stream::{Stopped, Text, each, is_list_of, members};

/// Maximum number of unknown sample ids that are logged.
const IDS_SHOWN: usize = 8;

/// A caller's report of a rollout's model calls: checked JSON.
#[derive(Clone, Debug)]
pub(crate) struct Report(Bytes);

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    model_name: Option<Text<'a>>,
    #[serde(borrow, default)]
    samples: Option<&'a RawValue>,
}

/// The report of one sample's calls.
#[derive(Clone, Debug, Deserialize)]
struct SampleReport<'a> {
    #[serde(borrow, default)]
    model_name: Option<Text<'a>>,
    /// The calls in order.
    #[serde(borrow, default)]
    llm_call_metrics: Option<&'a RawValue>,
    /// Sums that replace the sums over the calls.
    #[serde(borrow, default)]
    final_metrics: Option<&'a RawValue>,
}

/// The report of one call.
#[derive(Deserialize)]
struct CallReport<'a> {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    cached_tokens: Option<u64>,
    #[serde(default)]
    cost_usd: Option<f64>,
    #[serde(borrow, default)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model_name: Option<Text<'a>>,
    #[serde(borrow, default)]
    extra: Option<&'a RawValue>,
}

impl Report {
    /// Returns the report in the body of an acknowledgement, if there is one. A malformed report is ignored: the
    /// callback was delivered.
    pub(crate) fn read(body: &Bytes) -> Option<Self> {
        /// A body that may contain a report.
        #[derive(Deserialize)]
        struct Acknowledgement<'a> {
            #[serde(borrow, default)]
            trajectory: Option<&'a RawValue>,
        }
        let Acknowledgement { trajectory } = serde_json::from_slice(body).ok()?;
        let trajectory = trajectory?.get();
        match check(trajectory) {
            Ok(()) => Some(Self(body.slice_ref(trajectory.as_bytes()))),
            Err(error) => {
                tracing::warn!(error, "the caller's report of its model calls is malformed and was ignored");
                None
            }
        }
    }

    /// Reads a stored report.
    pub(crate) fn from_stored(report: &RawValue) -> Self {
        Self(Bytes::copy_from_slice(report.get().as_bytes()))
    }

    /// Returns the stored form.
    pub(crate) fn as_raw(&self) -> &RawValue {
        serde_json::from_slice(&self.0).unwrap_or(RawValue::NULL)
    }

    fn parts(&self) -> Parts<'_> {
        serde_json::from_slice(&self.0).unwrap_or(Parts { model_name: None, samples: None })
    }

    /// Assigns the report to the documents of these samples.
    pub(crate) fn for_samples(&self, ids: &[Option<&str>]) -> Amendments<'_> {
        let Parts { model_name, samples } = self.parts();
        Amendments { model_name, matched: Matched::find(samples.map_or("{}", RawValue::get), ids) }
    }

    /// Merges the report into the trajectories of a rollout. Blocks.
    pub(crate) fn apply(&self, documents: &[impl AmendedDocument]) -> io::Result<()> {
        let ids: Vec<Option<&str>> =
            documents.iter().map(|document| document.sample().map(SampleId::as_str)).collect();
        let amendments = self.for_samples(&ids);
        documents.iter().enumerate().try_for_each(|(index, document)| amendments.amend(index, document))
    }
}

/// A report, assigned to the documents of a rollout.
pub(crate) struct Amendments<'a> {
    model_name: Option<Text<'a>>,
    matched: Matched<'a>,
}

impl Amendments<'_> {
    /// Merges the report of the sample at `index` into its document. Blocks.
    pub(crate) fn amend(&self, index: usize, document: &impl AmendedDocument) -> io::Result<()> {
        let Matched { reports, unmatched } = &self.matched;
        let report = reports.get(index).and_then(Option::as_ref);
        let name = report.and_then(|report| report.model_name.as_ref()).or(self.model_name.as_ref());
        let mut amendment = Amendment { model_name: name.map(|Text(name)| &**name), ..Amendment::default() };
        if let (1, Some(unmatched)) = (reports.len(), unmatched) {
            amendment.members.push(("unmatched_sample_reports", Member::Raw(unmatched)));
        }
        match report {
            Some(report) => report.amend(document, amendment),
            None => document.amend(&amendment),
        }
    }
}

/// Checks a report. The error describes the mistake.
fn check(report: &str) -> Result<(), String> {
    wire::object(report)?;
    let parts: Parts<'_> = serde_json::from_str(report).map_err(|error| error.to_string())?;
    let sample = |name: std::borrow::Cow<'_, str>, sample: SampleReport<'_>| {
        let located = |error: String| format!("samples['{}']: {error}", name.escape_debug());
        if sample.final_metrics.is_some_and(|sums| !sums.get().starts_with('{')) {
            return Err(located("final_metrics is not an object".to_owned()));
        }
        let mut index = 0_usize;
        each(sample.calls(), |call: CallReport<'_>| {
            let checked = call.check().map_err(|error| format!("llm_call_metrics[{index}].{error}"));
            index += 1;
            checked
        })
        .map_err(|stopped| located(stopped.into()))
    };
    Ok(members(parts.samples.map_or("{}", RawValue::get), sample)?)
}

/// The reports of a rollout's samples.
struct Matched<'a> {
    /// For each document, the report of its sample.
    reports: Vec<Option<SampleReport<'a>>>,
    /// The reports of unknown samples, if there are any: an object with a member for each.
    unmatched: Option<Box<RawValue>>,
}

impl<'a> Matched<'a> {
    fn find(samples: &'a str, ids: &[Option<&str>]) -> Self {
        let mut reports: Vec<Option<SampleReport<'a>>> = vec![None; ids.len()];
        let (mut unmatched, mut unmatched_names, mut only) = (String::from("{"), Vec::new(), None);
        let mut count = 0_usize;
        // This cannot fail: `check` parsed the samples when the report arrived.
        let _ = members(samples, |name, report: &'a RawValue| {
            let parsed = serde_json::from_str(report.get()).ok();
            if let Some(index) = ids.iter().position(|id| *id == Some(&*name)) {
                reports[index] = parsed;
                return Ok::<(), Infallible>(());
            }
            count += 1;
            only = parsed.filter(|_| count == 1);
            if count > 1 {
                unmatched.push(',');
            }
            unmatched += &serde_json::Value::from(&*name).to_string();
            unmatched.push(':');
            unmatched += report.get();
            if unmatched_names.len() < IDS_SHOWN {
                unmatched_names.push(name);
            }
            Ok(())
        });
        unmatched.push('}');
        // Callers that have no sample ids use any key for their single entry.
        if let ([report @ None], Some(_)) = (reports.as_mut_slice(), &only) {
            *report = only;
            return Self { reports, unmatched: None };
        }
        if reports.len() > 1 && count > 0 {
            tracing::warn!(
                count,
                ids = unmatched_names.join(", "),
                "the caller reported on samples that this rollout does not have"
            );
        }
        let unmatched = RawValue::from_string(unmatched).ok().filter(|_| count > 0);
        Self { reports, unmatched }
    }
}

impl<'a> SampleReport<'a> {
    fn calls(&self) -> &'a str {
        self.llm_call_metrics.map_or("[]", RawValue::get)
    }

    fn call_count(&self) -> usize {
        let mut count = 0;
        let _ = each(self.calls(), |_: IgnoredAny| {
            count += 1;
            Ok::<(), Infallible>(())
        });
        count
    }

    fn amend(&self, document: &impl AmendedDocument, amendment: Amendment<'_>) -> io::Result<()> {
        let count = self.call_count();
        let steps = |take: &mut TakeStep<'_>| {
            let calls = each(self.calls(), |call: CallReport<'_>| take(call.amendment()));
            calls.map_err(|stopped| match stopped {
                Stopped::Json(error) => error.into(),
                Stopped::Taker(error) => error,
            })
        };
        // Shortens the lifetime of the amendment, which may then borrow `steps`.
        let mut amendment: Amendment<'_> = amendment;
        if count == 0 {
            // The report has no calls.
        } else if document.agent_steps() == count {
            amendment.steps = Some(&steps);
        } else if let Some(calls) = self.llm_call_metrics {
            // The numbers differ, so the calls cannot be assigned to steps.
            amendment.members.push((UNMATCHED, Member::Raw(calls)));
        }
        amendment.final_metrics = self.sums();
        document.amend(&amendment)
    }

    /// Returns the caller's sums, or the sums over the calls if it sent none.
    fn sums(&self) -> Option<FinalMetrics<'a>> {
        match self.final_metrics.map(|given| read_sums(given.get())) {
            Some(Ok(Some(sums))) => return Some(sums),
            Some(Err(error)) => {
                tracing::warn!(error, "the caller's final metrics are malformed and left out");
            }
            Some(Ok(None)) | None => {}
        }
        let (mut sums, mut is_empty) = (FinalMetrics::default(), true);
        let add = |sum: &mut Option<u64>, tokens: Option<u64>| {
            if let Some(tokens) = tokens {
                *sum = Some(sum.unwrap_or(0).saturating_add(tokens));
            }
        };
        let _ = each(self.calls(), |call: CallReport<'_>| {
            is_empty = false;
            add(&mut sums.total_prompt_tokens, call.prompt_tokens);
            add(&mut sums.total_completion_tokens, call.completion_tokens);
            add(&mut sums.total_cached_tokens, call.cached_tokens);
            if let Some(cost) = call.cost_usd {
                sums.total_cost_usd = Some(sums.total_cost_usd.unwrap_or(0.0) + cost);
            }
            Ok::<(), Infallible>(())
        });
        // A sum of prices may be infinite.
        sums.total_cost_usd = sums.total_cost_usd.filter(|cost| cost.is_finite());
        (!is_empty).then_some(sums)
    }
}

/// Parses a caller's sums. Returns `None` if they contain nothing but the number of steps.
fn read_sums(given: &str) -> Result<Option<FinalMetrics<'_>>, String> {
    #[derive(Deserialize)]
    struct Sums<'a> {
        #[serde(default)]
        total_prompt_tokens: Option<u64>,
        #[serde(default)]
        total_completion_tokens: Option<u64>,
        #[serde(default)]
        total_cached_tokens: Option<u64>,
        #[serde(default)]
        total_cost_usd: Option<f64>,
        #[serde(borrow, default)]
        extra: Option<&'a RawValue>,
    }
    let mut has_sums = false;
    members(given, |name, _: IgnoredAny| {
        has_sums |= name != "total_steps";
        Ok::<(), String>(())
    })?;
    let sums: Sums<'_> = serde_json::from_str(given).map_err(|error| error.to_string())?;
    if sums.extra.is_some_and(|extra| !extra.get().starts_with('{')) {
        return Err("extra is not an object".to_owned());
    }
    Ok(has_sums.then_some(FinalMetrics {
        total_prompt_tokens: sums.total_prompt_tokens,
        total_completion_tokens: sums.total_completion_tokens,
        total_cached_tokens: sums.total_cached_tokens,
        total_cost_usd: sums.total_cost_usd,
        total_steps: 0,
        extra: sums.extra,
    }))
}

impl CallReport<'_> {
    fn check(&self) -> Result<(), String> {
        let is_list = |list: Option<&RawValue>, is: fn(&str) -> bool| list.is_none_or(|list| is(list.get()));
        for (name, ids) in
            [("prompt_token_ids", self.prompt_token_ids), ("completion_token_ids", self.completion_token_ids)]
        {
            if !is_list(ids, is_list_of::<i64>) {
                return Err(format!("{name} is not a list of whole numbers"));
            }
        }
        if !is_list(self.logprobs, is_list_of::<f64>) {
            return Err("logprobs is not a list of numbers".to_owned());
        }
        if self.extra.is_some_and(|extra| !extra.get().starts_with('{')) {
            return Err("extra is not an object".to_owned());
        }
        Ok(())
    }

    fn amendment(&self) -> StepAmendment<'_> {
        let Self { prompt_tokens, completion_tokens, cached_tokens, cost_usd, .. } = *self;
        let Self { prompt_token_ids, completion_token_ids, logprobs, extra, .. } = *self;
        let tokens = [prompt_tokens, completion_tokens, cached_tokens];
        let written = [prompt_token_ids, completion_token_ids, logprobs, extra];
        let is_empty =
            tokens.iter().all(Option::is_none) && cost_usd.is_none() && written.iter().all(Option::is_none);
        let metrics = Metrics {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            cost_usd,
            prompt_token_ids: prompt_token_ids.map(Cow::Borrowed),
            completion_token_ids: completion_token_ids.map(Cow::Borrowed),
            logprobs: logprobs.map(Cow::Borrowed),
            extra: extra.map(ToOwned::to_owned),
        };
        StepAmendment {
            model_name: self.model_name.as_ref().map(|Text(name)| &**name),
            metrics: (!is_empty).then_some(metrics),
        }
    }
}

/// The trajectories of a rollout into which reports are merged.
pub(super) struct Trajectories<'a> {
    files: &'a [TrajectoryFile],
    /// The trajectories before the first report, because a later report replaces it.
    unmerged: Option<Vec<Amendable>>,
}

impl<'a> Trajectories<'a> {
    /// Returns the trajectories that were written for this rollout.
    pub(crate) fn of(finished: &'a Finished) -> Self {
        Self { files: &finished.trajectories, unmerged: None }
    }

    /// Merges a report and replaces an earlier one. On failure the trajectories stay unchanged; the outcome is not
    /// affected.
    pub(crate) async fn merge(&mut self, report: &Report) {
        if self.files.is_empty() {
            return;
        }
        if let Err(error) = self.try_merge(report).await {
            tracing::error!(%error, "the caller's report was not merged into the trajectory");
        }
    }

    async fn try_merge(&mut self, report: &Report) -> io::Result<()> {
        let (files, report, unmerged) = (self.files.to_vec(), report.clone(), self.unmerged.take());
        let merge = move || -> io::Result<Vec<Amendable>> {
            let unmerged = match unmerged {
                Some(unmerged) => unmerged,
                None => files.iter().map(TrajectoryFile::amendable).collect::<io::Result<_>>()?,
            };
            report.apply(&unmerged)?;
            Ok(unmerged)
        };
        self.unmerged = Some(tokio::task::spawn_blocking(merge).await??);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

    fn report(report: Value) -> Report {
        Report::read(&json!({ "trajectory": report }).to_string().into()).expect("the body has a report")
    }

    #[test]
    fn a_malformed_report_is_ignored() {
        fn check(body: &'static str, is_report: bool) {
            assert_eq!(Report::read(&Bytes::from_static(body.as_bytes())).is_some(), is_report, "{body}");
        }
        check("", false);
        check("{", false);
        check("[]", false);
        check("{}", false);
        check(r#"{"trajectory":null}"#, false);
        check(r#"{"trajectory":{"samples":[]}}"#, false);
        check(r#"{"trajectory":{"samples":{"s":{"llm_call_metrics":[{"prompt_tokens":-1}]}}}}"#, false);
        check(r#"{"trajectory":{"samples":{"s":{"llm_call_metrics":[{"logprobs":["x"]}]}}}}"#, false);
        check(r#"{"trajectory":{}}"#, true);
        check(r#"{"trajectory":{"samples":{"s":{"unknown":1}},"unknown":2}}"#, true);
    }

    #[test]
    fn the_callers_final_metrics_replace_the_sums_over_calls() {
        let sums_of = |final_metrics: Value| {
            let sample = json!({"llm_call_metrics": [{"cost_usd": 0.5}, {"prompt_tokens": 3}], "final_metrics": final_metrics});
            let text = sample.to_string();
            let sample: SampleReport<'_> = serde_json::from_str(&text).unwrap();
            json!(sample.sums())
        };
        assert_eq!(
            sums_of(json!({"total_cost_usd": 2.0, "total_steps": 99, "extra": {"a": 1}})),
            json!({"total_cost_usd": 2.0, "total_steps": 0, "extra": {"a": 1}})
        );
        let sums = json!({"total_prompt_tokens": 3, "total_cost_usd": 0.5, "total_steps": 0});
        assert_eq!(sums_of(json!({})), sums);
        assert_eq!(sums_of(json!({"total_cost_usd": "much"})), sums);
    }

    #[test]
    fn a_call_without_a_report_keeps_the_observation() {
        let reported = |call: &str| {
            let call: CallReport<'_> = serde_json::from_str(call).unwrap();
            (call.amendment().metrics.is_some(), call.amendment().model_name.map(str::to_owned))
        };
        assert_eq!(reported("{}"), (false, None));
        assert_eq!(reported(r#"{"model_name":"engine"}"#), (false, Some("engine".to_owned())));
        assert_eq!(reported(r#"{"cached_tokens":0}"#), (true, None));
    }

    #[test]
    fn a_sample_gets_the_report_under_its_id_or_the_only_report() {
        let named = |ids: &[&str]| {
            let of = |id: &&str| ((*id).to_owned(), json!({"model_name": format!("of-{id}")}));
            report(json!({"samples": ids.iter().map(of).collect::<Map<String, Value>>()}))
        };
        let check = |samples: &[Option<&str>], ids: &[&str], expected: &[Option<&str>], rest: Value| {
            let report = named(ids);
            let matched = Matched::find(report.parts().samples.unwrap().get(), samples);
            let models: Vec<Option<&str>> = matched
                .reports
                .iter()
                .map(|report| Some(&*report.as_ref()?.model_name.as_ref()?.0))
                .collect();
            assert_eq!(models, expected, "{samples:?} {ids:?}");
            assert_eq!(json!(matched.unmatched), rest, "{samples:?} {ids:?}");
        };
        check(&[Some("a")], &["a"], &[Some("of-a")], Value::Null);
        check(&[Some("a")], &["x"], &[Some("of-x")], Value::Null);
        check(&[None], &["x"], &[Some("of-x")], Value::Null);
        check(&[Some("a"), Some("b")], &["b"], &[None, Some("of-b")], Value::Null);
        let of = |ids: &[&str]| {
            let of = |id: &&str| ((*id).to_owned(), json!({"model_name": format!("of-{id}")}));
            json!(ids.iter().map(of).collect::<Map<String, Value>>())
        };
        check(&[Some("a")], &["x", "y"], &[None], of(&["x", "y"]));
        check(&[Some("a")], &["a", "y"], &[Some("of-a")], of(&["y"]));
    }
}
