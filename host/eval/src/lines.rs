//! Lines of `results.jsonl`, one for each finished rollout.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rollout_core::limits::Amount;
use rollout_guest::imports::RefusedUses;

/// Whether a rollout has a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineOutcome {
    /// The rollout has a reward.
    Scored,
    /// The rollout has no reward; the line has the reason.
    Unscored,
}

/// One finished rollout, a line of `results.jsonl`. Fields that are `None` are omitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// Index of the data set row.
    pub row: usize,
    /// Number of the attempt on that row, from 0.
    pub run: usize,
    /// The rollout's id, unique to this attempt.
    pub rollout_id: String,
    /// The reward, finite; present if and only if the outcome is scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Whether there is a reward.
    pub outcome: LineOutcome,
    /// Stage in which an unscored rollout ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Kind of the failure, by which unscored rollouts are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Party at fault: `plugin`, `model`, `host` or `caller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Description of the failure for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Text of the last user message of the prompt, truncated to `TEXT_BYTES_MAX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The label, truncated to `TEXT_BYTES_MAX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Text of the model's last message in the first sample that is not withdrawn, truncated to
    /// `TEXT_BYTES_MAX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Metrics by name, finite.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Samples that the workflow opened.
    #[serde(default)]
    pub samples: Vec<SampleLine>,
    /// Number of model calls.
    #[serde(default)]
    pub chat_calls: u64,
    /// Number of retries of model calls.
    #[serde(default)]
    pub chat_retries: u64,
    /// Prompt tokens of all model calls, as the endpoint counted them.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Completion tokens of all model calls, as the endpoint counted them.
    #[serde(default)]
    pub completion_tokens: u64,
    /// CPU time of both guests, in milliseconds.
    #[serde(default)]
    pub guest_cpu_ms: f64,
    /// Peak memory of an instance, in bytes.
    #[serde(default)]
    pub memory_bytes_peak: u64,
    /// Number of calls of the contract's imports by both guests.
    #[serde(default)]
    pub host_calls: u64,
    /// Time for which guests were alive and waited, in milliseconds.
    #[serde(default)]
    pub waited_ms: f64,
    /// Total time of all model calls, in milliseconds; calls may overlap.
    #[serde(default)]
    pub model_ms: f64,
    /// Limits that were hit, by their names in `[limits]`. The manifest has the values of all limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits_hit: BTreeMap<String, LimitLine>,
    /// Uses that the guests' own runtimes refused, by kind.
    #[serde(default, skip_serializing_if = "RefusedUses::is_empty")]
    pub refused_uses: RefusedUses,
    /// Number of samples without a reply of the model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub samples_unanswered: usize,
    /// Wall time including the time in the queue, in milliseconds, finite.
    pub duration_ms: f64,
    /// Wall time in the queue, in milliseconds.
    #[serde(default)]
    pub queued_ms: f64,
    /// Path of the trajectory, relative to the results directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<String>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A limit that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitLine {
    /// The limit's value, in the unit of its name.
    pub max: Amount,
    /// Amount used, if the host measures it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Amount>,
    /// Amount that the refused request would have reached, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// Number of times that the limit stopped or refused something.
    pub times: u64,
}

/// One sample of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// The sample's id.
    pub id: String,
    /// The reward, finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Whether the workflow withdrew the sample.
    #[serde(default)]
    pub withdrawn: bool,
    /// Text of the model's last message, truncated to `TEXT_BYTES_MAX`; only if there are several samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Metrics by name, finite.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
}

impl ResultLine {
    /// Returns the line as text, or the reason why it cannot be stored.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn checked_text(&self) -> Result<String, String> {
        self.check()?;
        serde_json::to_string(self).map_err(|error| error.to_string())
    }

    /// Checks that the line can be stored and read back.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.outcome, self.reward) {
            (LineOutcome::Scored, None) => return Err("it is scored without a reward".to_owned()),
            (LineOutcome::Unscored, Some(_)) => {
                return Err("it is unscored but has a reward".to_owned());
            }
            (LineOutcome::Scored, Some(_)) | (LineOutcome::Unscored, None) => {}
        }
        // JSON has no NaN and no infinity; they would be written as null.
        let own = [
            ("reward", self.reward),
            ("duration_ms", Some(self.duration_ms)),
            ("queued_ms", Some(self.queued_ms)),
        ];
        let rewards = self.samples.iter().map(|s| ("sample reward", s.reward));
        let metrics = self
            .samples
            .iter()
            .map(|sample| &sample.metrics)
            .chain([&self.metrics])
            .flatten()
            .map(|(name, &value)| (name.as_str(), Some(value)));
        for (name, value) in own.into_iter().chain(rewards).chain(metrics) {
            if let Some(value) = value
                && !value.is_finite()
            {
                return Err(format!("{name} is {value}, which is not finite"));
            }
        }
        Ok(())
    }
}
