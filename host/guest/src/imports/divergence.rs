//! Answers on their way to a guest, and the differences between a recorded run and its replay.

use std::time::Duration;

use bytes::Bytes;

use rollout_core::budget::{Charge, Holder, Use};
use rollout_transcript::CallResult;

/// Error of a replayed run that differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Diverged {
    /// The guest's move at which the difference was found: the number of its call of the host.
    pub at: u64,
    /// The difference.
    pub difference: Difference,
}

/// A difference between a recorded run and its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The guest made another call, or the same call at another move.
    Asked {
        /// Number of the call within the run.
        call: u32,
        /// The recorded move and request; `None` if the call is new.
        then: Option<(u64, Bytes)>,
        /// The request of the replay; `None` if the call was not repeated.
        now: Option<Bytes>,
    },
    /// The guest waits where it did not in the recorded run, or does not wait where it did.
    Waited,
    /// The guest reads its remaining time at a point where it did not in the recorded run, or the other way round.
    TimeLeft,
}

impl Diverged {
    fn text(&self) -> String {
        let at = self.at;
        match &self.difference {
            Difference::Asked { call, then: Some((then, _)), now: Some(_) } if *then == at => {
                format!("call {call}, at move {at}, has another request than the recorded one")
            }
            Difference::Asked { call, then: Some((then, _)), now: Some(_) } => {
                format!("call {call} was recorded at move {then} and is now made at move {at}")
            }
            Difference::Asked { call, then: Some((then, _)), now: None } => {
                format!("call {call}, recorded at move {then}, has not been made by move {at}")
            }
            Difference::Asked { call, .. } => format!("call {call}, at move {at}, is not in the record"),
            Difference::Waited => format!("the wait at move {at} differs from the recorded one"),
            Difference::TimeLeft => format!("move {at} reads the remaining time in only one of the two runs"),
        }
    }
}

/// Error of a replay whose recorded history is exhausted and which may not send new requests.
#[derive(Debug, thiserror::Error)]
#[error("the recorded history of the run is exhausted")]
pub(crate) struct PastOver;

/// An answer that is not delivered to the guest yet.
pub(super) struct Arrival {
    pub at: u64,
    pub call: u32,
    pub took: Duration,
    pub result: CallResult,
    /// The charge for the answer until the record has it.
    pub charge: Option<Charge>,
}

/// Charges an answer until it is delivered. If the memory budget is exhausted, a rollout is ended.
pub(super) fn charge_of(holder: &Holder, result: &CallResult) -> Charge {
    let mut charge = holder.nothing(Use::Record);
    let _ = charge.grow(size_of::<Arrival>() + result.text_bytes());
    charge
}
