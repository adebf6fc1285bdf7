//! Gateways and workers: rollouts of several machines under one address.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{any, get};
use futures_util::StreamExt;
use futures_util::future::join_all;
use rollout_cluster::Cluster;
use rollout_tests::{
    Admitted, Controller, Exposition, Reply, RolloutRequest, Serve, Start, TestHost, TestNats, example,
    in_time, rollout_host, trainer_python, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The key that gateways and workers share.
const KEY: &str = "the-key-of-the-cluster";

/// Settings with a journal beside the artifacts.
const JOURNAL: &str = "[journal]\ndir = 'journal'\n";

/// Returns an address with a port that is free at the moment. A worker that is started again has the same address.
fn free_address() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    socket.local_addr().expect("it is bound")
}

/// Returns options of a worker.
fn worker(guest: &str, name: &str) -> Serve {
    as_worker(TestHost::of(guest), name)
}

fn as_worker(serve: Serve, name: &str) -> Serve {
    serve
        .listen(free_address())
        .option("--role", "worker")
        .option("--worker-name", name)
        .option("--cluster-key-env", "CLUSTER_KEY")
        .variable("CLUSTER_KEY", KEY)
}

/// Returns options of a gateway to workers at these addresses.
fn gateway_to(workers: &[String]) -> Serve {
    let gateway = TestHost::of_gateway()
        .option("--role", "gateway")
        .option("--cluster-key-env", "CLUSTER_KEY")
        .variable("CLUSTER_KEY", KEY);
    workers.iter().fold(gateway, |gateway, url| gateway.option("--worker", url))
}

/// Starts a gateway, and waits until all workers answer it.
async fn gateway(serve: Serve, workers: usize) -> TestHost {
    let gateway = serve.start().await;
    all_up(&gateway, workers).await;
    gateway
}

async fn all_up(gateway: &TestHost, workers: usize) {
    let up = async || {
        let health = gateway.health().await;
        let workers_up =
            health["workers"].as_array().unwrap().iter().filter(|worker| worker["is_up"] == true);
        (workers_up.count() == workers).then_some(())
    };
    until("all workers answer", up).await;
}

/// Waits until the workers' health reports, which a gateway reads at intervals, count this many rollouts.
async fn completed(gateway: &TestHost, count: u64) -> Value {
    let completed = async || {
        let health = gateway.health().await;
        (health["completed_rollouts"] == count).then_some(health)
    };
    until("the workers' reports", completed).await
}

/// Starts this many workers with journals.
async fn workers(guest: &str, count: usize) -> (Vec<Serve>, Vec<TestHost>) {
    let serves: Vec<Serve> =
        (0..count).map(|number| worker(guest, &format!("w{number}")).config(JOURNAL)).collect();
    let hosts = join_all(serves.iter().map(|serve| serve.clone().start())).await;
    (serves, hosts)
}

fn urls(workers: &[TestHost]) -> Vec<String> {
    workers.iter().map(|worker| worker.url().to_owned()).collect()
}

/// Returns the number of the worker whose log a lease names.
fn worker_of(admitted: &Admitted) -> usize {
    let log = admitted.lease.split_once('.').expect("the lease names a log").0;
    log.strip_prefix('w')
        .and_then(|rest| rest.split('-').next()?.parse().ok())
        .expect("the log names a worker")
}

#[tokio::test]
async fn rollouts_run_on_all_workers_and_any_gateway_answers() {
    let controller = Controller::start().await;
    let (_, workers) = workers("conform", 3).await;
    let serve = gateway_to(&urls(&workers));
    let (first, second) = tokio::join!(gateway(serve.clone(), 3), gateway(serve, 3));
    let requests: Vec<_> = (0..30)
        .map(|n| controller.rollout("Calculate 2 + 3.").label(if n % 2 == 0 { "5" } else { "6" }))
        .collect();

    let admitted = join_all(requests.iter().map(|request| first.admit(request))).await;
    let results = join_all(admitted.iter().map(|admitted| second.result(admitted))).await;

    for (n, result) in results.iter().enumerate() {
        assert_eq!(result["status"], "success", "{result:#}");
        assert_eq!(result["sample"]["reward"], if n % 2 == 0 { 1.0 } else { 0.0 });
    }
    let used: BTreeSet<usize> = admitted.iter().map(worker_of).collect();
    assert_eq!(used, BTreeSet::from([0, 1, 2]), "each worker has a share of 30 rollouts");

    // A gateway finds the worker of a rollout without its lease.
    for admitted in &admitted[..6] {
        let trajectory = second.served_trajectory(&admitted.id).await;
        assert_eq!(trajectory["session_id"], *admitted.id);
    }
    assert_eq!(first.get("/rollout/unknown/trajectory").await.status, 404);
    let again = second.ask(&requests[0]).await;
    assert_eq!(again.status, 409, "the id is in use at the worker that it prefers: {}", again.text);
    let wrong = Admitted { lease: format!("{}x", admitted[0].lease), ..admitted[0].clone() };
    assert_eq!(first.poll(&wrong).await.status, 403);

    // Numbers of all workers under one address.
    let health = completed(&first, 30).await;
    assert_eq!(health["lifecycle"]["accepting_rollouts"], true);
    let metrics: Exposition = second.metrics().await;
    let sum: f64 = metrics.counted("rollout_host_rollouts_ended_total").values().sum();
    assert_eq!(sum, 30.0, "the workers' metrics are merged");
    assert_eq!(first.get("/ready").await.status, 200);
}

#[tokio::test]
async fn a_poll_outlives_the_restart_of_its_worker_and_the_death_of_its_gateway() {
    let controller = Controller::start().await;
    let (serves, mut workers) = workers("conform", 2).await;
    let serve = gateway_to(&urls(&workers));
    let (first, second) = tokio::join!(gateway(serve.clone(), 2), gateway(serve, 2));
    controller.hold();
    let requests: Vec<_> = (0..8).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    let admitted = join_all(requests.iter().map(|request| first.admit(request))).await;
    controller.chats_arrived(8).await;
    let polls: Vec<_> = admitted
        .iter()
        .map(|admitted| {
            let (admitted, url) = (admitted.clone(), second.url().to_owned());
            tokio::spawn(async move { poll_until_result(&url, &admitted).await })
        })
        .collect();

    // A gateway with open polls dies: its callers' next poll is at another.
    let (url, poll) = (first.url().to_owned(), admitted[0].clone());
    let broken = tokio::spawn(async move { poll_once(&url, &poll).await });
    first.kill().await;
    assert!(in_time("the end of a poll", broken).await.unwrap().is_err());

    for (number, serve) in serves.iter().enumerate() {
        let killed = workers.remove(0).killed(serve).await;
        workers.push(killed);
        assert!(!polls.iter().any(|poll| poll.is_finished()), "polls wait while worker {number} is away");
    }
    controller.release();

    for poll in polls {
        let result = in_time("a result", poll).await.unwrap();
        assert_eq!(result["status"], "success", "{result:#}");
        assert_eq!(result["sample"]["reward"], 1.0);
    }
    assert_eq!(controller.chats().len(), 16, "only calls without an answer were repeated");
}

