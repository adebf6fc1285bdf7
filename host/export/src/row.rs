//! A training row: one sample of one rollout.

use std::borrow::Cow;

use rollout_guest::imports::{RefusedKind, RefusedUse, RefusedUses};
use rollout_wire::stream::Text;

use crate::columns::Cell;
use crate::document::{
    ClaimedMessage, Document, Exchange, HostExtra, InvalidReason, Protocol, RecordedOutcome, non_null,
};
use crate::messages::{Message, parse, take_wording};
use crate::reply::{Reply, Tokens, number};
use crate::tokens::Sequence;

/// Error of a document that is not a trajectory of this host.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTrajectory(pub(crate) String);

/// A training row.
pub struct Row<'a> {
    pub(crate) document: Document<'a>,
    pub(crate) reward: Option<f64>,
    pub(crate) metrics: Vec<(Cow<'a, str>, f64)>,
    tools: Option<&'a str>,
    pub(crate) messages: Vec<Message<'a>>,
    /// For each message, 1 if the model wrote it, else 0.
    pub(crate) mask: Vec<i64>,
    turns: Vec<Turn<'a>>,
    sequence: Sequence,
}

/// An answered call of the model.
struct Turn<'a> {
    /// Index of the call in the sample.
    request: usize,
    /// Index of the message that is its reply, if there is one.
    message: Option<usize>,
    reply: Reply<'a>,
}

impl<'a> Row<'a> {
    /// Creates the row of a trajectory.
    ///
    /// # Errors
    ///
    /// The text is not a trajectory of this host.
    pub fn parse(document: &'a str) -> Result<Self, InvalidTrajectory> {
        let mut document = Document::read(document).map_err(InvalidTrajectory)?;
        let exchanges = document.exchanges().map_err(InvalidTrajectory)?;
        let metrics = document
            .protocol
            .as_ref()
            .map_or(Ok(Vec::new()), Protocol::metrics)
            .map_err(InvalidTrajectory)?;
        let claimed = std::mem::take(&mut document.claimed);
        let (messages, turns) = conversation(claimed, &exchanges).map_err(InvalidTrajectory)?;
        let mut mask = vec![0; messages.len()];
        turns.iter().filter_map(|turn| turn.message).for_each(|index| mask[index] = 1);
        // A call whose reply is not in the conversation is not part of the sequence.
        let in_conversation = turns.iter().filter(|turn| turn.message.is_some());
        let sequence = Sequence::join(in_conversation.map(|turn| (turn.request, &turn.reply.tokens)));
        // A sample without a reward may be part of a rollout with one.
        let reward = match &document.protocol {
            Some(protocol) => protocol.reward,
            None => document.host.outcome.reward,
        };
        let reward = reward.and_then(number);
        let tools = exchanges.iter().rev().find_map(|exchange| non_null(exchange.tools()));
        Ok(Self { document, reward, metrics, tools, messages, mask, turns, sequence })
    }

    /// Returns the values of the columns, in order.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        let Self { document, reward, metrics, tools, messages, mask, turns, sequence } = self;
        let Document { rollout_id, model, host, protocol, .. } = document;
        let HostExtra {
            outcome, attempt, plugin_digest, grader_digest, sample_id, withdrawn, fork_of, ..
        } = host;
        let RecordedOutcome { outcome, stage, kind, fault, reason, .. } = outcome;
        let first_written = mask.iter().position(|mask| *mask == 1);
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
            refused_uses(&host.refused_uses),
            Cell::List(metrics.iter().map(metric).collect()),
            text(protocol.as_ref().and_then(|protocol| protocol.label.as_ref())),
            non_null(protocol.as_ref().and_then(|protocol| protocol.request_metadata))
                .map_or(Cell::Null, Cell::Text),
            tools.map_or(Cell::Null, Cell::Text),
            first_written.map_or(Cell::Null, |end| list(&messages[..end])),
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

/// Returns the cell of the refused uses. It is null if there are none, so that a condition can select such rows.
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
    // The length of a list fits into 63 bits.
    Cell::int(at.and_then(|at| i64::try_from(at).ok()))
}

/// Returns the messages of the conversation and the answered calls. Token lists that the server did not return are
/// taken from the metrics that were reported with the step.
///
/// # Errors
///
/// Fails if the index of a reply's message is out of range.
fn conversation<'a>(
    claimed: Vec<ClaimedMessage<'a>>,
    exchanges: &[Exchange<'a>],
) -> Result<(Vec<Message<'a>>, Vec<Turn<'a>>), InvalidReason> {
    let (mut messages, mut reported): (Vec<Message<'_>>, Vec<Tokens>) =
        claimed.into_iter().map(|ClaimedMessage { message, tokens }| (message, tokens)).unzip();
    take_wording(
        &mut messages,
        exchanges.iter().flat_map(|exchange| &exchange.request.messages_new).copied(),
    );
    let mut turns = Vec::new();
    for (request, exchange) in exchanges.iter().enumerate() {
        let Some(mut reply) = exchange.reply() else { continue };
        if let Some(index) = exchange.reply_at {
            let count = messages.len();
            let message = messages.get_mut(index).ok_or_else(|| {
                format!("`extra.rollout_host.observed[{request}].reply_at`: there are {count} messages, and it is {index}")
            })?;
            if let Some(observed) = reply.message.and_then(|reply| parse(reply.get())) {
                *message = observed;
            }
            reply.tokens = reply.tokens.or(std::mem::take(&mut reported[index]));
        }
        turns.push(Turn { request, message: exchange.reply_at, reply });
    }
    Ok((messages, turns))
}
