//! Tests that a cluster loses nothing: workers, gateways and NATS servers die, stop and wake while a trainer has rollouts of
//! several turns in flight, and every rollout has one outcome, the same as on a single quiet server.
//!
//! `ROLLOUT_TEST_CLUSTER_ROLLOUTS` sets the number of rollouts between two events, and `ROLLOUT_TEST_CLUSTER_OUTAGE_SECS` the time for
//! which all NATS servers are stopped.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path as UrlPath, State};
use axum::{Json, Router, routing::post};
use rollout_tests::{Answers, Oracle, Serve, TestHost, TestNats, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Default number of rollouts that end between two events.
const ROLLOUTS: usize = 60;

/// Default time for which all NATS servers are stopped: longer than a lease.
const OUTAGE_SECS: u64 = 6;

/// Number of rollouts that are compared with a quiet run.
const COMPARED_MAX: usize = 400;

/// Number of rollouts in flight.
const IN_FLIGHT: usize = 60;

/// Time within which each rollout must have an outcome.
const OUTCOME_TIME_MAX: Duration = Duration::from_secs(180);

/// Options that all processes of the cluster share.
fn keyed(serve: Serve) -> Serve {
    serve
        .option("--cluster-key-env", "CLUSTER_KEY")
        .variable("CLUSTER_KEY", "the-key-of-the-cluster")
        .variable("JOURNAL_KEY", "the-key-of-all-journals")
}

fn nats_settings(nats: &TestNats) -> String {
    format!(
        "[cluster.nats]\nurls = {:?}\nlog-bytes-max = 536870912\nheartbeat-secs = 0.5\nlease-secs = 2.5\n",
        nats.urls()
    )
}

fn worker(nats: &TestNats, judge_url: &str, name: &str) -> Serve {
    let journal = "[journal]\ndir = 'journal'\nkey-env = 'JOURNAL_KEY'\n";
    keyed(TestHost::long_way(judge_url))
        .option("--role", "worker")
        .option("--worker-name", name)
        .config(&format!("{journal}{}", nats_settings(nats)))
}

/// The outcome of a rollout: its result, or the bodies of its callbacks by kind.
type Outcome = BTreeMap<String, String>;

/// A trainer that counts.
struct Trainer {
    oracle: Oracle,
    http: reqwest::Client,
    callbacks_base: String,
    /// Addresses of the gateways that run.
    gateways: watch::Sender<Vec<String>>,
    next_gateway: AtomicUsize,
    outcomes: Mutex<HashMap<String, Outcome>>,
    called_back: watch::Sender<u64>,
}

async fn callback(
    State(trainer): State<Arc<Trainer>>,
    UrlPath((id, kind)): UrlPath<(String, String)>,
    body: String,
) -> Json<Value> {
    trainer.note(&id, &kind, body);
    trainer.called_back.send_modify(|count| *count += 1);
    Json(json!({}))
}

impl Trainer {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let callbacks_base = format!("http://{}/callbacks", listener.local_addr().expect("it is bound"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let trainer = Arc::new(Self {
            oracle: Oracle::start(Answers::ByRequest).await,
            http: reqwest::Client::builder().no_proxy().http1_only().build().expect("it can be made"),
            callbacks_base,
            gateways: watch::Sender::new(Vec::new()),
            next_gateway: AtomicUsize::new(0),
            outcomes: Mutex::default(),
            called_back: watch::Sender::new(0),
        });
        let routes =
            Router::new().route("/callbacks/{id}/{kind}", post(callback)).with_state(trainer.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        trainer
    }

    /// Notes a part of an outcome. A part that comes again must be the same.
    fn note(&self, id: &str, kind: &str, body: String) {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = outcomes.entry(id.to_owned()).or_default();
        let before = outcome.entry(kind.to_owned()).or_insert_with(|| body.clone());
        assert_eq!(*before, body, "the {kind} of {id} has changed");
    }

    fn outcome(&self, id: &str) -> Outcome {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned().unwrap_or_default()
    }

    /// Sends a request to one of the gateways. Returns `None` if there was no answer.
    async fn ask(&self, path: &str, body: Option<&Value>, lease: &str) -> Option<(u16, String)> {
        let mut gateways = self.gateways.subscribe();
        let known =
            gateways.wait_for(|known| !known.is_empty()).await.expect("the sender is in `self`").clone();
        let url = format!("{}{path}", known[self.next_gateway.fetch_add(1, Ordering::Relaxed) % known.len()]);
        let request = match body {
            Some(body) => self.http.post(&url).json(body),
            None => self.http.get(&url),
        };
        let response = request.header("x-osmosis-rollout-lease", lease).send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.text().await.ok()?))
    }

    fn request(&self, id: &str, is_polled: bool) -> Value {
        let callbacks_base = (!is_polled).then_some(&*self.callbacks_base);
        self.oracle.rollout(id, &format!("3 steady {id}"), callbacks_base)
    }

    /// Runs a rollout to its outcome. Returns false if the rollout was not, or perhaps not, admitted according to the
    /// answer.
    async fn run(&self, id: &str, is_polled: bool) -> bool {
        let request = self.request(id, is_polled);
        let lease = loop {
            match self.ask("/rollout", Some(&request), "none").await {
                Some((202, text)) => {
                    let body: Value = serde_json::from_str(&text).expect("an admission is JSON");
                    break body["polling_lease_token"].as_str().unwrap_or_default().to_owned();
                }
                // As the published clients do.
                Some((429, _)) => tokio::time::sleep(Duration::from_millis(200)).await,
                // A gateway died or could not tell, so the test expects nothing of this rollout.
                None | Some((502, _)) => return false,
                Some(other) => panic!("{id} is not admitted: {other:?}"),
            }
        };
        let outcome = async {
            if !is_polled {
                let mut called_back = self.called_back.subscribe();
                let has_arrived = |_: &u64| self.outcome(id).contains_key("grader");
                called_back.wait_for(has_arrived).await.expect("the sender is in `self`");
                return;
            }
            loop {
                let Some((status, text)) = self.ask(&format!("/rollout/{id}/result"), None, &lease).await
                else {
                    continue;
                };
                assert_eq!(status, 200, "{id} was admitted and is not known: {text}");
                let body: Value = serde_json::from_str(&text).expect("a result is JSON");
                if !["queued", "running", "grading"].iter().any(|word| body["status"] == *word) {
                    self.note(id, "result", text);
                    return;
                }
            }
        };
        let ended = tokio::time::timeout(OUTCOME_TIME_MAX, outcome).await;
        ended.unwrap_or_else(|_| panic!("{id} was admitted and has no outcome"));
        true
    }
}

/// Keeps rollouts in flight until `stops` is set, every second one with callbacks. Returns the number of requested rollouts
/// and the ids of those that were admitted for certain.
async fn keep_busy(
    trainer: Arc<Trainer>,
    ended: watch::Sender<usize>,
    stops: watch::Receiver<bool>,
) -> (usize, Vec<String>) {
    let permits = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut running = JoinSet::new();
    let mut number = 0;
    while !*stops.borrow() {
        let permit = permits.clone().acquire_owned().await.expect("it is never closed");
        let (trainer, ended) = (trainer.clone(), ended.clone());
        running.spawn(async move {
            let id = format!("k{number}");
            let is_admitted = trainer.run(&id, number % 2 == 0).await;
            ended.send_modify(|count| *count += 1);
            drop(permit);
            is_admitted.then_some(id)
        });
        number += 1;
    }
    let mut admitted = Vec::new();
    while let Some(one) = running.join_next().await {
        admitted.extend(one.expect("a rollout ends"));
    }
    (number, admitted)
}

/// Waits until a gateway finds a log at another address than before.
async fn is_moved(gateway: &TestHost, log: &str, from: &str) {
    let moved = async || {
        let health = gateway.health().await;
        let workers = health["workers"].as_array()?.clone();
        let has_log = |worker: &&Value| {
            worker["logs"].as_array().is_some_and(|logs| logs.iter().any(|one| one["name"] == log))
        };
        let is_up = |worker: &&Value| worker["is_up"] == true && worker["url"] != from;
        workers.iter().filter(is_up).any(|worker| has_log(&worker)).then_some(())
    };
    until("the takeover of a log", moved).await;
}

/// Checks that a process logs neither a panic nor damage.
fn check_log(stderr: &str) {
    for word in ["panicked", "damaged"] {
        assert!(!stderr.contains(word), "a process logs an error: {stderr}");
    }
}

async fn is_ready(gateway: &TestHost) {
    until("a worker", async || (gateway.get("/ready").await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_parts_die_loses_changes_and_doubles_nothing() {
    let count = std::env::var("ROLLOUT_TEST_CLUSTER_ROLLOUTS").ok();
    let count = count.map_or(ROLLOUTS, |count| count.parse().expect("a number of rollouts"));
    let outage = std::env::var("ROLLOUT_TEST_CLUSTER_OUTAGE_SECS").ok();
    let outage = outage.map_or(OUTAGE_SECS, |secs| secs.parse().expect("a number of seconds"));
    let began = Instant::now();
    let trainer = Trainer::start().await;
    let nats = TestNats::start_cluster().await;
    let judge = trainer.oracle.url();
    let serves = ["w0", "w1", "w2"].map(|name| worker(&nats, &judge, name));
    let mut workers = Vec::new();
    for serve in &serves {
        // NATS elects its leaders first.
        let started = until("a worker", async || serve.clone().try_start().await.ok()).await;
        workers.push(Some(started));
    }
    let gateway = || keyed(TestHost::of_gateway()).option("--role", "gateway").config(&nats_settings(&nats));
    let mut gateways = vec![gateway().start().await, gateway().start().await];
    for gateway in &gateways {
        is_ready(gateway).await;
    }
    let announce = |gateways: &[TestHost]| {
        trainer.gateways.send_replace(gateways.iter().map(|gateway| gateway.url().to_owned()).collect());
    };
    announce(&gateways);

    let (ended, mut ends) = watch::channel(0);
    let (stop, stops) = watch::channel(false);
    let running = tokio::spawn(keep_busy(trainer.clone(), ended, stops));
    let mut log = async |what: &str| {
        let wanted = *ends.borrow() + count;
        let _ = ends.wait_for(|ended| *ended >= wanted).await;
        println!("{:>6.1} s, {wanted} rollouts: {what}", began.elapsed().as_secs_f64());
    };
    let url =
        |worker: &Option<TestHost>| worker.as_ref().map(|host| host.url().to_owned()).unwrap_or_default();

    log("worker 0 is killed, and another one takes its log over").await;
    let dead = url(&workers[0]);
    check_log(&workers[0].take().expect("it runs").kill().await.stderr);
    is_moved(&gateways[0], "w0", &dead).await;

    log("worker 1 is stopped beyond its lease").await;
    let asleep = url(&workers[1]);
    let stopped = workers[1].take().expect("it runs");
    stopped.process().signal(Signal::STOP);
    is_moved(&gateways[0], "w1", &asleep).await;

    log("worker 1 wakes and finds that its log is another's").await;
    stopped.process().signal(Signal::CONT);
    let ran = stopped.ended().await;
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);

    log("a gateway is killed while polls hang, and another one is started").await;
    trainer.gateways.send_modify(|known| drop(known.remove(0)));
    check_log(&gateways.remove(0).kill().await.stderr);
    gateways.push(gateway().start().await);
    is_ready(&gateways[1]).await;
    announce(&gateways);

    log("workers 0 and 1 are started again and take their logs back").await;
    for at in [0, 1] {
        workers[at] = Some(until("a worker", async || serves[at].clone().try_start().await.ok()).await);
    }

    log("a NATS server is killed and started again").await;
    nats.kill(0).await;
    nats.restart(0).await;

    // What the server has not synced is lost in a power cut; here all of it is.
    log("a NATS server is killed and loses its disk").await;
    nats.kill(1).await;
    nats.lose_disk(1);
    nats.restart(1).await;

    log("worker 2 is restarted in order, as in an upgrade").await;
    check_log(&workers[2].take().expect("it runs").stop().await.stderr);
    // As an orchestrator does, until NATS has elected its leaders again.
    workers[2] = Some(until("a worker", async || serves[2].clone().try_start().await.ok()).await);

    log("all NATS servers are stopped for a while").await;
    nats.signal_all(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(outage)).await;
    let owners = async |gateway: &TestHost| {
        let health = gateway.health().await;
        let workers = health["workers"].as_array().expect("it lists workers").clone();
        workers
            .into_iter()
            .map(|worker| (worker["url"].to_string(), worker["logs"].to_string()))
            .collect::<BTreeMap<_, _>>()
    };
    let during = owners(&gateways[0]).await;
    nats.signal_all(Signal::CONT);

    log("NATS was there again, and no log had changed hands").await;
    assert_eq!(owners(&gateways[0]).await, during);

    log("all NATS servers are killed and started again").await;
    nats.kill_all().await;
    for at in 0..3 {
        nats.restart(at).await;
    }

    log("that was the last event").await;
    stop.send_replace(true);
    let (count, admitted) = running.await.expect("the trainer continues");
    println!(
        "{:>6.1} s: {} of {count} rollouts were admitted",
        began.elapsed().as_secs_f64(),
        admitted.len()
    );
    assert!(admitted.len() > count * 8 / 10, "too many admissions were lost: {}", count - admitted.len());
    let outcomes: Vec<(String, Outcome)> =
        admitted.iter().map(|id| (id.clone(), trainer.outcome(id))).collect();
    for (id, outcome) in &outcomes {
        for (kind, body) in outcome {
            let body: Value = serde_json::from_str(body).expect("an outcome is JSON");
            assert_eq!(body["status"], "success", "the {kind} of {id}: {body:#}");
        }
    }
    for host in gateways.into_iter().chain(workers.into_iter().flatten()) {
        check_log(&host.kill().await.stderr);
    }
    compare_with_quiet_run(&outcomes).await;
}

/// Runs the same rollouts on a single server without any disturbance, and compares the outcomes.
async fn compare_with_quiet_run(outcomes: &[(String, Outcome)]) {
    let trainer = Trainer::start().await;
    let host = TestHost::long_way(&trainer.oracle.url()).start().await;
    trainer.gateways.send_replace(vec![host.url().to_owned()]);
    let permits = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut running = JoinSet::new();
    let outcomes = &outcomes[..outcomes.len().min(COMPARED_MAX)];
    for (id, outcome) in outcomes {
        let permit = permits.clone().acquire_owned().await.expect("it is never closed");
        let (trainer, id, is_polled) = (trainer.clone(), id.clone(), outcome.contains_key("result"));
        running.spawn(async move {
            assert!(trainer.run(&id, is_polled).await, "{id} is not admitted");
            drop(permit);
        });
    }
    while let Some(one) = running.join_next().await {
        one.expect("a rollout ends");
    }
    for (id, outcome) in outcomes {
        assert_eq!(trainer.outcome(id), *outcome, "{id}");
    }
}
