//! `tools`: what the operator provides a plugin. A plugin's own tools are its own functions
//! and never come here.
//!
//! Every call is written down before it is made, made in a task of its own, and ends in
//! a result for the model, whatever went wrong.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::tools;
use super::bindings::rollout::plugin::types::{ToolCall, ToolResult};
use super::boundary::{Begun, Of};
use super::calls::{Call, CallOutcome};
use super::gate::Import;
use super::host_tools::{HostTool, ToolAnswer, ToolRequest, error_text};
use super::outside::Outside;
use super::record::{Record, RecordState, ToolUse};
use super::run_event::Answer;
use super::virtual_clock::{ANSWER, seed_of};
use super::{Ended, Imports, Role};
use rollout_core::budget::Use;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Label, Limit, Metrics, ToolKind, ToolOutcome};
use rollout_wire::digest::{hex, sha256_parts};
use rollout_wire::openai::TOOL_CALLS_MAX;
use rollout_wire::stream::has_more_parts;
use rollout_wire::text::{beginning, printable};

/// How much of a name that nobody provides is repeated.
const NAME_BYTES_SHOWN: usize = 64;

/// The most values in the arguments of a host-provided tool. Its server takes them as values,
/// of which each is some hundred bytes.
const ARGUMENT_PARTS_MAX: usize = 1 << 16;

/// What a call costs of the record besides its texts, so that many small ones count.
const CALL_BYTES: usize = 256;

/// The longest id of a call, in bytes; the usual have thirty. It goes into the result as
/// it came, for a call that is refused as well.
const CALL_ID_BYTES_MAX: usize = 4096;

/// A call that may be made.
struct Ready {
    tool: HostTool,
    request: ToolRequest,
}

