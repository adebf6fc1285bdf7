//! The calls of lent tools, as the host saw them.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::millis;
use crate::id::SampleId;
use crate::imports::{Exchange, ExchangeOutcome, ToolUse};
use crate::rollout::outcome::FinishedSample;
use crate::telemetry::{Label, ToolOutcome};
use crate::wire::openai::Completion;

/// For each call the place of the sample that it belongs to: the one whose model asked for
/// a call of its id, else the first. Each call is in one sample's trajectory.
pub(super) fn owners(samples: &[FinishedSample], exchanges: &[Exchange], uses: &[ToolUse]) -> Vec<usize> {
    if samples.len() < 2 || uses.is_empty() {
        return vec![0; uses.len()];
    }
    let places: HashMap<&SampleId, usize> =
        samples.iter().enumerate().map(|(place, sample)| (&sample.record.id, place)).collect();
    let mut asked: HashMap<String, usize> = HashMap::new();
    for exchange in exchanges {
        let (Some(place), ExchangeOutcome::Replied { body, .. }) =
            (places.get(&exchange.sample), &exchange.outcome)
        else {
            continue;
        };
        for call in Completion::parse(body).map(|reply| reply.tool_calls).unwrap_or_default() {
            asked.entry(call.id).or_insert(*place);
        }
    }
    uses.iter().map(|call| asked.get(&call.call_id).copied().unwrap_or(0)).collect()
}

/// Every call with its arguments, its result or error, and its time.
pub(super) fn observed<'a>(uses: impl IntoIterator<Item = &'a ToolUse>) -> Vec<Value> {
    uses.into_iter().map(seen).collect()
}

fn seen(call: &ToolUse) -> Value {
    let at = call.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut seen = json!({
        "tool_call_id": call.call_id,
        "function_name": call.name,
        "arguments": call.arguments,
        "kind": call.kind.as_str(),
        "outcome": call.outcome.as_str(),
        "started_at_unix_ms": millis(at).round() as u64,
        "duration_ms": millis(call.duration),
    });
    match call.outcome {
        ToolOutcome::Answered => seen["content"] = call.content.as_str().into(),
        ToolOutcome::Abandoned => {}
        ToolOutcome::Failed | ToolOutcome::Unavailable | ToolOutcome::OverLimit => {
            seen["error"] = call.content.as_str().into();
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::SampleRecord;
    use crate::telemetry::ToolKind;
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    fn use_of(call_id: &str) -> ToolUse {
        ToolUse {
            call_id: call_id.to_owned(),
            name: "f".to_owned(),
            arguments: "{}".to_owned(),
            kind: ToolKind::Component,
            started_at: SystemTime::UNIX_EPOCH,
            duration: Duration::from_micros(1500),
            outcome: ToolOutcome::Answered,
            content: "42".to_owned(),
        }
    }

    fn sample(id: &str) -> FinishedSample {
        let record = SampleRecord {
            id: SampleId::parse(id).unwrap(),
            messages: Vec::new(),
            metrics: BTreeMap::new(),
            fields: BTreeMap::new(),
            withdrawn: false,
        };
        FinishedSample { reward: None, asked: false, record }
    }

    fn asking(sample: &str, call_id: &str) -> Exchange {
        let body = json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls":
            [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]}}]});
        Exchange {
            sample: SampleId::parse(sample).unwrap(),
            request: bytes::Bytes::new(),
            started_at: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            outcome: ExchangeOutcome::Replied {
                body: body.to_string().into(),
                finish_reason: None,
                usage: None,
                attempts: 1,
            },
        }
    }

    #[test]
    fn a_call_belongs_to_the_sample_whose_model_asked_for_it() {
        let exchanges = [asking("a", "c1"), asking("b", "c2")];
        let uses = [use_of("c2"), use_of("c1"), use_of("made up")];
        let owned = |samples: &[FinishedSample]| owners(samples, &exchanges, &uses);
        assert_eq!(owned(&[sample("a"), sample("b")]), [1, 0, 0]);
        assert_eq!(owned(&[sample("b")]), [0, 0, 0]);
        assert_eq!(owned(&[]), [0, 0, 0]);
    }

    #[test]
    fn a_call_is_told_with_its_result_or_its_error() {
        let mut call = use_of("c1");
        assert_eq!(
            observed([&call]),
            [json!({"tool_call_id": "c1", "function_name": "f", "arguments": "{}", "kind": "component",
                "outcome": "answered", "started_at_unix_ms": 0, "duration_ms": 1.5, "content": "42"})]
        );
        call.outcome = ToolOutcome::OverLimit;
        let seen = observed([&call]).remove(0);
        assert_eq!((seen["error"].as_str(), seen.get("content")), (Some("42"), None));
    }
}
