//! Tests of stored requests, and of the bodies that are assembled from them.

use std::collections::BTreeMap;

use super::*;

const A: &str = r#"{"role":"user","content":"a"}"#;
const B: &str = r#"{"role":"assistant","content":"b"}"#;
const C: &str = r#"{"role":"user","content":"c"}"#;

/// The calls of a rollout with one sample.
struct Rollout {
    calls: ModelCalls,
    samples: Vec<SampleRecord>,
}

fn messages(texts: &[&str]) -> Messages {
    texts.iter().map(|text| rollout_wire::object(text).unwrap()).collect()
}

impl Rollout {
    fn new() -> Self {
        let sample = SampleRecord::new(SampleId::parse("s").unwrap());
        Self { calls: ModelCalls::default(), samples: vec![sample] }
    }

    fn push(&mut self, texts: &[&str]) {
        self.samples[0].messages.append(messages(texts));
    }

    fn replace(&mut self, texts: &[&str]) {
        let old = std::mem::replace(&mut self.samples[0].messages, messages(texts));
        self.calls.replaced(0, &old);
    }

    fn add(&mut self, sent: Sent) {
        let none = BTreeMap::<String, ()>::new();
        let (template, _) = self.calls.share(BodyTemplate::new("m", &none).unwrap());
        self.calls.add(Exchange::new(None, sent, template, SystemTime::UNIX_EPOCH));
    }

    fn ask_history(&mut self) {
        let sent = self.calls.send_history(0, self.samples[0].messages.len());
        self.add(sent);
    }

    /// Adds a request with these messages. Returns how many of them were stored already.
    fn ask(&mut self, texts: &[&str]) -> usize {
        let given: Vec<String> = texts.iter().map(|text| format!(" {text}\n")).collect();
        let owner = Owner::Sample(0);
        let beginning = self.calls.begin(&self.samples, owner, &given);
        let sent = self.calls.send_list(owner, beginning, messages(&texts[beginning.count()..]));
        self.add(sent);
        beginning.count()
    }

    fn bodies(&self) -> Vec<String> {
        let lists = self.calls.among(&self.samples);
        let body = |exchange| String::from_utf8(lists.body(exchange)).unwrap();
        self.calls.exchanges().iter().map(body).collect()
    }

    /// Returns for each call but the first how many messages it repeats from the previous one.
    fn repeated(&self) -> Vec<usize> {
        let lists = self.calls.among(&self.samples);
        let parts: Vec<_> = self.calls.exchanges().iter().map(|exchange| lists.messages(exchange)).collect();
        parts.windows(2).map(|pair| in_common(&pair[0], &pair[1])).collect()
    }
}

fn body(texts: &[&str]) -> String {
    format!(r#"{{"model":"m","messages":[{}]}}"#, texts.join(","))
}

#[test]
fn requests_stay_unchanged_while_the_history_grows_and_is_replaced() {
    let mut rollout = Rollout::new();
    rollout.push(&[A]);
    rollout.ask_history();
    rollout.push(&[B, C]);
    rollout.ask_history();
    rollout.replace(&[C]);
    rollout.ask_history();
    rollout.replace(&[]);
    rollout.replace(&[B]);

    assert_eq!(rollout.bodies(), [body(&[A]), body(&[A, B, C]), body(&[C])]);
    assert_eq!(rollout.repeated(), [1, 0]);
    assert_eq!(rollout.calls.sent_of[0].replaced.len(), 2, "a history that was never sent is not stored");
}

#[test]
fn only_messages_that_are_new_since_the_history_or_the_previous_request_are_stored() {
    let mut rollout = Rollout::new();
    rollout.push(&[A, B]);
    assert_eq!(rollout.ask(&[A, B]), 2);
    assert_eq!(rollout.ask(&[A, B, C]), 2);
    assert_eq!(rollout.ask(&[A, B, C, A]), 3, "they are in the previous request");
    assert_eq!(rollout.ask(&[A, C]), 1);
    assert_eq!(rollout.ask(&[C]), 0);
    assert_eq!(rollout.ask(&[C, B]), 1);
    rollout.replace(&[]);
    assert_eq!(rollout.ask(&[C, B, A]), 2);

    let bodies = [
        body(&[A, B]),
        body(&[A, B, C]),
        body(&[A, B, C, A]),
        body(&[A, C]),
        body(&[C]),
        body(&[C, B]),
        body(&[C, B, A]),
    ];
    assert_eq!(rollout.bodies(), bodies);
    assert_eq!(rollout.repeated(), [2, 3, 1, 0, 1, 2]);
}

#[test]
fn a_conversation_that_a_guest_holds_is_a_chain_of_requests_without_repetitions() {
    let mut rollout = Rollout::new();
    let texts = vec![A; 100];
    for count in 1..=texts.len() {
        rollout.ask(&texts[..count]);
    }
    // Repeated requests do not lengthen the chain.
    for _ in 0..10 {
        assert_eq!(rollout.ask(&texts), 100);
    }
    let lists = rollout.calls.among(&rollout.samples);
    let last = rollout.calls.exchanges().last().unwrap();
    assert_eq!(lists.messages(last).len(), 100);
    assert_eq!(lists.body(last), body(&texts).into_bytes());
    assert_eq!(lists.body_bytes(last), lists.body(last).len());
    let news = rollout.calls.exchanges().iter().map(|exchange| exchange.sent.new.len());
    assert_eq!(news.sum::<usize>(), 100, "each message is stored once");
}
