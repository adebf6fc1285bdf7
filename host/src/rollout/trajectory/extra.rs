//! What a protocol puts into the trajectories of its rollouts.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::replies::Unmatched;
use crate::id::RolloutId;
use crate::rollout::outcome::FinishedSample;
use crate::wire::atif::SchemaVersion;

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
    /// What calls of the model cost that no step is known for; none where there are no such.
    pub unmatched_metrics: Option<Member<'a>>,
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

/// What a protocol adds to a trajectory.
pub trait TrajectoryExtra: Send + Sync {
    /// The version of the format that its readers take.
    fn schema_version(&self) -> SchemaVersion {
        SchemaVersion::default()
    }

    /// The key under `extra`.
    fn key(&self) -> &'static str;

    /// Gives what goes there, member by member. The first is in every document and in no
    /// [`super::Amendment`].
    fn members(&self, facts: &Facts<'_>, member: &mut dyn FnMut(&'static str, Member<'_>));
}
