//! Calls of a model as the host saw them, with each conversation kept once.
//!
//! A request carries the whole conversation so far. What is kept of its messages is where they
//! are already: so many of a sample's history, or of the request before, and those that were
//! new in it. The whole is put together when it is sent, shown to a grader or written down.
//!
//! This module knows no guest and opens no connection.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::record::{MESSAGE_BYTES, SampleRecord};
use rollout_core::telemetry::ModelRole;
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;
use rollout_wire::openai::{Completion, Frame, WrittenFrame};

/// What an exchange costs of the record besides its messages, its frame and its reply.
pub(super) const EXCHANGE_BYTES: usize = size_of::<Exchange>();

/// One call of a model as the host saw it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The sample that it was made for; none for a judge's.
    pub sample: Option<SampleId>,
    /// The messages that were sent.
    pub(super) sent: Sent,
    /// The rest of the request.
    pub(super) frame: Frame,
    /// When it was sent first.
    pub started_at: SystemTime,
    /// From then to the end of the last try.
    pub duration: Duration,
    /// What came of it.
    pub outcome: ExchangeOutcome,
}

/// What came of a call of a model.
#[derive(Clone, Debug)]
pub enum ExchangeOutcome {
    /// The guest gave it up or was stopped before there was an answer.
    Abandoned,
    /// There was a completion.
    Replied {
        /// What it was, with the body as it came.
        completion: Completion,
        /// Tries that it took.
        attempts: u32,
    },
    /// There was none.
    Failed(String),
    /// There was one, for which the record has no room: why.
    NotKept(String),
}

impl Exchange {
    /// A call that was not answered yet.
    #[expect(clippy::disallowed_methods, reason = "a time that is written, and not measured by")]
    pub(super) fn new(sample: Option<SampleId>, sent: Sent, frame: Frame) -> Self {
        let (started_at, duration) = (SystemTime::now(), Duration::ZERO);
        Self { sample, sent, frame, started_at, duration, outcome: ExchangeOutcome::Abandoned }
    }

    /// A call that was answered with this body, for tests.
    pub fn replied(sample: SampleId, messages: Messages, body: &str) -> Self {
        let sent = Sent { base: Base::Nothing, new: messages };
        let none = std::collections::BTreeMap::<String, ()>::new();
        let frame = Frame::new("m", &none).expect("a frame without fields can be made");
        let completion = Completion::parse(&body.to_owned().into());
        let outcome = match completion {
            Ok(completion) => ExchangeOutcome::Replied { completion, attempts: 1 },
            Err(why) => ExchangeOutcome::Failed(why),
        };
        let (started_at, duration) = (SystemTime::UNIX_EPOCH, Duration::from_millis(2));
        Self { sample: Some(sample), sent, frame, started_at, duration, outcome }
    }

    /// The reply, where there was one.
    pub fn completion(&self) -> Option<&Completion> {
        match &self.outcome {
            ExchangeOutcome::Replied { completion, .. } => Some(completion),
            ExchangeOutcome::Failed(_) | ExchangeOutcome::NotKept(_) | ExchangeOutcome::Abandoned => None,
        }
    }
}

/// The messages of a request: the first of a list that is kept already, then new ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    base: Base,
    new: Messages,
}

#[derive(Clone, Copy, Debug, Default)]
enum Base {
    #[default]
    Nothing,
    /// Of a sample's history, as it was before it was replaced so many times.
    History { sample: usize, epoch: usize, count: usize },
    /// Of an earlier request to the same model.
    Request { place: usize, count: usize },
}

impl Base {
    fn count(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::History { count, .. } | Self::Request { count, .. } => count,
        }
    }

    /// The first of the same list.
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

/// What was sent of one sample.
#[derive(Debug, Default)]
pub(super) struct SentOf {
    /// Histories that were replaced after a request had carried them.
    past: Vec<Messages>,
    /// Whether a request carries the history that it has now.
    carried: bool,
    /// The last request.
    last: Option<usize>,
}

/// The calls of one model in one rollout, in the order in which they were made.
#[derive(Debug, Default)]
pub struct ModelCalls {
    exchanges: Vec<Exchange>,
    /// By the sample's place.
    sent_of: Vec<SentOf>,
}

impl FromIterator<Exchange> for ModelCalls {
    fn from_iter<I: IntoIterator<Item = Exchange>>(exchanges: I) -> Self {
        Self { exchanges: exchanges.into_iter().collect(), sent_of: Vec::new() }
    }
}

impl ModelCalls {
    /// The calls.
    pub fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    /// One of them, for what comes of it.
    pub(super) fn exchange_mut(&mut self, place: usize) -> Option<&mut Exchange> {
        self.exchanges.get_mut(place)
    }

