//! A protocol's additions to the trajectories of its rollouts, and references to written trajectories.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use rollout_wire::atif::SchemaVersion;
use rollout_wire::data::shared;
use rollout_wire::id::SampleId;

/// Version of this host, which is part of every trajectory.
pub(crate) const HOST_VERSION: &str = env!("CARGO_PKG_VERSION");

/// A protocol's additions to a trajectory, under a key of their own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrajectoryExtra {
    /// The version of the format for its readers.
    pub schema_version: SchemaVersion,
    /// The key under `extra`.
    pub key: Cow<'static, str>,
    /// The members, in order. The first is in every document and in no amendment.
    pub members: Cow<'static, [ExtraMember]>,
    /// The request's own fields, for [`ExtraFact::RequestFields`].
    pub request_fields: Option<Box<RawValue>>,
}

impl TrajectoryExtra {
    /// Returns the size in memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.request_fields.as_ref().map_or(0, |fields| fields.get().len())
    }
}

/// A member of a protocol's additions. It is omitted if the rollout has no such fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraMember {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its value.
    pub fact: ExtraFact,
}

impl ExtraMember {
    /// Creates a member.
    pub const fn of(name: &'static str, fact: ExtraFact) -> Self {
        Self { name: Cow::Borrowed(name), fact }
    }
}

/// A fact of the rollout as the value of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtraFact {
    /// The rollout's id.
    RolloutId,
    /// The ground truth.
    Label,
    /// The id of the trajectory's sample.
    SampleId,
    /// The sample's reward.
    Reward,
    /// The sample's metrics.
    SampleMetrics,
    /// The values stored with the sample's messages.
    SampleFields,
    /// The row's metadata.
    Metadata,
    /// The request's own fields.
    RequestFields,
    /// Usage of model calls that match no step.
    UnmatchedMetrics,
}

/// A written trajectory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrajectoryFile {
    path: PathBuf,
    sample: Option<SampleId>,
    #[serde(with = "shared")]
    layout: Arc<Layout>,
}

impl TrajectoryFile {
    pub(crate) fn new(path: PathBuf, sample: Option<SampleId>, layout: Layout) -> Self {
        Self { path, sample, layout: Arc::new(layout) }
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the sample of the trajectory, if it is for one sample.
    pub fn sample(&self) -> Option<&SampleId> {
        self.sample.as_ref()
    }

    /// Returns the number of the agent's steps.
    pub fn agent_steps(&self) -> usize {
        self.layout.agent_steps.len()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// Byte ranges of the parts of a document that an amendment replaces.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// The model's name.
    pub model_name: Range<u64>,
    /// The agent's steps, in order.
    pub agent_steps: Vec<StepOffsets>,
    /// The totals.
    pub final_metrics: Range<u64>,
    /// Number of all steps.
    pub total_steps: usize,
    /// The protocol's members under `extra`, each with the comma before it.
    pub members: Vec<(Cow<'static, str>, Range<u64>)>,
}

/// Byte offsets at the end of an agent's step. Each part includes the comma before it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct StepOffsets {
    /// Start of the step's usage, if it is known.
    pub at: u64,
    /// End of the usage and start of the count of calls.
    pub metrics_end: u64,
    /// End of the count of calls.
    pub end: u64,
}
