//! Chat messages as steps, with what the host observed of the calls behind them.

use std::borrow::Cow;
use std::time::UNIX_EPOCH;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::millis;
use crate::imports::{Exchange, ExchangeOutcome, JudgeExchange};
use crate::wire::atif::{FinalMetrics, Metrics, ObservationResult, Source, Step, ToolCall};
use crate::wire::openai::{Completion, Usage, content_text};

/// A conversation as steps.
pub(super) struct Account {
    pub steps: Vec<Step>,
    pub final_metrics: FinalMetrics,
    /// What calls cost that no step is known for.
    pub unmatched: Vec<Value>,
}

/// A message as far as a step needs it.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(default)]
    tool_calls: Option<Vec<WireCall>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    reasoning_content: Option<Value>,
}

#[derive(Deserialize)]
struct WireCall {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: Option<WireFunction>,
}

#[derive(Deserialize)]
struct WireFunction {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
}

/// A call of the model that was answered.
struct Reply<'a> {
    completion: Completion,
    body: &'a [u8],
}

/// Turns messages into steps and finds the calls behind them.
pub(super) fn account<'a>(messages: impl Iterator<Item = &'a str>, exchanges: &[&Exchange]) -> Account {
    let mut steps = Vec::new();
    for message in messages {
        add_message(&mut steps, message);
    }
    if steps.is_empty() {
        // A trajectory without a step is none; this one says that nothing was said.
        steps.push(step(Source::System, String::new()));
    }
    let replies: Vec<Reply<'_>> = exchanges
        .iter()
        .filter_map(|exchange| match &exchange.outcome {
            ExchangeOutcome::Replied { body, .. } => {
                Completion::parse(body).ok().map(|completion| Reply { completion, body })
            }
            ExchangeOutcome::Failed(_) | ExchangeOutcome::Abandoned => None,
        })
        .collect();
    let unmatched = match_replies(&mut steps, &replies);
    for (at, step) in steps.iter_mut().enumerate() {
        step.step_id = at + 1;
    }
    let sum = |tokens: fn(&Usage) -> u64| -> Option<u64> {
        let known: Vec<u64> =
            replies.iter().filter_map(|reply| reply.completion.usage.as_ref()).map(tokens).collect();
        (!known.is_empty()).then(|| known.iter().fold(0_u64, |sum, tokens| sum.saturating_add(*tokens)))
    };
    let final_metrics = FinalMetrics {
        total_prompt_tokens: sum(|usage| usage.prompt_tokens),
        total_completion_tokens: sum(|usage| usage.completion_tokens),
        total_steps: steps.len(),
        ..FinalMetrics::default()
    };
    Account { steps, final_metrics, unmatched }
}

fn step(source: Source, message: String) -> Step {
    Step {
        step_id: 0,
        source,
        message,
        model_name: None,
        reasoning_content: None,
        tool_calls: Vec::new(),
        observation: None,
        metrics: None,
        llm_call_count: None,
        extra: Map::new(),
    }
}

fn add_message(steps: &mut Vec<Step>, raw: &str) {
    let Ok(message) = serde_json::from_str::<Message<'_>>(raw) else {
        // An object whose fields have types of the user's own is kept as text.
        let mut odd = step(Source::User, raw.to_owned());
        odd.extra.insert("original_role".to_owned(), Value::Null);
        steps.push(odd);
        return;
    };
    let text = message.content.map(|content| content_text(content.get())).unwrap_or_default();
    match message.role.as_deref().unwrap_or("") {
        "system" | "developer" => steps.push(step(Source::System, text)),
        "user" => steps.push(step(Source::User, text)),
        "assistant" => {
            let mut agent = step(Source::Agent, text);
            agent.reasoning_content = message.reasoning_content.and_then(|thought| match thought {
                Value::String(thought) => Some(thought),
                _ => None,
            });
            agent.tool_calls =
                message.tool_calls.unwrap_or_default().into_iter().enumerate().map(tool_call).collect();
            steps.push(agent);
        }
        "tool" | "function" => add_result(steps, message.tool_call_id, text),
        other => {
            let mut unknown = step(Source::User, text);
            unknown.extra.insert("original_role".to_owned(), other.into());
            steps.push(unknown);
        }
    }
}

