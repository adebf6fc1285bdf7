//! Tests against servers on real sockets, each with one fault.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

const KEY: &str = "server-key";

/// Faults of a server by rollout, counted from 1 in the order of admission.
type Faults = HashMap<usize, Fault>;

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Answers 429 once, with a delay before the retry.
    Refuse,
    /// Answers 500.
    Break,
    /// Returns a reward of 0.5.
    RewardHalf,
    /// Never reports an end.
    Lose,
    /// Returns the result of another rollout.
    Confuse,
    /// Reports failure.
    Fail,
    /// Sends the final callback twice.
    Double,
    /// Sends the grader's callback first.
    Disorder,
    /// Omits the key of the chat call.
    ForgetKey,
}

/// A server that completes every rollout except for its faults. It makes real chat calls and callbacks.
#[derive(Clone, Default)]
struct Fake {
    faults: Arc<Faults>,
    admitted: Arc<AtomicUsize>,
    /// Number and chat URL of the admitted rollouts.
    rollouts: Arc<Mutex<HashMap<String, (usize, String)>>>,
    cancelled: Arc<Mutex<Vec<String>>>,
    /// Ids of the background rollouts that are running.
    going_on: Arc<Mutex<BTreeSet<String>>>,
    /// Number of background rollouts at the admission of each other rollout.
    background: Arc<Mutex<Vec<usize>>>,
}

const GO_ON: &str = "Go on, \"for ever\".";

impl Fake {
    /// Starts the server, which runs until the runtime ends. Returns its URL.
    async fn start(faults: impl IntoIterator<Item = (usize, Fault)>) -> (Self, String) {
        let fake = Self { faults: Arc::new(faults.into_iter().collect()), ..Self::default() };
        let routes = Router::new()
            .route("/base/rollout", post(admit))
            .route("/base/rollout/{id}/result", get(result))
            .route("/base/rollout/cancel", post(cancel))
            .with_state(fake.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (fake, url)
    }

    fn does(&self, number: usize, fault: Fault) -> bool {
        self.faults.get(&number) == Some(&fault)
    }
}

async fn admit(State(fake): State<Fake>, headers: HeaderMap, body: Bytes) -> Response {
    assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
    let request: Value = serde_json::from_slice(&body).unwrap();
    let is_continued = request["initial_messages"] == json!([{"role": "user", "content": GO_ON}]);
    if !is_continued {
        assert_eq!(request["initial_messages"], json!([{"role": "user", "content": "Calculate 2 + 3."}]));
        fake.background.lock().unwrap().push(fake.going_on.lock().unwrap().len());
    }
    assert_eq!(request["label"], "5");
    let number = fake.admitted.fetch_add(1, Ordering::Relaxed) + 1;
    if fake.does(number, Fault::Refuse) {
        return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0.05")]).into_response();
    }
    if fake.does(number, Fault::Break) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "it broke").into_response();
    }
    let id = request["rollout_id"].as_str().unwrap().to_owned();
    let chat = request["chat_completions_url"].as_str().unwrap().to_owned();
    if is_continued && !fake.does(number, Fault::Fail) {
        fake.going_on.lock().unwrap().insert(id.clone());
    }
    if request.get("completion_callback_url").is_some() {
        tokio::spawn(call_back(fake, number, id, request));
        return (StatusCode::ACCEPTED, "{}").into_response();
    }
    fake.rollouts.lock().unwrap().insert(id.clone(), (number, chat));
    let admission =
        json!({"rollout_id": id, "status": "queued", "polling_lease_token": format!("lease-{id}")});
    (StatusCode::ACCEPTED, axum::Json(admission)).into_response()
}

async fn result(State(fake): State<Fake>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    assert_eq!(headers["x-osmosis-rollout-lease"], format!("lease-{id}"));
    let (number, chat) = fake.rollouts.lock().unwrap()[&id].clone();
    if fake.does(number, Fault::Lose) {
        std::future::pending::<()>().await;
    }
    let key = (!fake.does(number, Fault::ForgetKey)).then_some("bench-model-key");
    let reply = call(&format!("{chat}/chat/completions"), key, "{\"messages\":[]}").await;
    assert!(reply["choices"][0]["message"]["content"].as_str().unwrap().ends_with("#### 5"));
    axum::Json(graded(&fake, number, &id)).into_response()
}

async fn cancel(State(fake): State<Fake>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let ids: Vec<String> = serde_json::from_value(request["ids"].clone()).unwrap();
    let disposition = |id: &String| {
        let went_on = fake.going_on.lock().unwrap().remove(id);
        (id.clone(), if went_on { "cancelled_running" } else { "not_found" })
    };
    let dispositions: HashMap<_, _> = ids.iter().map(disposition).collect();
    fake.cancelled.lock().unwrap().extend(ids);
    axum::Json(json!({"dispositions": dispositions})).into_response()
}

