//! A model that remembers who asked it what, and when.

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

/// What an [`Oracle`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Another text each time.
    New,
    /// A text that the request decides on.
    OfRequest,
}

/// A request to it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The path that it came to.
    pub path: String,
    /// Its messages, as JSON.
    pub messages: String,
    /// When it came.
    pub at: Instant,
    /// When it was answered, if it was.
    pub answered: Option<Instant>,
    /// With what.
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
    asked: Mutex<Vec<Asked>>,
    /// Whether those whose path has [`HELD`] in it are not answered yet.
    holds: watch::Sender<bool>,
}

/// Whoever has this in its path is not answered before [`Oracle::release`].
const HELD: &str = "held";

impl Oracle {
    /// Starts one on a port of its own.
    pub async fn start(answers: Answers) -> Self {
        let shared = Arc::new(Shared { answers, asked: Mutex::default(), holds: watch::Sender::new(true) });
        let routes = Router::new()
            .route("/v1/chat/completions", post(answer))
            .route("/rollouts/{id}/v1/chat/completions", post(answer))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let base = format!("http://{}", listener.local_addr().expect("it is bound"));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { shared, base }
    }

    /// Its URL for everybody.
    pub fn url(&self) -> String {
        format!("{}/v1", self.base)
    }

    /// Its URL for one rollout.
    pub fn url_of(&self, rollout_id: &str) -> String {
        format!("{}/rollouts/{rollout_id}/v1", self.base)
    }

    /// The requests so far, in the order in which they came.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.lock().clone()
    }

    /// How many requests there were.
    pub fn count(&self) -> usize {
        self.shared.lock().len()
    }

    /// Answers those who have `held` in their path, too.
    pub fn release(&self) {
        self.shared.holds.send_replace(false);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut asked = shared.lock();
        let answer = match shared.answers {
            Answers::New => format!("answer {} of many", asked.len()),
            Answers::OfRequest => format!("answer {hash:016x}"),
        };
        asked.push(Asked { path, messages, at, answered: None, answer: answer.clone() });
        (asked.len() - 1, answer)
    };
    // Of two that are asked at once, now the one is first and now the other.
    let millis = match shared.answers {
        Answers::New => 1 + (place as u64 * 7) % 13,
        Answers::OfRequest => 2 + hash % 41,
    };
    tokio::time::sleep(Duration::from_millis(millis)).await;
    if is_held {
        // The sender is in `shared`, so it is there for as long as this waits.
        let _ = shared.holds.subscribe().wait_for(|holds| !holds).await;
    }
    shared.lock()[place].answered = Some(Instant::now());
    let message = json!({"role": "assistant", "content": answer});
    Json(json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
}