fn tool_call((at, call): (usize, WireCall)) -> ToolCall {
    let function = call.function.unwrap_or(WireFunction { name: None, arguments: None });
    let arguments = match function.arguments {
        None => json!({}),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(&text) {
            Ok(object @ Value::Object(_)) => object,
            _ => json!({ "_raw": text }),
        },
        Some(object @ Value::Object(_)) => object,
        Some(other) => json!({ "_raw": other.to_string() }),
    };
    ToolCall {
        tool_call_id: call.id.unwrap_or_else(|| format!("call_{at}")),
        function_name: function.name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned()),
        arguments,
    }
}

/// A tool's result belongs to the agent step before it. Without one, an empty system
/// step carries it.
fn add_result(steps: &mut Vec<Step>, call_id: Option<String>, content: String) {
    if steps.last().is_none_or(|last| last.source != Source::Agent) {
        steps.push(step(Source::System, String::new()));
    }
    let Some(last) = steps.last_mut() else { return };
    let known =
        call_id.as_ref().is_some_and(|id| last.tool_calls.iter().any(|call| call.tool_call_id == *id));
    let source_call_id = if known {
        call_id
    } else {
        if let Some(id) = call_id {
            last.extra.insert("tool_call_id".to_owned(), id.into());
        }
        None
    };
    last.observation.get_or_insert_default().results.push(ObservationResult { source_call_id, content });
}

/// Gives each agent step the reply it came from: by content in order, and where no
/// content fits but the numbers do, one by one. Gives back what is left over.
fn match_replies(steps: &mut [Step], replies: &[Reply<'_>]) -> Vec<Value> {
    let mut agent: Vec<&mut Step> = steps.iter_mut().filter(|step| step.source == Source::Agent).collect();
    let mut taken = vec![false; replies.len()];
    let mut from = 0;
    let mut pairs = Vec::new();
    for (at, step) in agent.iter().enumerate() {
        let found = (from..replies.len()).find(|place| is_of(&replies[*place].completion, step));
        if let Some(place) = found {
            taken[place] = true;
            from = place + 1;
            pairs.push((at, place));
        }
    }
    if pairs.is_empty() && agent.len() == replies.len() {
        pairs = (0..replies.len()).map(|at| (at, at)).collect();
        taken.fill(true);
    }
    for (at, place) in pairs {
        agent[at].metrics = Some(metrics(&replies[place]));
        agent[at].llm_call_count = Some(1);
    }
    replies
        .iter()
        .zip(taken)
        .filter(|(_, taken)| !taken)
        .filter_map(|(reply, _)| serde_json::to_value(metrics(reply)).ok())
        .collect()
}

fn is_of(completion: &Completion, step: &Step) -> bool {
    completion.text == step.message
        && completion.tool_calls.len() == step.tool_calls.len()
        && completion
            .tool_calls
            .iter()
            .zip(&step.tool_calls)
            .all(|(reply, step)| reply.id == step.tool_call_id)
}

/// What a reply cost, with token ids and log-probabilities from where servers put them.
fn metrics(reply: &Reply<'_>) -> Metrics {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        prompt_token_ids: Option<Box<RawValue>>,
        #[serde(default)]
        token_ids: Option<Box<RawValue>>,
        #[serde(default)]
        logprobs: Option<Value>,
        choices: Vec<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        #[serde(default)]
        token_ids: Option<Box<RawValue>>,
        #[serde(default)]
        logprobs: Option<Value>,
    }
    let usage = reply.completion.usage;
    let mut metrics = Metrics {
        prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        completion_tokens: usage.map(|usage| usage.completion_tokens),
        ..Metrics::default()
    };
    let Ok(mut body) = serde_json::from_slice::<Body>(reply.body) else { return metrics };
    let choice = if body.choices.is_empty() { None } else { Some(body.choices.swap_remove(0)) };
    let (choice_ids, choice_logprobs) =
        choice.map_or((None, None), |choice| (choice.token_ids, choice.logprobs));
    let array = |raw: Option<Box<RawValue>>| raw.filter(|raw| raw.get().starts_with('['));
    metrics.prompt_token_ids = array(body.prompt_token_ids);
    metrics.completion_token_ids = array(choice_ids.or(body.token_ids));
    metrics.logprobs = choice_logprobs.or(body.logprobs).as_ref().and_then(logprobs);
    if let Some(reason) = &reply.completion.finish_reason {
        metrics.extra.insert("finish_reason".to_owned(), reason.as_str().into());
    }
    metrics
}

