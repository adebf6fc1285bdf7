//! Input and output of a group grader.
//!
//! A group grader rates all samples of a group of rollouts at once, for rewards that compare them. It runs once for a
//! group, after every member has ended and was graded by the [`Grader`](crate::Grader), if the plugin has one.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bindings::group_grader as contract;
use crate::bindings::imports::types::Metric;
use crate::message::{Message, last_assistant_text, parse_messages};
use crate::{Result, Reward, answer, context};

/// A reward function of groups.
///
/// `C` is the type of the operator's configuration, as for [`Workflow`](crate::Workflow).
///
/// ```
/// use rollout_sdk::{GroupContext, GroupGrader, GroupRating, Result};
///
/// struct Shortest;
///
/// impl GroupGrader for Shortest {
///     fn grade_group(ctx: GroupContext) -> Result<Vec<GroupRating>> {
///         let shortest = ctx.samples().map(|sample| sample.text().len()).min().unwrap_or(0);
///         Ok(ctx.samples().map(|sample| sample.rate(sample.text().len() == shortest)).collect())
///     }
/// }
/// ```
pub trait GroupGrader<C: DeserializeOwned = ()> {
    /// Rates the samples of a group: exactly one rating for each of [`GroupContext::samples`].
    ///
    /// # Errors
    ///
    /// An error leaves every member of the group without a reward.
    fn grade_group(ctx: GroupContext<C>) -> Result<Vec<GroupRating>>;
}

/// A group of rollouts to be graded.
#[derive(Debug)]
pub struct GroupContext<C = ()> {
    id: String,
    size: u32,
    members: Vec<GroupMember>,
    failed: Vec<FailedMember>,
    config: C,
}

impl<C: DeserializeOwned> GroupContext<C> {
    pub(crate) fn read(group: contract::Group) -> Result<Self> {
        let contract::Group { id, size, members, failed } = group;
        let failed = failed
            .into_iter()
            .map(|contract::FailedMember { number, reason }| FailedMember { number, reason });
        Ok(Self {
            id,
            size,
            members: members.into_iter().map(GroupMember::read).collect::<Result<_>>()?,
            failed: failed.collect(),
            config: context::config()?,
        })
    }
}

impl<C> GroupContext<C> {
    /// Returns the group's id, which the caller chose.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the number of members, including those that failed.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the members with samples, by number.
    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// Returns the samples of all members.
    pub fn samples(&self) -> impl Iterator<Item = &GroupSample> {
        self.members.iter().flat_map(|member| &member.samples)
    }

    /// Returns the other members, by number.
    pub fn failed(&self) -> &[FailedMember] {
        &self.failed
    }

    /// Returns the operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Deserializes the metadata of the first member's row. A row without metadata counts as an object without fields.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        context::metadata()
    }

    /// Returns the metadata of the first member's row, if there is any.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata is not JSON.
    pub fn metadata_json(&self) -> Result<Option<Value>> {
        context::metadata_json()
    }

    /// Returns the time until the host ends this run, or `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        context::time_left()
    }
}

/// A member of a group with its samples.
#[derive(Clone, Debug)]
pub struct GroupMember {
    number: u32,
    rollout_id: String,
    label: Option<String>,
    samples: Vec<GroupSample>,
}

impl GroupMember {
    fn read(member: contract::Member) -> Result<Self> {
        let contract::Member { number, rollout_id, label, samples } = member;
        let samples =
            samples.into_iter().map(|sample| GroupSample::read(number, sample)).collect::<Result<_>>()?;
        Ok(Self { number, rollout_id, label, samples })
    }

    /// Returns the member's number in the group, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the id of the member's rollout.
    pub fn rollout_id(&self) -> &str {
        &self.rollout_id
    }

    /// Returns the ground truth in the data set's row, if there is one.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns the member's samples.
    pub fn samples(&self) -> &[GroupSample] {
        &self.samples
    }
}

/// A member without samples to rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedMember {
    /// Its number in the group, from 0.
    pub number: u32,
    /// Reason why it failed or never began.
    pub reason: String,
}

/// A sample of a group.
#[derive(Clone, Debug)]
pub struct GroupSample {
    member: u32,
    id: String,
    messages: Vec<Message>,
    metrics: Vec<(String, f64)>,
    reward: Option<f64>,
}

impl GroupSample {
    fn read(member: u32, sample: contract::GroupedSample) -> Result<Self> {
        let contract::GroupedSample { id, messages, metrics, reward } = sample;
        let messages = parse_messages(&format!("sample `{id}` of member {member}:"), &messages)?;
        let metrics = metrics.into_iter().map(|metric| (metric.name, metric.value)).collect();
        Ok(Self { member, id, messages, metrics, reward })
    }

    /// Returns the number of the sample's member.
    pub fn member(&self) -> u32 {
        self.member
    }

    /// Returns the sample's id, which is unique within its member.
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

    /// Returns the text after the marker in the model's last message, see [`answer_after`](crate::answer_after).
    pub fn answer_after(&self, marker: &str) -> Option<String> {
        answer::answer_after(&self.text(), marker).map(str::to_owned)
    }

    /// Returns the measurements of workflow and grader.
    pub fn metrics(&self) -> &[(String, f64)] {
        &self.metrics
    }

    /// Returns the reward by the grader or the agent loop, if there is one.
    pub fn reward(&self) -> Option<f64> {
        self.reward
    }

    /// Returns a rating of this sample with a finite reward.
    pub fn rate(&self, reward: impl Into<Reward>) -> GroupRating {
        let reward = reward.into().value();
        GroupRating { member: self.member, sample_id: self.id.clone(), reward, metrics: Vec::new() }
    }
}

/// Rating of one sample of a group.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a rating counts only if it is returned"]
pub struct GroupRating {
    member: u32,
    sample_id: String,
    reward: f64,
    metrics: Vec<(String, f64)>,
}

impl GroupRating {
    /// Adds a finite measurement to those of workflow and grader.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }

    pub(crate) fn encode(self) -> contract::Rating {
        let Self { member, sample_id, reward, metrics } = self;
        let metrics = metrics.into_iter().map(|(name, value)| Metric { name, value }).collect();
        contract::Rating { member, sample_id, reward, metrics }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rating_names_its_sample() {
        let sample = GroupSample {
            member: 3,
            id: "main".into(),
            messages: vec![Message::assistant("#### 7")],
            metrics: vec![("turns".into(), 2.0)],
            reward: Some(1.0),
        };

        let rating = sample.rate(true).metric("rank", 1.0).encode();

        assert_eq!(sample.answer_after("####").as_deref(), Some("7"));
        assert_eq!((rating.member, rating.sample_id.as_str(), rating.reward), (3, "main", 1.0));
        assert_eq!((rating.metrics[0].name.as_str(), rating.metrics[0].value), ("rank", 1.0));
    }
}
