//! Calls of a model, as the host observed them. Each message of a conversation is stored once.
//!
//! A request contains the whole conversation so far. It is stored as a reference to the beginning of a sample's history
//! or of an earlier request, followed by the messages that are new. The whole request is assembled when it is sent,
//! shown to a grader or written to a trajectory.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;
use rollout_wire::openai::{BodyTemplate, Completion};

use crate::labels::ModelRole;
use crate::request::StoredRequest;
use crate::result::{ChatFailure, ChatReply};
use crate::sample::{MESSAGE_BYTES, SampleRecord};

/// Number of bytes that an exchange counts for in the record, besides its messages, its template and its reply: about its
/// size in memory. The number is fixed, so that a limit admits the same calls in every version.
pub const EXCHANGE_BYTES: usize = 320;

const _: () = assert!(size_of::<Exchange>() < EXCHANGE_BYTES + EXCHANGE_BYTES / 8);

/// One call of a model, as the host observed it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Number of the call in its run, from 1. It is 0 until the number is assigned.
    pub(crate) call: u32,
    /// The sample that the call was made for; `None` for the judge.
    pub sample: Option<SampleId>,
    /// The messages of the request.
    pub(crate) sent: Sent,
    /// The rest of the request.
    pub(crate) template: BodyTemplate,
    /// Time of the call.
    pub started_at: SystemTime,
    /// Time until the end of the last attempt.
    pub duration: Duration,
    /// Result of the call. A call without an answer counts as abandoned.
    pub result: Result<ChatReply, ChatFailure>,
    /// Whether the end of the call is known.
    pub(crate) has_ended: bool,
    /// Position of the reply in the sample's history, if the host pushed it there.
    pub reply_at: Option<usize>,
}

impl Exchange {
    /// Creates a call that has no answer yet.
    pub fn new(sample: Option<SampleId>, sent: Sent, template: BodyTemplate, started_at: SystemTime) -> Self {
        Self {
            call: 0,
            sample,
            sent,
            template,
            started_at,
            duration: Duration::ZERO,
            result: Err(ChatFailure::Abandoned),
            has_ended: false,
            reply_at: None,
        }
    }

    /// Creates a call with these messages and this response body, for tests.
    pub fn replied(sample: SampleId, messages: Messages, body: &str) -> Self {
        let sent = Sent { base: Base::Nothing, new: messages };
        let none = std::collections::BTreeMap::<String, ()>::new();
        let template = BodyTemplate::new("m", &none).unwrap_or_default();
        let result = match Completion::parse(&body.to_owned().into()) {
            Ok(completion) => Ok(ChatReply { completion, attempts: 1 }),
            Err(reason) => Err(ChatFailure::Unavailable { attempts: 1, reason }),
        };
        let exchange = Self::new(Some(sample), sent, template, SystemTime::UNIX_EPOCH);
        Self { duration: Duration::from_millis(2), result, ..exchange }
    }

    /// Returns the number of messages of the request.
    pub fn request_len(&self) -> usize {
        self.sent.len()
    }

    /// Returns the reply, if there is one.
    pub fn completion(&self) -> Option<&Completion> {
        self.result.as_ref().ok().map(|reply| &reply.completion)
    }
}

/// The messages of a request: the beginning of a list that is stored already, then new messages.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    base: Base,
    new: Messages,
}

#[derive(Clone, Copy, Debug, Default)]
enum Base {
    #[default]
    Nothing,
    /// The first messages of a sample's history after `epoch` replacements of that history.
    History { sample: usize, epoch: usize, count: usize },
    /// The first messages of an earlier request to the same model.
    Request { index: usize, count: usize },
}

impl Base {
    fn count(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::History { count, .. } | Self::Request { count, .. } => count,
        }
    }

    /// Returns a reference to the first messages of the same list.
    fn shortened_to(self, first: usize) -> Self {
        match self {
            Self::History { sample, epoch, .. } if first > 0 => Self::History { sample, epoch, count: first },
            Self::Request { index, .. } if first > 0 => Self::Request { index, count: first },
            Self::Nothing | Self::History { .. } | Self::Request { .. } => Self::Nothing,
        }
    }
}

impl Sent {
    fn len(&self) -> usize {
        self.base.count() + self.new.len()
    }
}

/// The requests of one sample.
#[derive(Debug, Default)]
struct SentOf {
    /// Histories that were replaced after a request had contained them.
    replaced: Vec<Messages>,
    /// Whether a request contains the sample's current history.
    carried: bool,
    /// Index of the last request.
    last: Option<usize>,
}

