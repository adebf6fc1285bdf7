//! Owners of the calls of host-provided tools.

use std::collections::HashMap;

use crate::model::FinishedSample;
use rollout_transcript::{Exchange, ToolUse};
use rollout_wire::id::SampleId;

/// Returns the index of each call's sample: the sample whose model requested a call with this id, or else the first. Each
/// call is in the trajectory of one sample.
pub(super) fn owners(samples: &[FinishedSample], exchanges: &[Exchange], uses: &[ToolUse]) -> Vec<usize> {
    if samples.len() < 2 || uses.is_empty() {
        return vec![0; uses.len()];
    }
    let places: HashMap<&SampleId, usize> =
        samples.iter().enumerate().map(|(place, sample)| (&sample.record.id, place)).collect();
    // Only ids of calls that were made: a model may request a thousand times as many.
    let mut asked: HashMap<&str, Option<usize>> =
        uses.iter().map(|call| (call.call_id.as_str(), None)).collect();
    for exchange in exchanges {
        let place = exchange.sample.as_ref().and_then(|sample| places.get(sample));
        let (Some(place), Some(reply)) = (place, exchange.completion()) else { continue };
        reply.each_tool_call(|at, call| {
            if let Some(owner) = asked.get_mut(&*call.id(at)) {
                owner.get_or_insert(*place);
            }
        });
    }
    uses.iter().map(|call| asked.get(call.call_id.as_str()).copied().flatten().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_transcript::SampleRecord;
    use rollout_wire::messages::Messages;
    use serde_json::json;
    use std::time::SystemTime;

    fn use_of(call_id: &str) -> ToolUse {
        ToolUse::new(call_id.to_owned(), "f".to_owned(), "{}".to_owned(), SystemTime::UNIX_EPOCH)
    }

    fn sample(id: &str) -> FinishedSample {
        let record = SampleRecord::new(SampleId::parse(id).unwrap());
        FinishedSample { reward: None, has_request: false, replied: false, record }
    }

    fn asking(sample: &str, call_id: &str) -> Exchange {
        let body = json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls":
            [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]}}]});
        Exchange::replied(SampleId::parse(sample).unwrap(), Messages::default(), &body.to_string())
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
}
