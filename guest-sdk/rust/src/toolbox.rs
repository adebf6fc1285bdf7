//! The tools of one conversation and the dispatch of calls to them.

use serde_json::Value;

use crate::host_tools;
use crate::message::ToolCall;
use crate::tool::{self, Tool, ToolResult};

/// The tools that a conversation offers to the model: the plugin's own and optionally those that the operator
/// provides.
///
/// An [`Agent`](crate::Agent) contains a toolbox; this type is for custom loops.
#[derive(Debug, Default)]
pub struct Toolbox {
    own: Vec<Tool>,
    host_tools: Option<HostTools>,
}

#[derive(Debug)]
struct HostTools {
    schemas: Vec<Value>,
    // A function pointer, so that a plugin without host-provided tools does not import them.
    execute: fn(&[ToolCall]) -> Vec<ToolResult>,
}

impl Toolbox {
    /// Creates an empty toolbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool, replacing an earlier one of this name.
    pub fn add(&mut self, tool: Tool) {
        self.own.retain(|own| own.name() != tool.name());
        self.own.push(tool);
    }

    /// Adds the tools that the operator provides, except those with the name of one of the plugin's own
    /// tools.
    pub fn add_host_tools(&mut self) {
        self.host_tools = Some(HostTools { schemas: host_tools::available(), execute: host_tools::execute });
    }

    /// Returns the schemas of the tools, for [`ChatRequest::tools`](crate::ChatRequest::tools).
    pub fn schemas(&self) -> impl Iterator<Item = &Value> {
        let host_tools = self.host_tools.iter().flat_map(|host_tools| &host_tools.schemas);
        let host_tools =
            host_tools.filter(|schema| !self.own.iter().any(|own| own.name() == name_in(schema)));
        self.own.iter().map(Tool::schema).chain(host_tools)
    }

    /// Makes the calls and returns the results in the order of the calls. Host-provided tools run
    /// concurrently and before the plugin's own. The result of a call of an unknown tool is an error.
    pub fn execute(&mut self, calls: &[ToolCall]) -> Vec<ToolResult> {
        let mut host_results = self.execute_on_host(calls).into_iter();
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            let own = self.own.iter().position(|tool| tool.name() == call.name);
            let result = match own {
                Some(place) => Some(self.own[place].call(call)),
                None if self.is_of_host(call) => host_results.next(),
                None => Some(self.unknown(call)),
            };
            results.push(result.unwrap_or_else(|| tool::failed(call, "the tool gave no result")));
        }
        results
    }

    fn execute_on_host(&self, calls: &[ToolCall]) -> Vec<ToolResult> {
        let calls: Vec<ToolCall> = calls.iter().filter(|call| self.is_of_host(call)).cloned().collect();
        match &self.host_tools {
            Some(host_tools) if !calls.is_empty() => (host_tools.execute)(&calls),
            _ => Vec::new(),
        }
    }

    fn is_of_host(&self, call: &ToolCall) -> bool {
        let own = self.own.iter().any(|tool| tool.name() == call.name);
        let host_tools = self.host_tools.iter().flat_map(|host_tools| &host_tools.schemas);
        !own && host_tools.into_iter().any(|schema| name_in(schema) == call.name)
    }

    fn unknown(&self, call: &ToolCall) -> ToolResult {
        let names: Vec<&str> = self.schemas().map(name_in).collect();
        let there_are = match names.is_empty() {
            true => "there are none".to_owned(),
            false => format!("there are: {}", names.join(", ")),
        };
        tool::failed(call, &format!("there is no tool `{}`; {there_are}", call.name))
    }
}

fn name_in(schema: &Value) -> &str {
    schema["function"]["name"].as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(name: &str) -> Tool {
        Tool::new(name, "", |(): ()| Ok("own"))
    }

    fn call(id: &str, name: &str) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments: String::new() }
    }

    fn toolbox() -> Toolbox {
        let schema = |name| json!({"type": "function", "function": {"name": name}});
        let execute = |calls: &[ToolCall]| {
            let result = |call: &ToolCall| ToolResult {
                call_id: call.id.clone(),
                content: "provided".into(),
                is_error: false,
            };
            calls.iter().map(result).collect()
        };
        let mut toolbox = Toolbox::new();
        toolbox.add(named("both"));
        toolbox.add(named("mine"));
        toolbox.host_tools = Some(HostTools { schemas: vec![schema("both"), schema("theirs")], execute });
        toolbox
    }

    #[test]
    fn results_keep_the_order_of_the_calls_and_own_tools_take_precedence() {
        let calls = [
            call("1", "theirs"),
            call("2", "mine"),
            call("3", "none"),
            call("4", "both"),
            call("5", "theirs"),
        ];

        let results = toolbox().execute(&calls);

        let read: Vec<_> =
            results.iter().map(|result| (&*result.call_id, &*result.content, result.is_error)).collect();
        let expected = [
            ("1", "provided", false),
            ("2", "own", false),
            ("3", "error: there is no tool `none`; there are: both, mine, theirs", true),
            ("4", "own", false),
            ("5", "provided", false),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn every_name_is_offered_once() {
        let mut toolbox = toolbox();
        toolbox.add(named("mine"));

        let names: Vec<&str> = toolbox.schemas().map(name_in).collect();

        assert_eq!(names, ["both", "mine", "theirs"]);
    }
}