/// The calls of one model in one rollout, in the order in which they were made.
#[derive(Debug, Default)]
pub struct ModelCalls {
    exchanges: Vec<Exchange>,
    /// The requests of each sample, by its index.
    sent_of: Vec<SentOf>,
}

impl FromIterator<Exchange> for ModelCalls {
    fn from_iter<I: IntoIterator<Item = Exchange>>(exchanges: I) -> Self {
        Self { exchanges: exchanges.into_iter().collect(), sent_of: Vec::new() }
    }
}

impl ModelCalls {
    /// Returns the calls.
    pub fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    /// Returns mutable access to the calls.
    pub(crate) fn exchanges_mut(&mut self) -> &mut [Exchange] {
        &mut self.exchanges
    }

    /// Adds a call and returns its index.
    pub fn add(&mut self, exchange: Exchange) -> usize {
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    /// Returns a view of the calls with the samples whose histories contain their messages.
    pub fn among<'a>(&'a self, samples: &'a [SampleRecord]) -> Lists<'a> {
        Lists { calls: self, samples }
    }

    /// Returns a template and the bytes that it adds to the record. If the last call has the same template, that one is
    /// shared and adds none.
    pub fn share(&self, template: BodyTemplate) -> (BodyTemplate, usize) {
        match self.exchanges.last() {
            Some(last) if last.template == template => (last.template.clone(), 0),
            _ => {
                let bytes = template.bytes();
                (template, bytes)
            }
        }
    }

    /// Returns the requests of this sample.
    fn sent_of_mut(&mut self, sample: usize) -> &mut SentOf {
        if self.sent_of.len() <= sample {
            self.sent_of.reserve_exact(sample + 1 - self.sent_of.len());
            self.sent_of.resize_with(sample + 1, SentOf::default);
        }
        &mut self.sent_of[sample]
    }

    /// Returns the messages of the sample's next call: its whole history, of `count` messages.
    pub fn send_history(&mut self, sample: usize, count: usize) -> Sent {
        let last = self.exchanges.len();
        let requests = self.sent_of_mut(sample);
        requests.carried = true;
        requests.last = Some(last);
        let epoch = requests.replaced.len();
        Sent { base: Base::History { sample, epoch, count }, new: Messages::default() }
    }

    /// Records that a sample's history is replaced. Returns whether a request still needs the old one.
    pub(crate) fn replaced(&mut self, sample: usize, old: &Messages) -> bool {
        let requests = self.sent_of.get_mut(sample).filter(|requests| requests.carried);
        let Some(requests) = requests else { return false };
        requests.replaced.push(old.clone());
        requests.carried = false;
        true
    }

    /// Returns the beginning of a guest's list that the sample's history or the owner's previous request contains
    /// already.
    pub fn begin(&self, samples: &[SampleRecord], owner: Owner, given: &[String]) -> Beginning {
        let last = match owner {
            Owner::Sample(sample) => self.sent_of.get(sample).and_then(|requests| requests.last),
            Owner::Judge => self.exchanges.len().checked_sub(1),
        };
        let before = last.and_then(|index| Some((index, &self.exchanges.get(index)?.sent)));
        let count_before = before.map_or(0, |(_, sent)| common(&self.among(samples).parts(sent), given));
        if let Owner::Sample(sample) = owner
            && let Some(record) = samples.get(sample)
        {
            let count = common(&[Part::all(&record.messages)], given);
            if count >= count_before {
                let epoch = self.sent_of.get(sample).map_or(0, |requests| requests.replaced.len());
                return Beginning(Base::History { sample, epoch, count });
            }
        }
        Beginning(before.map_or(Base::Nothing, |(index, _)| self.first_with(index, count_before)))
    }

    /// Returns a reference to the first `count` messages of the request at `index`. It refers to the earliest request
    /// that contains them, so that chains of references stay short.
    fn first_with(&self, index: usize, count: usize) -> Base {
        let mut base = Base::Request { index, count };
        while let Base::Request { index, .. } = base
            && let Some(Exchange { sent: earlier, .. }) = self.exchanges.get(index)
            && earlier.base.count() >= count
        {
            base = earlier.base.shortened_to(count);
        }
        base
    }

    /// Adds a stored request. The error describes the part that cannot be read.
    pub(crate) fn add_stored(
        &mut self,
        call: u32,
        request: StoredRequest<'_>,
        time: SystemTime,
    ) -> Result<(), String> {
        let StoredRequest { asked: _, sample, before, shared, template, new } = request;
        let earlier = before.map(|index| {
            let earlier = self.exchanges.get(index).filter(|earlier| earlier.sent.len() >= shared);
            earlier
                .map(|earlier| (index, earlier))
                .ok_or("a request continues an earlier one that is missing")
        });
        let (base, template_before) = match earlier.transpose()? {
            Some((index, earlier)) => (self.first_with(index, shared), Some(earlier.template.clone())),
            None => (Base::Nothing, None),
        };
        let template = match template {
            Some(template) => {
                BodyTemplate::read(&template).ok_or("a request has no position for its messages")?
            }
            None => template_before.ok_or("a request has messages only")?,
        };
        let sample = sample.map(|id| SampleId::parse(&id)).transpose()?;
        let sent = Sent { base, new: new.into_iter().collect() };
        self.add(Exchange { call, ..Exchange::new(sample, sent, template, time) });
        Ok(())
    }

    /// Removes all calls but the first `calls`.
    pub fn truncate(&mut self, calls: usize) {
        self.exchanges.truncate(calls);
    }

    /// Returns the messages of the owner's next call: a stored beginning, then new messages.
    pub fn send_list(&mut self, owner: Owner, Beginning(base): Beginning, new: Messages) -> Sent {
        if let Owner::Sample(sample) = owner {
            let last = self.exchanges.len();
            let requests = self.sent_of_mut(sample);
            requests.last = Some(last);
            // A request that begins with messages of the current history refers to that history.
            let epoch_now = requests.replaced.len();
            requests.carried |=
                matches!(base, Base::History { epoch, count, .. } if epoch == epoch_now && count > 0);
        }
        Sent { base, new }
    }
}

/// The conversation that a request continues.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// The conversation of the sample at this index.
    Sample(usize),
    /// The conversation with the judge.
    Judge,
}