async fn call_back(fake: Fake, number: usize, id: String, request: Value) {
    let send = async |what: &str, body: Value| {
        let key = request["controller_api_key"].as_str();
        call(request[what].as_str().unwrap(), key, &body.to_string()).await
    };
    if fake.does(number, Fault::Lose) {
        return;
    }
    if !fake.does(number, Fault::Disorder) {
        send("completion_callback_url", json!({"rollout_id": id, "status": "success"})).await;
    }
    send("grader_callback_url", graded(&fake, number, &id)).await;
    if fake.does(number, Fault::Double) {
        send("grader_callback_url", graded(&fake, number, &id)).await;
    }
}

fn graded(fake: &Fake, number: usize, id: &str) -> Value {
    let reward = if fake.does(number, Fault::RewardHalf) { 0.5 } else { 1.0 };
    let id = if fake.does(number, Fault::Confuse) { "another" } else { id };
    if fake.does(number, Fault::Fail) {
        return json!({"rollout_id": id, "status": "failure", "sample": null, "err_message": "no luck"});
    }
    json!({"rollout_id": id, "status": "success", "sample": {"messages": [], "reward": reward}})
}

/// Sends a POST request and parses the JSON response.
async fn call(url: &str, key: Option<&str>, body: &str) -> Value {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let key = key.map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
    let length = body.len();
    let request =
        format!("POST /{path} HTTP/1.1\r\nhost: {host}\r\n{key}content-length: {length}\r\n\r\n{body}");
    let mut connection = rollout_outbound::http1::Connection::open(host).await.unwrap();
    connection.send(request.as_bytes()).await.unwrap();
    let answer = connection.receive_response().await.unwrap();
    assert_eq!(answer.status().unwrap(), 200);
    serde_json::from_slice(answer.body()).unwrap()
}

fn at(name: &str, url: &str) -> Target {
    let source = ServerSource::Running { url: url.to_owned(), pid: Some(std::process::id()) };
    Target { name: name.to_owned(), source }
}

/// Returns settings for few, short rollouts.
fn small(targets: Vec<Target>) -> BenchSettings {
    BenchSettings {
        in_flight: vec![1],
        rollouts: Some(12),
        rounds: 1,
        api_key: Some(KEY.to_owned()),
        rollout_timeout: Duration::from_millis(500),
        ..BenchSettings::new(targets)
    }
}

fn errors(figures: &Figures) -> Vec<(&str, u64)> {
    figures.errors.0.iter().map(|(kind, error)| (kind.as_str(), error.count)).collect()
}

#[tokio::test]
async fn in_generation_d_each_wrong_result_is_counted_by_kind() {
    // Rollout 1 is the trial, rollout 2 the warm-up.
    let (fake, url) = Fake::start([
        (3, Fault::RewardHalf),
        (4, Fault::Lose),
        (5, Fault::Refuse),
        (7, Fault::Break),
        (8, Fault::Confuse),
        (9, Fault::Fail),
        (10, Fault::ForgetKey),
    ])
    .await;

    let report = run(small(vec![at("fake", &url)]), |_| ()).await.unwrap();

    let figures = &report.levels[0].servers[0].median;
    let expected = [("admission 500", 1), ("lost", 1), ("unscored", 1), ("wrong id", 1), ("wrong reward", 1)];
    assert_eq!(errors(figures), expected);
    assert_eq!((figures.scored, figures.refused, figures.gave_up), (7, 1, false));
    assert_eq!(figures.model_calls_without_key, 1);
    // Every rollout called the model, except the one that failed at admission and the one that was lost.
    assert_eq!(figures.model_calls_per_rollout, Some(10.0 / 12.0));
    assert_eq!(figures.errors.0["admission 500"].first, "it broke");
    assert_eq!(fake.cancelled.lock().unwrap().len(), 1);
    assert!(!report.is_clean());
    if cfg!(target_os = "linux") {
        let server = figures.server.as_ref().unwrap();
        assert!(server.rss_mib > 1.0 && server.mappings > 5.0 && server.fds > 3.0, "{server:?}");
    }
}

#[tokio::test]
async fn in_generation_c_duplicate_and_reordered_callbacks_are_detected() {
    let (fake, url) =
        Fake::start([(3, Fault::Double), (4, Fault::Lose), (5, Fault::Disorder), (6, Fault::RewardHalf)])
            .await;
    let settings = BenchSettings { generation: Generation::C, ..small(vec![at("fake", &url)]) };

    let report = run(settings, |_| ()).await.unwrap();

    let figures = &report.levels[0].servers[0].median;
    let expected = [("doubled", 1), ("lost", 1), ("out of order", 1), ("wrong reward", 1)];
    assert_eq!(errors(figures), expected);
    assert_eq!(figures.scored, 9);
    assert_eq!(fake.cancelled.lock().unwrap().len(), 1);
}

