//! `tools`: the tools that the operator provides to a plugin. A plugin's own tools are its own functions and
//! never pass through here.
//!
//! Every call is recorded before it is made, runs in a task of its own, and ends in a result for the model,
//! even if it fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use wasmtime::component::Resource;

use super::ask::not_its_answer;
use super::bindings::rollout::plugin::tools;
use super::bindings::rollout::plugin::types::{ToolCall, ToolResult};
use super::boundary::{Begun, Taken, Taker};
use super::calls::Call;
use super::gate::Import;
use super::host_tools::{HostTool, ToolRequest};
use super::outside::Outside;
use super::record::Record;
use super::virtual_clock::{ANSWER, seed_of};
use super::{ContractViolation, Imports, Role};
use rollout_core::budget::Use;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Label, Limit, Metrics, ToolKind};
use rollout_transcript::{CallResult, End, Event, Run, StoredToolCall, ToolAnswer, ToolUse};
use rollout_wire::digest::{hex, sha256_parts};
use rollout_wire::openai::TOOL_CALLS_MAX;
use rollout_wire::stream::has_more_parts;
use rollout_wire::text::{beginning, printable};

/// Number of bytes of an unknown tool's name that an error shows.
const NAME_BYTES_SHOWN: usize = 64;

/// Maximum number of values in the arguments of a host-provided tool. Its server parses them into values of
/// some hundred bytes each.
const ARGUMENT_PARTS_MAX: usize = 1 << 16;

/// Number of bytes that a call is charged besides its texts, so that many small ones count.
const CALL_BYTES: usize = 256;

/// Maximum length of a call's id in bytes; usual ids have thirty. The result carries the id unchanged, even
/// that of a refused call.
const CALL_ID_BYTES_MAX: usize = 4096;

/// A call that passed its checks.
struct Ready {
    tool: HostTool,
    request: ToolRequest,
}

/// A checked, counted and recorded call that is ready to be made.
struct Prepared {
    outside: Arc<dyn Outside>,
    request: ToolRequest,
    name: String,
    call_id: String,
    kind: ToolKind,
    record: Arc<Record>,
    metrics: Arc<Metrics>,
}

impl Imports {
    /// Starts a call while `pending` others are in progress. Returns its number, and whether it is in progress too.
    /// A refused call has its refusal as its result.
    fn begin(&mut self, call: ToolCall, pending: u32) -> wasmtime::Result<(u32, bool)> {
        let ToolCall { id: call_id, name, arguments } = call;
        let place = match self.note_call(&call_id, &name, &arguments) {
            Ok(place) => place,
            Err(over) => {
                let answer = ToolAnswer::over_limit(Limit::RecordBytes, over);
                return Ok((self.refused(call_id, answer), false));
            }
        };
        match self.prepare_call(&name, arguments, pending, place) {
            Ok(Ready { tool: HostTool { kind, .. }, request }) => {
                let Begun { call, is_live, .. } = self.start_tool_call(place, kind)?;
                if is_live {
                    let (outside, record) = (self.outside.clone(), self.record.clone());
                    let (holder, metrics) = (self.record.holder().cloned(), self.run.metrics.clone());
                    let prepared = Prepared { outside, request, name, call_id, kind, record, metrics };
                    self.boundary.spawn_request(call, holder, prepared.make(), Prepared::failed);
                }
                Ok((call, true))
            }
            Err((kind, answer)) => {
                self.run.metrics.tool_call(kind).ended(answer.outcome);
                let Begun { call, .. } = self.start_tool_call(place, kind)?;
                let (answer, ended) = self.record.keep_refusal(call, answer, &self.limits);
                self.boundary.keep_end(&ended);
                self.boundary.set_result(call, CallResult::Tool(answer));
                Ok((call, false))
            }
        }
    }

