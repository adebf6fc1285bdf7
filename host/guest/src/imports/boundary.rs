//! The boundary of one run: what its guest asked the world outside, and in which order the answers
//! crossed to it.
//!
//! A guest sees an answer, or what follows from one (budgets, its record), at a move of its own: a
//! call of the host. So answers wait here until then, and cross in the order in which they came.
//! With a [`RunLog`] this order is kept, and with a [`Past`] it is kept to: the guest makes the
//! same moves and is given the same answers, none of them asked for again.
//!
//! This module opens no connection and knows no file.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::past::{Past, When};
use rollout_core::budget::{Charge, Holder, Use};
use rollout_transcript::{CallResult, Event, Run};

/// Where what crosses is kept, in order.
pub trait RunLog: Send + Sync + Debug {
    /// Keeps an event. It does not wait.
    fn append(&self, event: &Event);

    /// Waits while too much is to be written.
    fn room(&self) -> BoxFuture<'_, ()>;
}

/// A run that was made again did not do what it did before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Diverged {
    /// The guest's move at which it was seen: the number of its call of the host.
    pub at: u64,
    /// What differs.
    pub difference: Difference,
}

/// What differs between a run and the same run made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Another call was made, or the same at another move.
    Asked {
        /// Which of the run's calls.
        call: u32,
        /// What was asked then, at this move; none where the call is new.
        then: Option<(u64, Bytes)>,
        /// What is asked now; none where the call was not made again.
        now: Option<Bytes>,
    },
    /// The guest waits, or waits no longer, where it did the other then.
    Waited,
    /// The guest asks for its time left where it did not then, or does not where it did.
    TimeLeft,
}

impl Diverged {
    fn text(&self) -> String {
        let at = self.at;
        match &self.difference {
            Difference::Asked { call, then: Some((then, _)), now: Some(_) } if *then == at => {
                format!("call {call}, at move {at}, asks something else than it did then")
            }
            Difference::Asked { call, then: Some((then, _)), now: Some(_) } => {
                format!("call {call} was made at move {then} then and at move {at} now")
            }
            Difference::Asked { call, then: Some((then, _)), now: None } => {
                format!("call {call}, which was made at move {then} then, was not made by move {at} now")
            }
            Difference::Asked { call, .. } => format!("call {call}, at move {at}, was not made then"),
            Difference::Waited => format!("move {at} waits for something else than it did then"),
            Difference::TimeLeft => format!("move {at} asks for the time that is left, or did so only then"),
        }
    }
}

/// Everything that happened is over, and nothing is to be asked any more.
#[derive(Debug, thiserror::Error)]
#[error("the run is made again, and its past is over")]
pub(crate) struct PastOver;

/// What a guest needs of a call when it takes the result.
#[derive(Clone, Debug)]
pub(super) enum Taker {
    /// A call of a model.
    Model {
        /// The sample whose history takes the reply when the guest does.
        keep_for: Option<usize>,
    },
    /// A call of a tool.
    Tool {
        /// The id that the call came with.
        call_id: String,
    },
}

/// A call that a guest holds.
struct UnderWay {
    taker: Taker,
    task: Option<AbortOnDropHandle<()>>,
    result: Option<CallResult>,
    /// The charge for the result for as long as it is held.
    charge: Option<Charge>,
}

/// A result that a guest takes.
pub(super) struct Taken {
    pub taker: Taker,
    pub result: CallResult,
    /// The charge for the result, if it is not in the record.
    pub _charge: Option<Charge>,
}

/// An answer on its way to the guest.
pub(super) struct Arrival {
    pub at: u64,
    pub call: u32,
    pub took: Duration,
    pub result: CallResult,
    /// Until the record has it.
    pub charge: Option<Charge>,
}

/// What there is for a guest that waits.
pub(super) enum News {
    /// An answer.
    Answer(Box<Arrival>),
    /// Its time was over now, then.
    TimedOut,
    /// Nothing yet.
    None,
}

