//! Calls of a model as the host saw them, with each conversation stored once.
//!
//! A request carries the whole conversation so far. Its messages are stored as a position in a sample's history, or in
//! an earlier request, and those that are new. The whole is assembled when it is sent, shown to a grader or written.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;
use rollout_wire::openai::{Completion, Frame};

use crate::labels::ModelRole;
use crate::request::StoredRequest;
use crate::result::{ChatFailure, ChatReply};
use crate::sample::{MESSAGE_BYTES, SampleRecord};

/// Bytes of the record for an exchange besides its messages, its frame and its reply: about its size in memory. The
/// number is fixed, so that a limit admits the same calls in every version.
pub const EXCHANGE_BYTES: usize = 320;

const _: () = assert!(size_of::<Exchange>() < EXCHANGE_BYTES + EXCHANGE_BYTES / 8);

/// One call of a model as the host saw it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Number of the call in its run, from 1; 0 before it has one.
    pub(crate) call: u32,
    /// The sample that it was made for; `None` for the judge.
    pub sample: Option<SampleId>,
    /// The messages of the request.
    pub(crate) sent: Sent,
    /// The rest of the request.
    pub(crate) frame: Frame,
    /// Time of the call.
    pub started_at: SystemTime,
    /// Time until the end of the last attempt.
    pub duration: Duration,
    /// Its result. A call without an answer counts as abandoned.
    pub result: Result<ChatReply, ChatFailure>,
    /// Whether its end is known.
    pub(crate) has_ended: bool,
    /// Position of the reply in the sample's history, if the host pushed it there.
    pub reply_at: Option<usize>,
}

impl Exchange {
    /// Creates a call that has no answer yet.
    pub fn new(sample: Option<SampleId>, sent: Sent, frame: Frame, started_at: SystemTime) -> Self {
        Self {
            call: 0,
            sample,
            sent,
            frame,
            started_at,
            duration: Duration::ZERO,
            result: Err(ChatFailure::Abandoned),
            has_ended: false,
            reply_at: None,
        }
    }

    /// Creates a call with these messages that was answered with this body, for tests.
    pub fn replied(sample: SampleId, messages: Messages, body: &str) -> Self {
        let sent = Sent { base: Base::Nothing, new: messages };
        let none = std::collections::BTreeMap::<String, ()>::new();
        let frame = Frame::new("m", &none).unwrap_or_default();
        let result = match Completion::parse(&body.to_owned().into()) {
            Ok(completion) => Ok(ChatReply { completion, attempts: 1 }),
            Err(reason) => Err(ChatFailure::Unavailable { attempts: 1, reason }),
        };
        let exchange = Self::new(Some(sample), sent, frame, SystemTime::UNIX_EPOCH);
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

/// The messages of a request: the first ones of a list that is stored already, then new ones.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    base: Base,
    new: Messages,
}

#[derive(Clone, Copy, Debug, Default)]
enum Base {
    #[default]
    Nothing,
    /// The first messages of a sample's history, as it was before it was replaced `epoch` times.
    History { sample: usize, epoch: usize, count: usize },
    /// The first messages of an earlier request to the same model.
    Request { place: usize, count: usize },
}

impl Base {
    fn count(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::History { count, .. } | Self::Request { count, .. } => count,
        }
    }

