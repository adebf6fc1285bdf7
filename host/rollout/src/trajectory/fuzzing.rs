//! Fuzz target of the conversations in trajectories.

use std::rc::Rc;

use serde::{Deserialize, Serialize, Serializer};

use super::conversation::{Conversation, Steps};
use super::layout::{self, Marks};
use super::observed::Observed;
use super::replies::{Unmatched, answered};
use rollout_transcript::{Exchange, Lists, ModelCalls};
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;

/// The part of a document that is made from a conversation.
struct Written<'a> {
    conversation: &'a Conversation<'a>,
    unmatched: Unmatched<'a>,
    lists: Lists<'a>,
    exchanges: &'a [&'a Exchange],
    marks: Rc<Marks>,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Parts<'a> {
            steps: Steps<'a>,
            unmatched: Unmatched<'a>,
            observed: Observed<'a>,
        }
        let steps = Steps { conversation: self.conversation, marks: &self.marks };
        let message_of_reply = &self.conversation.message_of_reply;
        let observed = Observed { lists: self.lists, exchanges: self.exchanges, message_of_reply };
        Parts { steps, unmatched: self.unmatched, observed }.serialize(to)
    }
}

#[derive(Deserialize)]
struct Read {
    steps: Vec<ReadStep>,
}

#[derive(Deserialize)]
struct ReadStep {
    step_id: usize,
}

/// Checks that messages that a guest may push make a readable trajectory with any reply of a model. Each line of the
/// input is a message or the body of the reply.
pub(crate) fn trajectory(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (replies, messages): (Vec<&str>, Vec<&str>) =
        text.split('\n').partition(|line| line.contains("\"choices\""));
    let messages =
        messages.into_iter().filter_map(|line| Some(rollout_wire::object(line).ok()?.get())).collect();
    let calls = ModelCalls::from_iter(replies.into_iter().map(exchange));
    let (lists, exchanges): (_, Vec<&Exchange>) = (calls.among(&[]), calls.exchanges().iter().collect());
    let replies = answered(&exchanges);
    let conversation = Conversation::new(messages, &replies);
    let is_matched = conversation.matched();
    let unmatched = Unmatched { replies: &replies, is_matched: &is_matched };

    let mut text = Vec::new();
    let document =
        |marks| Written { conversation: &conversation, unmatched, lists, exchanges: &exchanges, marks };
    let layout = layout::write(&mut text, document).expect("a trajectory can be written");
    let Read { steps } = serde_json::from_slice(&text).expect("a trajectory can be read");
    assert!(!steps.is_empty() && steps.iter().enumerate().all(|(at, step)| step.step_id == at + 1));
    assert!(steps.len() == conversation.step_count() && layout.total_steps == steps.len());
}

fn exchange(body: &str) -> Exchange {
    Exchange::replied(SampleId::parse("main").expect("main is a valid id"), Messages::default(), body)
}