/// A call that was begun.
pub(super) struct Begun {
    pub call: u32,
    /// When it was made first.
    pub time: SystemTime,
    /// Whether its answer is still to come from outside.
    pub is_live: bool,
}

/// The boundary of one run: its calls, and the answers in the order in which the guest receives them.
pub struct Boundary {
    run: Run,
    state: Mutex<State>,
    /// Something arrived for the guest.
    news: Notify,
    /// The past is over.
    is_live: Notify,
    log: Option<Arc<dyn RunLog>>,
}

#[derive(Default)]
struct State {
    /// The guest's moves so far.
    at: u64,
    calls: u32,
    closed: bool,
    // Both boxed: a list has room for four of them, and a leaf of a map for eleven, and most guests wait for one.
    arrived: VecDeque<Box<Arrival>>,
    under_way: BTreeMap<u32, Box<UnderWay>>,
    /// The guest's last wait that was over before anything came, where that is not kept. A guest may
    /// wait for no time a million times, and only what an answer followed has to be known.
    timed_out: Option<u64>,
    /// The time that the guest was last told it has left.
    left: Option<Option<Duration>>,
    past: Past,
}

impl Debug for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boundary").field("at", &self.state().at).finish_non_exhaustive()
    }
}

impl Default for Boundary {
    fn default() -> Self {
        Self::new(Run::default(), None, Past::default())
    }
}

impl Boundary {
    /// The boundary of a run that has this past, and of which the rest is kept.
    pub fn new(run: Run, log: Option<Arc<dyn RunLog>>, past: Past) -> Self {
        let state = State { past, ..State::default() };
        Self { run, state: state.into(), news: Notify::new(), is_live: Notify::new(), log }
    }

    /// Returns the run.
    pub(super) fn run(&self) -> Run {
        self.run
    }