    /// Hands the call at this index of the transcript to the boundary.
    fn start_tool_call(&self, place: usize, kind: ToolKind) -> wasmtime::Result<Begun> {
        let mut kept = self.record.lock();
        let entry = kept.transcript.tools.get_mut(place).ok_or(ContractViolation::RolloutOver)?;
        entry.kind = kind;
        let what = match self.boundary.is_recorded() {
            true => {
                let stored = StoredToolCall {
                    tool: entry.name.as_str().into(),
                    kind,
                    id: entry.call_id.as_str().into(),
                    arguments: entry.arguments.as_str().into(),
                };
                // Strings always serialize.
                serde_json::to_vec(&stored).map(Bytes::from).unwrap_or_default()
            }
            false => Bytes::new(),
        };
        let taker = Taker::Tool { call_id: entry.call_id.clone() };
        match self.boundary.start_call(taker, entry.started_at, what) {
            Ok(begun) => {
                kept.transcript.number_tool_call(place, begun.call, begun.time);
                Ok(begun)
            }
            Err(ended) => {
                // The guest made another call in an earlier process, and this one is not made.
                kept.transcript.tools.truncate(place);
                Err(ended)
            }
        }
    }

    /// Numbers a call for which the record has no room. Its result is charged for as long as the guest may
    /// take it.
    fn refused(&self, call_id: String, answer: ToolAnswer) -> u32 {
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        if let Some(charge) = &mut charge {
            // If the memory budget is exhausted too, a rollout is ended.
            let _ = charge.grow(CALL_BYTES + call_id.len() + answer.content.len());
        }
        self.boundary.add_refused_call(call_id, CallResult::Tool(answer), charge)
    }

    /// Records a call before it is made. Returns its index, or the reason why the record has no room.
    fn note_call(&self, call_id: &str, name: &str, arguments: &str) -> Result<usize, String> {
        let mut kept = self.record.lock();
        let bytes = CALL_BYTES + call_id.len() + name.len() + arguments.len();
        kept.charge(bytes, &self.limits).map_err(|over| over.0)?;
        let (call_id, name, arguments) = (call_id.to_owned(), name.to_owned(), arguments.to_owned());
        #[expect(clippy::disallowed_methods, reason = "a time that is written, and not measured by")]
        let call = ToolUse::new(call_id, name, arguments, SystemTime::now());
        kept.transcript.tools.push(call);
        Ok(kept.transcript.tools.len() - 1)
    }

    /// Finds the tool and checks that it may be called now.
    fn prepare_call(
        &self,
        name: &str,
        arguments: String,
        pending: u32,
        place: usize,
    ) -> Result<Ready, (ToolKind, ToolAnswer)> {
        let Some(tool) = self.outside.tool(name) else {
            let name = printable(&beginning(name, NAME_BYTES_SHOWN));
            let reason = format!("no tool '{name}' is provided to this plugin");
            return Err((ToolKind::None, ToolAnswer::unavailable(reason)));
        };
        if let Err(limit) = self.check_pending_calls(pending) {
            let reason = format!("not called: {limit}");
            return Err((tool.kind, ToolAnswer::over_limit(Limit::ConcurrentCalls, reason)));
        }
        if has_more_parts(&arguments, ARGUMENT_PARTS_MAX) {
            let reason = format!("not called: its arguments have more than {ARGUMENT_PARTS_MAX} values");
            return Err((tool.kind, ToolAnswer::unavailable(reason)));
        }
        let mut kept = self.record.lock();
        let made = kept.tool_calls_made.entry(tool.place).or_default();
        if *made >= tool.calls_max {
            let max = tool.calls_max;
            let reason =
                format!("not called: calls-max of {max} calls of this tool in one rollout; go on without it");
            return Err((tool.kind, ToolAnswer::over_limit(Limit::ToolCalls, reason)));
        }
        *made += 1;
        let seed = seed_of(&self.run, self.boundary.era().load(Ordering::Relaxed), Role::Tool, "call");
        let seed = hex(&sha256_parts(&[&seed, &place.to_le_bytes()]));
        let holder = self.record.holder().cloned();
        let request = ToolRequest { place: tool.place, arguments, seed, holder };
        Ok(Ready { tool, request })
    }
}