    /// Adds one; gives its place.
    pub(super) fn add(&mut self, exchange: Exchange) -> usize {
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    /// The calls with where their messages are.
    pub fn among<'a>(&'a self, samples: &'a [SampleRecord]) -> Lists<'a> {
        Lists { calls: self, samples }
    }

    /// The same frame as that of the call before, where it is.
    pub(super) fn share(&self, frame: Frame) -> (Frame, usize) {
        match self.exchanges.last() {
            Some(last) if last.frame == frame => (last.frame.clone(), 0),
            _ => {
                let bytes = frame.bytes();
                (frame, bytes)
            }
        }
    }

    /// What was sent of this sample.
    fn sent_of_mut(&mut self, sample: usize) -> &mut SentOf {
        if self.sent_of.len() <= sample {
            self.sent_of.reserve_exact(sample + 1 - self.sent_of.len());
            self.sent_of.resize_with(sample + 1, SentOf::default);
        }
        &mut self.sent_of[sample]
    }

    /// The whole history of a sample, for the next call.
    pub(super) fn send_history(&mut self, sample: usize, count: usize) -> Sent {
        let last = self.exchanges.len();
        let of = self.sent_of_mut(sample);
        of.carried = true;
        of.last = Some(last);
        Sent { base: Base::History { sample, epoch: of.past.len(), count }, new: Messages::default() }
    }

    /// A sample's history is replaced. Says whether the old one is still needed.
    pub(super) fn replaced(&mut self, sample: usize, old: &Messages) -> bool {
        let Some(of) = self.sent_of.get_mut(sample).filter(|of| of.carried) else { return false };
        of.past.push(old.clone());
        of.carried = false;
        true
    }

    /// How a list that a guest gave begins: like the history, or like the request before.
    pub(super) fn begin(&self, samples: &[SampleRecord], whose: Whose, given: &[String]) -> Beginning {
        let last = match whose {
            Whose::Sample(sample) => self.sent_of.get(sample).and_then(|of| of.last),
            Whose::Judge => self.exchanges.len().checked_sub(1),
        };
        let before = last.and_then(|place| Some((place, &self.exchanges.get(place)?.sent)));
        let as_before = before.map_or(0, |(_, sent)| common(&self.among(samples).parts(sent), given));
        if let Whose::Sample(sample) = whose
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

    /// So many messages of the request at this place: of the one that had them first, so that chains
    /// stay short.
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

    /// Adds a call as it was kept, which nothing came of yet; gives its place. The error says what of
    /// it cannot be.
    pub(super) fn add_written(
        &mut self,
        written: WrittenRequest<'_>,
        time: SystemTime,
    ) -> Result<usize, String> {
        let WrittenRequest { asked: _, sample, before, shared, frame, new } = written;
        let earlier = before.map(|place| {
            let earlier = self.exchanges.get(place).filter(|earlier| earlier.sent.len() >= shared);
            earlier.map(|earlier| (place, earlier)).ok_or("a request goes on from none that there is")
        });
        let (base, as_before) = match earlier.transpose()? {
            Some((place, earlier)) => (self.first_with(place, shared), Some(earlier.frame.clone())),
            None => (Base::Nothing, None),
        };
        let frame = match frame {
            Some(frame) => Frame::read(&frame).ok_or("a request has no place for its messages")?,
            None => as_before.ok_or("a request has nothing but messages")?,
        };
        let sample = sample.map(|id| SampleId::parse(&id)).transpose()?;
        let (started_at, duration) = (time, Duration::ZERO);
        let sent = Sent { base, new: new.into_iter().collect() };
        let outcome = ExchangeOutcome::Abandoned;
        Ok(self.add(Exchange { sample, sent, frame, started_at, duration, outcome }))
    }

    /// Forgets those after so many.
    pub(super) fn truncate(&mut self, calls: usize) {
        self.exchanges.truncate(calls);
    }

    /// The list that begins so, with these after it, for the next call.
    pub(super) fn send_list(&mut self, whose: Whose, Beginning(base): Beginning, new: Messages) -> Sent {
        if let Whose::Sample(sample) = whose {
            let last = self.exchanges.len();
            let of = self.sent_of_mut(sample);
            of.last = Some(last);
            // What a list has in common with a history is kept for it.
            let epoch_now = of.past.len();
            of.carried |=
                matches!(base, Base::History { epoch, count, .. } if epoch == epoch_now && count > 0);
        }
        Sent { base, new }
    }
}

/// Whose requests follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whose {
    Sample(usize),
    Judge,
}

/// How a list begins that a guest gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning(Base);

impl Beginning {
    /// So many of its messages are kept already.
    pub(super) fn count(self) -> usize {
        self.0.count()
    }
}

/// How many of these messages a guest gives again. White space around one is not kept.
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
    pub(super) fn all(of: &'a Messages) -> Self {
        Self { of, from: 0, to: of.len() }
    }

