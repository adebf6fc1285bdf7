//! A model that records its requests and their times.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::Uri;
use axum::{Json, Router, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The answers of an [`Oracle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// A new text each time.
    New,
    /// A text that depends only on the request.
    ByRequest,
}

/// A request to an [`Oracle`].
#[derive(Clone, Debug)]
pub struct OracleRequest {
    /// Its path.
    pub path: String,
    /// Its messages, as JSON.
    pub messages: String,
    /// The time of its arrival.
    pub at: Instant,
    /// The time of its answer, if it was answered.
    pub answered: Option<Instant>,
    /// The answer.
    pub answer: String,
}

/// A model and a judge on loopback.
#[derive(Clone)]
pub struct Oracle {
    shared: Arc<Shared>,
    base: String,
}

struct Shared {
    answers: Answers,
    requests: Mutex<Vec<OracleRequest>>,
    /// Whether requests with [`HELD`] in their path are held.
    holds: watch::Sender<bool>,
}

/// Requests with this text in their path are answered only after [`Oracle::release`].
const HELD: &str = "held";

impl Oracle {
    /// Starts one on a free port.
    pub async fn start(answers: Answers) -> Self {
        let shared =
            Arc::new(Shared { answers, requests: Mutex::default(), holds: watch::Sender::new(true) });
        let routes = Router::new()
            .route("/v1/chat/completions", post(answer))
            .route("/rollouts/{id}/v1/chat/completions", post(answer))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let base = format!("http://{}", listener.local_addr().expect("it is bound"));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { shared, base }
    }

    /// Returns the URL for all rollouts.
    pub fn url(&self) -> String {
        format!("{}/v1", self.base)
    }

    /// Returns the URL for one rollout.
    pub fn url_of(&self, rollout_id: &str) -> String {
        format!("{}/rollouts/{rollout_id}/v1", self.base)
    }

    /// Returns the requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<OracleRequest> {
        self.shared.lock().clone()
    }

    /// Returns a request for a rollout that calls this model, for a guest that takes many turns. With `callbacks_base`, the
    /// callbacks go to BASE/ID/completion and BASE/ID/grader; otherwise the caller polls.
    pub fn rollout(&self, id: &str, prompt: &str, callbacks_base: Option<&str>) -> Value {
        let mut request = json!({
            "rollout_id": id,
            "initial_messages": [{"role": "user", "content": prompt}],
            "label": "x",
            "chat_completions_url": self.url_of(id),
            "llm_api_key": "key-of-the-model",
            "agent_timeout_sec": 3000.0,
            "grader_timeout_sec": 600.0,
        });
        if let Some(base) = callbacks_base {
            request["completion_callback_url"] = format!("{base}/{id}/completion").into();
            request["grader_callback_url"] = format!("{base}/{id}/grader").into();
            request["controller_api_key"] = "key-of-the-caller".into();
        }
        request
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        self.shared.lock().len()
    }

    /// Answers requests with `held` in their path, too.
    pub fn release(&self) {
        self.shared.holds.send_replace(false);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<OracleRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, Json(body): Json<Value>) -> Json<Value> {
    let at = Instant::now();
    let (path, messages) = (uri.path().to_owned(), body["messages"].to_string());
    let is_held = path.contains(HELD);
    let mut hasher = DefaultHasher::new();
    messages.hash(&mut hasher);
    let hash = hasher.finish();
    let (place, answer) = {
        let mut requests = shared.lock();
        let answer = match shared.answers {
            Answers::New => format!("answer {} of many", requests.len()),
            Answers::ByRequest => format!("answer {hash:016x}"),
        };
        requests.push(OracleRequest { path, messages, at, answered: None, answer: answer.clone() });
        (requests.len() - 1, answer)
    };
    // The delays vary, so that either of two concurrent requests may be answered first.
    let millis = match shared.answers {
        Answers::New => 1 + (place as u64 * 7) % 13,
        Answers::ByRequest => 2 + hash % 41,
    };
    tokio::time::sleep(Duration::from_millis(millis)).await;
    if is_held {
        // The sender is in `shared`, so it lives during the wait.
        let _ = shared.holds.subscribe().wait_for(|holds| !holds).await;
    }
    shared.lock()[place].answered = Some(Instant::now());
    let message = json!({"role": "assistant", "content": answer});
    Json(json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
}
