//! The delivery of a rollout's result: the messages to the caller, and their acknowledgements.
//!
//! [`Delivery`] is a state machine without I/O. The journal stores it, so that the next process can continue it. The driver
//! (`dialect/driver.rs`) reports each [`Event`] to [`Delivery::advance`] and runs the returned [`Action`]. A dialect renders
//! the bodies; this module determines the order of the messages and the reaction to a refusal.

use serde::{Deserialize, Serialize};

/// The way in which a result reaches its caller, and the progress of the delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Delivery {
    /// The caller polls under a lease.
    Polled {
        /// Whether the lease expired, so that no caller waits for the result.
        is_expired: bool,
    },
    /// The result is posted in two callbacks.
    Callbacks(Callbacks),
    /// The result is posted once. No other message follows a refused result.
    OnePost {
        /// Whether the caller accepted the result.
        #[serde(skip)]
        is_acknowledged: bool,
        /// Whether no further message is due.
        is_closed: bool,
        /// Whether the caller must also receive a message about a cancelled rollout.
        #[serde(default)]
        reports_cancelled: bool,
    },
}

/// The state of two callbacks: the completion after the workflow, the result at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Callbacks {
    /// Whether the caller gave an address for the result.
    pub wants_result: bool,
    /// Whether the caller accepted the completion; `None` until that is known.
    pub taken: Option<bool>,
    /// Whether the grader runs once the completion is accepted.
    pub graded: bool,
    /// The message that awaits its acknowledgement. The next process posts it again.
    #[serde(skip)]
    pending: Option<Message>,
    #[serde(skip)]
    is_acknowledged: bool,
}

/// An event in the life of a rollout or of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The workflow ended.
    WorkflowEnded {
        /// Whether the grader may run after it.
        is_gradable: bool,
    },
    /// The caller accepted the pending message.
    Acknowledged,
    /// The caller did not accept the pending message, even on the last attempt.
    Undelivered,
    /// The caller's lease expired.
    LeaseExpired,
    /// The rollout completed its steps.
    Finished {
        /// Whether it has a reward.
        is_scored: bool,
    },
    /// The rollout was cancelled.
    Cancelled {
        /// Whether the server cancelled it, so that its caller still waits.
        by_server: bool,
    },
    /// The host panicked in the rollout.
    Crashed,
}

/// The next step of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Posts a message and reports whether it was accepted.
    Post(Message),
    /// Continues the rollout.
    Continue {
        /// Whether the grader runs.
        graded: bool,
    },
    /// Stores the result until the caller polls for it.
    Keep {
        /// Whether the caller may still poll for it.
        is_awaited: bool,
    },
    /// Does nothing: no message is due.
    Close,
}

/// A message to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The end of the workflow.
    Completion,
    /// A failure, after the caller refused the completion.
    CompletionRefused,
    /// A failure of the host, instead of a completion.
    Crash,
    /// The result of the rollout.
    Result,
    /// The rollout failed and has no result.
    NoResult,
}

impl Delivery {
    /// Starts a delivery to a caller that polls.
    pub(super) fn polled() -> Self {
        Self::Polled { is_expired: false }
    }

    /// Starts a delivery by callbacks.
    pub(super) fn callbacks(wants_result: bool) -> Self {
        Self::Callbacks(Callbacks { wants_result, ..Callbacks::default() })
    }

    /// Starts a delivery by one post.
    pub(super) fn one_post() -> Self {
        Self::OnePost { is_acknowledged: false, is_closed: false, reports_cancelled: false }
    }

    /// Starts a delivery by one post to a caller that waits for the end of the rollout, even of a cancelled one.
    pub(super) fn always_posted() -> Self {
        Self::OnePost { is_acknowledged: false, is_closed: false, reports_cancelled: true }
    }

