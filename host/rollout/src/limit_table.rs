//! The limits of a rollout, each with its usage and the number of its hits.

use std::time::Duration;

use super::model::LimitUse;
use rollout_core::limits::{Amount, Limits};
use rollout_core::telemetry::{Label, Limit, LimitHits};
use rollout_guest::imports::RolloutUsage;

/// Wall times of the workflow's run and the grader's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunTimes {
    pub workflow: Duration,
    pub grader: Duration,
}

/// Returns every limit in the order of the configuration. `samples_max` is the smaller of the limit and the number that
/// the caller accepts.
pub(super) fn build(
    limits: &Limits,
    samples_max: u32,
    usage: &RolloutUsage,
    times: RunTimes,
    hits: &LimitHits,
) -> Vec<LimitUse> {
    limits
        .table()
        .into_iter()
        .map(|(name, max)| {
            let limit = Limit::ALL.iter().copied().find(|limit| limit.as_str() == name);
            LimitUse {
                name: name.into(),
                max: if name == Limit::Samples.as_str() { samples_max.into() } else { max },
                used: limit.and_then(|limit| used(limit, usage, times)),
                hits: limit.map_or(0, |limit| hits.times(limit)),
                requested_max: limit.and_then(|limit| hits.requested_max(limit)),
            }
        })
        .collect()
}

/// Returns the usage that counts towards a limit of the whole rollout. Limits of a single call or moment have none.
fn used(limit: Limit, usage: &RolloutUsage, times: RunTimes) -> Option<Amount> {
    Some(match limit {
        Limit::Memory => usage.memory_bytes_peak.into(),
        Limit::GuestCpu => usage.guest_cpu.into(),
        Limit::WorkflowTime => times.workflow.into(),
        Limit::GraderTime => times.grader.into(),
        Limit::HostCalls => usage.host_calls.into(),
        Limit::Samples => usage.samples.into(),
        Limit::ChatCalls => usage.chat_calls.into(),
        Limit::ChatTokens => usage.prompt_tokens.saturating_add(usage.completion_tokens).into(),
        Limit::ChatBytes => usage.sent_bytes.into(),
        Limit::JudgeCalls => usage.judge_calls.into(),
        Limit::JudgeTokens => usage.judge_tokens.into(),
        Limit::RecordBytes => usage.record_bytes.into(),
        Limit::Artifacts => usage.artifacts.into(),
        Limit::ArtifactBytes => usage.artifact_bytes.into(),
        Limit::LogLines => usage.log_lines.into(),
        Limit::LogBytes => usage.log_bytes.into(),
        Limit::RefusedUses => usage.refused_uses.into(),
        Limit::MemoryBudget
        | Limit::CallerTime
        | Limit::HostCallBytes
        | Limit::Handles
        | Limit::ConcurrentCalls
        | Limit::MessageBytes
        | Limit::RandomBytes
        | Limit::ReplyBytes
        | Limit::ToolCalls
        | Limit::ToolConcurrent
        | Limit::ToolTime
        | Limit::ToolCpu
        | Limit::ToolMemory
        | Limit::ToolResultBytes => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_of_a_rollout_can_fire_under_its_name() {
        let mut hits = LimitHits::default();
        Limit::ALL.iter().for_each(|limit| hits.add_requested(*limit, 7));
        let limits = Limits::default();

        let table = build(&limits, 1, &RolloutUsage::default(), RunTimes::default(), &hits);

        assert_eq!(table.len(), limits.table().len());
        for limit in &table {
            assert_eq!((limit.hits, limit.requested_max), (1, Some(7)), "{limit:?}");
        }
        let samples = table.iter().find(|limit| limit.name == "samples-max").unwrap();
        assert_eq!(samples.max, Amount::Count(1), "the number that the caller accepts");
    }
}
