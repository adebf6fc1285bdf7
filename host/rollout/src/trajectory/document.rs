//! One trajectory, written part by part.

use std::rc::Rc;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::conversation::{Conversation, Steps};
use super::extra::{Facts, Member};
use super::layout::{Marked, Marks};
use super::observed::{Judged, Observed, ToolCalls};
use super::replies::{Reply, Unmatched, answered, sum};
use super::{Job, millis};
use crate::model::{Finished, FinishedSample, GroupReport, Outcome, TrajectoryExtra};
use rollout_guest::imports::RolloutUsage;
use rollout_transcript::{Exchange, Lists, Part, ToolUse};
use rollout_wire::atif::FinalMetrics;
use rollout_wire::id::SampleId;
use rollout_wire::openai::Completion;
use rollout_wire::stream::Text;

/// Content of one trajectory.
pub(super) struct Document<'a> {
    pub job: &'a Job,
    pub finished: &'a Finished,
    pub sample: Option<&'a FinishedSample>,
    pub file_name: String,
    /// Message lists of the calls.
    pub lists: Lists<'a>,
    pub exchanges: Vec<&'a Exchange>,
    pub tool_uses: Vec<&'a ToolUse>,
}

impl Document<'_> {
    pub(super) fn sample_id(&self) -> Option<&SampleId> {
        self.sample.map(|sample| &sample.record.id)
    }

    /// Returns the rollout's id, with the sample's if its caller takes several samples.
    fn trajectory_id(&self) -> String {
        match self.sample_id() {
            Some(sample_id) if self.job.samples_max > 1 => format!("{}/{sample_id}", self.finished.id),
            _ => self.finished.id.to_string(),
        }
    }

    /// Returns the conversation: the messages that the workflow claims; if it was stopped before it registered any, the
    /// last request and its reply; without a request, the prompt.
    fn messages(&self) -> Vec<&str> {
        let claimed = self.sample.iter().flat_map(|sample| sample.record.messages.iter());
        let mut messages: Vec<&str> = claimed.collect();
        if let (true, Some(last)) = (messages.is_empty(), self.exchanges.last()) {
            messages.extend(self.lists.messages(last).iter().flat_map(Part::iter));
            messages.extend(last.completion().map(Completion::message));
        }
        if messages.is_empty() {
            messages = self.job.prompt.iter().collect();
        }
        messages
    }

    /// Returns the model's name in its server's replies, or the requested name.
    fn model_name(&self) -> String {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            model: Text<'a>,
        }
        let replies = self.exchanges.iter().rev().filter_map(|exchange| exchange.completion());
        let named =
            replies.into_iter().find_map(|reply| serde_json::from_slice::<Named<'_>>(reply.body()).ok());
        named.map_or_else(|| self.job.model.clone(), |Named { model: Text(name) }| name.into_owned())
    }
}

/// A document that records the offsets of its parts while it is written.
pub(super) struct Written<'a> {
    pub document: &'a Document<'a>,
    pub marks: Rc<Marks>,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Agent<'a> {
            name: &'a str,
            version: &'a str,
            model_name: Marked<'a, String>,
        }
        let Self { document, marks } = self;
        let Document { job, finished, exchanges, .. } = document;
        let replies = answered(exchanges);
        let conversation = Conversation::new(document.messages(), &replies);
        let model_name =
            Marked { value: document.model_name(), marks, note: |layout, place| layout.model_name = place };
        let mut written = to.serialize_map(None)?;
        let version = job.extra.as_ref().map(|extra| extra.schema_version).unwrap_or_default();
        written.serialize_entry("schema_version", &version)?;
        written.serialize_entry("session_id", finished.id.as_str())?;
        written.serialize_entry("trajectory_id", &document.trajectory_id())?;
        let agent = Agent { name: "rollout-host", version: &job.host, model_name };
        written.serialize_entry("agent", &agent)?;
        written.serialize_entry("steps", &Steps { conversation: &conversation, marks })?;
        let final_metrics = Marked {
            value: FinalMetrics {
                total_prompt_tokens: sum(&replies, |usage| usage.prompt_tokens),
                total_completion_tokens: sum(&replies, |usage| usage.completion_tokens),
                total_steps: conversation.step_count(),
                ..FinalMetrics::default()
            },
            marks,
            note: |layout, place| layout.final_metrics = place,
        };
        written.serialize_entry("final_metrics", &final_metrics)?;
        let is_matched = conversation.matched();
        let message_of_reply = &conversation.message_of_reply;
        let extra = Extra { document, marks, replies: &replies, is_matched: &is_matched, message_of_reply };
        written.serialize_entry("extra", &extra)?;
        written.end()
    }
}

/// Facts that the format has no field for, by their source.
struct Extra<'a> {
    document: &'a Document<'a>,
    marks: &'a Marks,
    replies: &'a [Reply<'a>],
    is_matched: &'a [bool],
    message_of_reply: &'a [Option<usize>],
}

impl Serialize for Extra<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut extra = to.serialize_map(None)?;
        if let Some(protocol) = &self.document.job.extra {
            extra.serialize_entry(&protocol.key, &ProtocolExtra { protocol, of: self })?;
        }
        extra.serialize_entry("rollout_host", &HostExtra(self))?;
        extra.end()
    }
}