    /// Returns the first messages of the same list.
    fn of(self, first: usize) -> Self {
        match self {
            Self::History { sample, epoch, .. } if first > 0 => Self::History { sample, epoch, count: first },
            Self::Request { place, .. } if first > 0 => Self::Request { place, count: first },
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
    /// Histories that were replaced after a request had carried them.
    past: Vec<Messages>,
    /// Whether a request carries the history that it has now.
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

    /// Returns the calls, to change them.
    pub(crate) fn exchanges_mut(&mut self) -> &mut [Exchange] {
        &mut self.exchanges
    }

    /// Adds a call and returns its index.
    pub fn add(&mut self, exchange: Exchange) -> usize {
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    /// Returns the calls with the samples that have their messages.
    pub fn among<'a>(&'a self, samples: &'a [SampleRecord]) -> Lists<'a> {
        Lists { calls: self, samples }
    }

    /// Returns the frame of the last call if it is the same, and the bytes that the frame takes.
    pub fn share(&self, frame: Frame) -> (Frame, usize) {
        match self.exchanges.last() {
            Some(last) if last.frame == frame => (last.frame.clone(), 0),
            _ => {
                let bytes = frame.bytes();
                (frame, bytes)
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

    /// Returns the whole history of a sample, for the next call.
    pub fn send_history(&mut self, sample: usize, count: usize) -> Sent {
        let last = self.exchanges.len();
        let of = self.sent_of_mut(sample);
        of.carried = true;
        of.last = Some(last);
        Sent { base: Base::History { sample, epoch: of.past.len(), count }, new: Messages::default() }
    }

    /// Notes that a sample's history is replaced. Returns whether the old one is still needed.
    pub(crate) fn replaced(&mut self, sample: usize, old: &Messages) -> bool {
        let Some(of) = self.sent_of.get_mut(sample).filter(|of| of.carried) else { return false };
        of.past.push(old.clone());
        of.carried = false;
        true
    }

    /// Returns what a list of a guest has in common with the history, or with the request before.
    pub fn begin(&self, samples: &[SampleRecord], owner: Owner, given: &[String]) -> Beginning {
        let last = match owner {
            Owner::Sample(sample) => self.sent_of.get(sample).and_then(|of| of.last),
            Owner::Judge => self.exchanges.len().checked_sub(1),
        };
        let before = last.and_then(|place| Some((place, &self.exchanges.get(place)?.sent)));
        let as_before = before.map_or(0, |(_, sent)| common(&self.among(samples).parts(sent), given));
        if let Owner::Sample(sample) = owner
            && let Some(record) = samples.get(sample)
        {
            let count = common(&[Part::all(&record.messages)], given);
            if count >= as_before {
                let epoch = self.sent_of.get(sample).map_or(0, |of| of.past.len());
                return Beginning(Base::History { sample, epoch, count });
            }
        }
        Beginning(before.map_or(Base::Nothing, |(place, _)| self.first_with(place, as_before)))
    }

    /// Returns the first messages of the request at this index: of the request that had them first, so that chains stay
    /// short.
    fn first_with(&self, place: usize, count: usize) -> Base {
        let mut base = Base::Request { place, count };
        while let Base::Request { place, .. } = base
            && let Some(Exchange { sent: earlier, .. }) = self.exchanges.get(place)
            && earlier.base.count() >= count
        {
            base = earlier.base.of(count);
        }
        base
    }

    /// Adds a stored request. The error says what of it cannot be read.
    pub(crate) fn add_stored(
        &mut self,
        call: u32,
        request: StoredRequest<'_>,
        time: SystemTime,
    ) -> Result<(), String> {
        let StoredRequest { asked: _, sample, before, shared, frame, new } = request;
        let earlier = before.map(|place| {
            let earlier = self.exchanges.get(place).filter(|earlier| earlier.sent.len() >= shared);
            earlier
                .map(|earlier| (place, earlier))
                .ok_or("a request continues an earlier one that is missing")
        });
        let (base, as_before) = match earlier.transpose()? {
            Some((place, earlier)) => (self.first_with(place, shared), Some(earlier.frame.clone())),
            None => (Base::Nothing, None),
        };
        let frame = match frame {
            Some(frame) => Frame::read(&frame).ok_or("a request has no position for its messages")?,
            None => as_before.ok_or("a request has messages only")?,
        };
        let sample = sample.map(|id| SampleId::parse(&id)).transpose()?;
        let sent = Sent { base, new: new.into_iter().collect() };
        self.add(Exchange { call, ..Exchange::new(sample, sent, frame, time) });
        Ok(())
    }

    /// Removes the calls from this index on.
    pub fn truncate(&mut self, calls: usize) {
        self.exchanges.truncate(calls);
    }

    /// Returns the list that begins so, with these messages after it, for the next call.
    pub fn send_list(&mut self, owner: Owner, Beginning(base): Beginning, new: Messages) -> Sent {
        if let Owner::Sample(sample) = owner {
            let last = self.exchanges.len();
            let of = self.sent_of_mut(sample);
            of.last = Some(last);
            // The part that a list has in common with a history is stored there.
            let epoch_now = of.past.len();
            of.carried |=
                matches!(base, Base::History { epoch, count, .. } if epoch == epoch_now && count > 0);
        }
        Sent { base, new }
    }
}

/// The conversation that a request continues.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// The sample of this index.
    Sample(usize),
    /// That of the judge.
    Judge,
}

/// The first messages of a list, which are stored already.
#[derive(Clone, Copy, Debug)]
pub struct Beginning(Base);

impl Beginning {
    /// Returns their number.
    pub fn count(self) -> usize {
        self.0.count()
    }
}

/// Returns how many of these messages a guest sends again. White space around a message is not stored.
fn common(kept: &[Part<'_>], given: &[String]) -> usize {
    let kept = kept.iter().flat_map(Part::iter);
    kept.zip(given).take_while(|(kept, given)| *kept == given.trim_matches([' ', '\n', '\r', '\t'])).count()
}

/// Messages that follow each other in one list.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    of: &'a Messages,
    from: usize,
    to: usize,
}

impl<'a> Part<'a> {
    /// Returns all messages of a list.
    pub fn all(of: &'a Messages) -> Self {
        Self { of, from: 0, to: of.len() }
    }

    fn len(&self) -> usize {
        self.to - self.from
    }

    /// Returns the messages.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let of = self.of;
        (self.from..self.to).map(|at| of.get(at).unwrap_or_default())
    }
}

/// Returns how many messages two lists have in common at their beginning. Equal parts of the same list are not compared
/// message by message.
pub fn in_common(a: &[Part<'_>], b: &[Part<'_>]) -> usize {
    let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
    let (mut left, mut right) = (a.next(), b.next());
    let mut count = 0;
    while let (Some(x), Some(y)) = (left, right) {
        let same = match x.of.is_same_list(y.of) && x.from == y.from {
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

/// Calls with the samples that have their messages.
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

    fn parts(&self, mut sent: &'a Sent) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut left = sent.len();
        loop {
            let of_base = left.min(sent.base.count());
            let part = Part { of: &sent.new, from: 0, to: left - of_base };
            parts.extend(Some(part).filter(|part| part.len() > 0));
            left = of_base;
            match sent.base {
                Base::Request { place, .. } if left > 0 => match self.calls.exchanges.get(place) {
                    Some(earlier) => sent = &earlier.sent,
                    None => break,
                },
                Base::History { sample, epoch, .. } if left > 0 => {
                    let past = self.calls.sent_of.get(sample).and_then(|of| of.past.get(epoch));
                    let of = past.or_else(|| Some(&self.samples.get(sample)?.messages));
                    parts.extend(of.map(|of| Part { of, from: 0, to: left }));
                    break;
                }
                Base::Nothing | Base::Request { .. } | Base::History { .. } => break,
            }
        }
        parts.reverse();
        parts
    }

    /// Returns the body of the request as it was sent.
    pub fn body(&self, exchange: &'a Exchange) -> Vec<u8> {
        let unassembled = self.unassembled(exchange);
        let mut body = Vec::with_capacity(unassembled.bytes());
        unassembled.add_to(&mut body);
        body
    }

    /// Returns the request without its messages: a JSON object.
    pub fn rest(&self, exchange: &'a Exchange) -> Vec<u8> {
        exchange.frame.around(std::iter::empty(), 0)
    }

    /// Returns the bytes of the body.
    pub fn body_bytes(&self, exchange: &'a Exchange) -> usize {
        self.unassembled(exchange).bytes()
    }

    /// Returns the stored form of the request at this index: what is new in it against the one before to the same
    /// model, of the same sample.
    pub fn stored(&self, asked: ModelRole, place: usize) -> Bytes {
        let exchanges = self.exchanges();
        let Some(exchange) = exchanges.get(place) else { return Bytes::new() };
        let before = exchanges[..place].iter().rposition(|other| other.sample == exchange.sample);
        let before = before.map(|place| (place, &exchanges[place]));
        let parts = self.messages(exchange);
        let shared = before.map_or(0, |(_, other)| in_common(&self.messages(other), &parts));
        let has_frame = before.is_none_or(|(_, other)| other.frame != exchange.frame);
        let stored = StoredRequest {
            asked,
            sample: exchange.sample.as_ref().map(|id| id.as_str().into()),
            before: before.map(|(place, _)| place),
            shared,
            frame: has_frame.then(|| exchange.frame.written()),
            new: Vec::new(),
        };
        // Text and numbers; the messages are added unchanged.
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

    /// Returns the parts of the body.
    pub fn unassembled(&self, exchange: &'a Exchange) -> UnassembledBody<'a> {
        UnassembledBody { frame: &exchange.frame, parts: self.messages(exchange) }
    }
}

/// The parts of a body.
pub struct UnassembledBody<'a> {
    frame: &'a Frame,
    parts: Vec<Part<'a>>,
}

impl UnassembledBody<'_> {
    /// Returns the bytes of the body.
    pub fn bytes(&self) -> usize {
        let (messages, texts) = self.parts.iter().fold((0, 0), |(messages, texts), part| {
            (messages + part.len(), texts + part.of.text_bytes_of(part.from, part.to))
        });
        self.frame.body_bytes(messages, texts)
    }

    /// Appends the body.
    pub fn add_to(&self, request: &mut Vec<u8>) {
        self.frame.add_around(self.parts.iter().flat_map(Part::iter), request);
    }
}

/// Returns the bytes of the record for texts that become messages of it.
pub fn text_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + MESSAGE_BYTES).sum()
}

#[cfg(test)]
mod tests;