/// A call that was checked, counted and written down; making it is all that is left.
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
    /// Begins a call beside those under way; gives its number, and whether it is one of them. What
    /// keeps it from being made is its result.
    fn begin(&mut self, call: ToolCall, under_way: u32) -> wasmtime::Result<(u32, bool)> {
        let ToolCall { id: call_id, name, arguments } = call;
        let place = match self.note_call(&call_id, &name, &arguments) {
            Ok(place) => place,
            Err(over) => {
                let content = error_text(over);
                return Ok((self.refused(ToolResult { call_id, content, is_error: true }), false));
            }
        };
        match self.prepare_call(&name, arguments, under_way, place) {
            Ok(Ready { tool: HostTool { kind, .. }, request }) => {
                let Begun { call, is_live } = self.asks_tool(&name, &request, place, kind, &call_id)?;
                if is_live {
                    let (outside, record) = (self.outside.clone(), self.record.clone());
                    let (holder, metrics) = (self.record.holder().cloned(), self.run.metrics.clone());
                    let prepared = Prepared { outside, request, name, call_id, kind, record, metrics };
                    self.boundary.makes(call, holder, prepared.make(), Prepared::failed);
                }
                Ok((call, true))
            }
            Err((kind, answer)) => {
                self.run.metrics.tool_call(kind).ended(answer.outcome);
                let (took, limits) = (Duration::ZERO, &self.limits);
                let result = self.record.keep_result(place, kind, call_id, answer, took, limits);
                Ok((self.boundary.refuses(CallOutcome::Tool(result), None), false))
            }
        }
    }

    /// A call at this place of the record crosses.
    fn asks_tool(
        &self,
        name: &str,
        request: &ToolRequest,
        place: usize,
        kind: ToolKind,
        call_id: &str,
    ) -> wasmtime::Result<Begun> {
        let what = match self.boundary.is_kept() {
            true => {
                let written = WrittenToolCall {
                    tool: name.into(),
                    id: call_id.into(),
                    arguments: request.arguments.as_str().into(),
                };
                // Texts.
                serde_json::to_vec(&written).map(Bytes::from).unwrap_or_default()
            }
            false => Bytes::new(),
        };
        let mut kept = self.record.lock();
        let mut unknown = SystemTime::UNIX_EPOCH;
        let entry = kept.tool_uses.get_mut(place);
        let time = entry.map_or(&mut unknown, |entry| {
            entry.is_made = true;
            &mut entry.started_at
        });
        let of = Of::Tool { place, kind, call_id: call_id.to_owned() };
        self.boundary.asks(of, time, what)
    }

    /// A call for which the record has no room. What the guest may hold of such results
    /// is charged for as long as it holds them.
    fn refused(&self, result: ToolResult) -> u32 {
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        if let Some(charge) = &mut charge {
            // Where there is no room for this either, the rollout was ended with that.
            let _ = charge.grow(CALL_BYTES + result.call_id.len() + result.content.len());
        }
        self.boundary.refuses(CallOutcome::Tool(result), charge)
    }

    /// Writes a call down before anything comes of it; gives its place, or why there is no room.
    fn note_call(&self, call_id: &str, name: &str, arguments: &str) -> Result<usize, String> {
        let mut kept = self.record.lock();
        let bytes = CALL_BYTES + call_id.len() + name.len() + arguments.len();
        kept.charge(bytes, &self.limits).map_err(|over| over.0)?;
        let place = kept.tool_uses.len();
        kept.tool_uses.push(ToolUse {
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            kind: ToolKind::None,
            is_made: false,
            #[expect(clippy::disallowed_methods, reason = "a time that is written, and not measured by")]
            started_at: SystemTime::now(),
            duration: Duration::ZERO,
            outcome: ToolOutcome::Abandoned,
            content: String::new(),
        });
        Ok(place)
    }

    /// Finds the tool and sees that it may be called now.
    fn prepare_call(
        &self,
        name: &str,
        arguments: String,
        under_way: u32,
        place: usize,
    ) -> Result<Ready, (ToolKind, ToolAnswer)> {
        let Some(tool) = self.outside.tool(name) else {
            let name = printable(&beginning(name, NAME_BYTES_SHOWN));
            let reason = format!("no tool '{name}' is provided to this plugin");
            return Err((ToolKind::None, ToolAnswer::unavailable(reason)));
        };
        if let Err(limit) = self.check_under_way(under_way) {
            let reason = format!("not called: {limit}");
            return Err((tool.kind, ToolAnswer::over(Limit::ConcurrentCalls, reason)));
        }
        if has_more_parts(&arguments, ARGUMENT_PARTS_MAX) {
            let reason = format!("not called: its arguments have more than {ARGUMENT_PARTS_MAX} values");
            return Err((tool.kind, ToolAnswer::unavailable(reason)));
        }
        let mut kept = self.record.lock();
        if let Some(entry) = kept.tool_uses.get_mut(place) {
            entry.kind = tool.kind;
        }
        let made = kept.tool_calls_made.entry(tool.place).or_default();
        if *made >= tool.calls_max {
            let max = tool.calls_max;
            let reason =
                format!("not called: calls-max of {max} calls of this tool in one rollout; go on without it");
            return Err((tool.kind, ToolAnswer::over(Limit::ToolCalls, reason)));
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
    async fn make(self) -> Answer {
        // As with a chat call: large futures are not made on a guest's stack.
        Answer::Tool(Box::pin(self.call()).await)
    }

    /// What came of one in which the host panicked.
    fn failed() -> Answer {
        Answer::Tool(ToolAnswer::unavailable("the host panicked in the call"))
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

/// A call of a tool as it is kept, in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct WrittenToolCall<'a> {
    /// The tool's name.
    #[serde(borrow)]
    pub tool: Cow<'a, str>,
    /// The id that the call came with.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// The arguments as they came.
    #[serde(borrow)]
    pub arguments: Cow<'a, str>,
}

impl Record {
    /// Writes down what came of a call at this place and gives the guest its result.
    pub(super) fn keep_result(
        &self,
        place: usize,
        kind: ToolKind,
        call_id: String,
        answer: ToolAnswer,
        took: Duration,
        limits: &Limits,
    ) -> ToolResult {
        let content = self.lock().keep_content(place, kind, answer, took, limits);
        ToolResult { call_id, is_error: content.is_error(), content: content.content }
    }
}

impl RecordState {
    fn keep_content(
        &mut self,
        place: usize,
        kind: ToolKind,
        mut answer: ToolAnswer,
        took: Duration,
        limits: &Limits,
    ) -> ToolAnswer {
        if let Some(limit) = answer.limit {
            self.hits.add(limit);
        }
        if let Err(over) = self.charge(answer.content.len(), limits) {
            answer = ToolAnswer::over(Limit::RecordBytes, format!("its result is not kept: {}", over.0));
        }
        if let Some(entry) = self.tool_uses.get_mut(place) {
            entry.kind = kind;
            entry.duration = took;
            entry.outcome = answer.outcome;
            entry.content = answer.content.clone();
        }
        answer
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
            return Err(wasmtime::Error::new(Ended::ManyCalls { given: calls.len(), max: TOOL_CALLS_MAX }));
        }
        calls.iter().try_for_each(check_id)?;
        let mut under_way = self.calls_under_way;
        let mut begun = Vec::with_capacity(calls.len());
        for call in calls {
            let (call, is_under_way) = self.begin(call, under_way)?;
            under_way += u32::from(is_under_way);
            begun.push(call);
        }
        let mut results = Vec::with_capacity(begun.len());
        for call in begun {
            results.push(tool_result(self.outcome(call).await?)?);
        }
        self.clock.pass(ANSWER);
        Ok(results)
    }

    fn start(&mut self, tool_call: ToolCall) -> wasmtime::Result<Resource<Call>> {
        self.enter(Import::TOOL_START)?;
        check_id(&tool_call)?;
        let (call, _) = self.begin(tool_call, self.calls_under_way)?;
        self.hand_over(call)
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<ToolResult> {
        self.enter(Import::TOOL_FINISH)?;
        let call = self.take_back(call)?;
        let result = tool_result(self.outcome(call).await?)?;
        self.clock.pass(ANSWER);
        Ok(result)
    }
}

/// Ends a guest that gives a call an id which nobody could keep.
fn check_id(call: &ToolCall) -> wasmtime::Result<()> {
    match call.id.len() {
        0..=CALL_ID_BYTES_MAX => Ok(()),
        given => Err(wasmtime::Error::new(Ended::LongCallId { given, max: CALL_ID_BYTES_MAX })),
    }
}

fn tool_result(outcome: CallOutcome) -> wasmtime::Result<ToolResult> {
    match outcome {
        CallOutcome::Tool(result) => Ok(result),
        other => Err(other.not_of("tools")),
    }
}
