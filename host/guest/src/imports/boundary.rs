//! The boundary of one run: the guest's requests to models and tools, and the order in which it receives the
//! answers.
//!
//! A guest receives an answer, or sees an effect of one (on budgets, on its record), only at a move: a call
//! of the host. Answers wait here until then, and are delivered in the order in which they arrived. A
//! [`RunLog`] stores this order, and a [`Past`] replays it: the guest makes the same moves and receives the
//! same answers, and no request is sent again.
//!
//! This module opens no connection and uses no file.

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

use super::divergence::{Arrival, Difference, Diverged, PastOver, charge_of};
use super::past::{Past, When};
use rollout_core::budget::{Charge, Holder};
use rollout_transcript::{CallResult, Event, Run};

/// Log of a run's events, in order.
pub trait RunLog: Send + Sync + Debug {
    /// Stores an event without waiting.
    fn append(&self, event: &Event);

    /// Stores an answer without waiting, unless there is no room for it. Then the rollout is being ended, and this
    /// returns false.
    fn append_answer(&self, event: &Event) -> bool;

    /// Waits while too many events are unwritten.
    fn room(&self) -> BoxFuture<'_, ()>;
}

/// The data of a call that is needed when the guest takes the result.
#[derive(Clone, Debug)]
pub(super) enum Taker {
    /// A model call.
    Model {
        /// The sample whose history the reply is added to when the guest takes it.
        keep_for: Option<usize>,
    },
    /// A call of a tool.
    Tool {
        /// The id that the guest gave the call.
        call_id: String,
    },
}

/// A pending call, or one whose result the guest has not taken.
struct PendingCall {
    taker: Taker,
    task: Option<AbortOnDropHandle<()>>,
    result: Option<CallResult>,
    /// The charge for the result while the boundary holds it.
    charge: Option<Charge>,
}

/// A result that the guest has taken.
pub(super) struct Taken {
    pub taker: Taker,
    pub result: CallResult,
    /// The charge for the result, if it is not in the record.
    pub _charge: Option<Charge>,
}

/// An event for a guest that waits.
pub(super) enum News {
    /// An answer.
    Answer(Box<Arrival>),
    /// The wait timed out here in the recorded run. Only a wait with a timeout receives this.
    TimedOut,
    /// No event yet.
    None,
}

/// A call that has started.
pub(super) struct Begun {
    pub call: u32,
    /// The time at which the call first started.
    pub time: SystemTime,
    /// Whether the answer comes from a live request, not from the recorded history.
    pub is_live: bool,
}

/// The calls of one run, and their answers in the order in which the guest receives them.
pub struct Boundary {
    run: Run,
    state: Mutex<State>,
    /// Signals that an answer arrived for the guest.
    news: Notify,
    /// Signals that the recorded history is exhausted.
    is_live: Notify,
    log: Option<Arc<dyn RunLog>>,
}

#[derive(Default)]
struct State {
    /// Number of the guest's moves so far.
    at: u64,
    calls: u32,
    closed: bool,
    // Both are boxed: a list reserves four entries and a leaf of a map eleven, and most guests wait for one
    // call.
    arrived: VecDeque<Box<Arrival>>,
    pending: BTreeMap<u32, Box<PendingCall>>,
    /// The move at which the guest's wait last timed out, if that is not logged yet. A guest may wait for no
    /// time a million times, so only a timeout that another event of the same move or the end of the run
    /// follows is logged.
    timed_out: Option<u64>,
    /// The time left that the guest last received.
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
    /// Creates the boundary of a run that replays `past` and logs its new events to `log`.
    pub fn new(run: Run, log: Option<Arc<dyn RunLog>>, past: Past) -> Self {
        let state = State { past, ..State::default() };
        Self { run, state: state.into(), news: Notify::new(), is_live: Notify::new(), log }
    }

    /// Returns the run.
    pub(super) fn run(&self) -> Run {
        self.run
    }

