//! `calls`: waiting for any of several calls under way.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::{calls, models, types};
use super::gate::Import;
use super::{Ended, Imports};
use crate::budget::Charge;
use crate::telemetry::Limit;
use crate::wire::openai::Completion;

/// What came of a call, in the terms of the interface that started it. A reply stays the
/// bytes that the record has of it until a guest asks for it.
pub(super) enum CallOutcome {
    Model(ModelAnswer),
    Tool(types::ToolResult),
}

/// What came of asking a model.
pub(super) struct ModelAnswer {
    pub answer: Result<Completion, models::Error>,
    /// The sample whose history the reply is to be kept in, when the guest is given it.
    pub keep_for: Option<usize>,
}

impl CallOutcome {
    /// The guest tried to finish this through an interface that did not start it.
    pub(super) fn not_of(&self, interface: &'static str) -> wasmtime::Error {
        let starter = match self {
            Self::Model(_) => "models",
            Self::Tool(_) => "tools",
        };
        wasmtime::Error::new(Ended::WrongCall(interface, starter))
    }
}

/// A call under way. Dropping it aborts the task behind it.
#[expect(unreachable_pub, reason = "the generated code names it as public")]
pub struct Call {
    state: State,
    /// Held, and never looked at.
    _charge: Option<Charge>,
}

enum State {
    UnderWay(AbortOnDropHandle<CallOutcome>),
    Ready(CallOutcome),
}

impl Call {
    /// A call that a task of its own works on.
    pub(super) fn under_way(task: tokio::task::JoinHandle<CallOutcome>) -> Self {
        Self { state: State::UnderWay(AbortOnDropHandle::new(task)), _charge: None }
    }

    /// A call that was over before it began.
    pub(super) fn ready(outcome: CallOutcome) -> Self {
        Self::charged(outcome, None)
    }

    /// The same, with what it is charged to for as long as it is held.
    pub(super) fn charged(outcome: CallOutcome, charge: Option<Charge>) -> Self {
        Self { state: State::Ready(outcome), _charge: charge }
    }

    /// Whether it needs no waiting for.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Waits for the outcome.
    pub(super) async fn outcome(self) -> wasmtime::Result<CallOutcome> {
        match self.state {
            State::Ready(outcome) => Ok(outcome),
            State::UnderWay(task) => task.await.map_err(wasmtime::Error::new),
        }
    }

    /// Whether the outcome is there; arranges for the waker to be called if not.
    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<wasmtime::Result<()>> {
        let State::UnderWay(task) = &mut self.state else { return Poll::Ready(Ok(())) };
        match Pin::new(task).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(outcome)) => {
                self.state = State::Ready(outcome);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(wasmtime::Error::new(error))),
        }
    }
}

impl Imports {
    /// Hands a call to the guest.
    pub(super) fn hand_over(&mut self, call: Call) -> wasmtime::Result<Resource<Call>> {
        self.calls_under_way += 1;
        Ok(self.table.push(call)?)
    }

    /// Takes a call back from the guest.
    pub(super) fn take_back(&mut self, call: Resource<Call>) -> wasmtime::Result<Call> {
        self.calls_under_way = self.calls_under_way.saturating_sub(1);
        Ok(self.table.delete(call)?)
    }
}

impl calls::Host for Imports {
    async fn wait(
        &mut self,
        calls: Vec<Resource<Call>>,
        timeout_ms: Option<u64>,
    ) -> wasmtime::Result<Vec<u32>> {
        self.enter(Import::CALLS_WAIT)?;
        // A guest's list may be longer than what it holds; the work per wake-up is
        // bounded by what it may hold.
        if calls.len() > self.limits.concurrent_calls_max as usize {
            self.record.lock().hits.add_asked(Limit::ConcurrentCalls, calls.len());
            return Err(wasmtime::Error::new(Ended::LongWait {
                given: calls.len(),
                max: self.limits.concurrent_calls_max,
            }));
        }
        if calls.is_empty() && timeout_ms.is_none() {
            return Ok(Vec::new());
        }
        let table = &mut self.table;
        let any_ready = poll_fn(|cx| {
            let mut ready = Vec::new();
            for (place, call) in (0_u32..).zip(&calls) {
                let call = match table.get_mut(call) {
                    Ok(call) => call,
                    Err(error) => return Poll::Ready(Err(wasmtime::Error::from(error))),
                };
                match call.poll_ready(cx) {
                    Poll::Ready(Ok(())) => ready.push(place),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
        });
        let time = timeout_ms.map(Duration::from_millis);
        let ready = self.outside.wait(any_ready.boxed(), time).await?;
        Ok(ready.unwrap_or_else(|| {
            self.clock.pass(time.unwrap_or_default());
            Vec::new()
        }))
    }
}

impl calls::HostCall for Imports {
    fn drop(&mut self, call: Resource<Call>) -> wasmtime::Result<()> {
        self.take_back(call)?;
        Ok(())
    }
}
