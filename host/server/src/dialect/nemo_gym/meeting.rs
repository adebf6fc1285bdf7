//! Hands a rollout's result to the request that waits for it.
//!
//! When its connection breaks, Gym's client posts the request again, without end. A rollout without a request waits a moment
//! for the repeated request, which gets the result. After that no caller wants the rollout, and it is cancelled. A rollout of
//! an earlier process waits longer, because its caller may have many requests to repeat.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use rollout_core::budget::Charge;

/// Maximum time for which a rollout whose caller disconnected waits for the repeated request. The client repeats it every
/// 0.5 s.
const ABSENCE_MAX: Duration = Duration::from_secs(5);

/// The same maximum for a rollout of an earlier process, and for all rollouts once this process stops.
const ABSENCE_MAX_AFTER_START: Duration = Duration::from_secs(600);

/// A result, with its charge.
pub(super) struct HeldResult {
    pub body: Bytes,
    pub _charge: Charge,
}

struct State {
    is_attended: bool,
    /// Whether the result was written to a caller, or no caller wants it.
    is_over: bool,
    absent_since: Instant,
    absence_max: Duration,
    result: Option<Arc<HeldResult>>,
}

/// The meeting of a rollout and the requests for it, one at a time.
pub(super) struct Meeting(watch::Sender<State>);

impl Meeting {
    /// Starts a meeting that no request attends yet. `is_resumed` says whether an earlier process admitted the rollout.
    pub(super) fn new(is_resumed: bool) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(State {
            is_attended: false,
            is_over: false,
            absent_since: Instant::now(),
            absence_max: if is_resumed { ABSENCE_MAX_AFTER_START } else { ABSENCE_MAX },
            result: None,
        })))
    }

    /// Lets a request wait for the result, unless another one does or it is too late.
    pub(super) fn attend(self: &Arc<Self>) -> Option<Attendance> {
        let is_free = self.0.send_if_modified(|state| {
            let is_free = !state.is_attended && !state.is_over;
            if is_free {
                (state.is_attended, state.absence_max) = (true, ABSENCE_MAX);
            }
            is_free
        });
        is_free.then(|| Attendance { meeting: self.clone(), is_written: AtomicBool::new(false) })
    }

    /// Publishes the result to the waiting request, or to the next one.
    pub(super) fn publish(&self, result: HeldResult) {
        self.0.send_modify(|state| state.result = Some(Arc::new(result)));
    }

    /// Waits until the result was written to a caller, or no caller wants it.
    pub(super) async fn settled(&self) {
        // The sender lives as long as this.
        let _ = self.0.subscribe().wait_for(|state| state.is_over).await;
    }

    /// Waits until no request has attended for the maximum time. Afterwards none can attend.
    pub(super) async fn deserted(&self) {
        let mut states = self.0.subscribe();
        loop {
            let until = {
                let state = states.borrow_and_update();
                (!state.is_attended).then(|| state.absent_since + state.absence_max)
            };
            let changed = async {
                // The sender lives as long as this.
                let _ = states.changed().await;
            };
            match until {
                Some(until) if until <= Instant::now() => {
                    let is_deserted = self.0.send_if_modified(|state| {
                        let is_deserted = !state.is_attended;
                        state.is_over |= is_deserted;
                        is_deserted
                    });
                    if is_deserted {
                        return;
                    }
                }
                Some(until) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(until) => {}
                },
                None => changed.await,
            }
        }
    }

    fn wait_longer(&self) {
        self.0.send_modify(|state| state.absence_max = ABSENCE_MAX_AFTER_START);
    }
}

/// A request at a meeting. Dropping it before the result is written leaves the meeting.
pub(super) struct Attendance {
    meeting: Arc<Meeting>,
    is_written: AtomicBool,
}

impl Attendance {
    /// Waits for the result. `None` if the rollout was dropped without one.
    pub(super) async fn result(&self) -> Option<Arc<HeldResult>> {
        let mut states = self.meeting.0.subscribe();
        let state = states.wait_for(|state| state.is_over || state.result.is_some()).await.ok()?;
        state.result.clone()
    }

    /// Records that the result was written to the caller.
    pub(super) fn mark_written(&self) {
        self.is_written.store(true, Ordering::Relaxed);
        self.meeting.0.send_modify(|state| state.is_over = true);
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if !self.is_written.load(Ordering::Relaxed) {
            self.meeting.0.send_modify(|state| {
                (state.is_attended, state.absent_since) = (false, Instant::now());
            });
        }
    }
}

/// The meetings of all rollouts, by the digest of their request.
#[derive(Default)]
pub(super) struct Meetings(Mutex<HashMap<[u8; 32], Vec<Arc<Meeting>>>>);

impl Meetings {
    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Vec<Arc<Meeting>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a repeated request wait for the rollout of an earlier request whose connection broke, if there is such a rollout.
    pub(super) fn attend(&self, key: &[u8; 32]) -> Option<Attendance> {
        self.all().get(key)?.iter().find_map(Meeting::attend)
    }

    /// Adds a meeting until its rollout has ended.
    pub(super) fn add(&self, key: [u8; 32], meeting: Arc<Meeting>) {
        self.all().entry(key).or_default().push(meeting);
    }

    /// Removes a meeting. A request that attends it has no result.
    pub(super) fn remove(&self, key: &[u8; 32], meeting: &Arc<Meeting>) {
        meeting.0.send_modify(|state| state.is_over = true);
        let mut all = self.all();
        if let Some(same) = all.get_mut(key) {
            same.retain(|other| !Arc::ptr_eq(other, meeting));
            if same.is_empty() {
                all.remove(key);
            }
        }
    }

    /// Lets rollouts without a request wait longer, because this process stops.
    pub(super) fn wait_longer(&self) {
        self.all().values().flatten().for_each(|meeting| meeting.wait_longer());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use rollout_core::budget::Budget;

    fn result() -> HeldResult {
        HeldResult { body: Bytes::from_static(b"{}"), _charge: Budget::default().charge_result(2) }
    }

    #[tokio::test]
    async fn a_repeated_request_gets_the_result_and_another_collection_does_not() {
        let meetings = Meetings::default();
        let (key, meeting) = ([7; 32], Meeting::new(false));
        meetings.add(key, meeting.clone());
        let first = meetings.attend(&key).unwrap();
        assert!(meetings.attend(&key).is_none(), "the first request still waits");
        drop(first);
        let second = meetings.attend(&key).unwrap();
        meeting.publish(result());
        assert_eq!(second.result().await.unwrap().body, "{}");
        assert!(meeting.settled().now_or_never().is_none());
        second.mark_written();
        drop(second);
        meeting.settled().await;
        assert!(meetings.attend(&key).is_none(), "the same row of the next collection is another rollout");
        meetings.remove(&key, &meeting);
        assert!(meetings.all().is_empty());
    }

    #[tokio::test]
    async fn a_rollout_is_deserted_when_no_request_is_repeated_in_time() {
        let meeting = Meeting::new(true);
        assert!(meeting.deserted().now_or_never().is_none(), "the caller may still repeat its request");
        let attendance = meeting.attend().unwrap();
        meeting.0.send_modify(|state| state.absence_max = Duration::ZERO);
        assert!(meeting.deserted().now_or_never().is_none(), "a request waits");
        drop(attendance);
        meeting.deserted().await;
        assert!(meeting.attend().is_none(), "the rollout is deserted");
    }
}
