//! `tools`: what the operator lends a plugin. No tool can be configured yet, so the
//! list is empty and a call of any name gives a result that says so; a plugin's own
//! tools are its own functions and never come here.

use wasmtime::component::Resource;

use super::bindings::rollout::plugin::tools;
use super::bindings::rollout::plugin::types::{ToolCall, ToolResult};
use super::calls::{Call, CallOutcome};
use super::{Ended, Imports, Role};

fn not_lent(call: ToolCall) -> ToolResult {
    ToolResult {
        content: format!("Error: no tool '{}' is lent to this plugin", call.name),
        call_id: call.id,
        is_error: true,
    }
}

impl tools::Host for Imports {
    fn available(&mut self) -> wasmtime::Result<Vec<String>> {
        self.called()?;
        self.only(Role::Workflow, "tools.available")?;
        Ok(Vec::new())
    }

    async fn execute(&mut self, calls: Vec<ToolCall>) -> wasmtime::Result<Vec<ToolResult>> {
        self.called()?;
        self.only(Role::Workflow, "tools.execute")?;
        Ok(calls.into_iter().map(not_lent).collect())
    }

    fn start(&mut self, tool_call: ToolCall) -> wasmtime::Result<Resource<Call>> {
        self.called()?;
        self.only(Role::Workflow, "tools.start")?;
        self.lend(Call::ready(CallOutcome::Tool(not_lent(tool_call))))
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<ToolResult> {
        self.called()?;
        match self.take_back(call)?.outcome().await? {
            CallOutcome::Tool(result) => Ok(result),
            CallOutcome::Chat(_) => Err(wasmtime::Error::new(Ended::WrongCall("tools", "chat"))),
            CallOutcome::Judge(_) => Err(wasmtime::Error::new(Ended::WrongCall("tools", "judge"))),
        }
    }
}