/// The first messages of a list, which are stored already.
#[derive(Clone, Copy, Debug)]
pub struct Beginning(Base);

impl Beginning {
    /// Returns the number of these messages.
    pub fn count(self) -> usize {
        self.0.count()
    }
}

/// Returns the number of stored messages that a guest's list begins with. White space around a message is not stored.
fn common(stored: &[Part<'_>], given: &[String]) -> usize {
    let stored = stored.iter().flat_map(Part::iter);
    stored
        .zip(given)
        .take_while(|(stored, given)| *stored == given.trim_matches([' ', '\n', '\r', '\t']))
        .count()
}

/// Consecutive messages of one list.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    messages: &'a Messages,
    from: usize,
    to: usize,
}

impl<'a> Part<'a> {
    /// Returns all messages of a list.
    pub fn all(messages: &'a Messages) -> Self {
        Self { messages, from: 0, to: messages.len() }
    }

    fn len(&self) -> usize {
        self.to - self.from
    }

    /// Returns the messages.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let messages = self.messages;
        (self.from..self.to).map(|index| messages.get(index).unwrap_or_default())
    }
}

/// Returns the number of messages that two lists have in common at their beginning. Equal parts of the same list are not
/// compared message by message.
pub fn in_common(a: &[Part<'_>], b: &[Part<'_>]) -> usize {
    let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
    let (mut left, mut right) = (a.next(), b.next());
    let mut count = 0;
    while let (Some(x), Some(y)) = (left, right) {
        let same = match x.messages.is_same_list(y.messages) && x.from == y.from {
            true => x.len().min(y.len()),
            false => x.iter().zip(y.iter()).take_while(|(x, y)| x == y).count(),
        };
        count += same;
        if same < x.len().min(y.len()) {
            break;
        }
        left = (same < x.len()).then_some(Part { from: x.from + same, ..x }).or_else(|| a.next());
        right = (same < y.len()).then_some(Part { from: y.from + same, ..y }).or_else(|| b.next());
    }
    count
}

/// A view of calls with the samples whose histories contain their messages.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    calls: &'a ModelCalls,
    samples: &'a [SampleRecord],
}