    /// Returns the number of forks that the run has passed so far.
    pub(super) fn era(&self) -> Arc<AtomicUsize> {
        self.state().past.era().clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere in this run leaves plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether requests are logged or compared with the recorded history.
    pub(super) fn is_recorded(&self) -> bool {
        self.log.is_some() || !self.state().past.is_over()
    }

    fn keep(&self, state: &mut State, event: &Event) {
        let Some(log) = &self.log else { return };
        Self::keep_timeout(state, log);
        log.append(event);
    }

    /// Stores an answer, unless there is no room for it. Returns whether it was stored.
    fn keep_answer(&self, state: &mut State, event: &Event) -> bool {
        let Some(log) = &self.log else { return true };
        Self::keep_timeout(state, log);
        log.append_answer(event)
    }

    /// Stores the last timeout of the guest's wait, if it happened at the current move.
    fn keep_timeout(state: &mut State, log: &Arc<dyn RunLog>) {
        if let Some(at) = state.timed_out.take()
            && at == state.at
        {
            log.append(&Event::TimedOut { at });
        }
    }

    /// Stores the end of a call, unless an earlier process stored the same.
    pub(super) fn keep_end(&self, event: &Event) {
        let Some(log) = &self.log else { return };
        if !self.state().past.has_end(event) {
            log.append(event);
        }
    }

    /// Counts the guest's next move. The caller then delivers the answers that arrived earlier; see
    /// [`Self::take_arrival`].
    pub(super) fn count_move(&self) -> Result<(), Diverged> {
        let mut state = self.state();
        let at = state.at;
        state.past.check_left_behind(at)?;
        state.at = at + 1;
        Ok(())
    }

    /// Takes an answer that arrived before the guest's current move and is delivered at the move's beginning.
    pub(super) fn take_arrival(&self) -> Option<Arrival> {
        let mut state = self.state();
        if state.arrived.is_empty() && state.past.is_over() {
            return None;
        }
        let before = state.at.checked_sub(1)?;
        self.next(&mut state, When::Until(before))
    }

    /// Returns the next event for a guest that waits within its current move. `is_timed` says whether the
    /// wait has a timeout.
    pub(super) fn next_news(&self, is_timed: bool) -> wasmtime::Result<News> {
        let mut state = self.state();
        let at = state.at;
        if is_timed && state.past.timed_out(at) {
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
        if !state.past.is_continued() {
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

    /// Waits until an answer arrives.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Records that the guest's wait timed out. Returns false if an answer has arrived instead.
    pub(super) fn note_timeout(&self) -> bool {
        let mut state = self.state();
        if !state.arrived.is_empty() {
            return false;
        }
        state.timed_out = Some(state.at);
        true
    }

    /// Returns the guest's time left: the current one, or the recorded one in a replay. It decreases in steps
    /// of about a hundredth, and each is logged once, however often the guest asks.
    pub(super) fn time_left(
        &self,
        now: impl FnOnce() -> Option<Duration>,
    ) -> wasmtime::Result<Option<Duration>> {
        let mut state = self.state();
        let (at, last) = (state.at, state.left);
        let left = match state.past.time_left(at, last)? {
            Some(then) => {
                self.end_of_past(&state);
                then
            }
            None => {
                let left = now().map(in_steps);
                if last != Some(left) {
                    self.keep(&mut state, &Event::TimeLeft { at, left });
                }
                left
            }
        };
        state.left = Some(left);
        Ok(left)
    }

    /// Starts a call of the guest. `what` contains everything that determines the answer, if [requests are
    /// recorded](Self::is_recorded).
    pub(super) fn start_call(
        &self,
        taker: Taker,
        mut time: SystemTime,
        what: Bytes,
    ) -> wasmtime::Result<Begun> {
        let mut state = self.state();
        let (at, call) = (state.at, state.calls + 1);
        let then = state.past.match_request(at, call, &what)?;
        state.calls = call;
        let is_live = !state.past.has_answer(call);
        let pending = PendingCall { taker, task: None, result: None, charge: None };
        state.pending.insert(call, Box::new(pending));
        match then {
            Some(then) => {
                time = then;
                self.end_of_past(&state);
            }
            None => self.keep(&mut state, &Event::Started { at, call, time, request: what }),
        }
        Ok(Begun { call, time, is_live })
    }

    /// Numbers a tool call for which the record has no room, and stores its result for the guest.
    pub(super) fn add_refused_call(
        &self,
        call_id: String,
        result: CallResult,
        charge: Option<Charge>,
    ) -> u32 {
        let mut state = self.state();
        state.calls += 1;
        let call = state.calls;
        let taker = Taker::Tool { call_id };
        let pending = PendingCall { taker, task: None, result: Some(result), charge };
        state.pending.insert(call, Box::new(pending));
        call
    }

    /// Sends a call's request in a task of its own. A future that an import awaits is polled on the guest's
    /// stack, where an HTTP exchange would keep 30 KiB in use while the guest waits. The task ends when the
    /// guest drops the call.
    pub(super) fn spawn_request(
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
            boundary.receive(call, took, result, charge);
        };
        // The task's log lines belong to the rollout, as those of the guest's own calls do.
        let task = AbortOnDropHandle::new(tokio::spawn(task.in_current_span()));
        if let Some(pending) = self.state().pending.get_mut(&call) {
            pending.task = Some(task);
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

    fn receive(&self, call: u32, took: Duration, result: CallResult, charge: Option<Charge>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let at = state.at;
        let event = Event::Answered { at, call, took, result };
        if !self.keep_answer(&mut state, &event) {
            return;
        }
        let Event::Answered { result, .. } = event else { return };
        state.arrived.push_back(Box::new(Arrival { at, call, took, result, charge }));
        drop(state);
        self.news.notify_one();
    }

    /// Stores the result of a call for the guest.
    pub(super) fn set_result(&self, call: u32, result: CallResult) {
        if let Some(pending) = self.state().pending.get_mut(&call) {
            pending.result = Some(result);
            pending.task = None;
        }
    }

    /// Returns whether the reply to a call goes into a history when the guest takes it.
    pub(super) fn is_for_history(&self, call: u32) -> bool {
        let state = self.state();
        let taker = state.pending.get(&call).map(|pending| &pending.taker);
        matches!(taker, Some(Taker::Model { keep_for: Some(_) }))
    }

    /// Returns the indices of the calls that have a result.
    pub(super) fn ready_among(&self, calls: &[u32]) -> Vec<u32> {
        let state = self.state();
        let is_ready = |call| state.pending.get(call).is_some_and(|call| call.result.is_some());
        (0_u32..).zip(calls).filter(|(_, call)| is_ready(call)).map(|(place, _)| place).collect()
    }

    /// Takes the result of a call, if there is one.
    pub(super) fn take_result(&self, call: u32) -> Option<Taken> {
        let mut state = self.state();
        state.pending.get(&call)?.result.as_ref()?;
        let PendingCall { taker, result, charge, .. } = *state.pending.remove(&call)?;
        Some(Taken { taker, result: result?, _charge: charge })
    }

    /// Abandons a call that the guest dropped.
    pub(super) fn abandon(&self, call: u32) {
        let pending = self.state().pending.remove(&call);
        // Dropping the call aborts its task.
        drop(pending);
    }

    /// Aborts the pending calls once the guest has ended. No further answer arrives.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        if let (Some(at), Some(log)) = (state.timed_out.take(), &self.log) {
            log.append(&Event::TimedOut { at });
        }
        let tasks: Vec<_> = state.pending.values_mut().filter_map(|call| call.task.take()).collect();
        drop(state);
        drop(tasks);
    }

    /// Takes an answer that arrived before the end of the run and that the guest did not receive.
    pub(super) fn last(&self) -> Option<Arrival> {
        let mut state = self.state();
        let when = When::Until(state.at);
        self.next(&mut state, when)
    }

    /// Returns, after the end of a run, the event that drops calls of an earlier process, if the guest did
    /// not repeat them all.
    pub(super) fn cut(&self) -> Option<Event> {
        let state = self.state();
        let is_cut = state.past.has_calls_after(state.calls);
        is_cut.then_some(Event::Cut { at: state.at, calls: state.calls })
    }

    /// Checks, after the end of a run, that the guest repeated the whole recorded history.
    pub fn check_end(&self) -> Result<(), Diverged> {
        let state = self.state();
        match state.past.left() {
            Some(difference) => Err(Diverged { at: state.at, difference }),
            None => Ok(()),
        }
    }
}

/// Rounds a time down to seven significant binary digits of its milliseconds, so that a year has some
/// thousand different values.
fn in_steps(time: Duration) -> Duration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let dropped = (u64::BITS - millis.leading_zeros()).saturating_sub(7);
    Duration::from_millis(millis >> dropped << dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::Then;

    /// Returns the boundary of a guest at its second move, whose wait timed out there in the recorded run.
    fn waiting() -> Boundary {
        let request = Bytes::from_static(b"{}");
        let events = [
            Event::Started { at: 1, call: 1, time: SystemTime::UNIX_EPOCH, request: request.clone() },
            Event::TimedOut { at: 2 },
            Event::TimeLeft { at: 3, left: None },
        ];
        let boundary = Boundary::new(Run::default(), None, Past::new(events, Then::Unknown));
        boundary.count_move().unwrap();
        boundary.start_call(Taker::Model { keep_for: None }, SystemTime::UNIX_EPOCH, request).unwrap();
        boundary.count_move().unwrap();
        boundary
    }

    #[test]
    fn a_recorded_timeout_ends_a_wait_with_a_timeout() {
        assert!(matches!(waiting().next_news(true), Ok(News::TimedOut)));
    }

    #[test]
    fn a_recorded_timeout_is_a_difference_to_a_wait_without_one() {
        let error = waiting().next_news(false).err().unwrap();

        assert_eq!(error.downcast::<Diverged>().unwrap(), Diverged { at: 2, difference: Difference::Waited });
    }
}