impl Prepared {
    async fn make(self) -> CallResult {
        // Boxed, as a chat call is, so that no large future is created on a guest's stack.
        CallResult::Tool(Box::pin(self.call()).await)
    }

    /// Returns the result of a call in which the host panicked.
    fn failed() -> CallResult {
        CallResult::Tool(ToolAnswer::unavailable("the host panicked in the call"))
    }

    async fn call(self) -> ToolAnswer {
        let counted = self.metrics.tool_call(self.kind);
        let mut span = self.record.trace().request("execute_tool");
        span.set("gen_ai.operation.name", "execute_tool");
        span.set("gen_ai.tool.name", self.name);
        span.set("gen_ai.tool.call.id", self.call_id);
        let answer = self.outside.call_tool(self.request).await;
        if answer.is_error() {
            span.failed(answer.outcome.as_str(), "the tool's call failed");
        }
        drop(span);
        counted.ended(answer.outcome);
        answer
    }
}

impl Record {
    /// Adds the answer to a refused call to the transcript. Returns the answer for the guest, and the event
    /// of the call's end.
    fn keep_refusal(&self, call: u32, mut answer: ToolAnswer, limits: &Limits) -> (ToolAnswer, Event) {
        let mut kept = self.lock();
        kept.charge_tool(&mut answer, limits);
        let ended = Event::Ended { call, end: End::Refused(answer.clone()) };
        // The call is in the transcript unless the rollout is over.
        let _ = kept.transcript.apply(Run::Workflow, &ended);
        (answer, ended)
    }
}

impl tools::Host for Imports {
    fn available(&mut self) -> wasmtime::Result<Vec<String>> {
        self.enter(Import::TOOLS_AVAILABLE)?;
        Ok(self.outside.tools().to_vec())
    }

    async fn execute(&mut self, calls: Vec<ToolCall>) -> wasmtime::Result<Vec<ToolResult>> {
        self.enter(Import::TOOLS_EXECUTE)?;
        if calls.len() > TOOL_CALLS_MAX {
            return Err(wasmtime::Error::new(ContractViolation::ManyCalls {
                given: calls.len(),
                max: TOOL_CALLS_MAX,
            }));
        }
        calls.iter().try_for_each(check_id)?;
        let mut pending = self.pending_calls;
        let mut begun = Vec::with_capacity(calls.len());
        for call in calls {
            let (call, is_pending) = self.begin(call, pending)?;
            pending += u32::from(is_pending);
            begun.push(call);
        }
        let mut results = Vec::with_capacity(begun.len());
        for call in begun {
            results.push(tool_result(self.result(call).await?)?);
        }
        self.clock.pass(ANSWER);
        Ok(results)
    }

    fn start(&mut self, tool_call: ToolCall) -> wasmtime::Result<Resource<Call>> {
        self.enter(Import::TOOL_START)?;
        check_id(&tool_call)?;
        let (call, _) = self.begin(tool_call, self.pending_calls)?;
        self.hand_over(call)
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<ToolResult> {
        self.enter(Import::TOOL_FINISH)?;
        let call = self.take_back(call)?;
        let result = tool_result(self.result(call).await?)?;
        self.clock.pass(ANSWER);
        Ok(result)
    }
}

/// Ends a guest that gives a call an id that is too long to store.
fn check_id(call: &ToolCall) -> wasmtime::Result<()> {
    match call.id.len() {
        0..=CALL_ID_BYTES_MAX => Ok(()),
        given => Err(wasmtime::Error::new(ContractViolation::LongCallId { given, max: CALL_ID_BYTES_MAX })),
    }
}

/// Converts the result of a call to the contract's type.
fn tool_result(taken: Taken) -> wasmtime::Result<ToolResult> {
    let Taker::Tool { call_id } = taken.taker else { return Err(taken.not_of("tools")) };
    let answer = match taken.result {
        CallResult::Tool(answer) => answer,
        CallResult::Model(_) => ToolAnswer::unavailable(not_its_answer()),
    };
    Ok(ToolResult { call_id, is_error: answer.is_error(), content: answer.content })
}