impl<'a> Lists<'a> {
    /// Returns the calls.
    pub fn exchanges(&self) -> &'a [Exchange] {
        &self.calls.exchanges
    }

    /// Returns the messages of a call, in parts.
    pub fn messages(&self, exchange: &'a Exchange) -> Vec<Part<'a>> {
        self.parts(&exchange.sent)
    }

    /// Follows the references of a request, and returns its messages in order.
    fn parts(&self, mut sent: &'a Sent) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut left = sent.len();
        loop {
            let of_base = left.min(sent.base.count());
            let part = Part { messages: &sent.new, from: 0, to: left - of_base };
            parts.extend(Some(part).filter(|part| part.len() > 0));
            left = of_base;
            match sent.base {
                Base::Request { index, .. } if left > 0 => match self.calls.exchanges.get(index) {
                    Some(earlier) => sent = &earlier.sent,
                    None => break,
                },
                Base::History { sample, epoch, .. } if left > 0 => {
                    let requests = self.calls.sent_of.get(sample);
                    let replaced = requests.and_then(|requests| requests.replaced.get(epoch));
                    let history = replaced.or_else(|| Some(&self.samples.get(sample)?.messages));
                    parts.extend(history.map(|messages| Part { messages, from: 0, to: left }));
                    break;
                }
                Base::Nothing | Base::Request { .. } | Base::History { .. } => break,
            }
        }
        parts.reverse();
        parts
    }

    /// Returns the request's body, exactly as it was sent.
    pub fn body(&self, exchange: &'a Exchange) -> Vec<u8> {
        let unassembled = self.unassembled(exchange);
        let mut body = Vec::with_capacity(unassembled.bytes());
        unassembled.add_to(&mut body);
        body
    }

    /// Returns the request without its messages: a JSON object.
    pub fn rest(&self, exchange: &'a Exchange) -> Vec<u8> {
        exchange.template.around(std::iter::empty(), 0)
    }

    /// Returns the size of the body in bytes.
    pub fn body_bytes(&self, exchange: &'a Exchange) -> usize {
        self.unassembled(exchange).bytes()
    }

    /// Returns the stored form of the request at `index`: its differences from the sample's previous request to the
    /// same model.
    pub fn stored(&self, role: ModelRole, index: usize) -> Bytes {
        let exchanges = self.exchanges();
        let Some(exchange) = exchanges.get(index) else { return Bytes::new() };
        let before = exchanges[..index].iter().rposition(|other| other.sample == exchange.sample);
        let before = before.map(|index| (index, &exchanges[index]));
        let parts = self.messages(exchange);
        let shared = before.map_or(0, |(_, other)| in_common(&self.messages(other), &parts));
        let has_template = before.is_none_or(|(_, other)| other.template != exchange.template);
        let stored = StoredRequest {
            asked: role,
            sample: exchange.sample.as_ref().map(|id| id.as_str().into()),
            before: before.map(|(index, _)| index),
            shared,
            template: has_template.then(|| exchange.template.written()),
            new: Vec::new(),
        };
        // Strings and numbers cannot fail to serialize. The messages are appended unchanged.
        let mut text = serde_json::to_vec(&stored).unwrap_or_default();
        text.truncate(text.len() - b"]}".len());
        let new = parts.iter().flat_map(Part::iter).skip(shared);
        text.reserve_exact(
            new.clone().map(|message| message.len() + b",".len()).sum::<usize>() + b"]}".len(),
        );
        for (at, message) in new.enumerate() {
            if at > 0 {
                text.push(b',');
            }
            text.extend_from_slice(message.as_bytes());
        }
        text.extend_from_slice(b"]}");
        text.into()
    }

    /// Returns the body in parts.
    pub fn unassembled(&self, exchange: &'a Exchange) -> UnassembledBody<'a> {
        UnassembledBody { template: &exchange.template, parts: self.messages(exchange) }
    }
}

/// A request's body in parts: its template and its messages.
pub struct UnassembledBody<'a> {
    template: &'a BodyTemplate,
    parts: Vec<Part<'a>>,
}

impl UnassembledBody<'_> {
    /// Returns the size of the body in bytes.
    pub fn bytes(&self) -> usize {
        let (messages, texts) = self.parts.iter().fold((0, 0), |(messages, texts), part| {
            (messages + part.len(), texts + part.messages.text_bytes_of(part.from, part.to))
        });
        self.template.body_bytes(messages, texts)
    }

    /// Appends the body.
    pub fn add_to(&self, request: &mut Vec<u8>) {
        self.template.add_around(self.parts.iter().flat_map(Part::iter), request);
    }
}

/// Returns the number of bytes that these texts count for in the record as messages.
pub fn text_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + MESSAGE_BYTES).sum()
}

#[cfg(test)]
mod tests;