fn background(rollouts: usize, url: &str) -> BenchSettings {
    let background = Background { rollouts, prompt: GO_ON.to_owned() };
    BenchSettings { background: Some(background), rounds: 2, ..small(vec![at("fake", url)]) }
}

#[tokio::test]
async fn a_server_is_measured_with_and_without_background_rollouts_in_turn() {
    let (fake, url) = Fake::start([]).await;
    let mut order = Vec::new();

    let report = run(background(3, &url), |progress| {
        if let Progress::Measuring { name, .. } = progress {
            order.push(name);
        }
    })
    .await
    .unwrap();

    assert_eq!(order, ["with 3 in background", "alone", "with 3 in background", "alone"]);
    assert!(report.is_clean(), "{}", report.render());
    assert!(report.levels[0].ratios.as_ref().unwrap().p99.unwrap() > 0.0);
    // The trial, and in each round one rollout of warm-up and twelve of measurement.
    let each = [[0].as_slice(), &[3; 13], &[0; 13], &[3; 13], &[0; 13]].concat();
    assert_eq!(*fake.background.lock().unwrap(), each);
    assert_eq!(fake.cancelled.lock().unwrap().len(), 6);
    assert_eq!(*fake.going_on.lock().unwrap(), BTreeSet::new());
}

#[tokio::test]
async fn background_rollouts_that_end_early_are_an_error() {
    // Rollout 1 is the trial.
    let (fake, url) = Fake::start([(3, Fault::Fail)]).await;
    let error = run(background(3, &url), |_| ()).await.unwrap_err().to_string();
    assert!(error.starts_with("1 of the 3 background rollouts ended by themselves"), "{error}");
    assert_eq!(*fake.going_on.lock().unwrap(), BTreeSet::new());

    let (fake, url) = Fake::start([(3, Fault::Break)]).await;
    let error = run(background(3, &url), |_| ()).await.unwrap_err().to_string();
    assert_eq!(error, "cannot start or cancel the background rollouts (admission 500): it broke");
    assert_eq!(fake.cancelled.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn two_servers_are_measured_in_turn_and_compared() {
    let ((_, first), (_, second)) = tokio::join!(Fake::start([]), Fake::start([]));
    for wave in [false, true] {
        let mut order = Vec::new();
        let settings = BenchSettings {
            in_flight: vec![2, 5],
            rounds: 2,
            rollouts: Some(20),
            wave,
            ..small(vec![at("a", &first), at("b", &second)])
        };

        let report = run(settings, |progress| {
            if let Progress::Measuring { name, in_flight, .. } = progress {
                order.push(format!("{name}{in_flight}"));
            }
        })
        .await
        .unwrap();

        assert_eq!(order, ["a2", "b2", "a2", "b2", "a5", "b5", "a5", "b5"]);
        assert!(report.is_clean(), "{}", report.render());
        for level in &report.levels {
            assert!(level.ratios.as_ref().unwrap().rollouts_per_sec.unwrap() > 0.0);
            assert!(level.servers.iter().all(|server| server.median.scored == 40));
        }
        assert!(report.render().contains("first / second"));
        serde_json::to_string(&report).unwrap();
    }
}

#[tokio::test]
async fn a_server_whose_first_rollout_fails_is_not_measured() {
    let (_, url) = Fake::start([(1, Fault::Fail)]).await;
    let error = run(small(vec![at("fake", &url)]), |_| ()).await.unwrap_err();
    let BenchError::FirstRollout { kind, detail, .. } = error else { panic!("{error}") };
    assert_eq!(kind, ErrorKind::Unscored);
    assert!(detail.contains("no luck"), "{detail}");

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = run(small(vec![at("gone", &format!("http://{closed}"))]), |_| ()).await.unwrap_err();
    assert!(matches!(error, BenchError::FirstRollout { kind: ErrorKind::Transport, .. }), "{error}");
}

#[tokio::test]
async fn a_measurement_stops_early_if_every_rollout_fails() {
    let (_, url) = Fake::start((3..10_000).map(|number| (number, Fault::Break))).await;
    let settings = BenchSettings { rollouts: Some(5000), ..small(vec![at("fake", &url)]) };
    let report = run(settings, |_| ()).await.unwrap();
    let figures = &report.levels[0].servers[0].median;
    assert!(figures.gave_up && figures.scored == 0 && figures.errors.count() < 500, "{figures:?}");
    assert!(report.render().contains("stopped early"));
}