/// Polls once at a gateway.
async fn poll_once(url: &str, admitted: &Admitted) -> Result<(u16, Value), reqwest::Error> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let request = client.get(format!("{url}/rollout/{}/result", admitted.id));
    let response = request.header("x-osmosis-rollout-lease", &admitted.lease).send().await?;
    Ok((response.status().as_u16(), response.json().await?))
}

async fn poll_until_result(url: &str, admitted: &Admitted) -> Value {
    loop {
        let (status, body) = poll_once(url, admitted).await.expect("the gateway answers");
        assert_eq!(status, 200, "{body}");
        if !["queued", "running", "grading"].iter().any(|waiting| body["status"] == *waiting) {
            return body;
        }
    }
}

#[tokio::test]
async fn polls_of_a_worker_that_is_stopped_do_not_hang() {
    let controller = Controller::start().await;
    let host = worker("conform", "w0").start().await;
    let serve = gateway_to(&[host.url().to_owned()]).option("--lost-after-secs", 2);
    let gateway = gateway(serve, 1).await;
    controller.hold();
    let admitted = gateway.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_arrived(1).await;

    // The connections of a stopped process stay open, and no answer comes.
    host.process().signal(Signal::STOP);

    let result = gateway.result(&admitted).await;
    assert_eq!(result["err_category"], "internal_error", "{result:#}");
    let refused = gateway.ask(&controller.rollout("Calculate 2 + 3.")).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    host.process().signal(Signal::CONT);
}

#[tokio::test]
async fn rollouts_of_a_worker_that_stays_away_end_as_lost() {
    let controller = Controller::start().await;
    let lost = worker("conform", "w0").start().await;
    let serve = gateway_to(&[lost.url().to_owned()]).option("--lost-after-secs", 2);
    let gateway = gateway(serve, 1).await;
    controller.hold();
    let admitted = gateway.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_arrived(1).await;

    lost.kill().await;

    let result = gateway.result(&admitted).await;
    assert_eq!((&result["status"], &result["sample"]), (&json!("failure"), &Value::Null), "{result:#}");
    assert_eq!(result["err_category"], "internal_error");
    assert!(result["err_message"].as_str().unwrap().contains("lost"), "{result:#}");
    // No worker takes further rollouts, and their callers try again later.
    let refused = gateway.ask(&controller.rollout("Calculate 2 + 3.")).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(gateway.get("/ready").await.status, 503);
    // A rollout of a lost worker is not reported as missing.
    let trajectory = gateway.get(&format!("/rollout/{}/trajectory", admitted.id)).await;
    assert_eq!(trajectory.status, 503, "{}", trajectory.text);
    assert!(trajectory.text.contains("w0"), "{}", trajectory.text);
    let cancel = gateway.post("/rollout/cancel", &json!({"ids": [admitted.id]})).await;
    assert_eq!(cancel.status, 503, "{}", cancel.text);
}

#[tokio::test]
async fn a_rollout_goes_to_the_next_worker_when_the_first_is_full() {
    let controller = Controller::start().await;
    let small = |name| worker("conform", name).option("--max-concurrent", 1).option("--queue-max", 0);
    let workers = join_all(["w0", "w1", "w2"].map(|name| small(name).start())).await;
    let gateway = gateway(gateway_to(&urls(&workers)), 3).await;
    controller.hold();

    let mut used = BTreeSet::new();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let admitted = gateway.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        used.insert(worker_of(&admitted));
        ids.push(admitted.id);
    }
    assert_eq!(used.len(), 3, "each has one");
    let refused = gateway.ask(&controller.rollout("Calculate 2 + 3.")).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));

    // One request cancels rollouts of several workers.
    let reply = gateway.post("/rollout/cancel", &json!({"ids": [ids[0], "unknown", ids[2], ids[1]]})).await;
    let expected = json!({
        "dispositions": {
            ids[0].as_str(): "cancelled_running", ids[1].as_str(): "cancelled_running",
            ids[2].as_str(): "cancelled_running", "unknown": "not_found",
        },
    });
    assert_eq!((reply.status, reply.body), (200, expected));
    let wrong = gateway.post("/rollout/cancel", &json!({})).await;
    assert_eq!(wrong.status, 422, "a worker's error is passed on: {}", wrong.text);
}

#[tokio::test]
async fn members_of_a_group_are_at_one_worker_and_are_rated_together() {
    let controller = Controller::start().await;
    let (_, workers) = workers("grouped", 3).await;
    let serve = gateway_to(&urls(&workers));
    let (first, second) = tokio::join!(gateway(serve.clone(), 3), gateway(serve, 3));
    let mut used = BTreeSet::new();
    for group in 0.. {
        if group >= 4 && used.len() > 1 {
            break;
        }
        let id = format!("g{group}");
        let member = |number: u32| {
            let request = controller.rollout(&format!("Calculate {number} + 1.")).label("2");
            request.with("group", json!({"id": id, "size": 3, "member": number}))
        };
        let requests = [member(0), member(1), member(2)];

        // Any gateway finds the worker of the group.
        let admitted = [
            first.admit(&requests[0]).await,
            second.admit(&requests[1]).await,
            first.admit(&requests[2]).await,
        ];

        let at: BTreeSet<usize> = admitted.iter().map(worker_of).collect();
        assert_eq!(at.len(), 1, "{id} is at one worker: {at:?}");
        used.extend(at);
        let results = join_all(admitted.iter().map(|admitted| second.result(admitted))).await;
        let rewards: Vec<&Value> = results.iter().map(|result| &result["sample"]["reward"]).collect();
        assert_eq!(rewards, [0.0, 0.5, 1.0], "{results:#?}");
        assert!(group < 60, "groups are at several workers");
    }
}

#[tokio::test]
async fn a_group_waits_for_its_own_worker_when_that_is_full() {
    let controller = Controller::start().await;
    let small = |name| worker("grouped", name).option("--max-concurrent", 1).option("--queue-max", 1);
    let workers = join_all(["w0", "w1"].map(|name| small(name).start())).await;
    let gateway = gateway(gateway_to(&urls(&workers)), 2).await;
    controller.hold();
    let request = || controller.rollout("Calculate 2 + 3.").label("5");
    let member = |number: u32| request().with("group", json!({"id": "g", "size": 2, "member": number}));
    let first = gateway.admit(&member(0)).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(gateway.admit(&request()).await);
    }
    let there = |other: &&Admitted| worker_of(other) != worker_of(&first);
    for other in others.iter().filter(there) {
        gateway.cancel(&other.id).await;
        gateway.result(other).await;
    }

    let refused = gateway.ask(&member(1)).await;

    assert_eq!(refused.status, 429, "the other worker has room: {}", refused.text);
    assert_eq!(gateway.ask(&request()).await.status, 202);
}

