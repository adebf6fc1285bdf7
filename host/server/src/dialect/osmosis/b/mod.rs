//! Generation B: two callbacks as in C, with a map of samples.
//!
//! Both share [`super::callbacks`]; this module has B's map. B's controllers compare the ids in the map with those of the
//! chat calls that they served, so the map leaves out samples that never called the model.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::sample::WireSample;
use rollout_rollout::{Finished, FinishedSample};

/// The samples of a rollout by their ids, in the order in which they were opened.
pub(super) enum Samples<'a> {
    /// The empty map of a failed rollout.
    None,
    /// All samples that called the model.
    Of(&'a Finished),
}

/// One sample. Unlike in C, its reward is always reported, and it has no label, because only a grader in the server's own
/// process could set one.
#[derive(Serialize)]
struct NamedSample<'a> {
    id: &'a str,
    #[serde(flatten)]
    sample: WireSample<'a>,
}

impl<'a> NamedSample<'a> {
    fn of(sample: &'a FinishedSample) -> Self {
        Self { id: sample.record.id.as_str(), sample: WireSample::new(sample, None, sample.reward) }
    }
}

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let samples = match self {
            Self::None => &[],
            Self::Of(finished) => finished.samples.as_slice(),
        };
        let mut map = serializer.serialize_map(None)?;
        for sample in samples.iter().filter(|sample| sample.has_request) {
            map.serialize_entry(sample.record.id.as_str(), &NamedSample::of(sample))?;
        }
        map.end()
    }
}
