//! Calls host-provided tools by the prompt's instructions, and reports the results. The prompt's text is `{"calls":
//! [[name, arguments], …], "start": bool}`. Any other text goes to the model.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text, report};

struct CallHostTools;

#[derive(serde::Deserialize)]
struct Wanted {
    calls: Vec<(String, Value)>,
    /// Starts all calls and collects them as they finish, instead of executing them in one call.
    #[serde(default)]
    start: bool,
}

impl Workflow for CallHostTools {
    fn run(ctx: Context) -> Result<Output> {
        let Ok(wanted) = serde_json::from_str::<Wanted>(&prompt_text(&ctx)) else { return ask_once(&ctx) };
        let available: Vec<Value> =
            host_tools::available().iter().map(|tool| tool["function"]["name"].clone()).collect();
        let results = if wanted.start { started(&wanted) } else { host_tools::execute(&calls(&wanted)) };
        let as_json = |result: ToolResult| json!({"id": result.call_id, "content": result.content, "is_error": result.is_error});
        let results: Vec<Value> = results.into_iter().map(as_json).collect();
        Ok(report(&ctx, json!({"available": available, "results": results})))
    }
}

fn calls(wanted: &Wanted) -> Vec<ToolCall> {
    let call = |(number, (name, arguments)): (usize, &(String, Value))| ToolCall {
        id: format!("call_{number}"),
        name: name.clone(),
        // Text is passed unchanged, so it may be invalid JSON.
        arguments: arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned),
    };
    wanted.calls.iter().enumerate().map(call).collect()
}

/// Returns the results in the order in which the calls finished.
fn started(wanted: &Wanted) -> Vec<ToolResult> {
    let mut under_way: Vec<host_tools::PendingTool> = calls(wanted).iter().map(host_tools::start).collect();
    let mut results = Vec::new();
    while !under_way.is_empty() {
        let ready = wait_any(&under_way, None);
        results.extend(ready.first().map(|place| under_way.remove(*place).wait()));
    }
    results
}

export!(workflow = CallHostTools, grader = Honest);
