//! Requests for rollouts.

use serde::{Deserialize, Serialize};

use super::address::ModelAddress;
use super::agent::LoopOptions;
use super::group::GroupSeat;
use super::trajectory::TrajectoryExtra;
use rollout_guest::imports::ForkOrigin;
use rollout_wire::data::exact_option;
use rollout_wire::id::RolloutId;
use rollout_wire::messages::Messages;
use rollout_wire::metadata::RowMetadata;

/// A request for a rollout, independent of protocols.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RolloutRequest {
    /// The id, which no live rollout has.
    pub id: RolloutId,
    /// The caller's own name for the rollout, if it is not a valid id.
    pub caller_id: Option<String>,
    /// The number of the attempt: 1 at first, one more each time the rollout restarts.
    pub attempt: u32,
    /// The prompt's messages.
    pub prompt: Messages,
    /// The ground truth, for the grader only.
    pub label: Option<String>,
    /// Metadata of the dataset row. The workflow does not see the ground truth in it.
    pub metadata: Option<RowMetadata>,
    /// Options for an agent loop.
    pub loop_options: LoopOptions,
    /// Address of the model.
    pub model: ModelAddress,
    /// Number of samples that the caller accepts; the host's limit applies as well.
    pub samples_max: u32,
    /// Whether the caller accepts only samples with calls of the model. A rollout without any is then not graded.
    pub samples_must_ask: bool,
    /// Seconds from admission within which the workflow must end, including the time in the queue. With zero or
    /// less, the deadline has passed already.
    #[serde(with = "exact_option")]
    pub workflow_secs: Option<f64>,
    /// Seconds for the grader.
    #[serde(with = "exact_option")]
    pub grader_secs: Option<f64>,
    /// The protocol's additions to the trajectory.
    pub trajectory_extra: Option<TrajectoryExtra>,
    /// The origin of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkOrigin>,
    /// A conversation that was held elsewhere and is only graded. No workflow runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Messages>,
    /// The rollout's seat in a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupSeat>,
}

impl RolloutRequest {
    /// Returns the size in memory in bytes, which is charged to the budget.
    pub fn memory_bytes(&self) -> usize {
        // The report of the result has a second copy of the label.
        let label = self.label.as_ref().map_or(0, |label| 2 * label.len());
        let metadata = self.metadata.as_ref().map_or(0, RowMetadata::memory_bytes);
        let params = self.loop_options.completion_params.as_ref().map_or(0, |params| params.get().len());
        let extra = self.trajectory_extra.as_ref().map_or(0, TrajectoryExtra::memory_bytes);
        let names = self.id.as_str().len() + self.caller_id.as_ref().map_or(0, String::len);
        let fork = self.fork.as_ref().map_or(0, ForkOrigin::memory_bytes);
        let conversation = self.conversation.as_ref().map_or(0, Messages::memory_bytes);
        let group = self.group.as_ref().map_or(0, GroupSeat::memory_bytes);
        let all =
            [self.prompt.memory_bytes(), label, metadata, params, extra, names, fork, conversation, group];
        all.iter().sum::<usize>() + self.model.memory_bytes() + size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::trajectory::{ExtraFact, ExtraMember};
    use super::*;
    use rollout_guest::imports::ForkPoint;
    use rollout_outbound::Secret;
    use rollout_wire as wire;
    use rollout_wire::atif::SchemaVersion;

    #[test]
    fn a_request_is_stored_without_loss_and_without_keys() {
        let raw = |text: &str| wire::object(text).unwrap().to_owned();
        const MEMBERS: &[ExtraMember] = &[ExtraMember::of("rollout_id", ExtraFact::RolloutId)];
        let (model, _) = ModelAddress::split("http://u:pa55@h/v1", "m", Some(Secret::new("s3cret")));
        let request = RolloutRequest {
            id: RolloutId::parse("r 1").unwrap(),
            caller_id: Some("a/b".to_owned()),
            attempt: 2,
            prompt: [&*raw(r#"{"role":"user", "n":1.10}"#)].into_iter().collect(),
            label: Some("42".to_owned()),
            metadata: Some(raw(r#"{"n": 1e2, "ground_truth":"x"}"#).into()),
            loop_options: LoopOptions {
                completion_params: Some(raw(r#"{"top_p": 0.10}"#)),
                ..LoopOptions::default()
            },
            model: model.with_profile("closed"),
            samples_max: 1,
            samples_must_ask: true,
            workflow_secs: Some(0.1 + 0.2),
            grader_secs: None,
            trajectory_extra: Some(TrajectoryExtra {
                schema_version: SchemaVersion::V1_7,
                key: "protocol".into(),
                members: MEMBERS.into(),
                request_fields: Some(raw(r#"{"x": {}}"#)),
            }),
            fork: Some(ForkOrigin {
                point: ForkPoint { rollout_id: RolloutId::parse("r 0").unwrap(), turn: 3 },
                ancestors: Vec::new(),
            }),
            conversation: Some([&*raw(r#"{"role":"assistant", "n":1.20}"#)].into_iter().collect()),
            group: Some(GroupSeat {
                id: RolloutId::parse("g 1").unwrap(),
                size: 3,
                member: 2,
                join_secs: 600,
            }),
        };
        let text = serde_json::to_string(&request).unwrap();

        let read: RolloutRequest = serde_json::from_str(&text).unwrap();

        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert!(!text.contains("s3cret") && !text.contains("pa55"), "{text}");
        assert_eq!((&read.prompt, &read.fork), (&request.prompt, &request.fork));
        assert_eq!(read.workflow_secs.map(f64::to_bits), request.workflow_secs.map(f64::to_bits));
        let (read, wrote) = (read.metadata.unwrap(), request.metadata.unwrap());
        assert_eq!(read.whole().get(), wrote.whole().get());
        assert_eq!(read.public().get(), wrote.public().get(), "the ground truth is still hidden");
    }
}
