//! The driver of a dialect's rollouts: takes each through its steps and runs the actions of its [`Delivery`].
//!
//! A dialect implements [`Renderer`] for each form in which it delivers results. The [`ledger`](super::ledger) holds the
//! rollout's status and result. The journal stores the delivery, and [`Progress::read`] restores it.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::delivery::{Action, Delivery, Event, Message};
use super::ledger::{LedgerEntry, PublicOutcome};
use rollout_core::error::Fault;
use rollout_core::telemetry::RolloutTrace;
use rollout_outbound::{Acknowledged, CallbackClient, Secret, Undelivered};
use rollout_rollout::{
    AfterWorkflow, Failure, Finished, Next, Outcome, Phase, Rollout, RolloutEnd, RolloutLog, Steps,
};

/// The dialect's part of a driver: bodies of messages, statuses, and its own steps.
pub(super) trait Renderer: Send + Sync + Sized + 'static {
    /// Data with which a result in the journal is rendered again.
    type Form: Serialize + Send + Sync;

    /// Renders the body of a message or of a polled result.
    fn body(&self, message: Message, source: &Source<'_>, delivery: &Delivery) -> Bytes;

    /// Returns the approximate size of the result of a finished rollout in bytes.
    fn result_bytes(&self, finished: &Finished, delivery: &Delivery) -> usize {
        let _ = (finished, delivery);
        0
    }

    /// Returns the public part of a finished rollout's outcome.
    fn public_outcome(&self, finished: &Finished, delivery: &Delivery) -> PublicOutcome;

    /// Returns the data that the journal stores with a result.
    fn form(&self, delivery: &Delivery) -> Self::Form;

    /// Runs before the workflow. `Break` skips the workflow.
    fn before_workflow(
        driver: &Driver<Self>,
        rollout: &mut Rollout,
    ) -> impl Future<Output = ControlFlow<()>> + Send {
        let _ = (driver, rollout);
        std::future::ready(ControlFlow::Continue(()))
    }

    /// Runs when the guests are gone, before the rollout's outcome is stored.
    fn ending(driver: &Driver<Self>, rollout: &Rollout) {
        let _ = (driver, rollout);
    }

    /// Returns whether the caller knows the rollout.
    fn is_known(&self) -> bool {
        true
    }

    /// Ends a rollout that the caller does not know.
    fn refuse(self, entry: LedgerEntry) {
        drop(entry);
    }

    /// Reads the caller's response to an accepted message.
    fn acknowledged(&self, body: &Bytes) {
        let _ = body;
    }

    /// Sends a message to its caller. The default posts it to its address.
    fn send(
        driver: &Driver<Self>,
        message: Message,
        body: Bytes,
    ) -> impl Future<Output = Result<Acknowledged, Undelivered>> + Send {
        driver.post(message, body)
    }

    /// Completes when the caller no longer wants the rollout. The default waits for the end of its lease.
    fn abandoned(driver: &Driver<Self>) -> impl Future<Output = ()> + Send {
        driver.entry.lease_over()
    }

    /// Stores the delivery in the journal.
    fn note(driver: &Driver<Self>) {
        driver.note(None);
    }

    /// Sends the due messages of a finished rollout.
    fn deliver_result(
        driver: &Driver<Self>,
        finished: &Finished,
        action: Action,
    ) -> impl Future<Output = ()> + Send {
        async move {
            driver.deliver(action, &Source::Finished(finished)).await;
        }
    }
}