    fn len(&self) -> usize {
        self.to - self.from
    }

    /// The messages.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let of = self.of;
        (self.from..self.to).map(|at| of.get(at).unwrap_or_default())
    }
}

/// How many messages two lists have in common at their beginning. Where both have the same
/// part of the same list, none is looked at.
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

/// Calls with where their messages are.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    calls: &'a ModelCalls,
    samples: &'a [SampleRecord],
}

impl<'a> Lists<'a> {
    /// The calls.
    pub fn exchanges(&self) -> &'a [Exchange] {
        &self.calls.exchanges
    }

    /// The messages of a call, in parts.
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

    /// The body of the request as it was sent.
    pub fn body(&self, exchange: &'a Exchange) -> Vec<u8> {
        let unmade = self.unmade(exchange);
        let mut body = Vec::with_capacity(unmade.bytes());
        unmade.add_to(&mut body);
        body
    }

    /// The request but for its messages: a JSON object.
    pub fn rest(&self, exchange: &'a Exchange) -> Vec<u8> {
        exchange.frame.around(std::iter::empty(), 0)
    }

    /// The bytes of a body that is put together.
    pub(super) fn body_bytes(&self, exchange: &'a Exchange) -> usize {
        self.unmade(exchange).bytes()
    }

    /// The request at this place as it is kept: what is new in it against the one before to the
    /// same model, of the same sample.
    pub(super) fn written(&self, asked: ModelRole, place: usize) -> Bytes {
        let exchanges = self.exchanges();
        let Some(exchange) = exchanges.get(place) else { return Bytes::new() };
        let before = exchanges[..place].iter().rposition(|other| other.sample == exchange.sample);
        let before = before.map(|place| (place, &exchanges[place]));
        let parts = self.messages(exchange);
        let shared = before.map_or(0, |(_, other)| in_common(&self.messages(other), &parts));
        let has_frame = before.is_none_or(|(_, other)| other.frame != exchange.frame);
        let written = WrittenRequest {
            asked,
            sample: exchange.sample.as_ref().map(|id| id.as_str().into()),
            before: before.map(|(place, _)| place),
            shared,
            frame: has_frame.then(|| exchange.frame.written()),
            new: Vec::new(),
        };
        // Text and numbers; the messages are put in as they are.
        let mut text = serde_json::to_vec(&written).unwrap_or_default();
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

    /// The body before it is put together.
    pub(super) fn unmade(&self, exchange: &'a Exchange) -> UnmadeBody<'a> {
        UnmadeBody { frame: &exchange.frame, parts: self.messages(exchange) }
    }
}

/// A request as it is kept, in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct WrittenRequest<'a> {
    /// The model.
    pub asked: ModelRole,
    /// The sample that it was made for.
    #[serde(borrow)]
    pub sample: Option<Cow<'a, str>>,
    /// Which request to the same model was the last one of the same sample, from 0.
    pub before: Option<usize>,
    /// How many messages it begins with as that one did.
    pub shared: usize,
    /// The rest of the request, where it is not that of the one before.
    #[serde(borrow)]
    pub frame: Option<WrittenFrame<'a>>,
    /// The messages after those.
    #[serde(borrow)]
    pub new: Vec<&'a RawValue>,
}

impl WrittenRequest<'_> {
    /// A request of a workflow as it is kept, as if it had been made to a model of this name. What is
    /// another one, or names no model of its own, stays as it is.
    pub(crate) fn of_model(what: &Bytes, name: &str) -> Bytes {
        let Ok(request) = serde_json::from_slice::<WrittenRequest<'_>>(what) else { return what.clone() };
        let WrittenRequest { asked: ModelRole::Policy, frame: Some(frame), .. } = request else {
            return what.clone();
        };
        let renamed = WrittenRequest { frame: Some(frame.of_model(name)), ..request };
        serde_json::to_vec(&renamed).map_or_else(|_| what.clone(), Bytes::from)
    }
}

/// The parts that a body is made of.
pub(super) struct UnmadeBody<'a> {
    frame: &'a Frame,
    parts: Vec<Part<'a>>,
}

impl UnmadeBody<'_> {
    /// The bytes of the body.
    pub(super) fn bytes(&self) -> usize {
        let (messages, texts) = self.parts.iter().fold((0, 0), |(messages, texts), part| {
            (messages + part.len(), texts + part.of.text_bytes_of(part.from, part.to))
        });
        self.frame.body_bytes(messages, texts)
    }

    /// Puts it behind what is there.
    pub(super) fn add_to(&self, request: &mut Vec<u8>) {
        self.frame.add_around(self.parts.iter().flat_map(Part::iter), request);
    }
}

/// What texts cost of the record that become messages of it.
pub(super) fn text_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + MESSAGE_BYTES).sum()
}

#[cfg(test)]
mod tests;
