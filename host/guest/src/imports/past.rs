//! The recorded history of a run: its guest's moves and the answers that the guest received, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::divergence::{Arrival, Difference, Diverged, PastOver, charge_of};
use rollout_core::budget::{Charge, Holder, Use};
use rollout_transcript::{End, Event};

/// The recorded history of a run that is replayed.
#[derive(Default)]
pub struct Past {
    moves: VecDeque<(usize, Move)>,
    answers: VecDeque<(usize, Arrival)>,
    answered: BTreeSet<u32>,
    /// The end of each call.
    ended: BTreeMap<u32, End>,
    /// The charge for `ended`.
    _ended_charge: Option<Charge>,
    then: Then,
    /// Indices of events before which the history belongs to another rollout, in ascending order.
    forks: VecDeque<usize>,
    /// Number of forks passed so far.
    era: Arc<AtomicUsize>,
    /// The charge for the moves while any are left.
    charge: Option<Charge>,
}

/// Continuation of a recorded history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// The run continues with live requests.
    #[default]
    Continues,
    /// The run ended: the guest returned, or was stopped while it waited.
    Nothing,
    /// The continuation is unknown, and no live request may be sent.
    Unknown,
}

/// An action of a guest that is visible from outside.
enum Move {
    Asked { at: u64, call: u32, time: SystemTime, what: Bytes },
    TimedOut { at: u64 },
    TimeLeft { at: u64, left: Option<Duration> },
}

impl Move {
    fn at(&self) -> u64 {
        match self {
            Self::Asked { at, .. } | Self::TimedOut { at } | Self::TimeLeft { at, .. } => *at,
        }
    }

    fn call(&self) -> Option<u32> {
        match self {
            Self::Asked { call, .. } => Some(*call),
            Self::TimedOut { .. } | Self::TimeLeft { .. } => None,
        }
    }

    fn difference(&self) -> Difference {
        match self {
            Self::Asked { at, call, what, .. } => {
                Difference::Asked { call: *call, then: Some((*at, what.clone())), now: None }
            }
            Self::TimedOut { .. } => Difference::Waited,
            Self::TimeLeft { .. } => Difference::TimeLeft,
        }
    }
}

/// Selects answers by their time of arrival.
#[derive(Clone, Copy)]
pub(super) enum When {
    /// Answers that arrived by the end of this move.
    Until(u64),
    /// Answers that arrived so far during this move.
    Within(u64),
}

impl Past {
    /// Creates the history that consists of these events.
    pub fn new(events: impl IntoIterator<Item = Event>, then: Then) -> Self {
        let mut past = Self { then, ..Self::default() };
        for (number, event) in events.into_iter().enumerate() {
            match event {
                Event::Started { at, call, time, request: what } => {
                    past.moves.push_back((number, Move::Asked { at, call, time, what }));
                }
                Event::TimedOut { at } => past.moves.push_back((number, Move::TimedOut { at })),
                Event::TimeLeft { at, left } => {
                    past.moves.push_back((number, Move::TimeLeft { at, left }));
                }
                Event::Answered { at, call, took, result } => {
                    past.answered.insert(call);
                    past.answers.push_back((number, Arrival { at, call, took, result, charge: None }));
                }
                Event::Ended { call, end } => {
                    past.ended.insert(call, end);
                }
                Event::Cut { at, calls } => past.cut(at, calls),
            }
        }
        past
    }

    /// Drops the moves and calls that a run recorded after the point where its repetition ended.
    fn cut(&mut self, at: u64, calls: u32) {
        self.moves.retain(|(_, made)| made.at() <= at && made.call().is_none_or(|call| call <= calls));
        self.answers.retain(|(_, arrival)| arrival.call <= calls);
        self.answered.retain(|call| *call <= calls);
        self.ended.retain(|call, _| *call <= calls);
    }

    /// Returns whether the history contains this event, if it is the end of a call.
    pub(super) fn has_end(&self, event: &Event) -> bool {
        matches!(event, Event::Ended { call, end } if self.ended.get(call) == Some(end))
    }

    /// Returns whether calls with a higher number than this one are left.
    pub(super) fn has_calls_after(&self, call: u32) -> bool {
        self.moves.iter().any(|(_, made)| made.call().is_some_and(|made| made > call))
    }

    /// Charges the history to `holder` until it is replayed. If the memory budget is exhausted, the host ends a
    /// rollout, as it does for live answers.
    pub fn charged_to(mut self, holder: &Holder) -> Self {
        let mut charge = holder.nothing(Use::Record);
        for (_, made) in &self.moves {
            let what = if let Move::Asked { what, .. } = made { what.len() } else { 0 };
            let _ = charge.grow(size_of::<(usize, Move)>() + what);
        }
        self.charge = Some(charge);
        let mut charge = holder.nothing(Use::Record);
        let _ = charge.grow(self.ended.values().map(|end| size_of::<(u32, End)>() + end.bytes()).sum());
        self._ended_charge = Some(charge);
        for (_, arrival) in &mut self.answers {
            arrival.charge = Some(charge_of(holder, &arrival.result));
        }
        self
    }

    /// Marks these event indices as forks: the events before each belong to another rollout.
    pub fn forked_at(mut self, events: impl IntoIterator<Item = usize>) -> Self {
        self.forks.extend(events);
        self.count_passed_forks();
        self
    }

    /// Returns the number of forks that the run has passed so far.
    pub(super) fn era(&self) -> &Arc<AtomicUsize> {
        &self.era
    }