    /// How many forks the run has passed by now.
    pub(super) fn era(&self) -> Arc<AtomicUsize> {
        self.state().past.era().clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere in this run leaves plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is asked is looked at by anybody.
    pub(super) fn is_kept(&self) -> bool {
        self.log.is_some() || !self.state().past.is_over()
    }

    fn keep(&self, state: &mut State, event: &Event) {
        let Some(log) = &self.log else { return };
        if let Some(at) = state.timed_out.take()
            && at == state.at
        {
            log.append(&Event::TimedOut { at });
        }
        log.append(event);
    }

    /// Stores how a call ended, unless an earlier process stored the same.
    pub(super) fn keep_end(&self, event: &Event) {
        let Some(log) = &self.log else { return };
        if !self.state().past.has_end(event) {
            log.append(event);
        }
    }

    /// The guest makes its next move. What arrived before crosses first; see [`Self::crosses`].
    pub(super) fn moves(&self) -> Result<(), Diverged> {
        let mut state = self.state();
        let at = state.at;
        state.past.check_left_behind(at)?;
        state.at = at + 1;
        Ok(())
    }

    /// An answer that arrived before the guest's move, and crosses at its beginning.
    pub(super) fn crosses(&self) -> Option<Arrival> {
        let mut state = self.state();
        if state.arrived.is_empty() && state.past.is_over() {
            return None;
        }
        let before = state.at.checked_sub(1)?;
        self.next(&mut state, When::Until(before))
    }

    /// What there is now for a guest that waits within its move, for a time of its own or not.
    pub(super) fn look(&self, is_timed: bool) -> wasmtime::Result<News> {
        let mut state = self.state();
        let at = state.at;
        if state.past.timed_out(at) {
            self.end_of_past(&state);
            return Ok(News::TimedOut);
        }
        if let Some(arrival) = self.next(&mut state, When::Within(at)) {
            return Ok(News::Answer(Box::new(arrival)));
        }
        if !state.past.is_over() {
            if is_timed && state.past.is_later(at) {
                return Ok(News::TimedOut);
            }
            let difference = state.past.left().unwrap_or(Difference::Waited);
            return Err(wasmtime::Error::new(Diverged { at, difference }));
        }
        if !state.past.goes_on() {
            return Err(wasmtime::Error::new(PastOver));
        }
        Ok(News::None)
    }

    fn next(&self, state: &mut State, when: When) -> Option<Arrival> {
        if let Some(arrival) = state.past.next_answer(when) {
            self.end_of_past(state);
            return Some(arrival);
        }
        let to = match when {
            When::Until(at) | When::Within(at) => at,
        };
        state.arrived.pop_front_if(|arrival| arrival.at <= to).map(|arrival| *arrival)
    }

    fn end_of_past(&self, state: &State) {
        if state.past.is_over() {
            self.is_live.notify_waiters();
        }
    }

    /// Waits until something arrives.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// A guest's own time is over; not where something arrived meanwhile.
    pub(super) fn times_out(&self) -> bool {
        let mut state = self.state();
        if !state.arrived.is_empty() {
            return false;
        }
        state.timed_out = Some(state.at);
        true
    }

    /// The time that a guest has left: now, or as it was then. It goes down in steps of a hundredth or
    /// so, and each is kept once, however often a guest asks.
    pub(super) fn time_left(
        &self,
        now: impl FnOnce() -> Option<Duration>,
    ) -> wasmtime::Result<Option<Duration>> {
        let mut state = self.state();
        let (at, told) = (state.at, state.left);
        let left = match state.past.time_left(at, told)? {
            Some(then) => {
                self.end_of_past(&state);
                then
            }
            None => {
                let left = now().map(in_steps);
                if told != Some(left) {
                    self.keep(&mut state, &Event::TimeLeft { at, left });
                }
                left
            }
        };
        state.left = Some(left);
        Ok(left)
    }

    /// The guest makes a call. `what` is everything that decides on the answer, if that [is kept](Self::is_kept).
    pub(super) fn asks(&self, taker: Taker, mut time: SystemTime, what: Bytes) -> wasmtime::Result<Begun> {
        let mut state = self.state();
        let (at, call) = (state.at, state.calls + 1);
        let then = state.past.asked(at, call, &what)?;
        state.calls = call;
        let is_live = !state.past.has_answer(call);
        let under_way = UnderWay { taker, task: None, result: None, charge: None };
        state.under_way.insert(call, Box::new(under_way));
        match then {
            Some(then) => {
                time = then;
                self.end_of_past(&state);
            }
            None => self.keep(&mut state, &Event::Started { at, call, time, request: what }),
        }
        Ok(Begun { call, time, is_live })
    }

    /// Numbers a call of a tool for which the record has no room, with its result.
    pub(super) fn refuses(&self, call_id: String, result: CallResult, charge: Option<Charge>) -> u32 {
        let mut state = self.state();
        state.calls += 1;
        let call = state.calls;
        let taker = Taker::Tool { call_id };
        let under_way = UnderWay { taker, task: None, result: Some(result), charge };
        state.under_way.insert(call, Box::new(under_way));
        call
    }

    /// Makes a call outside, on a task of its own: what is awaited in an import is polled on the
    /// guest's stack, where an HTTP exchange would leave 30 KiB in use for as long as the guest
    /// waits. It ends when the guest gives it up.
    pub(super) fn makes(
        self: &Arc<Self>,
        call: u32,
        holder: Option<Holder>,
        work: impl Future<Output = CallResult> + Send + 'static,
        failed: fn() -> CallResult,
    ) {
        let boundary = self.clone();
        let task = async move {
            boundary.until_live().await;
            let started = Instant::now();
            let result = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| failed());
            let took = started.elapsed();
            let charge = holder.map(|holder| charge_of(&holder, &result));
            if let Some(log) = &boundary.log {
                log.room().await;
            }
            boundary.arrives(call, took, result, charge);
        };
        // The task's log lines are the rollout's, as the guest's own calls are.
        let task = AbortOnDropHandle::new(tokio::spawn(task.in_current_span()));
        if let Some(under_way) = self.state().under_way.get_mut(&call) {
            under_way.task = Some(task);
        }
    }

