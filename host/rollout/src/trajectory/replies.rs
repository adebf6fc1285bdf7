//! The replies of the model behind the steps of a conversation.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use rollout_transcript::Exchange;
use rollout_wire::atif::Metrics;
use rollout_wire::openai::{Completion, TokenUsage, WireCall};
use rollout_wire::stream::each;
use rollout_wire::tokens::TokenLists;

/// An answered call of the model.
pub(super) struct Reply<'a> {
    pub completion: &'a Completion,
    /// Position in the sample's history, if the host pushed the reply there.
    reply_at: Option<usize>,
}

/// Returns the replies among these calls.
pub(super) fn answered<'a>(exchanges: &[&'a Exchange]) -> Vec<Reply<'a>> {
    let reply = |exchange: &&'a Exchange| {
        Some(Reply { completion: exchange.completion()?, reply_at: exchange.reply_at })
    };
    exchanges.iter().filter_map(reply).collect()
}

/// Returns the sum of the tokens that replies report, or `None` if none reports any.
pub(super) fn sum(replies: &[Reply<'_>], tokens: fn(&TokenUsage) -> u64) -> Option<u64> {
    let reported = replies.iter().filter_map(|reply| reply.completion.usage.as_ref()).map(tokens);
    reported.reduce(u64::saturating_add)
}

/// Finds the reply that a step of the agent came from.
///
/// The position of a reply that the host pushed to the history is known. A workflow that registers messages itself is
/// matched by content: the step came from the first reply, after those found before, with the same content. Contents are
/// compared by a keyed hash, so that a conversation of many steps is not compared with many replies, text by text.
pub(super) struct Matcher {
    hasher: RandomState,
    /// The replies with a known position, by the position.
    known: HashMap<usize, usize>,
    /// All other replies, by content.
    places: HashMap<u64, Vec<usize>>,
    from: usize,
}

impl Matcher {
    pub(super) fn new(messages: &[&str], replies: &[Reply<'_>]) -> Self {
        let (known, places) = (HashMap::new(), HashMap::new());
        let mut matcher = Self { hasher: RandomState::new(), known, places, from: 0 };
        for (place, reply) in replies.iter().enumerate() {
            // The workflow may have replaced the history since.
            let is_at =
                |at: &usize| messages.get(*at).is_some_and(|message| *message == reply.completion.message());
            if let Some(at) = reply.reply_at.filter(is_at) {
                matcher.known.insert(at, place);
                continue;
            }
            let mut calls = Vec::new();
            reply.completion.each_tool_call(|at, call| calls.push(matcher.hash_of_call(at, &call)));
            let key = matcher.hasher.hash_one((&*reply.completion.text(), calls));
            matcher.places.entry(key).or_default().push(place);
        }
        matcher
    }

    fn hash_of_call(&self, at: usize, call: &WireCall<'_>) -> u64 {
        self.hasher.hash_one(&*call.id(at))
    }

    /// Returns the reply that the next step of the agent came from. Its message is at this index; its content is read only if
    /// that is needed.
    pub(super) fn next<'t>(
        &mut self,
        at: usize,
        text: impl FnOnce() -> Cow<'t, str>,
        tool_calls: Option<&RawValue>,
    ) -> Option<usize> {
        if let Some(place) = self.known.get(&at) {
            self.from = self.from.max(place + 1);
            return Some(*place);
        }
        if self.places.is_empty() {
            return None;
        }
        let (mut calls, mut at) = (Vec::new(), 0);
        let _ = each(tool_calls.map_or("[]", RawValue::get), |call: WireCall<'_>| {
            calls.push(self.hash_of_call(at, &call));
            at += 1;
            Ok::<(), ()>(())
        });
        let places = self.places.get(&self.hasher.hash_one((&*text(), calls)))?;
        let place = *places.get(places.partition_point(|place| *place < self.from))?;
        self.from = place + 1;
        Some(place)
    }
}

impl Reply<'_> {
    /// Returns the reply's usage, with token ids and log-probabilities.
    pub(super) fn metrics(&self) -> Metrics<'_> {
        let usage = self.completion.usage;
        let mut metrics = Metrics {
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            completion_tokens: usage.map(|usage| usage.completion_tokens),
            ..Metrics::default()
        };
        let tokens = TokenLists::from_reply(self.completion.body());
        metrics.prompt_token_ids = tokens.prompt_ids;
        metrics.completion_token_ids = tokens.completion_ids;
        metrics.logprobs = tokens.logprobs;
        if let Some(finish_reason) = &self.completion.finish_reason {
            #[derive(Serialize)]
            struct Extra<'a> {
                finish_reason: &'a str,
            }
            metrics.extra = serde_json::value::to_raw_value(&Extra { finish_reason }).ok();
        }
        metrics
    }
}

/// Usage of calls without a known step.
#[derive(Clone, Copy)]
pub struct Unmatched<'a> {
    pub(super) replies: &'a [Reply<'a>],
    pub(super) is_matched: &'a [bool],
}

impl Serialize for Unmatched<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(None)?;
        for (reply, _) in self.replies.iter().zip(self.is_matched).filter(|(_, matched)| !**matched) {
            list.serialize_element(&reply.metrics())?;
        }
        list.end()
    }
}