/// The source of a message's body.
pub(super) enum Source<'a> {
    /// The workflow's end.
    Workflow(Result<(), &'a Failure>),
    /// The rollout's outcome.
    Finished(&'a Finished),
    /// A failure of the host.
    Crashed(&'a Failure),
}

/// The addresses to which messages are posted.
#[derive(Clone, Default)]
pub(super) struct Addresses {
    /// The address of the completion.
    pub completion: Option<String>,
    /// The address of the result.
    pub result: Option<String>,
    /// The key of the messages.
    pub key: Option<Secret>,
}

impl Addresses {
    /// Returns the addresses in the form that is sealed in the journal, because an address may contain a key.
    pub(super) fn sealed(&self) -> Option<Secret> {
        let Self { completion, result, key } = self;
        serde_json::to_string(&(completion, result, key.as_ref().map(Secret::expose))).ok().map(Secret::new)
    }

    /// Reads sealed addresses.
    pub(super) fn open(sealed: Option<&Secret>) -> Result<Self, serde_json::Error> {
        let Some(sealed) = sealed else { return Ok(Self::default()) };
        let (completion, result, key): (_, _, Option<String>) = serde_json::from_str(sealed.expose())?;
        Ok(Self { completion, result, key: key.map(Secret::new) })
    }

    fn of(&self, message: Message) -> Option<&str> {
        match message {
            Message::Result | Message::NoResult => self.result.as_deref(),
            Message::Completion | Message::CompletionRefused | Message::Crash => self.completion.as_deref(),
        }
    }
}

/// A note of a driver in the journal. Of several notes, the last delivery and the last body count.
#[derive(Serialize, Deserialize)]
struct Note<'a> {
    delivery: Delivery,
    /// The answer to the caller's request, or the caller's report.
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// The progress of a delivery according to the notes of an earlier process.
pub(super) struct Progress {
    /// The delivery.
    pub delivery: Delivery,
    /// The last body in the notes.
    pub body: Option<Box<RawValue>>,
}

impl Progress {
    /// Reads the progress of a delivery with this initial state.
    pub(super) fn read(delivery: Delivery, notes: &[Box<RawValue>]) -> Result<Self, serde_json::Error> {
        let mut progress = Self { delivery, body: None };
        for note in notes {
            let Note { delivery, body } = serde_json::from_str(note.get())?;
            progress.delivery = delivery;
            progress.body = body.map(ToOwned::to_owned).or(progress.body);
        }
        Ok(progress)
    }

    /// Returns the last report of a caller with callbacks, from these notes.
    pub(super) fn report(notes: &[Box<RawValue>]) -> Option<&RawValue> {
        notes.iter().rev().find_map(|note| match serde_json::from_str(note.get()) {
            Ok(Note { delivery: Delivery::Callbacks(_), body }) => body,
            _ => None,
        })
    }
}

/// Waits until a rollout's outcome is in its journal, if it has one. Returns whether the outcome may be reported. An
/// outcome that is not stored could be different after the next start.
pub(super) async fn may_be_reported(log: Option<&RolloutLog>) -> bool {
    let Some(log) = log else { return true };
    let written = log.written().await;
    if let Err(error) = &written {
        tracing::error!(%error, "a result is not reported, because the journal cannot store it");
    }
    written.is_ok()
}

/// A rollout with its delivery. The fields are dropped in this order, so that the key of a request is free before other
/// requests with it learn that there is no answer.
pub(super) struct Driver<R> {
    /// The rollout's entry in the ledger.
    pub entry: LedgerEntry,
    /// The rollout's journal, if it has one.
    pub log: Option<RolloutLog>,
    /// Whether the grader may run.
    pub is_gradable: bool,
    /// The delivery.
    pub delivery: Mutex<Delivery>,
    /// The client of the addresses, if messages are posted to them.
    pub client: Option<Arc<CallbackClient>>,
    /// The addresses of messages.
    pub addresses: Addresses,
    /// The trace in which messages are spans.
    pub trace: RolloutTrace,
    /// The dialect's part.
    pub renderer: R,
}

impl<R: Renderer> Steps for Driver<R> {
    type End = ();

    async fn before_workflow(&self, rollout: &mut Rollout) -> ControlFlow<()> {
        R::before_workflow(self, rollout).await
    }

    fn after_workflow<'a>(&'a self, ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        let is_gradable = ran.is_ok() && self.is_gradable;
        match self.advance(Event::WorkflowEnded { is_gradable }) {
            Action::Continue { graded } => AfterWorkflow::Go(Next::graded(graded)),
            action => AfterWorkflow::Notify(Box::pin(async move {
                if !may_be_reported(self.log.as_ref()).await {
                    return Next::Finish;
                }
                let next = self.deliver(action, &Source::Workflow(ran)).await;
                R::note(self);
                Next::graded(next == Action::Continue { graded: true })
            })),
        }
    }

    fn entered(&self, phase: Phase) {
        self.entry.enter(phase);
    }

    fn ending(&self, rollout: &Rollout) {
        R::ending(self, rollout);
    }

    async fn abandoned(&self) {
        R::abandoned(self).await;
        self.advance(Event::LeaseExpired);
    }

    async fn finished(self: Box<Self>, ended: RolloutEnd) {
        let is_polled = matches!(*self.delivery(), Delivery::Polled { .. });
        // `keep` writes a polled result. After a crash there is nothing to write.
        let is_written_later = is_polled && !matches!(ended, RolloutEnd::Crashed(_));
        if !is_written_later && !may_be_reported(self.log.as_ref()).await {
            return;
        }
        if !self.renderer.is_known() {
            self.end_log();
            return self.renderer.refuse(self.entry);
        }
        let is_expired = self.delivery().is_expired();
        if is_expired {
            self.note(None);
        }
        let event = match &ended {
            RolloutEnd::Finished(finished) => Event::Finished { is_scored: is_scored(finished) },
            RolloutEnd::Cancelled(_) => Event::Cancelled { by_server: !is_expired && self.entry.cancel() },
            RolloutEnd::Crashed(_) => Event::Crashed,
        };
        if is_polled {
            let is_awaited = self.advance(event) == Action::Keep { is_awaited: true };
            return self.keep(&ended, is_awaited).await;
        }
        self.entry.end(match &ended {
            RolloutEnd::Finished(finished) => self.renderer.public_outcome(finished, &self.delivery()),
            RolloutEnd::Cancelled(_) => PublicOutcome::with_status("cancelled"),
            RolloutEnd::Crashed(_) => PublicOutcome::with_status("failure"),
        });
        let action = self.advance(event);
        match &ended {
            RolloutEnd::Finished(finished) => R::deliver_result(&self, finished, action).await,
            RolloutEnd::Crashed(crashed) => drop(self.deliver(action, &Source::Crashed(crashed)).await),
            // The caller waits for the end of the rollout, even of a cancelled one.
            RolloutEnd::Cancelled(finished) if matches!(action, Action::Post(_)) => {
                R::deliver_result(&self, finished, action).await;
            }
            RolloutEnd::Cancelled(_) => {}
        }
        // The caller accepted the result, or delivery was abandoned. The first answer and the rollout's journal stay longer.
        if self.entry.is_answered() { self.note(None) } else { self.end_log() }
    }
}

fn is_scored(finished: &Finished) -> bool {
    matches!(finished.outcome, Outcome::Scored { .. })
}

impl<R: Renderer> Driver<R> {
    pub(super) fn delivery(&self) -> MutexGuard<'_, Delivery> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, event: Event) -> Action {
        self.delivery().advance(event)
    }

    /// Stores the delivery in the rollout's journal, with this body.
    pub(super) fn note(&self, body: Option<&RawValue>) {
        if let Some(log) = &self.log {
            log.note(&Note { delivery: self.delivery().clone(), body });
        }
    }

    fn end_log(&self) {
        if let Some(log) = &self.log {
            log.end();
        }
    }

    /// Stores a result until its caller polls for it: in the journal, or in memory if there is none.
    async fn keep(&self, ended: &RolloutEnd, is_awaited: bool) {
        let delivery = self.delivery().clone();
        let (finished, source) = match ended {
            RolloutEnd::Finished(finished) | RolloutEnd::Cancelled(finished) => {
                (Some(finished), Source::Finished(finished))
            }
            RolloutEnd::Crashed(crashed) => (None, Source::Crashed(crashed)),
        };
        let body = || self.renderer.body(Message::Result, &source, &delivery);
        let over = finished.map_or(PublicOutcome::with_status("failure"), |finished| {
            self.renderer.public_outcome(finished, &delivery)
        });
        let Some((finished, (journal, log))) = finished.zip(self.entry.journal()) else {
            if finished.is_some() && !is_awaited {
                self.entry.settle();
            }
            self.entry.end(over);
            return self.entry.hold(body());
        };
        let copy = self.entry.copy_charge(self.renderer.result_bytes(finished, &delivery));
        let copy = copy.map(|charge| (body(), charge));
        let form = self.renderer.form(&delivery);
        if let Err(error) = self.entry.store((&journal, &log), (&form, over), is_awaited, copy).await {
            tracing::error!(%error, "a result is not reported, because the journal cannot store it");
        }
    }

    /// Sends messages while one is due, and returns the next action.
    pub(super) async fn deliver(&self, mut action: Action, source: &Source<'_>) -> Action {
        while let Action::Post(message) = action {
            let sent = self.send(message, source).await;
            let event = match &sent {
                Ok(acknowledged) => {
                    self.renderer.acknowledged(&acknowledged.body);
                    Event::Acknowledged
                }
                Err(undelivered) => {
                    match message {
                        Message::Result | Message::NoResult => {
                            tracing::warn!(%undelivered, "result callback not delivered");
                        }
                        _ => tracing::warn!(%undelivered, "completion callback not delivered"),
                    }
                    Event::Undelivered
                }
            };
            let mut delivery = self.delivery();
            action = delivery.advance(event);
            if delivery.is_acknowledged() {
                self.entry.settle();
            }
        }
        action
    }

    async fn send(&self, message: Message, source: &Source<'_>) -> Result<Acknowledged, Undelivered> {
        let delivery = self.delivery().clone();
        let body = self.renderer.body(message, source, &delivery);
        let mut span = self.trace.request("callback");
        let sent = R::send(self, message, body).await;
        let (status, attempts) = match &sent {
            Ok(acknowledged) => (Some(acknowledged.status), acknowledged.attempts),
            Err(undelivered) => (undelivered.status, undelivered.attempts),
        };
        span.set("http.request.resend_count", i64::from(attempts) - 1);
        if let Some(status) = status {
            span.set("http.response.status_code", i64::from(status));
        }
        sent.inspect_err(|undelivered| span.failed("undelivered", &undelivered.reason))
    }

    async fn post(&self, message: Message, body: Bytes) -> Result<Acknowledged, Undelivered> {
        // A message is due only if the caller gave an address for it.
        let url = self.addresses.of(message).unwrap_or_default();
        match &self.client {
            Some(client) => client.post(url, self.addresses.key.as_ref(), body).await,
            None => Err(Undelivered {
                attempts: 0,
                reason: "its driver posts no messages".to_owned(),
                status: None,
                fault: Fault::Host,
            }),
        }
    }
}
