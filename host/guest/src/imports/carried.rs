//! Conversations that a request carried already.
//!
//! A request of a workflow carries a sample's conversation up to the reply that it asks for. The journal has the request,
//! so an outcome need not have those messages again: it says which request has them, and how many.

use serde::{Deserialize, Serialize};

use super::again::Left;
use super::exchange::{ModelCalls, Part, in_common};
use super::read_calls::ReadCalls;
use super::record::SampleRecord;
use super::run_event::RunEvent;
use rollout_wire::messages::Messages;

/// Bytes of text from which on a conversation is referred to. A shorter one is written out, so that most outcomes of one turn
/// are read without their requests.
const BYTES_MIN: usize = 1 << 10;

/// The beginning of a sample's conversation, as a request carried it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The request's place among those of the workflow to its model, from 0.
    request: usize,
    /// Number of messages that the request and the conversation have in common.
    count: usize,
}

impl Left<'_> {
    /// The beginnings of the samples' conversations that requests carried, by sample.
    pub fn carried(&self) -> Vec<Option<Carried>> {
        let (samples, policy) = (&self.0.samples, &self.0.policy);
        samples.iter().map(|sample| Carried::find(sample, samples, policy)).collect()
    }
}

impl Carried {
    /// Finds the last request of a sample, and what it carried of the sample's conversation.
    fn find(sample: &SampleRecord, samples: &[SampleRecord], policy: &ModelCalls) -> Option<Self> {
        let exchanges = policy.exchanges();
        let request = exchanges.iter().rposition(|exchange| exchange.sample.as_ref() == Some(&sample.id))?;
        let sent = policy.among(samples).messages(&exchanges[request]);
        let count = in_common(&sent, &[Part::all(&sample.messages)]);
        (sample.messages.text_bytes_of(0, count) >= BYTES_MIN).then_some(Self { request, count })
    }

    /// The rest of the sample's conversation.
    pub fn rest(self, messages: &Messages) -> Messages {
        messages.tail(self.count)
    }
}

impl ReadCalls {
    /// Reads the requests of one run. The error says what of them cannot be read.
    pub fn of_run(events: &[RunEvent]) -> Result<Self, String> {
        let mut calls = Self::default();
        for event in events {
            let RunEvent::Asked { time, what, .. } = event else { continue };
            calls.add(what, *time)?;
        }
        Ok(calls)
    }

    /// Puts a conversation together of what a request carried and the rest. The error says what is missing.
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::exchange::Exchange;
    use super::*;
    use rollout_core::telemetry::ModelRole;
    use rollout_wire as wire;
    use rollout_wire::id::SampleId;

    const REPLY: &str = r#"{"choices":[{"message":{"role":"assistant","content":"a"}}]}"#;

    fn messages(texts: &[&str]) -> Messages {
        texts.iter().map(|text| wire::object(text).unwrap()).collect()
    }

    fn message(number: usize, bytes: usize) -> String {
        format!(r#"{{"role":"user","content":"{number}{}"}}"#, "x".repeat(bytes))
    }

    /// A sample whose conversation is `has`, after requests that carried `requests`.
    fn check(has: &[&str], requests: &[&[&str]], expected: Option<Carried>) {
        let id = SampleId::parse("main").unwrap();
        let sample = SampleRecord { messages: messages(has), ..SampleRecord::new(id.clone()) };
        let other = Exchange::replied(SampleId::parse("other").unwrap(), messages(has), REPLY);
        let asked = requests.iter().map(|texts| Exchange::replied(id.clone(), messages(texts), REPLY));
        let policy: ModelCalls = asked.chain([other]).collect();
        let samples = [sample];
        let carried = Carried::find(&samples[0], &samples, &policy);
        assert_eq!(carried, expected);
        let Some(carried) = carried else { return };

        let lists = policy.among(&samples);
        let events: Vec<RunEvent> = (0..policy.exchanges().len())
            .map(|place| RunEvent::Asked {
                at: place as u64,
                call: place as u32 + 1,
                time: SystemTime::UNIX_EPOCH,
                what: lists.written(ModelRole::Policy, place),
            })
            .collect();
        let rest = carried.rest(&samples[0].messages);
        assert_eq!(rest.len(), has.len() - carried.count);
        let read = ReadCalls::of_run(&events).unwrap();
        assert_eq!(read.whole(carried, &rest).unwrap(), samples[0].messages);
        let lost = ReadCalls::of_run(&events[..carried.request]).unwrap();
        assert!(lost.whole(carried, &rest).unwrap_err().contains("is missing"));
    }

    #[test]
    fn a_conversation_is_put_together_of_its_last_request_and_the_rest() {
        let long = [0, 1, 2, 3].map(|number| message(number, 600));
        let [a, b, c, d] = [&*long[0], &*long[1], &*long[2], &*long[3]];
        let at = |request, count| Some(Carried { request, count });
        check(&[a, b, c, d], &[&[a], &[a, b, c]], at(1, 3));
        check(&[a, b], &[&[a, b]], at(0, 2));
        // The last request goes on from another beginning, or has nothing of the conversation.
        check(&[a, b, c], &[&[a, b, c], &[a, b, d]], at(1, 2));
        check(&[a, b, c], &[&[a, b, c], &[d]], None);
        check(&[a, b, c], &[], None);
        // Short conversations are written out.
        let short = message(0, 10);
        check(&[&short, b], &[&[&short]], None);
    }
}
