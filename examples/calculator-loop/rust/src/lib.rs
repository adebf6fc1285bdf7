//! An agent loop that calculates with four tools, called until the model has its answer.
//!
//! The loop reports its tools before it runs, respects the intended turns and tokens, and returns the
//! conversation with the reason why it stopped. The grader compares the number after `####` with the label.

use std::time::{Duration, Instant};

use rollout_sdk::*;

struct Calculator;

/// Names and descriptions of the tools.
const TOOLS: [(&str, &str); 4] = [
    ("add", "Adds two numbers: a + b."),
    ("subtract", "Subtracts one number from another: a - b."),
    ("multiply", "Multiplies two numbers: a * b."),
    ("divide", "Divides one number by another: a / b."),
];

fn schema((name, description): (&str, &str)) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "number", "description": "The first number."},
                    "b": {"type": "number", "description": "The second number."},
                },
                "required": ["a", "b"],
            },
        },
    })
}

/// Executes a call. The model receives a mistake as text.
fn calculate(call: &ToolCallInfo) -> Result<f64, String> {
    let number = |name: &str| {
        let value = call.arguments.get(name).and_then(Value::as_f64);
        value.ok_or_else(|| format!("`{name}` has to be a number"))
    };
    let (a, b) = (number("a")?, number("b")?);
    let value = match call.name.as_str() {
        "add" => a + b,
        "subtract" => a - b,
        "multiply" => a * b,
        "divide" if b == 0.0 => return Err("division by zero".to_owned()),
        "divide" => a / b,
        other => return Err(format!("there is no tool `{other}`")),
    };
    if value.is_finite() { Ok(value) } else { Err("the result is too large".to_owned()) }
}

/// Formats a number as a person writes it: whole numbers without a point.
fn shown(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{value:.0}")
    } else {
        serialize_tool_result(value)
    }
}

impl AgentLoop for Calculator {
    fn name() -> String {
        "calculator".to_owned()
    }

    fn get_tools(_: &LoopRequest, _: &()) -> Result<Vec<Value>> {
        Ok(TOOLS.into_iter().map(schema).collect())
    }

    fn run(ctx: LoopContext) -> Result<LoopOutput> {
        let request = ctx.request();
        let mut messages = request.messages().to_vec();
        let mut tokens = 0;
        for turn in 1..=request.max_turns() {
            ctx.log_event("pre_llm", json!({"turn": turn, "messages": messages.len()}));
            let reply = ctx.chat(&messages).send()?;
            let usage = reply.usage().unwrap_or_default();
            tokens += usage.completion_tokens;
            let cut_off = reply.finish_reason() == Some("length");
            let message = reply.into_message();
            ctx.log_event("llm_response", json!({"turn": turn, "message": message.fields()}));
            let calls = message.raw_tool_calls().to_vec();
            messages.push(message);
            if cut_off {
                // Tool calls in a truncated reply would be truncated too.
                return Ok(ctx.complete(messages).finish_reason("length"));
            }
            if calls.is_empty() {
                return Ok(ctx.complete(messages));
            }
            if tokens >= u64::from(request.max_tokens_total()) {
                return Ok(ctx.complete(messages).finish_reason("max_tokens"));
            }
            let results = execute_tool_calls(&calls, |call| {
                let started = Instant::now();
                let result = calculate(call);
                ctx.record_tool_call(started.elapsed().max(Duration::from_micros(1)));
                let text = result.map_or_else(|mistake| format!("Error: {mistake}"), shown);
                Ok(text.into())
            })?;
            ctx.log_event("tool_results", json!({"turn": turn, "count": results.len()}));
            messages.extend(results);
        }
        Ok(ctx.complete(messages).finish_reason("max_turns"))
    }
}

fn right(solution: &str, truth: &str, _: Option<&Value>) -> Result<f64> {
    let answer = answer_after(solution, "####").unwrap_or("");
    Ok(if same_number(answer, truth) { 1.0 } else { 0.0 })
}

impl Grader for Calculator {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        ctx.reward_by(right)
    }
}

export!(agent_loop = Calculator, grader = Calculator);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gives_a_number_or_a_mistake_for_the_model() {
        let check = |name: &str, arguments: Value, expected: Result<&str, &str>| {
            let call = json!({"id": "1", "function": {"name": name, "arguments": arguments}});
            let result = calculate(&get_tool_call_info(&call).unwrap()).map(shown);
            assert_eq!(result.as_deref().map_err(String::as_str), expected, "{call}");
        };
        check("add", json!({"a": 2, "b": 3.5}), Ok("5.5"));
        check("subtract", json!({"a": 2, "b": 3}), Ok("-1"));
        check("multiply", json!({"a": 1e10, "b": 1e10}), Ok("1e+20"));
        check("divide", json!({"a": 6, "b": 3}), Ok("2"));
        check("divide", json!({"a": 6, "b": 0}), Err("division by zero"));
        check("multiply", json!({"a": 1e300, "b": 1e300}), Err("the result is too large"));
        check("add", json!({"a": "2", "b": 3}), Err("`a` has to be a number"));
        check("root", json!({"a": 2, "b": 3}), Err("there is no tool `root`"));
    }
}