/// One number a token, from OpenAI's `{content: [{logprob}]}` or from a plain list.
fn logprobs(value: &Value) -> Option<Vec<f64>> {
    let entries = value.get("content").unwrap_or(value).as_array()?;
    entries.iter().map(|entry| entry.get("logprob").unwrap_or(entry).as_f64()).collect()
}

/// The conversation of the last answered call: its request's messages and its reply.
pub(super) fn last_conversation(exchanges: &[&Exchange]) -> Vec<Box<RawValue>> {
    let Some(last) = exchanges.last() else { return Vec::new() };
    let mut messages = sent_messages(last);
    if let ExchangeOutcome::Replied { body, .. } = &last.outcome {
        messages.extend(Completion::parse(body).ok().map(|completion| completion.message));
    }
    messages
}

fn sent_messages(exchange: &Exchange) -> Vec<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Body {
        messages: Vec<Box<RawValue>>,
    }
    serde_json::from_slice::<Body>(&exchange.request).map(|body| body.messages).unwrap_or_default()
}

/// Every exchange as the host saw it. A request repeats the conversation so far, so
/// only the messages that the one before did not have are written out.
pub(super) fn observed(exchanges: &[&Exchange]) -> Vec<Value> {
    let mut before: Vec<Box<RawValue>> = Vec::new();
    exchanges
        .iter()
        .map(|exchange| {
            let messages = sent_messages(exchange);
            let same = messages.iter().zip(&before).take_while(|(a, b)| a.get() == b.get()).count();
            let mut request: Map<String, Value> = serde_json::from_slice(&exchange.request).unwrap_or_default();
            request.remove("messages");
            let at = exchange.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let mut seen = json!({
                "sample_id": exchange.sample.as_str(),
                "started_at_unix_ms": millis(at).round() as u64,
                "duration_ms": millis(exchange.duration),
                "request": {"messages_repeated": same, "messages_new": values(&messages[same..]), "rest": request},
            });
            match &exchange.outcome {
                ExchangeOutcome::Replied { body, attempts, .. } => {
                    seen["attempts"] = (*attempts).into();
                    seen["reply"] = serde_json::from_slice(body).unwrap_or(Value::Null);
                }
                ExchangeOutcome::Failed(reason) => seen["error"] = reason.as_str().into(),
                ExchangeOutcome::Abandoned => seen["abandoned"] = true.into(),
            }
            before = messages;
            seen
        })
        .collect()
}

/// Every call of the judge as the host saw it, whole.
pub(super) fn judged(exchanges: &[JudgeExchange]) -> Vec<Value> {
    exchanges
        .iter()
        .map(|exchange| {
            let at = exchange.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let mut seen = json!({
                "started_at_unix_ms": millis(at).round() as u64,
                "duration_ms": millis(exchange.duration),
                "request": serde_json::from_slice::<Value>(&exchange.request).unwrap_or(Value::Null),
            });
            match &exchange.outcome {
                ExchangeOutcome::Replied { body, attempts, .. } => {
                    seen["attempts"] = (*attempts).into();
                    seen["reply"] = serde_json::from_slice(body).unwrap_or(Value::Null);
                }
                ExchangeOutcome::Failed(reason) => seen["error"] = reason.as_str().into(),
                ExchangeOutcome::Abandoned => seen["abandoned"] = true.into(),
            }
            seen
        })
        .collect()
}

