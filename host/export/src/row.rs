//! One sample of one rollout, as a trainer takes it.

use std::borrow::Cow;

use rollout_guest::imports::{RefusedKind, RefusedUse, RefusedUses};
use rollout_wire::stream::Text;

use crate::columns::Cell;
use crate::document::{Claimed, Document, Exchange, Ours, Outcome, Protocol, written};
use crate::messages::{Answered, Conversation, Message};
use crate::reply::{Reply, Tokens, number};
use crate::tokens::Sequence;

/// A document of which no row can be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub(crate) String);

/// A row.
pub struct Row<'a> {
    document: Document<'a>,
    reward: Option<f64>,
    metrics: Vec<(Cow<'a, str>, f64)>,
    tools: Option<&'a str>,
    messages: Vec<Message<'a>>,
    /// 1 for each message that the model wrote.
    mask: Vec<i64>,
    turns: Vec<Turn<'a>>,
    sequence: Sequence,
}

/// A call of the model that was answered.
struct Turn<'a> {
    /// Which of the sample's calls it is, from 0.
    request: usize,
    /// Which message is its reply, if one is.
    message: Option<usize>,
    reply: Reply<'a>,
}

impl<'a> Row<'a> {
    /// Makes the row of a trajectory.
    ///
    /// # Errors
    ///
    /// The text is no trajectory of this host.
    pub fn of(document: &'a str) -> Result<Self, Unreadable> {
        let mut document = Document::read(document).map_err(Unreadable)?;
        let exchanges = document.exchanges().map_err(Unreadable)?;
        let metrics =
            document.protocol.as_ref().map_or(Ok(Vec::new()), Protocol::metrics).map_err(Unreadable)?;
        let claimed = std::mem::take(&mut document.claimed);
        let (messages, turns) = conversation(claimed, &exchanges);
        let mut mask = vec![0; messages.len()];
        turns.iter().filter_map(|turn| turn.message).for_each(|place| mask[place] = 1);
        // Calls whose replies the workflow left out of the conversation are no part of it.
        let of_conversation = turns.iter().filter(|turn| turn.message.is_some());
        let sequence = Sequence::of(of_conversation.map(|turn| (turn.request, &turn.reply.tokens)));
        // A sample that does not count has no reward, though its rollout may have one.
        let reward = match &document.protocol {
            Some(protocol) => protocol.reward,
            None => document.ours.outcome.reward,
        };
        let reward = reward.and_then(number);
        let tools = exchanges.iter().rev().find_map(|exchange| written(exchange.tools()));
        Ok(Self { document, reward, metrics, tools, messages, mask, turns, sequence })
    }

    /// What is in its columns, in their order.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        let Self { document, reward, metrics, tools, messages, mask, turns, sequence } = self;
        let Document { rollout_id, model, ours, protocol, .. } = document;
        let Ours { outcome, attempt, plugin_digest, grader_digest, sample_id, withdrawn, fork_of, .. } = ours;
        let Outcome { outcome, stage, kind, fault, reason, .. } = outcome;
        let written_first = mask.iter().position(|mask| *mask == 1);
        vec![
            Cell::Text(rollout_id),
            text(sample_id.as_ref()),
            Cell::int(*attempt),
            text(fork_of.as_ref().map(|fork| &fork.rollout_id)),
            Cell::int(fork_of.as_ref().map(|fork| fork.turn)),
            text(plugin_digest.as_ref()),
            text(grader_digest.as_ref()),
            Cell::text(model.as_ref()),
            Cell::Text(&outcome.0),
            text(stage.as_ref()),
            text(kind.as_ref()),
            text(fault.as_ref()),
            text(reason.as_ref()),
            reward.map_or(Cell::Null, Cell::Double),
            Cell::Bool(*withdrawn),
            refused_uses(&ours.refused_uses),
            Cell::List(metrics.iter().map(metric).collect()),
            text(protocol.as_ref().and_then(|protocol| protocol.label.as_ref())),
            written(protocol.as_ref().and_then(|protocol| protocol.request_metadata))
                .map_or(Cell::Null, Cell::Text),
            tools.map_or(Cell::Null, Cell::Text),
            written_first.map_or(Cell::Null, |end| list(&messages[..end])),
            list(messages),
            Cell::Ints(mask),
            Cell::List(turns.iter().map(Turn::cell).collect()),
            Cell::ints(sequence.ids.as_ref()),
            Cell::ints(sequence.mask.as_ref()),
            Cell::doubles(sequence.logprobs.as_ref()),
            sequence.missing.as_deref().map_or(Cell::Null, Cell::Text),
        ]
    }
}