/// Facts of the protocol, with the offset of each part.
struct ProtocolExtra<'a> {
    protocol: &'a TrajectoryExtra,
    of: &'a Extra<'a>,
}

impl Serialize for ProtocolExtra<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Extra { document: Document { job, finished, sample, .. }, marks, replies, is_matched, .. } =
            self.of;
        let facts = Facts {
            rollout_id: &finished.id,
            sample: *sample,
            label: job.label.as_deref(),
            metadata: job.metadata.as_ref().map(|metadata| metadata.whole().as_ref()),
            request_fields: self.protocol.request_fields.as_deref(),
            unmatched_metrics: is_matched
                .contains(&false)
                .then_some(Member::Unmatched(Unmatched { replies, is_matched })),
        };
        let mut members = to.serialize_map(None)?;
        for member in self.protocol.members.iter() {
            let Some(value) = facts.of(member.fact) else { continue };
            let start = marks.here();
            members.serialize_entry(&member.name, &value)?;
            marks.note(|layout| layout.members.push((member.name.clone(), start..marks.here())));
        }
        members.end()
    }
}

/// Facts that the host observed.
struct HostExtra<'a>(&'a Extra<'a>);

impl Serialize for HostExtra<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Extra { document, message_of_reply, .. } = self.0;
        let Document { job, finished, sample, lists, exchanges, tool_uses, .. } = document;
        let mut ours = to.serialize_map(None)?;
        ours.serialize_entry("attempt", &job.attempt)?;
        ours.serialize_entry("plugin_digest", &job.plugins.workflow)?;
        if let Some(digest) = &job.plugins.grader {
            ours.serialize_entry("grader_digest", digest)?;
        }
        if let Some(fork) = &job.fork {
            ours.serialize_entry("fork_of", fork)?;
        }
        if let Some(group) = &finished.group {
            ours.serialize_entry("group", &GroupReport::from(group))?;
        }
        ours.serialize_entry("outcome", &outcome(&finished.outcome))?;
        ours.serialize_entry(
            "usage",
            &UsageDocument::of(finished, !job.recorded.transcript.judge.exchanges().is_empty()),
        )?;
        if !finished.refused_uses.is_empty() {
            ours.serialize_entry("refused_uses", &finished.refused_uses)?;
        }
        ours.serialize_entry("limits", &Limits(finished))?;
        if let Some(sample) = sample {
            ours.serialize_entry("sample_id", sample.record.id.as_str())?;
            ours.serialize_entry("withdrawn", &sample.record.withdrawn)?;
            ours.serialize_entry("claimed_messages", &sample.record.messages.len())?;
        }
        ours.serialize_entry("observed", &Observed { lists: *lists, exchanges, message_of_reply })?;
        if !tool_uses.is_empty() {
            ours.serialize_entry("observed_tool_calls", &ToolCalls(tool_uses))?;
        }
        if !job.recorded.transcript.judge.exchanges().is_empty() {
            ours.serialize_entry("judged", &Judged(job.recorded.transcript.judge.among(&[])))?;
        }
        ours.end()
    }
}

/// Usage of the rollout.
#[derive(Serialize)]
struct UsageDocument {
    chat_calls: u64,
    tool_calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    guest_cpu_ms: f64,
    memory_bytes_peak: usize,
    host_calls: u64,
    waited_ms: f64,
    model_ms: f64,
    duration_ms: f64,
    queued_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    judge_calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    judge_tokens: Option<u64>,
}

impl UsageDocument {
    fn of(finished: &Finished, is_judged: bool) -> Self {
        let usage: &RolloutUsage = &finished.usage;
        let ms = |time: Duration| millis(time);
        Self {
            chat_calls: usage.chat_calls,
            tool_calls: usage.tool_calls,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            guest_cpu_ms: ms(usage.guest_cpu),
            memory_bytes_peak: usage.memory_bytes_peak,
            host_calls: usage.host_calls,
            waited_ms: ms(usage.waited()),
            model_ms: ms(usage.model_time),
            duration_ms: ms(finished.duration),
            queued_ms: ms(finished.queued),
            judge_calls: is_judged.then_some(usage.judge_calls),
            judge_tokens: is_judged.then_some(usage.judge_tokens),
        }
    }
}

/// All limits by name.
struct Limits<'a>(&'a Finished);

impl Serialize for Limits<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.limits.iter().map(|limit| (&limit.name, limit)))
    }
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum WrittenOutcome<'a> {
    Scored { reward: f64 },
    Unscored { stage: &'static str, kind: &'static str, fault: &'static str, reason: &'a str },
}

fn outcome(outcome: &Outcome) -> WrittenOutcome<'_> {
    match outcome {
        Outcome::Scored { reward } => WrittenOutcome::Scored { reward: *reward },
        Outcome::Unscored(failure) => WrittenOutcome::Unscored {
            stage: failure.stage.as_str(),
            kind: failure.kind.as_str(),
            fault: failure.fault.as_str(),
            reason: &failure.reason,
        },
    }
}
