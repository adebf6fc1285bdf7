//! Samples that a workflow registers.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Number of bytes that a message counts for in the record besides its text: its entries in lists, and the allocator's
/// overhead. Without them, half a million messages of two bytes would count as one MiB.
pub const MESSAGE_BYTES: usize = 32;

/// Returns the number of bytes that these messages count for in the record.
pub fn message_bytes<'a>(messages: impl IntoIterator<Item = &'a str>) -> usize {
    messages.into_iter().map(|message| message.len() + MESSAGE_BYTES).sum()
}

/// One sample that the workflow registered. Clones share messages and fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleRecord {
    /// Id of the sample.
    pub id: SampleId,
    /// The conversation that the workflow recorded.
    pub messages: Messages,
    /// Measurements of the sample.
    #[serde(with = "rollout_wire::data::exact_map")]
    pub metrics: BTreeMap<String, f64>,
    /// Values that belong to no message.
    #[serde(with = "rollout_wire::data::shared")]
    pub fields: Arc<BTreeMap<String, Box<RawValue>>>,
    /// Whether the sample is excluded from training.
    pub withdrawn: bool,
}

impl SampleRecord {
    /// Creates an empty sample.
    pub fn new(id: SampleId) -> Self {
        let (metrics, fields) = (BTreeMap::new(), Arc::default());
        Self { id, messages: Messages::default(), metrics, fields, withdrawn: false }
    }
}