/// Returns a request that continues a rollout before its only call of the model.
fn fork_of(controller: &Controller, parent: &str) -> RolloutRequest {
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    request.with("fork_of", json!({"rollout_id": parent, "turn": 0}))
}

#[tokio::test]
async fn forks_and_trees_are_at_the_worker_of_their_parent() {
    let controller = Controller::start().await;
    let (_, workers) = workers("conform", 3).await;
    let gateway = gateway(gateway_to(&urls(&workers)), 3).await;
    let mut used = BTreeSet::new();
    for number in 0.. {
        if number >= 3 && used.len() > 1 {
            break;
        }
        let parent = gateway.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert_eq!(gateway.result(&parent).await["status"], "success");
        let at = worker_of(&parent);
        used.insert(at);

        let fork = gateway.admit(&fork_of(&controller, &parent.id)).await;
        let tree = fork_of(&controller, &parent.id).id(&format!("tree{number}")).with("continuations", 2);
        let tree = gateway.ask(&tree).await;

        assert_eq!(worker_of(&fork), at);
        assert_eq!(gateway.result(&fork).await["sample"]["reward"], 1.0);
        assert_eq!(tree.status, 202, "{}", tree.text);
        for branch in tree.body["rollouts"].as_array().unwrap() {
            let text = |name: &str| branch[name].as_str().unwrap().to_owned();
            let branch = Admitted { id: text("rollout_id"), lease: text("polling_lease_token") };
            assert_eq!(worker_of(&branch), at);
            let result = gateway.result(&branch).await;
            assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
            assert_eq!(result["group"]["size"], 2);
        }
        assert!(number < 60, "parents are at several workers");
    }
    let unknown = gateway.ask(&fork_of(&controller, "unknown")).await;
    assert_eq!(unknown.status, 422, "{}", unknown.text);
    assert!(unknown.text.contains("no rollout 'unknown' in the journal"), "{}", unknown.text);
    let divided = fork_of(&controller, "unknown").with("group", json!({"id": "g", "size": 2, "member": 0}));
    let divided = gateway.ask(&divided).await;
    assert_eq!(divided.status, 422, "{}", divided.text);
    assert!(divided.text.contains("send continuations"), "{}", divided.text);
}

#[tokio::test]
async fn a_tree_whose_admission_is_lost_is_repeated_and_starts_once() {
    let controller = Controller::start().await;
    let host = worker("conform", "w0").config(JOURNAL).start().await;
    let direct = gateway(gateway_to(&urls(std::slice::from_ref(&host))), 1).await;
    let parent = direct.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    direct.result(&parent).await;
    let (url, swallowed) = swallowing(host.url(), "POST /rollout ", 1).await;
    let gateway = gateway(gateway_to(&[url]), 1).await;

    let tree = fork_of(&controller, &parent.id).id("tree").with("continuations", 3);
    let reply = gateway.ask(&tree).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    assert_eq!(swallowed.load(Ordering::SeqCst), 2, "the request was repeated");
    for branch in reply.body["rollouts"].as_array().unwrap() {
        let text = |name: &str| branch[name].as_str().unwrap().to_owned();
        let branch = Admitted { id: text("rollout_id"), lease: text("polling_lease_token") };
        assert_eq!(gateway.result(&branch).await["status"], "success");
    }
    let ended = completed(&gateway, 4).await;
    assert_eq!(ended["completed_rollouts"], 4, "a parent and three branches");
}

#[tokio::test]
async fn a_rollout_whose_worker_is_busy_goes_to_one_with_a_free_slot_and_runs_once() {
    let controller = Controller::start().await;
    let small = |name| worker("conform", name).option("--max-concurrent", 1).option("--queue-max", 9);
    let workers = join_all(["w0", "w1", "w2"].map(|name| small(name).start())).await;
    let serve = gateway_to(&urls(&workers));
    let (first, second) = tokio::join!(gateway(serve.clone(), 3), gateway(serve, 3));
    controller.hold();

    let requests: Vec<_> = (0..3).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    let mut admitted = Vec::new();
    for request in &requests {
        admitted.push(first.admit(request).await);
    }
    let used: BTreeSet<usize> = admitted.iter().map(worker_of).collect();
    assert_eq!(used.len(), 3, "each has one, and none waits");
    controller.chats_arrived(3).await;

    // The same requests again, through another gateway.
    for request in &requests {
        until("the rollout to be known", async || {
            let again = second.ask(request).await;
            assert!([409, 429].contains(&again.status), "{}", again.text);
            (again.status == 409).then_some(())
        })
        .await;
    }
    // Without a free slot, it waits where its id belongs.
    let waiting = first.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.release();
    for admitted in admitted.iter().chain([&waiting]) {
        assert_eq!(first.result(admitted).await["sample"]["reward"], 1.0);
    }
    assert_eq!(controller.chats().len(), 4, "each rollout ran once");
}

#[tokio::test]
async fn rollouts_with_callbacks_use_the_slots_of_all_workers_and_run_once() {
    let controller = Controller::start().await;
    let small = |name| worker("conform", name).option("--max-concurrent", 1).option("--queue-max", 0);
    let workers = join_all(["w0", "w1", "w2", "w3"].map(|name| small(name).start())).await;
    let serve = gateway_to(&urls(&workers));
    let (gateway, second) = tokio::join!(gateway(serve.clone(), 4), gateway(serve, 4));
    controller.hold();
    // Ids of which several prefer the same worker.
    let request = |number: u32| {
        let request = controller.rollout("Calculate 2 + 3.").label("5").id(&format!("callbacks-{number}"));
        request.with_callbacks("key-of-the-caller")
    };

    for number in 0..4 {
        let reply = gateway.ask(&request(number)).await;
        assert_eq!(reply.status, 202, "rollout {number} has a slot: {}", reply.text);
    }

    let refused = gateway.ask(&request(4)).await;
    assert_eq!(refused.status, 429, "no worker has room: {}", refused.text);
    controller.chats_arrived(4).await;
    for number in 0..4 {
        let again = second.ask(&request(number)).await;
        assert_eq!(again.status, 409, "rollout {number} runs already: {}", again.text);
    }
    controller.release();
    assert_eq!(controller.callbacks_arrived(8).await.len(), 8);
    assert_eq!(controller.chats().len(), 4, "each rollout ran once");
    // The ids are free again.
    for number in 0..4 {
        let reply = until("a free slot", async || {
            let reply = second.ask(&request(number)).await;
            (reply.status != 429).then_some(reply)
        })
        .await;
        assert_eq!(reply.status, 202, "{}", reply.text);
    }
    assert_eq!(controller.callbacks_arrived(16).await.len(), 16);
}

