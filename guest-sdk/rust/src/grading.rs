//! Input and output of a grader.
//!
//! A grader runs after the workflow, in an instance of its own, and is the only code that sees the label. It
//! runs no tools and calls no model but a judge ([`rubric`](crate::rubric()),
//! [`JudgeRequest`](crate::JudgeRequest)).

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bindings::grader as contract;
use crate::bindings::imports::{context as host, observations};
use crate::message::{Message, last_assistant_text, parse_messages};
use crate::{Error, OrError, Result, answer, context};

/// A reward function.
///
/// `C` is the type of the operator's configuration, as for
/// [`Workflow`](crate::Workflow).
///
/// ```
/// use rollout_sdk::{GradeContext, Grader, Result, Verdicts, same_number};
///
/// struct LastNumber;
///
/// impl Grader for LastNumber {
///     fn grade(ctx: GradeContext) -> Result<Verdicts> {
///         let answer = ctx.sample()?.answer_after("####").unwrap_or_default();
///         Ok(same_number(&answer, ctx.require_label()?).into())
///     }
/// }
/// ```
pub trait Grader<C: DeserializeOwned = ()> {
    /// Rates the samples of one rollout.
    ///
    /// # Errors
    ///
    /// An error leaves the rollout without a reward. It is meant for a grader that cannot decide; a wrong
    /// answer should get a low reward instead.
    fn grade(ctx: GradeContext<C>) -> Result<Verdicts>;
}

/// The rollout to be graded.
#[derive(Debug)]
pub struct GradeContext<C = ()> {
    label: Option<String>,
    samples: Vec<GradedSample>,
    config: C,
}

impl<C: DeserializeOwned> GradeContext<C> {
    pub(crate) fn read(label: Option<String>, samples: Vec<contract::GradedSample>) -> Result<Self> {
        let samples = samples.into_iter().map(GradedSample::read).collect::<Result<_>>()?;
        let config = context::config()?;
        Ok(Self { label, samples, config })
    }
}

impl<C> GradeContext<C> {
    /// Returns the ground truth in the data set's row, if there is one.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns the ground truth in the data set's row.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the row has none.
    pub fn require_label(&self) -> Result<&str> {
        self.label().or_invalid("the row has no ground truth")
    }

    /// Returns all samples of the rollout.
    pub fn samples(&self) -> &[GradedSample] {
        &self.samples
    }

    /// Returns the only sample of the rollout.
    ///
    /// # Errors
    ///
    /// Fails if there is not exactly one.
    pub fn sample(&self) -> Result<&GradedSample> {
        match &*self.samples {
            [sample] => Ok(sample),
            samples => Err(Error::failed(format_args!(
                "this grader rates one sample, and there are {}",
                samples.len()
            ))),
        }
    }

    /// Rates the only sample with a reward function, as [`reward`](crate::reward()) does. The truth is the
    /// label, and the extra information is the row's metadata.
    ///
    /// # Errors
    ///
    /// Fails if there is no label, not exactly one sample, or the function fails.
    pub fn reward_by(
        &self,
        function: impl FnOnce(&str, &str, Option<&Value>) -> Result<f64>,
    ) -> Result<Verdicts> {
        let extra_info = self.metadata_json()?;
        let messages = self.sample()?.messages();
        Ok(crate::reward(messages, self.require_label()?, extra_info.as_ref(), function)?.into())
    }

    /// Returns the operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Deserializes the metadata of the data set's row. A row without metadata counts as an object without
    /// fields.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        context::metadata()
    }

    /// Returns the metadata of the data set's row, if there is any.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata is not JSON.
    pub fn metadata_json(&self) -> Result<Option<Value>> {
        context::metadata_json()
    }

    /// Returns the rollout's id, which the caller chose.
    pub fn rollout_id(&self) -> String {
        host::rollout_id()
    }

    /// Returns the number of the attempt: 1 at first, one more each time the rollout restarts.
    pub fn attempt(&self) -> u32 {
        host::attempt()
    }

    /// Returns the time until the host ends this run, or `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        context::time_left()
    }
}

/// A sample to be graded.
#[derive(Clone, Debug)]
pub struct GradedSample {
    id: String,
    messages: Vec<Message>,
    metrics: Vec<(String, f64)>,
}

impl GradedSample {
    fn read(sample: contract::GradedSample) -> Result<Self> {
        let contract::GradedSample { id, messages, metrics } = sample;
        let messages = parse_messages(&format!("sample `{id}`:"), &messages)?;
        let metrics = metrics.into_iter().map(|metric| (metric.name, metric.value)).collect();
        Ok(Self { id, messages, metrics })
    }

    /// Returns the sample's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the conversation as the workflow recorded it.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the text of the model's last message, empty if there is none.
    pub fn text(&self) -> String {
        last_assistant_text(&self.messages).unwrap_or_default()
    }

    /// Returns the text after the marker in the model's last message, see
    /// [`answer_after`](crate::answer_after).
    pub fn answer_after(&self, marker: &str) -> Option<String> {
        answer::answer_after(&self.text(), marker).map(str::to_owned)
    }

    /// Returns the workflow's measurements.
    pub fn metrics(&self) -> &[(String, f64)] {
        &self.metrics
    }

