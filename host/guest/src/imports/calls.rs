//! `calls`: waiting for any of several calls under way.

use std::time::Duration;

use tokio::time::Instant;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::{calls, models, types};
use super::boundary::{Arrival, Boundary, News, Of};
use super::gate::Import;
use super::{Ended, Imports, Record};
use rollout_core::limits::Limits;
use rollout_core::telemetry::Limit;
use rollout_wire::openai::Completion;

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

/// A guest's handle on a call under way.
#[expect(unreachable_pub, reason = "the generated code names it as public")]
pub struct Call {
    number: u32,
}

impl Boundary {
    /// Writes an answer down and keeps what came of it for the guest.
    fn crosses_over(&self, of: Option<Of>, arrival: Arrival, record: &Record, limits: &Limits) {
        // There is no call that nobody made.
        let Some(of) = of else { return };
        let Arrival { call, took, answer, charge, at: _ } = arrival;
        // From here on the record is charged.
        drop(charge);
        let outcome = record.keep_answer(of, answer, took, limits);
        self.settles(call, outcome);
    }

    /// The run is over: what arrived before its end is written down, and nothing more arrives.
    pub fn ends(&self, record: &Record, limits: &Limits) {
        self.closes();
        while let Some((of, arrival)) = self.last() {
            self.crosses_over(of, arrival, record, limits);
        }
    }
}

impl Imports {
    /// The guest's next move, before which all crosses that arrived.
    pub(super) fn moves(&self) -> wasmtime::Result<()> {
        self.boundary.moves().map_err(wasmtime::Error::new)?;
        while let Some(answer) = self.boundary.crosses() {
            self.crosses(answer);
        }
        Ok(())
    }

    fn crosses(&self, (of, arrival): (Option<Of>, Arrival)) {
        self.boundary.crosses_over(of, arrival, &self.record, &self.limits);
    }

    /// Waits for what comes of a call.
    pub(super) async fn outcome(&mut self, call: u32) -> wasmtime::Result<CallOutcome> {
        loop {
            if let Some((outcome, _charge)) = self.boundary.takes(call) {
                return Ok(outcome);
            }
            match self.boundary.look(false)? {
                News::Answer(answer) => self.crosses(*answer),
                News::TimedOut | News::None => self.boundary.news().await,
            }
        }
    }

    /// Hands a call to the guest.
    pub(super) fn hand_over(&mut self, number: u32) -> wasmtime::Result<Resource<Call>> {
        self.calls_under_way += 1;
        Ok(self.table.push(Call { number })?)
    }

    /// Takes a call back from the guest.
    pub(super) fn take_back(&mut self, call: Resource<Call>) -> wasmtime::Result<u32> {
        self.calls_under_way = self.calls_under_way.saturating_sub(1);
        Ok(self.table.delete(call)?.number)
    }

    /// Waits for any of these; gives the places of those that are ready, none once the time is over.
    async fn any_of(&mut self, calls: &[u32], time: Option<Duration>) -> wasmtime::Result<Vec<u32>> {
        // One that no clock gets to is none.
        let until = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let ready = self.boundary.ready_among(calls);
            if !ready.is_empty() {
                return Ok(ready);
            }
            match self.boundary.look(time.is_some())? {
                News::Answer(answer) => {
                    self.crosses(*answer);
                    continue;
                }
                News::TimedOut => return Ok(Vec::new()),
                News::None => {}
            }
            match until {
                None => self.boundary.news().await,
                Some(until) => {
                    let news = tokio::time::timeout_at(until, self.boundary.news()).await;
                    if news.is_err() && self.boundary.times_out() {
                        return Ok(Vec::new());
                    }
                }
            }
        }
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
        let numbers = calls.iter().map(|call| Ok(self.table.get(call)?.number));
        let numbers = numbers.collect::<wasmtime::Result<Vec<u32>>>()?;
        let time = timeout_ms.map(Duration::from_millis);
        let ready = self.any_of(&numbers, time).await?;
        if ready.is_empty() {
            self.clock.pass(time.unwrap_or_default());
        }
        Ok(ready)
    }
}

impl calls::HostCall for Imports {
    fn drop(&mut self, call: Resource<Call>) -> wasmtime::Result<()> {
        self.moves()?;
        let number = self.take_back(call)?;
        self.boundary.gives_up(number);
        Ok(())
    }
}
