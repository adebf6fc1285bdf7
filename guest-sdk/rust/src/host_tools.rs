//! Tools that the operator provides to this plugin and the host runs. For workflows only.
//!
//! [`Agent::with_host_tools`](crate::Agent::with_host_tools) offers them in the ready-made loop. The
//! functions here are for custom loops.

use serde_json::Value;

use crate::bindings::imports::{calls, tools, types};
use crate::calls::UnderWay;
use crate::message::ToolCall;
use crate::tool::ToolResult;

/// Returns the schemas of the provided tools, in the form of OpenAI's function tools.
pub fn available() -> Vec<Value> {
    let parse = |text: String| serde_json::from_str(&text).ok();
    tools::available().into_iter().filter_map(parse).collect()
}

/// Makes the calls concurrently, waits for all and returns the results in the order of the calls. The result of a call
/// of an unknown tool states that there is no such tool.
pub fn execute(calls: &[ToolCall]) -> Vec<ToolResult> {
    let calls: Vec<types::ToolCall> = calls.iter().map(Into::into).collect();
    tools::execute(&calls).into_iter().map(Into::into).collect()
}

/// Starts a call without waiting.
pub fn start(call: &ToolCall) -> PendingTool {
    PendingTool { call: tools::start(&call.into()) }
}

/// A tool call in progress. Dropping it abandons the call.
#[derive(Debug)]
pub struct PendingTool {
    call: calls::Call,
}

impl PendingTool {
    /// Waits for the result.
    pub fn wait(self) -> ToolResult {
        tools::finish(self.call).into()
    }
}

impl UnderWay for PendingTool {
    fn call(&self) -> &calls::Call {
        &self.call
    }
}

impl From<types::ToolCall> for ToolCall {
    fn from(call: types::ToolCall) -> Self {
        let types::ToolCall { id, name, arguments } = call;
        Self { id, name, arguments }
    }
}

impl From<&ToolCall> for types::ToolCall {
    fn from(call: &ToolCall) -> Self {
        Self { id: call.id.clone(), name: call.name.clone(), arguments: call.arguments.clone() }
    }
}

impl From<types::ToolResult> for ToolResult {
    fn from(result: types::ToolResult) -> Self {
        let types::ToolResult { call_id, content, is_error } = result;
        Self { call_id, content, is_error }
    }
}
