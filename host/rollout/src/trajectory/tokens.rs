//! Token ids and log-probabilities of the model's replies behind a sample's messages, for protocols that report them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::conversation::Conversation;
use super::replies::{Reply, answered};
use rollout_transcript::{Exchange, SampleRecord};
use rollout_wire::tokens::TokenLists;

/// The tokens of a sample's messages, as far as the model's server reported them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SampleTokens {
    /// Whether the server reported the tokens of any reply.
    pub is_observed: bool,
    /// The tokens of the messages that are unchanged replies, in their order.
    pub replies: Vec<ReplyTokens>,
}

/// The tokens of the reply behind a message.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplyTokens {
    /// Index of the message in the sample.
    pub message: usize,
    /// Token ids of the request.
    pub prompt_ids: Box<RawValue>,
    /// Token ids of the reply.
    pub completion_ids: Box<RawValue>,
    /// Log-probabilities of the reply's tokens.
    pub logprobs: Box<RawValue>,
}

impl SampleTokens {
    /// Returns the size in memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let bytes = |tokens: &ReplyTokens| {
            let lists = [&tokens.prompt_ids, &tokens.completion_ids, &tokens.logprobs];
            size_of::<ReplyTokens>() + lists.map(|list| list.get().len()).iter().sum::<usize>()
        };
        self.replies.iter().map(bytes).sum()
    }
}

/// Returns the tokens of a sample's messages. A message that the workflow changed has none.
pub(crate) fn sample_tokens(sample: &SampleRecord, exchanges: &[Exchange]) -> SampleTokens {
    let own: Vec<&Exchange> =
        exchanges.iter().filter(|exchange| exchange.sample.as_ref() == Some(&sample.id)).collect();
    let replies = answered(&own);
    let conversation = Conversation::new(sample.messages.iter().collect(), &replies);
    let tokens = |(message, reply): (usize, &Reply<'_>)| {
        let lists = TokenLists::from_reply(reply.completion.body());
        Some(ReplyTokens {
            message,
            prompt_ids: lists.prompt_ids?.into_owned(),
            completion_ids: lists.completion_ids?.into_owned(),
            logprobs: lists.logprobs?.into_owned(),
        })
    };
    let found: Vec<ReplyTokens> = conversation.unchanged_replies().into_iter().filter_map(tokens).collect();
    let has_tokens =
        |reply: &Reply<'_>| TokenLists::from_reply(reply.completion.body()).completion_ids.is_some();
    SampleTokens { is_observed: !found.is_empty() || replies.iter().any(has_tokens), replies: found }
}
