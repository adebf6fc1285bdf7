//! What a protocol puts into the trajectories of its rollouts.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::replies::Unmatched;
use crate::model::{ExtraFact, FinishedSample};
use rollout_wire::id::RolloutId;

/// What a protocol may say of a rollout in its trajectory's `extra`.
pub(super) struct Facts<'a> {
    /// The rollout.
    pub rollout_id: &'a RolloutId,
    /// The sample that the trajectory is of, where there is one.
    pub sample: Option<&'a FinishedSample>,
    /// The ground truth.
    pub label: Option<&'a str>,
    /// The row's metadata.
    pub metadata: Option<&'a RawValue>,
    /// The request's own fields.
    pub request_fields: Option<&'a RawValue>,
    /// What calls of the model cost that no step is known for; none where there are no such.
    pub unmatched_metrics: Option<Member<'a>>,
}

impl<'a> Facts<'a> {
    /// What a member of this fact says, if there is something.
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

/// A value under `extra`. It is written where it stands and copied nowhere.
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum Member<'a> {
    /// A text.
    Text(&'a str),
    /// A number.
    Number(f64),
    /// What somebody wrote.
    Raw(&'a RawValue),
    /// Numbers by name.
    Metrics(&'a BTreeMap<String, f64>),
    /// What somebody wrote, by name.
    Fields(&'a BTreeMap<String, Box<RawValue>>),
    /// What calls of the model cost.
    Unmatched(Unmatched<'a>),
}
