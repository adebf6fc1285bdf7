//! Files of a rollout: `trajectory.json`, artifacts and log.
//!
//! The steps are those that the workflow claims, with the host's observations of their calls; `extra.rollout_host` has the
//! observed exchanges in full. Everything is written from the bytes of the record, part by part and on a thread that
//! may block, without a tree of values and without a copy.

mod conversation;
mod document;
mod extra;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod layout;
mod observed;
mod replace;
mod replies;
mod root;
mod store;
mod stored;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use super::model::{Finished, ForkPoint, TrajectoryExtra, TrajectoryFile};
use rollout_guest::imports::Recorded;
use rollout_transcript::{Exchange, Transcript};
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;
use rollout_wire::metadata::RowMetadata;

use document::Document;
use layout::Original;

pub(super) use conversation::calls_made;
pub use extra::Member;
pub use layout::{Amendment, StepAmendment, TakeStep};
pub(super) use root::AliveFolder;
use root::WrittenFolder;
pub use root::{ArtifactBounds, ArtifactRoot};
pub(super) use store::write;
pub use stored::{NoTrajectory, StoredDocument, StoredTrajectories};
pub(super) use tokens::sample_tokens;
pub use tokens::{ReplyTokens, SampleTokens};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fuzzing::trajectory as fuzzing_trajectory;

impl TrajectoryFile {
    /// Prepares the file for amendments. Each amendment replaces the previous one.
    pub fn amendable(&self) -> io::Result<Amendable> {
        Ok(Amendable { file: self.clone(), original: Original::keep(self.path())? })
    }
}

/// A document that an amendment can be put into.
pub trait AmendedDocument {
    /// Returns the sample of the document, if it has one.
    fn sample(&self) -> Option<&SampleId>;

    /// Returns the number of steps of the agent.
    fn agent_steps(&self) -> usize;

    /// Adds the amendment, which replaces an earlier one. Blocks.
    fn amend(&self, amendment: &Amendment<'_>) -> io::Result<()>;
}

/// A trajectory file, and its content before any amendment.
#[derive(Debug)]
pub struct Amendable {
    file: TrajectoryFile,
    original: Original,
}

impl AmendedDocument for Amendable {
    fn sample(&self) -> Option<&SampleId> {
        self.file.sample()
    }

    fn agent_steps(&self) -> usize {
        self.file.agent_steps()
    }

    /// Replaces the file by the document with the amendment. A reader sees either one or the other.
    fn amend(&self, amendment: &Amendment<'_>) -> io::Result<()> {
        self.original.amend(self.file.layout(), amendment, self.file.path())
    }
}

/// Digests of the components that ran.
pub(super) struct Plugins {
    pub workflow: String,
    pub grader: Option<String>,
}

/// Data of a trajectory besides the finished rollout.
pub(super) struct Job {
    pub prompt: Messages,
    pub label: Option<String>,
    pub samples_max: u32,
    pub model: String,
    pub extra: Option<TrajectoryExtra>,
    pub metadata: Option<RowMetadata>,
    pub attempt: u32,
    pub fork: Option<ForkPoint>,
    pub recorded: Recorded,
    pub host: Cow<'static, str>,
    pub plugins: Plugins,
}

/// Returns the documents of a rollout: one for each sample, or one without a sample.
fn documents<'a>(job: &'a Job, finished: &'a Finished) -> Vec<Document<'a>> {
    let Transcript { policy, samples, tools: tool_uses, .. } = &job.recorded.transcript;
    let exchanges = policy.exchanges();
    let owners = tools::owners(&finished.samples, exchanges, tool_uses);
    let document = |place: usize, file_name: String| {
        let sample = finished.samples.get(place);
        let is_its = |exchange: &&Exchange| {
            sample.is_none_or(|sample| exchange.sample.as_ref() == Some(&sample.record.id))
        };
        let uses = tool_uses.iter().zip(&owners).filter(|(_, owner)| **owner == place);
        Document {
            job,
            finished,
            sample,
            file_name,
            lists: policy.among(samples),
            exchanges: exchanges.iter().filter(is_its).collect(),
            tool_uses: uses.map(|(call, _)| call).collect(),
        }
    };
    match finished.samples.as_slice() {
        [] | [_] => vec![document(0, "trajectory.json".to_owned())],
        several => several
            .iter()
            .enumerate()
            .map(|(place, sample)| {
                document(place, format!("trajectory-{}.json", sample.record.id.file_part()))
            })
            .collect(),
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
