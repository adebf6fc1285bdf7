//! What a protocol adds to the trajectories of its rollouts, and what is known of one that was
//! written.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use rollout_wire::atif::SchemaVersion;
use rollout_wire::data::shared;
use rollout_wire::id::SampleId;

/// This host's version, which every trajectory says.
pub(crate) const HOST_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a protocol adds to a trajectory, under a key of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrajectoryExtra {
    /// The version of the format that its readers take.
    pub schema_version: SchemaVersion,
    /// The key under `extra`.
    pub key: Cow<'static, str>,
    /// What goes there, in this order. The first is in every document and in no amendment.
    pub members: Cow<'static, [ExtraMember]>,
    /// The request's own fields, for [`ExtraFact::RequestFields`].
    pub request_fields: Option<Box<RawValue>>,
}

impl TrajectoryExtra {
    /// The bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.request_fields.as_ref().map_or(0, |fields| fields.get().len())
    }
}

/// A member of what a protocol adds. It is left out where there is no such fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraMember {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it says.
    pub fact: ExtraFact,
}

impl ExtraMember {
    /// A member of this name.
    pub const fn of(name: &'static str, fact: ExtraFact) -> Self {
        Self { name: Cow::Borrowed(name), fact }
    }
}

/// What a member may say of the rollout.
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
    /// The sample's measurements.
    SampleMetrics,
    /// The values kept beside the sample's messages.
    SampleFields,
    /// The row's metadata.
    Metadata,
    /// The request's own fields.
    RequestFields,
    /// What calls of the model cost that no step is known for.
    UnmatchedMetrics,
}

/// A trajectory that was written.
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

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The sample that it is of, where there is one.
    pub fn sample(&self) -> Option<&SampleId> {
        self.sample.as_ref()
    }

    /// How many of its steps are the agent's.
    pub fn agent_steps(&self) -> usize {
        self.layout.agent_steps.len()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// The places in one document of the parts that a caller's report takes the place of.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// The model's name.
    pub model_name: Range<u64>,
    /// The agent's steps, in order.
    pub agent_steps: Vec<StepOffsets>,
    /// The sums.
    pub final_metrics: Range<u64>,
    /// Steps in all.
    pub total_steps: usize,
    /// The members of what the protocol put under `extra`, each with the comma before it.
    pub members: Vec<(Cow<'static, str>, Range<u64>)>,
}

/// The end of an agent's step, each part of it with the comma before it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct StepOffsets {
    /// Where what the step cost begins, if that is known.
    pub at: u64,
    /// Where that ends and the count of calls begins.
    pub metrics_end: u64,
    /// Where that ends.
    pub end: u64,
}