fn values(messages: &[Box<RawValue>]) -> Vec<Value> {
    messages.iter().map(|message| serde_json::from_str(message.get()).unwrap_or(Value::Null)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SampleId;
    use std::time::{Duration, SystemTime};

    fn raw(texts: &[&str]) -> Vec<Box<RawValue>> {
        texts.iter().map(|text| RawValue::from_string((*text).to_owned()).unwrap()).collect()
    }

    fn replied(body: &str) -> Exchange {
        Exchange {
            sample: SampleId::parse("main").unwrap(),
            request: bytes::Bytes::from_static(
                br#"{"model":"m","messages":[{"role":"user","content":"q"}]}"#,
            ),
            started_at: SystemTime::UNIX_EPOCH,
            duration: Duration::from_millis(2),
            outcome: ExchangeOutcome::Replied {
                body: bytes::Bytes::copy_from_slice(body.as_bytes()),
                finish_reason: None,
                usage: None,
                attempts: 1,
            },
        }
    }

    const CALLING: &str = r#"{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"x\":1}"}}]},"finish_reason":"tool_calls","token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.5},{"logprob":-1}]}}],"prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;

    #[test]
    fn a_tool_message_is_an_observation_of_its_agent_step() {
        let messages = raw(&[
            r#"{"role":"system","content":"s"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"x\":1}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"c1","content":"42"}"#,
            r#"{"role":"tool","tool_call_id":"zz","content":"stray"}"#,
            r#"{"role":"critic","content":"hm"}"#,
            r#"{"role":"tool","content":"nowhere"}"#,
        ]);
        let exchange = replied(CALLING);
        let account = account(messages.iter().map(|message| message.get()), &[&exchange]);
        let got = serde_json::to_value(&account.steps).unwrap();
        let expected = json!([
            {"step_id": 1, "source": "system", "message": "s"},
            {"step_id": 2, "source": "user", "message": "a\nb"},
            {"step_id": 3, "source": "agent", "message": "",
             "tool_calls": [{"tool_call_id": "c1", "function_name": "f", "arguments": {"x": 1}}],
             "observation": {"results": [{"source_call_id": "c1", "content": "42"}, {"content": "stray"}]},
             "metrics": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_token_ids": [1, 2, 3],
                         "completion_token_ids": [7, 8], "logprobs": [-0.5, -1.0],
                         "extra": {"finish_reason": "tool_calls"}},
             "llm_call_count": 1,
             "extra": {"tool_call_id": "zz"}},
            {"step_id": 4, "source": "user", "message": "hm", "extra": {"original_role": "critic"}},
            {"step_id": 5, "source": "system", "message": "",
             "observation": {"results": [{"content": "nowhere"}]}},
        ]);
        assert_eq!(got, expected);
        assert_eq!(account.final_metrics.total_completion_tokens, Some(2));
        assert_eq!(account.final_metrics.total_steps, 5);
        assert!(account.unmatched.is_empty());
    }

    #[test]
    fn a_reply_that_the_workflow_left_out_is_kept_as_unmatched() {
        let messages = raw(&[r#"{"role":"assistant","content":"second"}"#]);
        let first = replied(
            r#"{"choices":[{"message":{"role":"assistant","content":"first"}}],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#,
        );
        let second = replied(r#"{"choices":[{"message":{"role":"assistant","content":"second"}}]}"#);
        let account = account(messages.iter().map(|message| message.get()), &[&first, &second]);
        assert_eq!(account.steps[0].llm_call_count, Some(1));
        assert_eq!(account.unmatched, [json!({"prompt_tokens": 1, "completion_tokens": 9})]);
    }

    #[test]
    fn arguments_that_are_no_object_are_kept_as_text() {
        let messages =
            raw(&[r#"{"role":"assistant","content":"","tool_calls":[{"function":{"arguments":"{oops"}}]}"#]);
        let account = account(messages.iter().map(|message| message.get()), &[]);
        let call = &account.steps[0].tool_calls[0];
        assert_eq!((call.tool_call_id.as_str(), call.function_name.as_str()), ("call_0", "unknown"));
        assert_eq!(call.arguments, json!({"_raw": "{oops"}));
    }

    #[test]
    fn observed_requests_are_written_without_what_they_repeat() {
        let first = replied(CALLING);
        let mut second = replied(CALLING);
        second.request = bytes::Bytes::from_static(
            br#"{"model":"m","messages":[{"role":"user","content":"q"},{"role":"user","content":"r"}]}"#,
        );
        let seen = observed(&[&first, &second]);
        assert_eq!(seen[0]["request"]["messages_repeated"], 0);
        assert_eq!(seen[1]["request"]["messages_repeated"], 1);
        assert_eq!(seen[1]["request"]["messages_new"], json!([{"role": "user", "content": "r"}]));
        assert_eq!(seen[1]["request"]["rest"], json!({"model": "m"}));
    }
}
