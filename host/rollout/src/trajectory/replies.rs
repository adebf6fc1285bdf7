//! The replies of the model behind the steps of a conversation.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
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
    /// Number of messages of the request.
    request_len: usize,
    /// Position in the sample's history, if the host pushed the reply there.
    reply_at: Option<usize>,
}

/// Returns the replies among these calls.
pub(super) fn answered<'a>(exchanges: &[&'a Exchange]) -> Vec<Reply<'a>> {
    let reply = |exchange: &&'a Exchange| {
        let completion = exchange.completion()?;
        Some(Reply { completion, request_len: exchange.request_len(), reply_at: exchange.reply_at })
    };
    exchanges.iter().filter_map(reply).collect()
}

/// Returns the sum of the tokens that replies report, or `None` if none reports any.
pub(super) fn sum(replies: &[Reply<'_>], tokens: fn(&TokenUsage) -> u64) -> Option<u64> {
    let reported = replies.iter().filter_map(|reply| reply.completion.usage.as_ref()).map(tokens);
    reported.reduce(u64::saturating_add)
}

/// Maximum number of messages with the content of one reply that are candidates for it. More would take memory, and a
/// rollout has fewer calls.
const CANDIDATES_MAX: usize = 1 << 16;

/// Finds the message of a conversation that a reply became.
///
/// The position of a reply that the host pushed to the history is known. A workflow that registers messages itself is
/// matched by content: a reply is the first message of the agent with its content after the messages of its request,
/// or, if a workflow did not register all of those, the first one of all. Each message is one reply at most: of several
/// replies that the host pushed to the same position, because the workflow had shortened the history, it is the last.
/// Contents are compared by a keyed hash, so that a conversation of many messages is not compared with many replies,
/// text by text.
pub(super) struct Matcher {
    hasher: RandomState,
    /// For each reply, its message if it is known by the position, else the hash of its content.
    replies: Vec<Result<usize, u64>>,
    /// The known messages, each with the index of its reply.
    known: HashMap<usize, usize>,
    /// For each content of another reply, the messages of the agent with it.
    candidates: HashMap<u64, BTreeSet<usize>>,
}

impl Matcher {
    pub(super) fn new(messages: &[&str], replies: &[Reply<'_>]) -> Self {
        let hasher = RandomState::new();
        let mut matcher =
            Self { hasher, replies: Vec::new(), known: HashMap::new(), candidates: HashMap::new() };
        for (index, reply) in replies.iter().enumerate() {
            // The workflow may have replaced the history since.
            let is_at =
                |at: &usize| messages.get(*at).is_some_and(|message| *message == reply.completion.message());
            let place = reply.reply_at.filter(is_at).ok_or_else(|| matcher.hash_of_reply(reply));
            match place {
                Ok(at) => drop(matcher.known.insert(at, index)),
                Err(content) => drop(matcher.candidates.entry(content).or_default()),
            }
            matcher.replies.push(place);
        }
        matcher
    }

    fn hash_of_reply(&self, reply: &Reply<'_>) -> u64 {
        let mut calls = Vec::new();
        reply.completion.each_tool_call(|at, call| calls.push(self.hash_of_call(at, &call)));
        self.hasher.hash_one((&*reply.completion.text(), calls))
    }

    fn hash_of_call(&self, at: usize, call: &WireCall<'_>) -> u64 {
        self.hasher.hash_one(&*call.id(at))
    }

    /// Records the agent's message at this index. Its content is read only if needed.
    pub(super) fn note<'t>(
        &mut self,
        at: usize,
        text: impl FnOnce() -> Cow<'t, str>,
        tool_calls: Option<&RawValue>,
    ) {
        if self.candidates.is_empty() || self.known.contains_key(&at) {
            return;
        }
        let (mut calls, mut place) = (Vec::new(), 0);
        let _ = each(tool_calls.map_or("[]", RawValue::get), |call: WireCall<'_>| {
            calls.push(self.hash_of_call(place, &call));
            place += 1;
            Ok::<(), ()>(())
        });
        let content = self.hasher.hash_one((&*text(), calls));
        if let Some(candidates) = self.candidates.get_mut(&content).filter(|all| all.len() < CANDIDATES_MAX) {
            candidates.insert(at);
        }
    }

    /// Returns for each reply the index of its message, if there is one. To be called when all messages of the agent
    /// are recorded.
    pub(super) fn finish(mut self, replies: &[Reply<'_>]) -> Vec<Option<usize>> {
        let mut found = vec![None; replies.len()];
        self.known.iter().for_each(|(at, reply)| found[*reply] = Some(*at));
        // The replies with each content, and their messages.
        let mut equal: HashMap<u64, (Vec<usize>, Vec<usize>)> = HashMap::new();
        for (reply, place) in self.replies.iter().enumerate() {
            let Err(content) = place else { continue };
            let Some(free) = self.candidates.get_mut(content) else { continue };
            let after = free.range(replies[reply].request_len..).next();
            let Some(at) = after.or_else(|| free.first()).copied() else { continue };
            free.remove(&at);
            let (replies, messages) = equal.entry(*content).or_default();
            replies.push(reply);
            messages.push(at);
        }
        // Equal replies became their messages in order.
        for (replies, mut messages) in equal.into_values() {
            messages.sort_unstable();
            replies.into_iter().zip(messages).for_each(|(reply, at)| found[reply] = Some(at));
        }
        found
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