    async fn until_live(&self) {
        loop {
            let live = self.is_live.notified();
            if self.state().past.is_over() {
                return;
            }
            live.await;
        }
    }

    fn arrives(&self, call: u32, took: Duration, result: CallResult, charge: Option<Charge>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let at = state.at;
        let event = Event::Answered { at, call, took, result };
        self.keep(&mut state, &event);
        let Event::Answered { result, .. } = event else { return };
        state.arrived.push_back(Box::new(Arrival { at, call, took, result, charge }));
        drop(state);
        self.news.notify_one();
    }

    /// Hands the result of a call to the guest that holds it.
    pub(super) fn settles(&self, call: u32, result: CallResult) {
        if let Some(under_way) = self.state().under_way.get_mut(&call) {
            under_way.result = Some(result);
            under_way.task = None;
        }
    }

    /// Returns whether the reply to a call goes into a history when the guest takes it.
    pub(super) fn keeps_reply(&self, call: u32) -> bool {
        let state = self.state();
        let taker = state.under_way.get(&call).map(|under_way| &under_way.taker);
        matches!(taker, Some(Taker::Model { keep_for: Some(_) }))
    }

    /// Which of these calls have a result, by their places.
    pub(super) fn ready_among(&self, calls: &[u32]) -> Vec<u32> {
        let state = self.state();
        let is_ready = |call| state.under_way.get(call).is_some_and(|call| call.result.is_some());
        (0_u32..).zip(calls).filter(|(_, call)| is_ready(call)).map(|(place, _)| place).collect()
    }

    /// Takes the result of a call, if there is one.
    pub(super) fn takes(&self, call: u32) -> Option<Taken> {
        let mut state = self.state();
        state.under_way.get(&call)?.result.as_ref()?;
        let UnderWay { taker, result, charge, .. } = *state.under_way.remove(&call)?;
        Some(Taken { taker, result: result?, _charge: charge })
    }

    /// The guest gives a call up.
    pub(super) fn gives_up(&self, call: u32) {
        let under_way = self.state().under_way.remove(&call);
        // Its task ends with it.
        drop(under_way);
    }

    /// The guest is gone: what is under way ends, and nothing arrives any more.
    pub(super) fn closes(&self) {
        let mut state = self.state();
        state.closed = true;
        if let (Some(at), Some(log)) = (state.timed_out.take(), &self.log) {
            log.append(&Event::TimedOut { at });
        }
        let tasks: Vec<_> = state.under_way.values_mut().filter_map(|call| call.task.take()).collect();
        drop(state);
        drop(tasks);
    }

    /// After the end of a run: what arrived before, and nobody looked at.
    pub(super) fn last(&self) -> Option<Arrival> {
        let mut state = self.state();
        let when = When::Until(state.at);
        self.next(&mut state, when)
    }

    /// After the end of a run: the event that drops calls of an earlier process, if the guest did not repeat them all.
    pub(super) fn cut(&self) -> Option<Event> {
        let state = self.state();
        let is_cut = state.past.has_calls_after(state.calls);
        is_cut.then_some(Event::Cut { at: state.at, calls: state.calls })
    }

    /// After the end of a run: whether it did all that it did then.
    pub fn check_end(&self) -> Result<(), Diverged> {
        let state = self.state();
        match state.past.left() {
            Some(difference) => Err(Diverged { at: state.at, difference }),
            None => Ok(()),
        }
    }
}

/// What an answer is charged to until it crosses. Where there is no room for it, a rollout is ended
/// with that.
pub(super) fn charge_of(holder: &Holder, result: &CallResult) -> Charge {
    let mut charge = holder.nothing(Use::Record);
    let _ = charge.grow(size_of::<Arrival>() + result.text_bytes());
    charge
}

/// A time with seven binary digits, in milliseconds, and no longer than it is: some thousand different
/// ones in a year.
fn in_steps(time: Duration) -> Duration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let dropped = (u64::BITS - millis.leading_zeros()).saturating_sub(7);
    Duration::from_millis(millis >> dropped << dropped)
}
