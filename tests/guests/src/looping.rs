//! An agent loop that conforms by default, and misbehaves as its prompt says.

use std::time::Duration;

use rollout_sdk::*;

/// Calls the model, adds numbers for it, and returns a reward if the metadata has the ground truth.
pub struct Looping;

/// Returns the text of the prompt's last message.
fn prompt_text(request: &LoopRequest) -> String {
    request.messages().last().map(Message::text).unwrap_or_default()
}

fn add_tool(properties: Value) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers up.",
            "parameters": {"type": "object", "properties": properties, "required": ["a", "b"]},
        },
    })
}

impl AgentLoop for Looping {
    fn name() -> String {
        "looping".to_owned()
    }

    fn get_tools(request: &LoopRequest, _: &()) -> Result<Vec<Value>> {
        let number = json!({"type": "number", "description": "A number."});
        let plain = add_tool(json!({"a": number, "b": number}));
        Ok(match prompt_text(request).as_str() {
            "no tools today" => bail!("the shop is closed"),
            "trap over tools" => panic!("told to trap"),
            "rich tools" => vec![add_tool(json!({
                "a": {"type": "integer", "minimum": 1, "default": 2, "enum": ["1", "2"]},
                "b": {"type": ["array", "null"], "items": {"type": "string"}},
            }))],
            "nameless tools" => vec![json!({"type": "function", "function": {"description": "Which?"}})],
            _ => vec![plain],
        })
    }

    fn run(ctx: LoopContext) -> Result<LoopOutput> {
        let request = ctx.request().clone();
        let mut messages = request.messages().to_vec();
        match prompt_text(&request).as_str() {
            "please fail" => return Err(Error::failed("the loop was told to fail")),
            "please refuse" => return Err(Error::invalid("the loop was told to refuse")),
            "please trap" => panic!("told to trap"),
            "declare an error" => {
                messages.push(Message::assistant("I give up."));
                return Ok(ctx.error("the loop gave up", messages).metric("turns", 0.0));
            }
            "reward of no number" => return Ok(ctx.complete(messages).reward(f64::NAN)),
            "report the request" => {
                messages.push(Message::assistant(seen(&ctx)?.to_string()));
                return Ok(ctx.complete(messages).finish_reason("told"));
            }
            _ => {}
        }
        let mut turns = 0;
        let finish_reason = loop {
            ctx.log_event("pre_llm", json!({"turn": turns, "messages": messages.len()}));
            let mut chat = ctx.chat(&messages);
            if prompt_text(&request) == "pass the parameters on" {
                for (name, value) in request.completion_params() {
                    chat = chat.param(name, value.clone());
                }
            }
            let reply = chat.send()?.into_message();
            let calls = reply.raw_tool_calls().to_vec();
            messages.push(reply);
            turns += 1;
            if calls.is_empty() {
                break "stop";
            }
            if turns >= request.max_turns() {
                break "max_turns";
            }
            messages.extend(execute_tool_calls(&calls, |call| {
                ctx.record_tool_call(Duration::from_millis(2));
                let number =
                    |name: &str| call.arguments.get(name).and_then(Value::as_f64).unwrap_or_default();
                Ok(serialize_tool_result(number("a") + number("b")).into())
            })?);
        };
        ctx.log_event("rollout_complete", json!({"finish_reason": finish_reason}));
        let truth: Truth = request.metadata()?;
        let reward = truth.ground_truth.map(|truth| reward(&messages, &truth, None, same)).transpose()?;
        let output = ctx.complete(messages).finish_reason(finish_reason).metric("turns", turns.into());
        Ok(match reward {
            Some(reward) => output.reward(reward),
            None => output,
        })
    }
}

#[derive(Default, serde::Deserialize)]
struct Truth {
    /// If the loop has a grader, only the grader receives the ground truth; a test passes it to the loop under the
    /// alias.
    #[serde(alias = "expected")]
    ground_truth: Option<String>,
}

fn same(solution: &str, truth: &str, _: Option<&Value>) -> Result<f64> {
    Ok(f64::from(u8::from(answer_after(solution, "####") == Some(truth))))
}

/// Returns everything that the loop received, which the test reads.
fn seen(ctx: &LoopContext) -> Result<Value> {
    let request = ctx.request();
    Ok(json!({
        "rollout_id": request.rollout_id(),
        "max_turns": request.max_turns(),
        "max_tokens_total": request.max_tokens_total(),
        "completion_params": request.completion_params(),
        "metadata": request.metadata_json()?,
        "tools": ctx.tools().len(),
    }))
}