    /// Returns the workflow's measurement of this name.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let named = self.metrics.iter().find(|metric| metric.0 == name)?;
        Some(named.1)
    }

    /// Returns every model call of this sample as the host recorded it, in order, independently of the
    /// workflow's record.
    ///
    /// # Errors
    ///
    /// Fails if the host returns invalid JSON.
    pub fn observed(&self) -> Result<Vec<Exchange>> {
        observations::exchanges(&self.id).into_iter().map(Exchange::read).collect()
    }

    /// Returns a verdict with a finite reward for this sample.
    pub fn reward(&self, reward: impl Into<Reward>) -> Verdict {
        Verdict { sample_id: Some(self.id.clone()), ..Verdict::reward(reward) }
    }

    /// Returns a verdict that leaves this sample without a reward.
    pub fn no_reward(&self) -> Verdict {
        Verdict { sample_id: Some(self.id.clone()), ..Verdict::no_reward() }
    }
}

/// One call of the model, as the host recorded it.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The request's body as it was sent.
    pub request: Value,
    /// The reply's body, or the reason why there was none.
    pub reply: Result<Value, String>,
}

impl Exchange {
    fn read(exchange: observations::Exchange) -> Result<Self> {
        let parse = |text: String| serde_json::from_str(&text).context("an observed body");
        Ok(Self {
            request: parse(exchange.request)?,
            reply: match exchange.reply {
                Ok(body) => Ok(parse(body)?),
                Err(reason) => Err(reason),
            },
        })
    }
}

/// A reward: a number, or `true` for 1 and `false` for 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reward(f64);

impl Reward {
    pub(crate) fn value(self) -> f64 {
        self.0
    }
}

impl From<f64> for Reward {
    fn from(reward: f64) -> Self {
        Self(reward)
    }
}

impl From<bool> for Reward {
    fn from(right: bool) -> Self {
        Self(f64::from(u8::from(right)))
    }
}

/// Rating of one sample.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a verdict counts only if it is returned"]
pub struct Verdict {
    sample_id: Option<String>,
    reward: Option<f64>,
    metrics: Vec<(String, f64)>,
    withdraw: bool,
}

impl Verdict {
    /// Returns a verdict with a finite reward for the rollout's only sample. With several samples use
    /// [`GradedSample::reward`].
    pub fn reward(reward: impl Into<Reward>) -> Self {
        Self { reward: Some(reward.into().0), ..Self::no_reward() }
    }

    /// Returns a verdict that leaves the rollout's only sample without a reward.
    pub fn no_reward() -> Self {
        Self { sample_id: None, reward: None, metrics: Vec::new(), withdraw: false }
    }

    /// Adds a finite measurement to those of the workflow.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }

    /// Requests that the sample not be trained on.
    pub fn withdraw(mut self) -> Self {
        self.withdraw = true;
        self
    }
}

/// Ratings of a rollout: at most one verdict per sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdicts(Vec<Verdict>);

impl Verdicts {
    /// Encodes the verdicts for the host, each for one of these samples.
    pub(crate) fn resolve(self, sample_ids: &[String]) -> Result<Vec<contract::Verdict>> {
        let resolve = |verdict: Verdict| {
            let sample_id = match (verdict.sample_id, sample_ids) {
                (Some(id), _) => id,
                (None, [only]) => only.clone(),
                (None, ids) => {
                    return Err(Error::failed(format_args!(
                        "a verdict does not say of which sample, and there are {}",
                        ids.len()
                    )));
                }
            };
            let metric = |(name, value)| crate::bindings::imports::types::Metric { name, value };
            Ok(contract::Verdict {
                sample_id,
                reward: verdict.reward,
                metrics: verdict.metrics.into_iter().map(metric).collect(),
                withdraw: verdict.withdraw,
            })
        };
        self.0.into_iter().map(resolve).collect()
    }
}

impl From<Verdict> for Verdicts {
    fn from(verdict: Verdict) -> Self {
        Self(vec![verdict])
    }
}

impl From<Vec<Verdict>> for Verdicts {
    fn from(verdicts: Vec<Verdict>) -> Self {
        Self(verdicts)
    }
}

impl FromIterator<Verdict> for Verdicts {
    fn from_iter<I: IntoIterator<Item = Verdict>>(verdicts: I) -> Self {
        Self(verdicts.into_iter().collect())
    }
}

impl From<f64> for Verdicts {
    /// Rates the rollout's only sample with this reward.
    fn from(reward: f64) -> Self {
        Verdict::reward(reward).into()
    }
}

impl From<bool> for Verdicts {
    /// Rates the rollout's only sample: 1 for `true`, 0 for `false`.
    fn from(right: bool) -> Self {
        Verdict::reward(right).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[test]
    fn a_bare_reward_goes_to_the_only_sample() {
        let verdicts = Verdicts::from(true).resolve(&ids(&["a"])).unwrap();

        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].sample_id, "a");
        assert_eq!(verdicts[0].reward, Some(1.0));
    }

    #[test]
    fn a_bare_reward_among_several_samples_is_rejected() {
        for samples in [&["a", "b"][..], &[]] {
            let error = Verdicts::from(0.5).resolve(&ids(samples)).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Failed);
        }
    }

    #[test]
    fn a_verdict_contains_all_its_parts() {
        let sample = GradedSample {
            id: "b".into(),
            messages: vec![Message::assistant("#### 7")],
            metrics: vec![("turns".into(), 2.0)],
        };
        let verdict = sample.reward(0.25).metric("length", 3.0).withdraw();

        let resolved = Verdicts::from(verdict).resolve(&ids(&["a", "b"])).unwrap();

        assert_eq!(sample.answer_after("####").as_deref(), Some("7"));
        assert_eq!(sample.metric("turns"), Some(2.0));
        assert_eq!(resolved[0].sample_id, "b");
        assert_eq!(resolved[0].reward, Some(0.25));
        assert_eq!(resolved[0].metrics[0].name, "length");
        assert!(resolved[0].withdraw);
    }
}