    /// Returns whether the caller's lease expired.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Polled { is_expired: true })
    }

    /// Returns whether the caller acknowledged its last message.
    pub(super) fn is_acknowledged(&self) -> bool {
        match self {
            Self::Polled { .. } => false,
            Self::Callbacks(callbacks) => callbacks.is_acknowledged,
            Self::OnePost { is_acknowledged, .. } => *is_acknowledged,
        }
    }

    /// Applies an event and returns the next step.
    pub(super) fn advance(&mut self, event: Event) -> Action {
        match self {
            Self::Polled { is_expired } => match event {
                Event::LeaseExpired => {
                    *is_expired = true;
                    Action::Close
                }
                Event::WorkflowEnded { is_gradable } => Action::Continue { graded: is_gradable },
                Event::Cancelled { by_server } => Action::Keep { is_awaited: by_server && !*is_expired },
                Event::Finished { .. } | Event::Crashed => Action::Keep { is_awaited: !*is_expired },
                Event::Acknowledged | Event::Undelivered => Action::Close,
            },
            Self::Callbacks(callbacks) => callbacks.advance(event),
            Self::OnePost { is_acknowledged, is_closed, reports_cancelled } => match event {
                Event::WorkflowEnded { is_gradable } => Action::Continue { graded: is_gradable },
                Event::Finished { .. } | Event::Crashed => Action::Post(Message::Result),
                Event::Cancelled { .. } if *reports_cancelled => Action::Post(Message::Result),
                Event::Acknowledged | Event::Undelivered | Event::Cancelled { .. } => {
                    *is_acknowledged |= event == Event::Acknowledged;
                    *is_closed = true;
                    Action::Close
                }
                Event::LeaseExpired => Action::Close,
            },
        }
    }
}

impl Callbacks {
    fn advance(&mut self, event: Event) -> Action {
        let pending = self.pending.take();
        match event {
            Event::WorkflowEnded { is_gradable } => {
                // An earlier process posted the completion and stored the answer.
                if self.taken.is_some() {
                    return Action::Continue { graded: self.graded };
                }
                self.graded = is_gradable && self.wants_result;
                self.post(Message::Completion)
            }
            Event::Finished { is_scored } => {
                let has_result = self.has_result(is_scored);
                self.post_last(if has_result { Message::Result } else { Message::NoResult })
            }
            Event::Crashed => self.post(Message::Crash),
            Event::Acknowledged => self.answered(pending, true),
            Event::Undelivered => self.answered(pending, false),
            Event::Cancelled { .. } | Event::LeaseExpired => Action::Close,
        }
    }

    /// Returns whether the last message has the result of a finished rollout.
    pub(super) fn has_result(&self, is_scored: bool) -> bool {
        match self.taken {
            // The host ended the rollout before its completion.
            None => true,
            Some(false) => false,
            // An agent loop may have graded itself.
            Some(true) => self.graded || is_scored,
        }
    }

    /// Applies the answer to the pending message.
    fn answered(&mut self, pending: Option<Message>, is_taken: bool) -> Action {
        let Some(message) = pending else { return Action::Close };
        let is_last = matches!(message, Message::Result | Message::NoResult) || !self.wants_result;
        self.is_acknowledged |= is_taken && is_last;
        match message {
            Message::Completion if !is_taken => self.post(Message::CompletionRefused),
            Message::Completion | Message::CompletionRefused => {
                let is_taken = message == Message::Completion;
                self.taken = Some(is_taken);
                self.graded &= is_taken;
                Action::Continue { graded: self.graded }
            }
            Message::Crash => self.post_last(Message::NoResult),
            // A caller that refused the result may still accept the message that there is no result.
            Message::Result if !is_taken => self.post(Message::NoResult),
            Message::Result | Message::NoResult => Action::Close,
        }
    }

    fn post(&mut self, message: Message) -> Action {
        self.pending = Some(message);
        Action::Post(message)
    }

    /// Posts the last message, if the caller gave an address for it.
    fn post_last(&mut self, message: Message) -> Action {
        if self.wants_result { self.post(message) } else { Action::Close }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Close, Continue, Keep, Post};
    use Event::{Acknowledged, Cancelled, Crashed, Finished, LeaseExpired, Undelivered, WorkflowEnded};
    use Message::{Completion, CompletionRefused, Crash, NoResult, Result};

    const GRADABLE: Event = WorkflowEnded { is_gradable: true };
    const NOT_GRADABLE: Event = WorkflowEnded { is_gradable: false };
    const SCORED: Event = Finished { is_scored: true };
    const UNSCORED: Event = Finished { is_scored: false };
    const GRADED: Action = Continue { graded: true };
    const UNGRADED: Action = Continue { graded: false };

    fn check(mut delivery: Delivery, steps: &[(Event, Action)], is_acknowledged: bool) {
        let start = delivery.clone();
        let stored = serde_json::to_string(&start).unwrap();
        assert_eq!(serde_json::from_str::<Delivery>(&stored).unwrap(), start, "{stored}");
        for (at, (event, action)) in steps.iter().enumerate() {
            assert_eq!(delivery.advance(*event), *action, "{start:?}: step {at}, {event:?}");
        }
        assert_eq!(delivery.is_acknowledged(), is_acknowledged, "{start:?}: {steps:?}");
    }