    /// Counts the forks before the next recorded event.
    fn count_passed_forks(&mut self) {
        let made = self.moves.front().map_or(usize::MAX, |(number, _)| *number);
        let next = self.answers.front().map_or(made, |(number, _)| made.min(*number));
        while self.forks.pop_front_if(|fork| *fork <= next).is_some() {
            self.era.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn pop_move(&mut self) {
        self.moves.pop_front();
        if self.moves.is_empty() {
            self.charge = None;
        }
        self.count_passed_forks();
    }

    /// Returns whether the history is exhausted.
    pub(super) fn is_over(&self) -> bool {
        self.moves.is_empty() && self.answers.is_empty()
    }

    /// Returns whether the run continues with live requests afterwards.
    pub(super) fn is_continued(&self) -> bool {
        self.then == Then::Continues
    }

    /// Returns whether the history has an answer to this call.
    pub(super) fn has_answer(&self, call: u32) -> bool {
        self.answered.contains(&call)
    }

    /// Takes the next answer, if it arrived by `when`.
    pub(super) fn next_answer(&mut self, when: When) -> Option<Arrival> {
        let (number, arrival) = self.answers.front()?;
        let came = match when {
            When::Until(at) => arrival.at <= at,
            // A wait that timed out received only the answers from before its timeout.
            When::Within(at) => {
                let timed_out = |(then, made): &(usize, Move)| {
                    matches!(made, Move::TimedOut { at: then_at } if *then_at == at) && then < number
                };
                arrival.at <= at && !self.moves.front().is_some_and(timed_out)
            }
        };
        let (_, arrival) = came.then(|| self.answers.pop_front()).flatten()?;
        self.count_passed_forks();
        Some(arrival)
    }

    /// Takes the timeout of this move's wait, if it is the next recorded event. Returns whether it was.
    pub(super) fn timed_out(&mut self, at: u64) -> bool {
        let Some((then, Move::TimedOut { at: then_at })) = self.moves.front() else { return false };
        let is_next = self.answers.front().is_none_or(|(number, _)| number > then);
        let is_it = *then_at == at && is_next;
        if is_it {
            self.pop_move();
        }
        is_it
    }

    /// Returns whether all events that are left come after this move.
    pub(super) fn is_later(&self, at: u64) -> bool {
        self.moves.front().is_none_or(|(_, made)| made.at() > at)
            && self.answers.front().is_none_or(|(_, arrival)| arrival.at > at)
    }

    /// Returns the time left at this move: a new recorded value, or else the last reported one. Returns
    /// `None` if the history is exhausted and the run continues.
    pub(super) fn time_left(
        &mut self,
        at: u64,
        last: Option<Option<Duration>>,
    ) -> wasmtime::Result<Option<Option<Duration>>> {
        match self.moves.front() {
            Some((_, Move::TimeLeft { at: then, left })) if *then == at => {
                let left = *left;
                self.pop_move();
                Ok(Some(left))
            }
            None if self.is_over() && self.then == Then::Continues => Ok(None),
            None if self.is_over() && self.then == Then::Unknown => Err(wasmtime::Error::new(PastOver)),
            _ => match last {
                Some(last) => Ok(Some(last)),
                None => Err(wasmtime::Error::new(Diverged { at, difference: Difference::TimeLeft })),
            },
        }
    }

    /// Returns the time at which this call first started, if the guest makes the same request now; `None` if
    /// the history is exhausted.
    pub(super) fn match_request(
        &mut self,
        at: u64,
        call: u32,
        what: &Bytes,
    ) -> wasmtime::Result<Option<SystemTime>> {
        let differs = |then| {
            let difference = Difference::Asked { call, then, now: Some(what.clone()) };
            wasmtime::Error::new(Diverged { at, difference })
        };
        match self.moves.front() {
            Some((_, Move::Asked { at: then_at, call: then_call, time, what: then })) => {
                if *then_at != at || *then_call != call || then != what {
                    return Err(differs(Some((*then_at, then.clone()))));
                }
                let time = *time;
                self.pop_move();
                Ok(Some(time))
            }
            Some(_) => Err(differs(None)),
            None => {
                self.check_new(at, Difference::Asked { call, then: None, now: Some(what.clone()) })?;
                Ok(None)
            }
        }
    }

    /// Checks that the guest may make a new request: the history is exhausted up to this move, and the run
    /// continues.
    fn check_new(&self, at: u64, difference: Difference) -> wasmtime::Result<()> {
        let knows_later = self.answers.front().is_some_and(|(_, arrival)| arrival.at > at);
        match self.then {
            Then::Unknown if !knows_later => Err(wasmtime::Error::new(PastOver)),
            Then::Continues if !knows_later => Ok(()),
            _ => Err(wasmtime::Error::new(Diverged { at, difference })),
        }
    }

    /// Checks that the guest repeated all recorded moves up to this one.
    pub(super) fn check_left_behind(&self, at: u64) -> Result<(), Diverged> {
        match self.moves.front() {
            Some((_, made)) if made.at() <= at => Err(Diverged { at, difference: made.difference() }),
            _ => Ok(()),
        }
    }

    /// Returns the first recorded event that the guest has not repeated, if the run ends here.
    pub(super) fn left(&self) -> Option<Difference> {
        let made = self.moves.front().map(|(_, made)| made.difference());
        made.or_else(|| self.answers.front().map(|_| Difference::Waited))
    }
}