fn list<'c>(messages: &'c [Message<'_>]) -> Cell<'c> {
    Cell::List(messages.iter().map(Message::cell).collect())
}

fn metric<'c>((name, value): &'c (Cow<'_, str>, f64)) -> Cell<'c> {
    Cell::Struct(vec![Cell::Text(name), Cell::Double(*value)])
}

/// Null where there are none, so that a condition finds such rows.
fn refused_uses(uses: &RefusedUses) -> Cell<'_> {
    if uses.is_empty() {
        return Cell::Null;
    }
    Cell::List(uses.iter().map(|(kind, uses)| refused_use(kind, uses)).collect())
}

fn refused_use(kind: RefusedKind, uses: &RefusedUse) -> Cell<'_> {
    let count = i64::try_from(uses.count).unwrap_or(i64::MAX);
    Cell::Struct(vec![Cell::Text(kind.as_str()), Cell::Int(count), Cell::Text(&uses.first)])
}

impl Turn<'_> {
    fn cell(&self) -> Cell<'_> {
        let Self { request, message, reply } = self;
        let Reply { model, finish_reason, prompt_tokens, completion_tokens, tokens, .. } = reply;
        Cell::Struct(vec![
            index(Some(*request)),
            index(*message),
            Cell::text(model.as_ref()),
            Cell::text(finish_reason.as_ref()),
            Cell::int(*prompt_tokens),
            Cell::int(*completion_tokens),
            Cell::ints(tokens.prompt_ids.as_ref()),
            Cell::ints(tokens.completion_ids.as_ref()),
            Cell::doubles(tokens.logprobs.as_ref()),
        ])
    }
}

fn text<'c>(text: Option<&'c Text<'_>>) -> Cell<'c> {
    text.map_or(Cell::Null, |Text(text)| Cell::Text(text))
}

fn index(at: Option<usize>) -> Cell<'static> {
    // No list has as many elements as this can count.
    Cell::int(at.and_then(|at| i64::try_from(at).ok()))
}

/// The messages of the conversation, and the calls that were answered. Of tokens that the server does not name,
/// those that were reported of the step count.
fn conversation<'a>(
    claimed: Vec<Claimed<'a>>,
    exchanges: &[Exchange<'a>],
) -> (Vec<Message<'a>>, Vec<Turn<'a>>) {
    let (claimed, mut reported): (Vec<Message<'_>>, Vec<Tokens>) =
        claimed.into_iter().map(|Claimed { message, tokens }| (message, tokens)).unzip();
    let replies = exchanges.iter().enumerate();
    let replies = replies.filter_map(|(request, exchange)| Some((request, exchange, exchange.reply()?)));
    let replies: Vec<(usize, &Exchange<'_>, Reply<'_>)> = replies.collect();
    let answered: Vec<Answered<'_>> = replies
        .iter()
        .map(|(_, exchange, reply)| Answered { asked: exchange.message_count(), reply: reply.message })
        .collect();
    let requested = exchanges.iter().flat_map(|exchange| &exchange.request.messages_new).copied();
    let Conversation { messages, message_of } = Conversation::new(claimed, requested, &answered);
    let turns = replies.into_iter().zip(message_of).map(|((request, _, mut reply), message)| {
        if let Some(place) = message {
            reply.tokens = reply.tokens.or(std::mem::take(&mut reported[place]));
        }
        Turn { request, message, reply }
    });
    let turns = turns.collect();
    (messages, turns)
}