    #[test]
    fn callbacks_are_posted_in_order_and_a_refusal_is_followed_by_a_failure() {
        let new = || Delivery::callbacks(true);
        let resumed = |taken, graded| {
            let taken = Some(taken);
            Delivery::Callbacks(Callbacks { wants_result: true, taken, graded, ..Callbacks::default() })
        };
        let without_result = || Delivery::callbacks(false);
        let taken = [(GRADABLE, Post(Completion)), (Acknowledged, GRADED), (SCORED, Post(Result))];
        let refused = [
            (GRADABLE, Post(Completion)),
            (Undelivered, Post(CompletionRefused)),
            (Acknowledged, UNGRADED),
            (UNSCORED, Post(NoResult)),
        ];
        check(new(), &[&taken[..], &[(Acknowledged, Close)]].concat(), true);
        check(new(), &[&taken[..], &[(Undelivered, Post(NoResult)), (Acknowledged, Close)]].concat(), true);
        check(new(), &[&taken[..], &[(Undelivered, Post(NoResult)), (Undelivered, Close)]].concat(), false);
        check(new(), &[&refused[..], &[(Acknowledged, Close)]].concat(), true);
        check(new(), &[&refused[..], &[(Undelivered, Close)]].concat(), false);
        check(
            new(),
            &[(NOT_GRADABLE, Post(Completion)), (Acknowledged, UNGRADED), (SCORED, Post(Result))],
            false,
        );
        check(
            new(),
            &[(NOT_GRADABLE, Post(Completion)), (Acknowledged, UNGRADED), (UNSCORED, Post(NoResult))],
            false,
        );
        check(new(), &[(UNSCORED, Post(Result)), (Acknowledged, Close)], true);
        check(new(), &[(Crashed, Post(Crash)), (Undelivered, Post(NoResult)), (Acknowledged, Close)], true);
        check(new(), &[(GRADABLE, Post(Completion)), (Cancelled { by_server: false }, Close)], false);
        check(resumed(true, true), &[(GRADABLE, GRADED), (UNSCORED, Post(Result))], false);
        check(resumed(true, false), &[(GRADABLE, UNGRADED), (UNSCORED, Post(NoResult))], false);
        check(resumed(false, false), &[(SCORED, Post(NoResult)), (Acknowledged, Close)], true);
        check(
            without_result(),
            &[(GRADABLE, Post(Completion)), (Acknowledged, UNGRADED), (UNSCORED, Close)],
            true,
        );
        check(
            without_result(),
            &[
                (GRADABLE, Post(Completion)),
                (Undelivered, Post(CompletionRefused)),
                (Undelivered, UNGRADED),
                (UNSCORED, Close),
            ],
            false,
        );
        check(without_result(), &[(Crashed, Post(Crash)), (Acknowledged, Close)], true);
    }

    #[test]
    fn one_post_is_not_followed_by_another() {
        let new = Delivery::one_post;
        check(new(), &[(GRADABLE, GRADED), (SCORED, Post(Result)), (Acknowledged, Close)], true);
        check(new(), &[(NOT_GRADABLE, UNGRADED), (UNSCORED, Post(Result)), (Undelivered, Close)], false);
        check(new(), &[(Crashed, Post(Result)), (Acknowledged, Close)], true);
        check(new(), &[(Cancelled { by_server: true }, Close)], false);
    }

    #[test]
    fn a_claimed_rollout_is_reported_once_whatever_its_end_is() {
        let (new, posted) = (Delivery::always_posted, Post(Message::Result));
        check(new(), &[(GRADABLE, GRADED), (SCORED, posted), (Acknowledged, Close)], true);
        for end in [UNSCORED, Crashed, Cancelled { by_server: true }, Cancelled { by_server: false }] {
            check(new(), &[(end, posted), (Undelivered, Close)], false);
        }
        check(new(), &[(LeaseExpired, Close), (Cancelled { by_server: false }, posted)], false);
    }

    #[test]
    fn a_polled_result_is_awaited_while_its_lease_is_valid_unless_its_caller_cancelled_it() {
        let (new, awaited) = (Delivery::polled, |is_awaited| Keep { is_awaited });
        check(new(), &[(GRADABLE, GRADED), (SCORED, awaited(true))], false);
        check(new(), &[(Crashed, awaited(true))], false);
        check(new(), &[(Cancelled { by_server: true }, awaited(true))], false);
        check(new(), &[(Cancelled { by_server: false }, awaited(false))], false);
        for end in [SCORED, Crashed, Cancelled { by_server: true }] {
            check(new(), &[(LeaseExpired, Close), (end, awaited(false))], false);
        }
    }
}
