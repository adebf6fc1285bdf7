//! Generation A's caller: its requests, and the checks of its own server, which are as strict as the published
//! protocol.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use crate::{Controller, Received};

/// The body of a request to `/v1/rollout/init`.
#[derive(Clone, Debug)]
pub struct InitRequest(Map<String, Value>);

/// The key that callbacks must carry.
const KEY: &str = "key-of-the-trainer";

impl InitRequest {
    /// Creates a request for a rollout with a new id and this prompt, with the controller's server for callbacks.
    pub fn new(controller: &Controller, text: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let id = format!("a{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let fields = json!({
            "rollout_id": id,
            "server_url": format!("{}/", controller.base_url()),
            "messages": [{"role": "user", "content": text}],
            "completion_params": {},
            "api_key": KEY,
        });
        let Value::Object(fields) = fields else { unreachable!("it was written as an object") };
        Self(fields)
    }

    /// Sets any field.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// Removes a field.
    pub fn without(mut self, field: &str) -> Self {
        self.0.remove(field);
        self
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        self.0["rollout_id"].as_str().unwrap_or_default()
    }

    /// Returns the body.
    pub fn body(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default()
}

fn has_null(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.values().any(Value::is_null))
}

/// Panics unless this is a chat call of the rollout in generation A's form.
pub fn check_chat(chat: &Received, id: &str) {
    assert_eq!(chat.path, "/v1/chat/completions");
    assert_eq!(chat.header("authorization"), Some(&*format!("Bearer {KEY}")));
    let mut found = keys(&chat.body);
    found.remove("stop");
    let expected = ["model", "messages", "rollout_id", "temperature", "top_p", "max_tokens", "logprobs"];
    assert_eq!(found, expected.into(), "{:#}", chat.body);
    assert!(!has_null(&chat.body), "{:#}", chat.body);
    assert_eq!(chat.body["rollout_id"], id);
}

/// Panics unless this is the completion of the rollout in generation A's form.
pub fn check_completed(completed: &Received, id: &str) {
    assert_eq!(completed.path, "/v1/rollout/completed");
    assert_eq!(completed.header("authorization"), Some(&*format!("Bearer {KEY}")));
    let body = &completed.body;
    let mut found = keys(body);
    let is_error = body["status"] == "ERROR";
    assert_eq!(found.remove("error_message"), is_error, "{body:#}");
    assert!(!found.remove("reward") || !is_error, "{body:#}");
    let expected = ["rollout_id", "status", "final_messages", "finish_reason", "metrics", "extra_fields"];
    assert_eq!(found, expected.into(), "{body:#}");
    assert!(!has_null(body), "nulls are left out: {body:#}");
    assert!(is_error || body["status"] == "COMPLETED", "{body:#}");
    assert_eq!((&body["rollout_id"], &body["extra_fields"]), (&json!(id), &json!({})));
    let metrics = &body["metrics"];
    let times = ["total_latency_ms", "llm_latency_ms", "tool_latency_ms"];
    let counts =
        ["num_llm_calls", "num_tool_calls", "prompt_tokens", "response_tokens", "max_context_tokens"];
    assert_eq!(keys(metrics), times.into_iter().chain(counts).collect(), "{body:#}");
    assert!(times.iter().all(|name| metrics[name].is_f64()), "{body:#}");
    assert!(counts.iter().all(|name| metrics[name].is_u64()), "{body:#}");
}
