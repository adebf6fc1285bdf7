//! `calls`: waits for any of several pending calls.

use std::time::Duration;

use tokio::time::Instant;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::calls;
use super::boundary::{Boundary, News, Taken, Taker};
use super::divergence::Arrival;
use super::gate::Import;
use super::{ContractViolation, Imports, Record};
use rollout_core::limits::Limits;
use rollout_core::telemetry::Limit;
use rollout_transcript::Event;

impl Taken {
    /// Returns the error for a guest that finishes a call through another interface than the one that started it.
    pub(super) fn not_of(&self, interface: &'static str) -> wasmtime::Error {
        let starter = match self.taker {
            Taker::Model { .. } => "models",
            Taker::Tool { .. } => "tools",
        };
        wasmtime::Error::new(ContractViolation::WrongCall(interface, starter))
    }
}

/// A guest's handle on a pending call.
#[expect(unreachable_pub, reason = "the generated code names it as public")]
pub struct Call {
    number: u32,
}

impl Boundary {
    /// Adds an answer to the transcript and stores its result for the guest.
    fn deliver(&self, arrival: Arrival, record: &Record, limits: &Limits) {
        let Arrival { at, call, took, result, charge } = arrival;
        // The record charges the answer from here on.
        drop(charge);
        let is_for_history = self.is_for_history(call);
        let answered = Event::Answered { at, call, took, result };
        let (result, ended) = record.keep_answer(self.run(), answered, is_for_history, limits);
        if let Some(ended) = ended {
            self.keep_end(&ended);
        }
        self.set_result(call, result);
    }

    /// Ends the run: answers that arrived before its end are added to the transcript, and no further answer
    /// arrives.
    pub fn end(&self, record: &Record, limits: &Limits) {
        self.close();
        while let Some(arrival) = self.last() {
            self.deliver(arrival, record, limits);
        }
    }

    /// Ends the calls of the run that are still open when the rollout is over.
    pub fn close_calls(&self, record: &Record) {
        self.close();
        record.close_calls(self.run()).iter().for_each(|ended| self.keep_end(ended));
        if let Some(cut) = self.cut() {
            self.keep_end(&cut);
        }
    }
}

impl Imports {
    /// Counts the guest's next action, and delivers the answers that arrived before it.
    pub(super) fn count_move(&self) -> wasmtime::Result<()> {
        self.boundary.count_move().map_err(wasmtime::Error::new)?;
        while let Some(arrival) = self.boundary.take_arrival() {
            self.deliver(arrival);
        }
        Ok(())
    }

    fn deliver(&self, arrival: Arrival) {
        self.boundary.deliver(arrival, &self.record, &self.limits);
    }

    /// Waits for the result of a call.
    pub(super) async fn result(&mut self, call: u32) -> wasmtime::Result<Taken> {
        loop {
            if let Some(taken) = self.boundary.take_result(call) {
                return Ok(taken);
            }
            match self.boundary.next_news(false)? {
                News::Answer(arrival) => self.deliver(*arrival),
                News::TimedOut | News::None => self.boundary.news().await,
            }
        }
    }

    /// Gives the guest a handle on a call.
    pub(super) fn hand_over(&mut self, number: u32) -> wasmtime::Result<Resource<Call>> {
        self.pending_calls += 1;
        Ok(self.table.push(Call { number })?)
    }

    /// Removes the guest's handle on a call; returns the call's number.
    pub(super) fn take_back(&mut self, call: Resource<Call>) -> wasmtime::Result<u32> {
        self.pending_calls = self.pending_calls.saturating_sub(1);
        Ok(self.table.delete(call)?.number)
    }

    /// Waits for any of these calls. Returns the indices of the calls that are ready, or none if the timeout expires.
    async fn any_of(&mut self, calls: &[u32], time: Option<Duration>) -> wasmtime::Result<Vec<u32>> {
        // A timeout beyond the clock's range never expires.
        let until = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let ready = self.boundary.ready_among(calls);
            if !ready.is_empty() {
                return Ok(ready);
            }
            match self.boundary.next_news(time.is_some())? {
                News::Answer(arrival) => {
                    self.deliver(*arrival);
                    continue;
                }
                News::TimedOut => return Ok(Vec::new()),
                News::None => {}
            }
            match until {
                None => self.boundary.news().await,
                Some(until) => {
                    let news = tokio::time::timeout_at(until, self.boundary.news()).await;
                    if news.is_err() && self.boundary.note_timeout() {
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
        // A guest may pass a longer list than the calls that it holds. The limit bounds the work per wake-up.
        if calls.len() > self.limits.concurrent_calls_max as usize {
            self.record.lock().hits.add_requested(Limit::ConcurrentCalls, calls.len());
            return Err(wasmtime::Error::new(ContractViolation::LongWait {
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
        self.count_move()?;
        let number = self.take_back(call)?;
        self.boundary.abandon(number);
        Ok(())
    }
}
