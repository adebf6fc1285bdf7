//! Conversations that earlier requests contain.
//!
//! A request of a workflow contains a sample's conversation up to the requested reply. The journal has the request, so
//! an outcome does not repeat those messages: it refers to the request that contains them, with their number.

use rollout_wire::messages::Messages;
use serde::{Deserialize, Serialize};

use crate::calls::{ModelCalls, Part, in_common};
use crate::sample::SampleRecord;
use crate::transcript::Transcript;

/// Minimum size in bytes of a conversation that is stored as a reference. Shorter ones are stored in full, so that most
/// outcomes of rollouts with one turn can be read without their requests.
const BYTES_MIN: usize = 1 << 10;

/// Reference to the beginning of a sample's conversation in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Index of the request among those of the workflow to its model, from 0.
    request: usize,
    /// Number of messages that the request and the conversation have in common.
    count: usize,
}

impl Transcript {
    /// Returns for each sample a reference to the beginning of its conversation, if a request contains it.
    pub fn carried(&self) -> Vec<Option<Carried>> {
        let Self { samples, policy, .. } = self;
        samples.iter().map(|sample| Carried::find(sample, samples, policy)).collect()
    }

    /// Assembles a conversation from its beginning, which a request contains, and the rest. The error names the missing
    /// part.
    pub fn whole(&self, carried: Carried, rest: &Messages) -> Result<Messages, String> {
        let Carried { request, count } = carried;
        let exchange = self.policy.exchanges().get(request);
        let exchange = exchange.ok_or_else(|| format!("request {request} of the workflow is missing"))?;
        let lists = self.policy.among(&[]);
        let sent = lists.messages(exchange);
        let mut whole = Messages::default();
        whole.push_texts(sent.iter().flat_map(Part::iter).take(count));
        if whole.len() < count {
            return Err(format!("request {request} of the workflow has {} of {count} messages", whole.len()));
        }
        whole.push_texts(rest.iter());
        whole.shrink();
        Ok(whole)
    }
}

impl Carried {
    /// Finds the last request of a sample, and the beginning of the sample's conversation in it.
    fn find(sample: &SampleRecord, samples: &[SampleRecord], policy: &ModelCalls) -> Option<Self> {
        let exchanges = policy.exchanges();
        let request = exchanges.iter().rposition(|exchange| exchange.sample.as_ref() == Some(&sample.id))?;
        let sent = policy.among(samples).messages(&exchanges[request]);
        let count = in_common(&sent, &[Part::all(&sample.messages)]);
        (sample.messages.text_bytes_of(0, count) >= BYTES_MIN).then_some(Self { request, count })
    }

    /// Returns the rest of the sample's conversation.
    pub fn rest(self, messages: &Messages) -> Messages {
        messages.tail(self.count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rollout_wire::id::SampleId;

    use super::*;
    use crate::calls::Exchange;
    use crate::event::Event;
    use crate::labels::ModelRole;

    const REPLY: &str = r#"{"choices":[{"message":{"role":"assistant","content":"a"}}]}"#;

    fn messages(texts: &[&str]) -> Messages {
        texts.iter().map(|text| rollout_wire::object(text).unwrap()).collect()
    }

    fn message(number: usize, bytes: usize) -> String {
        format!(r#"{{"role":"user","content":"{number}{}"}}"#, "x".repeat(bytes))
    }

    /// Checks the reference for a sample with this conversation after these requests.
    fn check(conversation: &[&str], requests: &[&[&str]], expected: Option<Carried>) {
        let id = SampleId::parse("main").unwrap();
        let sample = SampleRecord { messages: messages(conversation), ..SampleRecord::new(id.clone()) };
        let other = Exchange::replied(SampleId::parse("other").unwrap(), messages(conversation), REPLY);
        let exchanges = requests.iter().map(|texts| Exchange::replied(id.clone(), messages(texts), REPLY));
        let policy: ModelCalls = exchanges.chain([other]).collect();
        let samples = [sample];
        let carried = Carried::find(&samples[0], &samples, &policy);
        assert_eq!(carried, expected);
        let Some(carried) = carried else { return };

        let lists = policy.among(&samples);
        let events: Vec<Event> = (0..policy.exchanges().len())
            .map(|index| Event::Started {
                at: index as u64,
                call: index as u32 + 1,
                time: SystemTime::UNIX_EPOCH,
                request: lists.stored(ModelRole::Policy, index),
            })
            .collect();
        let rest = carried.rest(&samples[0].messages);
        assert_eq!(rest.len(), conversation.len() - carried.count);
        let read = Transcript::read(&events, []).unwrap();
        assert_eq!(read.whole(carried, &rest).unwrap(), samples[0].messages);
        let lost = Transcript::read(&events[..carried.request], []).unwrap();
        assert!(lost.whole(carried, &rest).unwrap_err().contains("is missing"));
    }

    #[test]
    fn a_conversation_is_assembled_from_its_last_request_and_the_rest() {
        let long = [0, 1, 2, 3].map(|number| message(number, 600));
        let [a, b, c, d] = [&*long[0], &*long[1], &*long[2], &*long[3]];
        let at = |request, count| Some(Carried { request, count });
        check(&[a, b, c, d], &[&[a], &[a, b, c]], at(1, 3));
        check(&[a, b], &[&[a, b]], at(0, 2));
        // The last request differs after two messages, or contains no message of the conversation.
        check(&[a, b, c], &[&[a, b, c], &[a, b, d]], at(1, 2));
        check(&[a, b, c], &[&[a, b, c], &[d]], None);
        check(&[a, b, c], &[], None);
        // Short conversations are stored in full.
        let short = message(0, 10);
        check(&[&short, b], &[&[&short]], None);
    }
}
