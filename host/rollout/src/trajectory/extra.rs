//! Facts that a protocol adds to the trajectories of its rollouts.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::replies::Unmatched;
use crate::model::{ExtraFact, FinishedSample};
use rollout_wire::id::RolloutId;

/// A fact about a rollout that a protocol may add under `extra`.
pub(super) struct Facts<'a> {
    /// Id of the rollout.
    pub rollout_id: &'a RolloutId,
    /// Id of the trajectory's sample, if it has one.
    pub sample: Option<&'a FinishedSample>,
    /// The ground truth.
    pub label: Option<&'a str>,
    /// The row's metadata.
    pub metadata: Option<&'a RawValue>,
    /// The request's own fields.
    pub request_fields: Option<&'a RawValue>,
    /// Usage of calls without a known step, if there are any.
    pub unmatched_metrics: Option<Member<'a>>,
}

impl<'a> Facts<'a> {
    /// Returns the value of this fact, if there is one.
    pub(super) fn of(&self, fact: ExtraFact) -> Option<Member<'a>> {
        let sample = self.sample.map(|sample| &sample.record);
        match fact {
            ExtraFact::RolloutId => Some(Member::Text(self.rollout_id.as_str())),
            ExtraFact::Label => self.label.map(Member::Text),
            ExtraFact::SampleId => sample.map(|sample| Member::Text(sample.id.as_str())),
            ExtraFact::Reward => self.sample.and_then(|sample| sample.reward).map(Member::Number),
            ExtraFact::SampleMetrics => sample
                .map(|sample| &sample.metrics)
                .filter(|metrics| !metrics.is_empty())
                .map(Member::Metrics),
            ExtraFact::SampleFields => {
                sample.map(|sample| &*sample.fields).filter(|fields| !fields.is_empty()).map(Member::Fields)
            }
            ExtraFact::Metadata => self.metadata.map(Member::Raw),
            ExtraFact::RequestFields => self.request_fields.map(Member::Raw),
            ExtraFact::UnmatchedMetrics => self.unmatched_metrics,
        }
    }
}

/// A value under `extra`. It is borrowed until it is written.
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum Member<'a> {
    /// A text.
    Text(&'a str),
    /// A number.
    Number(f64),
    /// JSON from outside.
    Raw(&'a RawValue),
    /// Numbers by name.
    Metrics(&'a BTreeMap<String, f64>),
    /// JSON from outside, by name.
    Fields(&'a BTreeMap<String, Box<RawValue>>),
    /// Usage of calls of the model.
    Unmatched(Unmatched<'a>),
}
