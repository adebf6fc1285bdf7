//! `tools`: what the operator provides a plugin. A plugin's own tools are its own functions
//! and never come here.
//!
//! Every call is written down before it is made, made in a task of its own, and ends in
//! a result for the model, whatever went wrong.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tracing::Instrument;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::tools;
use super::bindings::rollout::plugin::types::{ToolCall, ToolResult};
use super::calls::{Call, CallOutcome};
use super::gate::Import;
use super::host_tools::{HostTool, ToolAnswer, ToolRequest, error_text};
use super::outside::Outside;
use super::record::{Record, ToolUse};
use super::virtual_clock::{ANSWER, seed_of};
use super::{Ended, Imports, Role};
use crate::budget::Use;
use crate::digest::{hex, sha256_parts};
use crate::limits::Limits;
use crate::telemetry::{Label, Limit, Metrics, ToolKind, ToolOutcome};
use crate::text::{beginning, printable};
use crate::wire::openai::TOOL_CALLS_MAX;
use crate::wire::stream::has_more_parts;

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
    kind: ToolKind,
    entry: Entry,
}

/// A call's place in the record, where its answer goes.
struct Entry {
    call_id: String,
    place: usize,
    record: Arc<Record>,
    limits: Arc<Limits>,
    metrics: Arc<Metrics>,
}

impl Imports {
    /// Begins a call beside those under way. What keeps it from being made is its result.
    fn begin(&mut self, call: ToolCall, under_way: u32) -> Call {
        let entry = match self.note_call(call.id, &call.name, &call.arguments) {
            Ok(entry) => entry,
            Err(result) => return self.refused(result),
        };
        match self.prepare_call(&call.name, call.arguments, under_way, entry.place) {
            Ok(Ready { tool, request }) => {
                let outside = self.outside.clone();
                let prepared = Prepared { outside, request, name: call.name, kind: tool.kind, entry };
                let task = async { CallOutcome::Tool(prepared.make().await) };
                // The task's log lines are the rollout's, as the guest's own calls are.
                Call::under_way(tokio::spawn(task.in_current_span()))
            }
            Err((kind, answer)) => {
                self.run.metrics.tool_call(kind).ended(answer.outcome);
                Call::ready(CallOutcome::Tool(entry.close(answer, kind, Duration::ZERO)))
            }
        }
    }

    /// A call for which the record has no room. What the guest may hold of such results
    /// is charged for as long as it holds them.
    fn refused(&self, result: ToolResult) -> Call {
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        if let Some(charge) = &mut charge {
            // Where there is no room for this either, the rollout was ended with that.
            let _ = charge.grow(CALL_BYTES + result.call_id.len() + result.content.len());
        }
        Call::charged(CallOutcome::Tool(result), charge)
    }

    /// Writes a call down before anything comes of it.
    fn note_call(&self, call_id: String, name: &str, arguments: &str) -> Result<Entry, ToolResult> {
        let mut kept = self.record.lock();
        let bytes = CALL_BYTES + call_id.len() + name.len() + arguments.len();
        if let Err(over) = kept.charge(bytes, &self.limits) {
            return Err(ToolResult { call_id, content: error_text(over.0), is_error: true });
        }
        let place = kept.tool_uses.len();
        kept.tool_uses.push(ToolUse {
            call_id: call_id.clone(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            kind: ToolKind::None,
            #[expect(clippy::disallowed_methods, reason = "a time that is written, and not measured by")]
            started_at: SystemTime::now(),
            duration: Duration::ZERO,
            outcome: ToolOutcome::Abandoned,
            content: String::new(),
        });
        drop(kept);
        let (record, limits) = (self.record.clone(), self.limits.clone());
        Ok(Entry { call_id, place, record, limits, metrics: self.run.metrics.clone() })
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
        let seed = seed_of(&self.run, Role::Tool, "call");
        let seed = hex(&sha256_parts(&[&seed, &place.to_le_bytes()]));
        let holder = self.record.holder().cloned();
        let request = ToolRequest { place: tool.place, arguments, seed, holder };
        Ok(Ready { tool, request })
    }
}

impl Prepared {
    async fn make(self) -> ToolResult {
        // As with a chat call: large futures are not made on a guest's stack.
        Box::pin(self.call()).await
    }

    async fn call(self) -> ToolResult {
        let metrics = self.entry.metrics.clone();
        let counted = metrics.tool_call(self.kind);
        let started = Instant::now();
        let mut span = self.entry.record.trace().request("execute_tool");
        span.set("gen_ai.operation.name", "execute_tool");
        span.set("gen_ai.tool.name", self.name);
        span.set("gen_ai.tool.call.id", self.entry.call_id.clone());
        let answer = self.outside.call_tool(self.request).await;
        if answer.is_error() {
            span.failed(answer.outcome.as_str(), "the tool's call failed");
        }
        drop(span);
        counted.ended(answer.outcome);
        self.entry.close(answer, self.kind, started.elapsed())
    }
}

impl Entry {
    /// Writes down what came of the call and gives the guest its result.
    fn close(self, mut answer: ToolAnswer, kind: ToolKind, duration: Duration) -> ToolResult {
        let mut kept = self.record.lock();
        if let Some(limit) = answer.limit {
            kept.hits.add(limit);
        }
        if let Err(over) = kept.charge(answer.content.len(), &self.limits) {
            answer = ToolAnswer::over(Limit::RecordBytes, format!("its result is not kept: {}", over.0));
        }
        if let Some(entry) = kept.tool_uses.get_mut(self.place) {
            entry.kind = kind;
            entry.duration = duration;
            entry.outcome = answer.outcome;
            entry.content = answer.content.clone();
        }
        ToolResult { call_id: self.call_id, is_error: answer.is_error(), content: answer.content }
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
        let begun: Vec<Call> = calls
            .into_iter()
            .map(|call| {
                let call = self.begin(call, under_way);
                under_way += u32::from(!call.is_ready());
                call
            })
            .collect();
        let mut results = Vec::with_capacity(begun.len());
        for call in begun {
            results.push(tool_result(call.outcome().await?)?);
        }
        self.clock.pass(ANSWER);
        Ok(results)
    }

    fn start(&mut self, tool_call: ToolCall) -> wasmtime::Result<Resource<Call>> {
        self.enter(Import::TOOL_START)?;
        check_id(&tool_call)?;
        let call = self.begin(tool_call, self.calls_under_way);
        self.hand_over(call)
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<ToolResult> {
        self.enter(Import::TOOL_FINISH)?;
        let result = tool_result(self.take_back(call)?.outcome().await?)?;
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