/// A worker that has no slot free, or some, and answers requests for rollouts with a status.
struct PlacingWorker {
    url: String,
    /// The requests for rollouts.
    requests: watch::Sender<Vec<Seen>>,
}

/// Method and path of a request, and the worker that it names.
type Seen = (String, String, String);

/// Answers the request of a gateway for a rollout, by the worker that it names and whether it comes again.
type Answer = fn(&str, bool) -> (StatusCode, [(&'static str, String); 2]);

impl PlacingWorker {
    async fn start(name: &'static str, room: i64, answer: Answer) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let requests = watch::Sender::new(Vec::<Seen>::new());
        let seen = requests.clone();
        let take = async move |request: axum::extract::Request| {
            let place = request.headers().get("x-rollout-host-place");
            let place = place.map(|place| place.to_str().unwrap().to_owned()).unwrap_or_default();
            let line = (request.method().to_string(), request.uri().path().to_owned(), place.clone());
            let is_again = seen.borrow().last().is_some_and(|(method, ..)| method == "POST");
            seen.send_modify(|requests| requests.push(line));
            match request.method().as_str() {
                "POST" => answer(&place, is_again).into_response(),
                _ => StatusCode::NO_CONTENT.into_response(),
            }
        };
        let status = json!({
            "worker": name, "logs": [{"name": format!("{name}-log"), "epoch": 0}], "version": "0.1.0",
            "accepting": true, "running": 0, "queued": 0, "max_concurrent": 1, "room": room, "health": {},
        });
        let routes = Router::new()
            .route("/cluster/status", get(async move || axum::Json(status.clone())))
            .fallback(any(take));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, requests }
    }

    fn requests(&self) -> Vec<Seen> {
        self.requests.borrow().clone()
    }
}

/// Sends the gateway to a worker.
fn at(place: &str, may_choose: bool) -> (StatusCode, [(&'static str, String); 2]) {
    let choose = if may_choose { "x-rollout-host-choose" } else { "x-other" };
    (StatusCode::MISDIRECTED_REQUEST, [("x-rollout-host-place", place.to_owned()), (choose, "1".to_owned())])
}

fn plainly(status: StatusCode) -> (StatusCode, [(&'static str, String); 2]) {
    (status, [("x-a", String::new()), ("x-b", String::new())])
}

#[tokio::test]
async fn a_caller_gets_a_status_that_it_repeats_when_workers_send_a_rollout_to_each_other() {
    let controller = Controller::start().await;
    let workers = tokio::join!(
        PlacingWorker::start("w0", 5, |_, _| at("w1", false)),
        PlacingWorker::start("w1", 5, |_, _| at("w0", false)),
    );
    let gateway = gateway(gateway_to(&[workers.0.url, workers.1.url]), 2).await;

    let refused = gateway.ask(&controller.rollout("Calculate 2 + 3.")).await;

    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    assert!(!refused.headers.contains_key("x-rollout-host-place"), "{:?}", refused.headers);
}

#[tokio::test]
async fn a_place_that_a_worker_refuses_is_chosen_again_and_then_confirmed() {
    let controller = Controller::start().await;
    // The gateway does not know yet that w1 is full, too.
    let home = |place: &str, is_again| at(if is_again { place } else { "w1" }, true);
    let first = PlacingWorker::start("w0", 0, home).await;
    let full = PlacingWorker::start("w1", 0, |_, _| plainly(StatusCode::TOO_MANY_REQUESTS)).await;
    let free = PlacingWorker::start("w2", 5, |_, _| plainly(StatusCode::ACCEPTED)).await;
    let gateway = gateway(gateway_to(&[first.url.clone(), full.url.clone(), free.url.clone()]), 3).await;

    let (id, reply, requests) =
        preferring(&first, &gateway, |id| controller.rollout("Calculate 2 + 3.").id(id)).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    let line = |method: &str, path: &str| (method.to_owned(), path.to_owned(), "w2".to_owned());
    let confirmation = line("PUT", &format!("/rollout/{id}/placed"));
    assert_eq!(requests.last(), Some(&confirmation), "{requests:?}");
    assert_eq!(requests[..2], [line("POST", "/rollout"), line("POST", "/rollout")]);
}

#[tokio::test]
async fn a_rollout_that_another_worker_may_have_is_sent_there_only_and_its_place_is_confirmed() {
    let controller = Controller::start().await;
    // The first worker has a note of a gateway that was killed: w1 may have the rollout, and has it.
    let first = PlacingWorker::start("w0", 0, |_, _| at("w1", false)).await;
    let there = PlacingWorker::start("w1", 0, |_, _| plainly(StatusCode::CONFLICT)).await;
    let free = PlacingWorker::start("w2", 5, |_, _| plainly(StatusCode::ACCEPTED)).await;
    let gateway = gateway(gateway_to(&[first.url.clone(), there.url.clone(), free.url.clone()]), 3).await;

    let request = |id: &str| controller.rollout("Calculate 2 + 3.").id(id);
    let (id, ..) = preferring(&first, &gateway, request).await;
    let (before, elsewhere) = (first.requests().len(), free.requests().len());

    let reply = gateway.ask(&request(&id)).await;

    assert_eq!(reply.status, 409, "{}", reply.text);
    let confirmation = ("PUT".to_owned(), format!("/rollout/{id}/placed"), "w1".to_owned());
    assert_eq!(first.requests()[before..].last(), Some(&confirmation));
    assert_eq!(free.requests().len(), elsewhere);
}

/// Returns an id that the first of these workers is asked about first, the gateway's answer, and the requests to the first worker.
async fn preferring(
    first: &PlacingWorker,
    gateway: &TestHost,
    request: impl Fn(&str) -> RolloutRequest,
) -> (String, Reply, Vec<Seen>) {
    for number in 0..40 {
        let id = format!("placed-{number}");
        let before = first.requests().len();
        let reply = gateway.ask(&request(&id)).await;
        let requests = first.requests().split_off(before);
        if !requests.is_empty() {
            return (id, reply, requests);
        }
    }
    panic!("no id prefers the first of three workers");
}

#[tokio::test]
async fn a_rollout_is_sent_to_no_other_worker_without_a_note_at_its_own() {
    let controller = Controller::start().await;
    // It has no memory even for a note.
    let first = PlacingWorker::start("w0", 0, |_, _| plainly(StatusCode::SERVICE_UNAVAILABLE)).await;
    let accepts = |_: &str, _| plainly(StatusCode::ACCEPTED);
    let (second, third) =
        tokio::join!(PlacingWorker::start("w1", 5, accepts), PlacingWorker::start("w2", 5, accepts));
    let gateway = gateway(gateway_to(&[&first, &second, &third].map(|worker| worker.url.clone())), 3).await;
    let polled = |id: &str| controller.rollout("Calculate 2 + 3.").id(id);

    let (id, reply, requests) = preferring(&first, &gateway, polled).await;

    assert_eq!(reply.status, 429, "{}", reply.text);
    assert!(reply.headers.contains_key("retry-after"));
    assert!(!requests[0].2.is_empty(), "another worker was named: {requests:?}");
    let others = || second.requests().len() + third.requests().len();
    let before = others();
    assert_eq!(gateway.ask(&polled(&id)).await.status, 429);
    assert_eq!(gateway.ask(&polled(&id).with_callbacks("key-of-the-caller")).await.status, 429);
    assert_eq!(others(), before);
}

#[tokio::test]
async fn a_worker_that_refuses_a_rollout_in_spite_of_free_slots_is_told_where_there_is_room() {
    let controller = Controller::start().await;
    let home = |place: &str, _| match place {
        "" => plainly(StatusCode::TOO_MANY_REQUESTS),
        place => at(place, true),
    };
    let accepts = |_: &str, _| plainly(StatusCode::ACCEPTED);
    let (first, second) =
        tokio::join!(PlacingWorker::start("w0", 5, home), PlacingWorker::start("w1", 3, accepts));
    let gateway = gateway(gateway_to(&[first.url.clone(), second.url.clone()]), 2).await;

    let (id, reply, requests) =
        preferring(&first, &gateway, |id| controller.rollout("Calculate 2 + 3.").id(id)).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    let line = |method: &str, path: &str, place: &str| (method.to_owned(), path.to_owned(), place.to_owned());
    let confirmation = line("PUT", &format!("/rollout/{id}/placed"), "w1");
    assert_eq!(requests, [line("POST", "/rollout", ""), line("POST", "/rollout", "w1"), confirmation]);
}

#[tokio::test]
async fn rollouts_of_a_worker_that_drains_go_to_others_and_run_once() {
    let controller = Controller::start().await;
    let serves = ["w0", "w1", "w2"].map(|name| worker("conform", name).config("drain-secs = 60.0\n"));
    let workers = join_all(serves.map(Serve::start)).await;
    let serve = gateway_to(&urls(&workers));
    let (first, second) = tokio::join!(gateway(serve.clone(), 3), gateway(serve, 3));
    controller.hold();
    let request = |number: u32| controller.rollout("Calculate 2 + 3.").label("5").id(&format!("r-{number}"));
    let mut admitted = Vec::new();
    for number in 0..4 {
        admitted.push(first.admit(&request(number)).await);
    }
    let drained = worker_of(&admitted[0]);
    workers[drained].process().signal(Signal::TERM);
    until("the worker drains", async || {
        let health = second.health().await;
        let accepting =
            health["workers"].as_array().unwrap().iter().filter(|worker| worker["accepting"] == true);
        (accepting.count() == 2).then_some(())
    })
    .await;

    for number in 4..24 {
        admitted.push(first.admit(&request(number)).await);
    }
    assert!(admitted[4..].iter().all(|admitted| worker_of(admitted) != drained));
    controller.chats_arrived(24).await;
    for number in 0..24 {
        let again = second.ask(&request(number)).await;
        assert_eq!(again.status, 409, "rollout {number}: {}", again.text);
    }
    controller.release();
    for admitted in &admitted {
        assert_eq!(first.result(admitted).await["sample"]["reward"], 1.0);
    }
    assert_eq!(controller.chats().len(), 24, "each rollout ran once");
}

#[tokio::test]
async fn sessions_whose_callers_chose_the_ids_go_on_when_a_worker_joins() {
    let address = free_address();
    let joining = environment("example-number-hunt", "w2").listen(address);
    let workers = join_all(["w0", "w1"].map(|name| environment("example-number-hunt", name).start())).await;
    let mut addresses = urls(&workers);
    addresses.push(format!("http://{address}"));
    let gateway = gateway(gateway_to(&addresses), 2).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let send = async |path: &str, id: &str, body: &Value| {
        let request = http.post(format!("{}{path}", gateway.url())).header("x-session-id", id).json(body);
        let answer = in_time("an answer", request.send()).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let ids: Vec<String> = (0..12).map(|number| format!("chosen-{number}")).collect();
    let task = json!({"env_name": "number-hunt", "split": "train", "index": 1});
    for id in &ids {
        assert_eq!(send("/create", id, &task).await.0, 200);
    }

    let _joined = joining.start().await;
    all_up(&gateway, 3).await;

    for id in &ids {
        let (status, text) = send("/call", id, &json!({"name": "step", "input": {"number": 0}})).await;
        assert!(status == 200 && text.contains("lower"), "{id}: {status} {text}");
    }
    let step = json!({"name": "step", "input": {"number": 0}});
    let (status, text) = send("/call", "unknown", &step).await;
    assert!(status == 404 && text.contains("unknown"), "{status} {text}");
    for id in &ids {
        assert_eq!(send("/delete", id, &json!({})).await.0, 200);
        assert_eq!(send("/call", id, &step).await.0, 404, "{id} has ended");
    }
    // A worker that is away may have a session.
    workers[0].process().signal(Signal::STOP);
    until("the gateway to see it", async || (send("/call", "unknown", &step).await.0 == 503).then_some(()))
        .await;
}

/// Returns a worker that opens sessions of an environment.
fn environment(component: &str, name: &str) -> Serve {
    as_worker(TestHost::of_component(example(component)), name).config(JOURNAL)
}

#[tokio::test]
async fn sessions_of_all_protocols_stay_at_their_worker() {
    let workers =
        join_all(["w0", "w1", "w2"].map(|name| environment("example-number-hunt", name).start())).await;
    let serve = gateway_to(&urls(&workers));
    let (first, second) = tokio::join!(gateway(serve.clone(), 3), gateway(serve, 3));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let send = async |gateway: &TestHost, path: &str, header: (&str, &str), body: &Value| {
        let request = http.post(format!("{}{path}", gateway.url())).header(header.0, header.1).json(body);
        let answer = in_time("an answer", request.send()).await.unwrap();
        let cookie = answer.headers().get("set-cookie").map(|cookie| cookie.to_str().unwrap().to_owned());
        let cookie = cookie.and_then(|cookie| Some(cookie.split(';').next()?.to_owned()));
        (answer.status().as_u16(), cookie.unwrap_or_default(), answer.text().await.unwrap())
    };
    let none = ("x-none", "1");
    let task = json!({"env_name": "number-hunt", "split": "train", "index": 1});
    let number = json!({"name": "step", "input": {"number": 0}});
    let row = json!({"responses_create_params": {"input": "Which number?"}, "expected_answer": "-230"});

    // Six sessions of each protocol are at several of three workers.
    for round in 0..6 {
        // ORS
        let (_, _, text) = send(&first, "/create_session", none, &json!({})).await;
        let id = text.split("data: ").nth(1).unwrap().split('\n').next().unwrap().to_owned();
        let header = ("x-session-id", &*id);
        let (status, _, text) = send(&second, "/create", header, &task).await;
        assert_eq!(status, 200, "round {round}: {text}");
        for gateway in [&first, &second] {
            let (status, _, text) = send(gateway, "/call", header, &number).await;
            assert!(status == 200 && text.contains("lower"), "round {round}: {status} {text}");
            assert_eq!(send(gateway, "/ping", header, &json!({})).await.0, 200);
        }
        let prompt = http.get(format!("{}/prompt", second.url())).header("x-session-id", &id);
        assert_eq!(prompt.send().await.unwrap().status(), 200);
        assert_eq!(send(&second, "/delete", header, &json!({})).await.0, 200);
        assert_eq!(send(&first, "/ping", header, &json!({})).await.0, 404, "it was deleted at its worker");

        // NeMo Gym
        let (status, cookie, text) = send(&first, "/seed_session", none, &row).await;
        assert_eq!(status, 200, "{text}");
        let header = ("cookie", &*cookie);
        for gateway in [&first, &second] {
            let (status, _, text) = send(gateway, "/step", header, &json!({"number": 0})).await;
            assert!(status == 200 && text.contains("lower"), "round {round}: {status} {text}");
        }
        send(&second, "/step", header, &json!({"number": -230})).await;
        let mut verified = row.clone();
        verified["response"] = json!({"output": []});
        let (status, _, text) = send(&second, "/verify", header, &verified).await;
        assert!(status == 200 && text.contains("\"mask_sample\":false"), "round {round}: {status} {text}");

        // NeMo Gym with an id that the caller chose
        let mut chosen = row.clone();
        chosen["resources_session_id"] = format!("chosen-{round}").into();
        let (_, cookie, _) = send(&first, "/seed_session", none, &chosen).await;
        let (_, again, _) = send(&second, "/seed_session", none, &chosen).await;
        assert_eq!(cookie, again, "a repeated seed is the same session");
        assert_eq!(send(&second, "/close_session", none, &chosen).await.0, 200);
        assert_eq!(send(&first, "/step", ("cookie", &*cookie), &json!({"number": 0})).await.0, 404);

        // OpenEnv
        let rpc = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let (_, _, text) =
            send(&first, "/openenv/mcp", none, &rpc("openenv/session/create", json!({}))).await;
        let created: Value = serde_json::from_str(&text).unwrap();
        let id = &created["result"]["session_id"];
        let call = json!({"session_id": id, "name": "step", "arguments": {"number": 0}});
        for gateway in [&first, &second] {
            let (_, _, text) = send(gateway, "/openenv/mcp", none, &rpc("tools/call", call.clone())).await;
            // The environment has no named tools. Another worker would not know the session.
            assert!(text.contains("Environment does not support MCP"), "round {round}: {text}");
        }
        let close = rpc("openenv/session/close", json!({"session_id": id}));
        let (_, _, text) = send(&second, "/openenv/mcp", none, &close).await;
        assert!(text.contains("\"closed\":true"), "round {round}: {text}");
    }
}

#[tokio::test]
async fn a_session_of_an_absent_worker_is_refused_and_continues_when_it_is_back() {
    let serve = worker("environment", "w0").config(JOURNAL);
    let host = serve.clone().start().await;
    let gateway = gateway(gateway_to(&[host.url().to_owned()]), 1).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"});
    let created = gateway.post("/openenv/mcp", &create).await;
    let id = created.body["result"]["session_id"].as_str().unwrap().to_owned();
    let params = json!({"session_id": id, "name": "add", "arguments": {"number": 5}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let called = gateway.post("/openenv/mcp", &call).await;
    assert!(called.text.contains("\"result\""), "{}", called.text);

    host.process().signal(Signal::STOP);
    let refused = until("the gateway to see it", async || {
        let request = http.post(format!("{}/openenv/mcp", gateway.url())).json(&call);
        let answer = request.send().await.unwrap();
        assert!([502, 503].contains(&answer.status().as_u16()), "{}", answer.status());
        (answer.status() == 503).then_some(answer)
    })
    .await;
    assert!(refused.headers().contains_key("retry-after"));
    let text = until("the reason", async || {
        let text = gateway.post("/openenv/mcp", &call).await.text;
        text.contains("no worker serves the log w0-").then_some(text)
    })
    .await;
    assert!(text.contains("retry later, or open another session"), "{text}");

    // It finds the session in its journal.
    let _host = host.killed(&serve).await;
    let answer = until("the session", async || {
        let reply = gateway.post("/openenv/mcp", &call).await;
        (reply.status == 200).then_some(reply)
    })
    .await;
    assert!(answer.text.contains("\"result\""), "{}", answer.text);
}

#[tokio::test]
async fn a_gateway_without_a_worker_yet_shows_no_page() {
    let address = free_address();
    let gateway = gateway_to(&[format!("http://{address}")]).start().await;
    for path in ["/ui/", "/ui/data", "/ui/events", "/ui/rollouts/r"] {
        let refused = gateway.get(path).await;
        assert_eq!(refused.status, 503, "{path}: {}", refused.text);
        assert!(refused.headers.contains_key("retry-after"), "{path}");
        assert!(!refused.text.contains(&address.to_string()), "{path}: {}", refused.text);
    }

    let _host = worker("conform", "w0").listen(address).start().await;

    all_up(&gateway, 1).await;
    assert_eq!(gateway.get("/ui/").await.status, 200, "the workers have no tenants");
}

#[tokio::test]
async fn the_first_page_of_a_gateway_shows_changes_while_it_is_open() {
    let controller = Controller::start().await;
    let host = worker("conform", "w0").start().await;
    let gateway = gateway(gateway_to(&[host.url().to_owned()]), 1).await;
    let page = gateway.get("/ui/").await.text;
    assert!(
        page.contains(r#"data-events="/ui/events""#) && page.contains(r#"id="running" data-live"#),
        "{page}"
    );
    let open = async || {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        http.get(format!("{}/ui/events", gateway.url())).send().await.unwrap().bytes_stream()
    };
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut stream = open().await;
        let first = in_time("the first event", stream.next()).await.unwrap().unwrap();
        assert!(first.starts_with(b"retry:"), "{first:?}");
        streams.push(stream);
    }
    let mut full = open().await;
    let text = in_time("the refusal", full.next()).await.unwrap().unwrap();
    assert!(text.starts_with(b"event: full"), "{text:?}");

    controller.hold();
    let admitted = gateway.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    in_time("a change", async {
        while !streams[0].next().await.unwrap().unwrap().starts_with(b"event: change") {}
    })
    .await;
    assert!(gateway.get("/ui/").await.text.contains(&admitted.id), "the page has the rollout");
}

/// Passes connections to a server, but swallows the answers to the first requests that contain `swallowed`.
async fn swallowing(server: &str, swallowed: &'static str, count: usize) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let server = server.trim_start_matches("http://").to_owned();
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            let (server, counted) = (server.clone(), counted.clone());
            tokio::spawn(async move {
                let Ok(mut upstream) = TcpStream::connect(&server).await else { return };
                let (mut caller_reader, mut caller_writer) = caller.split();
                let (mut upstream_reader, mut upstream_writer) = upstream.split();
                let is_swallowed = AtomicBool::new(false);
                let requests = async {
                    let mut bytes = vec![0; 64 << 10];
                    while let Ok(length @ 1..) = caller_reader.read(&mut bytes).await {
                        if String::from_utf8_lossy(&bytes[..length]).contains(swallowed) {
                            let is_early = counted.fetch_add(1, Ordering::SeqCst) < count;
                            is_swallowed.store(is_early, Ordering::SeqCst);
                        }
                        if upstream_writer.write_all(&bytes[..length]).await.is_err() {
                            return;
                        }
                    }
                };
                let answers = async {
                    let mut bytes = vec![0; 64 << 10];
                    while let Ok(length @ 1..) = upstream_reader.read(&mut bytes).await {
                        if is_swallowed.load(Ordering::SeqCst)
                            || caller_writer.write_all(&bytes[..length]).await.is_err()
                        {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = requests => {}
                    () = answers => {}
                }
            });
        }
    });
    (url, seen)
}

#[tokio::test]
async fn an_admission_whose_answer_is_lost_is_repeated_and_starts_one_rollout() {
    let controller = Controller::start().await;
    let host = worker("conform", "w0").start().await;
    let (url, seen) = swallowing(host.url(), "POST /rollout ", 2).await;
    let gateway = gateway(gateway_to(&[url]), 1).await;

    let result = gateway.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(seen.load(Ordering::SeqCst), 3, "two answers were lost");
    assert_eq!(controller.chats().len(), 1);
    completed(&gateway, 1).await;
}

#[tokio::test]
async fn a_callback_rollout_whose_admission_is_lost_is_refused_and_not_started_again() {
    let controller = Controller::start().await;
    let host = worker("conform", "w0").start().await;
    let (url, _) = swallowing(host.url(), "POST /rollout ", 1).await;
    let gateway = gateway(gateway_to(&[url]), 1).await;

    let reply = gateway.ask(&controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k")).await;

    assert_eq!(reply.status, 502, "{}", reply.text);
    assert!(reply.text.contains("w0") && reply.text.contains("not known"), "{}", reply.text);
    controller.callbacks_arrived(2).await;
    assert_eq!(controller.chats().len(), 1);
}

/// A worker that holds all requests until it is released.
struct HoldingWorker {
    url: String,
    requests: watch::Sender<Held>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    now: usize,
    most: usize,
    is_released: bool,
}

impl HoldingWorker {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let requests = watch::Sender::new(Held::default());
        let hold = async |State(requests): State<watch::Sender<Held>>| {
            requests.send_modify(|held| {
                held.now += 1;
                held.most = held.most.max(held.now);
            });
            let _ = requests.subscribe().wait_for(|held| held.is_released).await;
            requests.send_modify(|held| held.now -= 1);
            (StatusCode::OK, axum::Json(json!({"dispositions": {}, "status": "running"})))
        };
        let status = json!({
            "worker": "w0", "logs": [{"name": "w0-log", "epoch": 0}], "version": "0.1.0", "accepting": true,
            "running": 0, "queued": 0, "max_concurrent": 1, "health": {},
        });
        let routes = Router::new()
            .route("/cluster/status", get(async move || axum::Json(status.clone())))
            .fallback(any(hold))
            .with_state(requests.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, requests }
    }

    /// Waits until it holds this many requests.
    async fn holds(&self, count: usize) {
        let mut requests = self.requests.subscribe();
        in_time("the requests", requests.wait_for(|held| held.now == count)).await.unwrap();
    }

    fn release(&self) {
        self.requests.send_modify(|held| held.is_released = true);
    }
}

#[tokio::test]
async fn a_gateway_sends_few_cancellations_at_once() {
    let worker = HoldingWorker::start().await;
    let gateway = gateway(gateway_to(std::slice::from_ref(&worker.url)), 1).await;
    let poll = Admitted { id: "r".to_owned(), lease: "w0-log.token".to_owned() };
    let polls = async { join_all((0..4).map(|_| gateway.poll(&poll))).await };
    let cancels = async {
        worker.holds(4).await;
        let body = json!({"ids": ["unknown"]});
        let cancel = || gateway.post("/rollout/cancel", &body);
        let released = async {
            worker.holds(4 + 16).await;
            worker.release();
        };
        let (replies, ()) = tokio::join!(join_all((0..60).map(|_| cancel())), released);
        assert!(replies.iter().all(|reply| reply.status == 200), "all of them are answered");
    };
    let (polled, ()) = tokio::join!(polls, cancels);
    assert!(polled.iter().all(|reply| reply.status == 200));
    assert_eq!(worker.requests.borrow().most, 4 + 16);
}

#[tokio::test]
async fn a_worker_that_is_stopped_with_rollouts_leaves_its_log_to_others() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let section = format!(
        "[cluster.nats]\nurls = {:?}\nreplicas = 1\naccept-weak-durability = true\nlog-bytes-max = 268435456\n",
        nats.urls()
    );
    let journal = "drain-secs = 0.05\n[journal]\ndir = 'journal'\nkey-env = 'JOURNAL_KEY'\n";
    let serve =
        worker("conform", "w0").variable("JOURNAL_KEY", "a key").config(&format!("{journal}{section}"));
    let mut host = serve.clone().start().await;
    let gateway = gateway(gateway_to(&[]).config(&section), 1).await;
    let cluster = Cluster::connect(nats.settings()).await.unwrap();
    let bucket = cluster.jetstream().get_key_value("rollout-workers").await.unwrap();
    let mut entries = bucket.watch_all().await.unwrap();
    controller.hold();
    let requests: Vec<_> = (0..8).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    let admitted = join_all(requests.iter().map(|request| gateway.admit(request))).await;

    for round in 1..=20 {
        controller.chats_arrived(8 * round).await;
        let (ran, next) = host.stopped(&serve).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        host = next;
    }
    controller.release();
    let results = join_all(admitted.iter().map(|admitted| gateway.result(admitted))).await;
    assert!(results.iter().all(|result| result["sample"]["reward"] == 1.0), "{results:#?}");

    // The list has had the log all the time.
    in_time("the last claim", async {
        loop {
            let entry = entries.next().await.unwrap().unwrap();
            assert_eq!(format!("{:?}", entry.operation), "Put", "the log was removed");
            let value: Value = serde_json::from_slice(&entry.value).unwrap();
            if value["epoch"] == 21 {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn callbacks_and_agent_loops_work_through_a_gateway() {
    let controller = Controller::start().await;
    let (_, workers) = workers("conform", 2).await;
    let gateway = gateway(gateway_to(&urls(&workers)), 2).await;
    for _ in 0..4 {
        let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("key-of-the-caller");
        let reply = gateway.ask(&request).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
    }
    let callbacks = controller.callbacks_arrived(8).await;
    let rewards = callbacks.iter().filter(|callback| callback.path.contains("grader"));
    assert_eq!(rewards.count(), 4);
}

#[tokio::test]
async fn only_a_gateway_reaches_a_worker_and_only_a_key_reaches_a_gateway() {
    let controller = Controller::start().await;
    let host = worker("conform", "w0").start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let refused = host.ask(&request).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("send requests to a gateway"), "{}", refused.text);
    assert_eq!(host.get("/cluster/status").await.status, 403);
    assert_eq!(host.get("/ready").await.status, 200, "probes have no key");

    let serve = gateway_to(&[host.url().to_owned()])
        .option("--server-key-env", "SERVER_KEY")
        .variable("SERVER_KEY", "key-of-callers");
    let gateway = serve.start().await.with_key("key-of-callers");
    all_up(&gateway, 1).await;
    assert_eq!(gateway.run(&request).await["sample"]["reward"], 1.0);
    assert_eq!(gateway.get("/cluster/status").await.status, 404, "it is for gateways");
    let page = gateway.get("/ui/").await;
    assert!(page.status == 200 && page.text.contains("w0"), "{}", page.text);
    let gateway = gateway.with_key("another");
    assert_eq!(gateway.ask(&request).await.status, 401);
    assert_eq!(gateway.get("/health").await.status, 401);
    assert_eq!(gateway.get("/ui/data").await.status, 401);

    let wrong = worker("conform", "w1").variable("CLUSTER_KEY", "another").start().await;
    let lone = gateway_to(&[wrong.url().to_owned()]).start().await;
    until("the reason why the worker is not used", async || {
        let log = lone.process().stderr();
        (log.contains("a worker does not answer") && log.contains("403")).then_some(())
    })
    .await;
    let health = lone.health().await;
    assert_eq!((&health["status"], &health["workers"]), (&json!("no_workers"), &json!([])));
}

#[tokio::test]
async fn an_environment_is_played_through_a_gateway() {
    let serve = as_worker(TestHost::of_component(example("example-number-hunt")), "w0");
    let host = serve.start().await;
    let gateway = gateway(gateway_to(&[host.url().to_owned()]), 1).await;
    let python = trainer_python("openenv-0.10.0").await;
    let script = rollout_tests::project_root().join("tests/clients/open_env.py");
    let mut command = tokio::process::Command::new(python);
    let commands = json!([["reset", {}], ["step", {"number": 1}]]).to_string();
    command
        .arg(script)
        .args(["generic", &format!("{}/openenv", gateway.url()), &commands])
        .kill_on_drop(true);

    let ran = in_time("the client", command.output()).await.unwrap();

    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let played: Value =
        serde_json::from_str(String::from_utf8_lossy(&ran.stdout).lines().last().unwrap_or_default())
            .unwrap();
    assert_eq!(played.as_array().map(Vec::len), Some(2), "{played}");
    assert!(played.as_array().unwrap().iter().all(|result| result.get("error").is_none()), "{played}");
}

#[tokio::test]
async fn wrong_roles_are_refused_with_what_to_do() {
    let check = async |arguments: &[&str], expected: &str| {
        let ran = rollout_host([&["serve"], arguments].concat()).start().ended().await;
        assert!(ran.code != Some(0) && ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    };
    check(&["--role", "gateway"], "--cluster-key-env").await;
    check(&["--role", "gateway"], "--worker URL").await;
    check(&["--role", "worker", "--cluster-key-env", "NOT_SET"], "a worker needs the plugin").await;
    let plugin = example("example-number-hunt");
    let plugin = plugin.to_str().unwrap();
    check(&[plugin, "--role", "worker", "--cluster-key-env", "NOT_SET"], "NOT_SET, which is not set").await;
    let gateway = ["--role", "gateway", "--cluster-key-env", "NOT_SET", "--worker", "http://w:9000"];
    check(&[&[plugin][..], &gateway].concat(), "a gateway runs no rollouts").await;
    // The role may be in the configuration file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    let of_file = ["--config", file.to_str().unwrap()];
    std::fs::write(&file, "[cluster]\nrole = 'gateway'\nkey-env = 'NOT_SET'\nworkers = ['http://w:9000']\n")
        .unwrap();
    check(&of_file, "NOT_SET, which is not set").await;
    std::fs::write(&file, "listen = '127.0.0.1:0'\n").unwrap();
    check(&of_file, "there is nothing to serve").await;
}

#[tokio::test]
async fn the_manifests_fit_the_schemas_of_kubernetes_and_their_arguments_are_the_programs() {
    let python = trainer_python("kubernetes-validate-1.33.0").await;
    let file = rollout_tests::project_root().join("deploy/kubernetes.yaml");
    let mut validate = tokio::process::Command::new(python.with_file_name("kubernetes-validate"));
    let ran = validate.args(["-k", "1.33", "--strict"]).arg(&file).output().await.unwrap();
    let output = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(ran.status.success() && output.contains("statefulset/rollout-worker"), "{output}");

    // Each option of the manifests and of the Compose file is one of `serve`.
    let help = rollout_host(["serve", "--help"]).start().ended().await.stdout;
    let compose = std::fs::read_to_string(file.with_file_name("compose.yaml")).unwrap();
    let text = std::fs::read_to_string(file).unwrap() + &compose;
    let words = text.split(|c: char| c.is_whitespace() || ",=[]".contains(c));
    let options: BTreeSet<&str> = words.filter(|word| word.starts_with("--") && word.len() > 3).collect();
    assert!(options.contains("--cluster-key-env") && options.len() > 6, "{options:?}");
    for option in options {
        assert!(help.contains(&format!("{option} ")), "serve has no option {option}");
    }
}
