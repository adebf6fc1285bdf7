//! Tests that nothing admitted is lost: a server with 200 rollouts in flight is killed repeatedly at random times, and a
//! trainer that counts finds nothing missing, changed or done twice.
//!
//! The same with a disk that takes 300 ms for each sync: answers are nevertheless stored within 50 ms.
//!
//! `ROLLOUT_TEST_KILLS` sets the number of kills, `ROLLOUT_TEST_SEED` the seed of the random times.

mod ledger;
mod slow_disk;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path as UrlPath, State};
use axum::{Json, Router, routing::post};
use rollout_tests::{Answers, Oracle, Serve, TestHost, until};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use ledger::{Callback, Ledger, Plan, check_callbacks, check_calls};

/// Default number of kills, which takes about a minute.
const KILLS: u64 = 20;

/// Number of rollouts in flight.
const IN_FLIGHT: usize = 200;

/// Maximum lifetime of a server after it listens.
const LIFE_MAX: Duration = Duration::from_millis(1500);

/// Maximum lifetime of a server that is killed early, perhaps before it listens.
const BEGINNING_MAX: Duration = Duration::from_millis(400);

/// The timeout of a rollout that is interrupted repeatedly.
const ROLLOUT_TIME_MAX: Duration = Duration::from_secs(180);

/// Number of rollouts that are compared with a run without kills.
const COMPARED_MAX: usize = 400;

/// Number of results that are read again after each kill.
const READ_AGAIN: usize = 12;

/// They are among this many recent ones, because old results are deleted eventually.
const READ_AGAIN_OF: usize = 500;

/// Allows one test at a time: each needs the processors for its server.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A trainer that has many rollouts in flight at one server after another.
struct Trainer {
    oracle: Oracle,
    callbacks_base: String,
    ledger: Mutex<Ledger>,
    called_back: watch::Sender<u64>,
    /// The URL of the server, while there is one.
    server: watch::Sender<Option<String>>,
    http: reqwest::Client,
    next: AtomicU64,
    stops: AtomicBool,
}

impl Trainer {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let callbacks_base = format!("http://{}/callbacks", listener.local_addr().expect("it is bound"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let trainer = Arc::new(Self {
            oracle: Oracle::start(Answers::ByRequest).await,
            callbacks_base,
            ledger: Mutex::default(),
            called_back: watch::Sender::new(0),
            server: watch::Sender::new(None),
            http: reqwest::Client::builder().no_proxy().http1_only().build().expect("it can be made"),
            next: AtomicU64::new(0),
            stops: AtomicBool::new(false),
        });
        let routes =
            Router::new().route("/callbacks/{id}/{which}", post(callback)).with_state(trainer.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        trainer
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the current server, once there is one; returns `None` if it died meanwhile.
    async fn ask(&self, path: &str, body: Option<&Value>, lease: Option<&str>) -> Option<(u16, String)> {
        let mut server = self.server.subscribe();
        let url = server.wait_for(Option::is_some).await.expect("the sender is in `self`").clone();
        let url = format!("{}{path}", url.unwrap_or_default());
        let request = match body {
            Some(body) => self.http.post(&url).json(body),
            None => self.http.get(&url),
        };
        let request = request.header("x-osmosis-rollout-lease", lease.unwrap_or("none"));
        let answered = async {
            let response = request.send().await.ok()?;
            let status = response.status().as_u16();
            Some((status, response.text().await.ok()?))
        };
        let answered = answered.await;
        if answered.is_none() {
            // The server is gone, and the killing task will soon set the next one.
            let is_another = |now: &Option<String>| now.as_deref().is_none_or(|now| !url.starts_with(now));
            let _ = tokio::time::timeout(Duration::from_secs(5), server.wait_for(is_another)).await;
        }
        answered
    }

    fn request(&self, id: &str, prompt: &str, is_polled: bool) -> Value {
        let callbacks_base = (!is_polled).then_some(&*self.callbacks_base);
        self.oracle.rollout(id, prompt, callbacks_base)
    }

    /// Admits a rollout. Returns false if it was admitted and the answer was lost with a server.
    async fn admit(&self, id: &str, prompt: &str, is_polled: bool) -> bool {
        let request = self.request(id, prompt, is_polled);
        loop {
            let started = Instant::now();
            match self.ask("/rollout", Some(&request), None).await {
                None => drop(self.ledger().asked_again.insert(id.to_owned())),
                Some((200 | 202, text)) => {
                    let body: Value = serde_json::from_str(&text).expect("an admission is JSON");
                    let lease = body["polling_lease_token"].as_str().map(str::to_owned);
                    assert_eq!(lease.is_some(), is_polled, "{text}");
                    let mut ledger = self.ledger();
                    ledger.admitted.insert(id.to_owned(), lease);
                    ledger.admissions.push([started, Instant::now()]);
                    return true;
                }
                Some((409, _)) if self.ledger().asked_again.contains(id) => return false,
                Some(other) => panic!("{id} is not admitted: {other:?}"),
            }
        }
    }

    /// Runs a rollout from its request to its end.
    async fn run(&self, plan: Plan) {
        let id = plan.id();
        let has_answer = self.admit(&id, &plan.prompt(), plan.is_polled()).await;
        if plan.is_polled() && !has_answer {
            // The lease is lost with the answer, and the id stays in use.
            return;
        }
        self.end(&id, plan.is_polled()).await;
    }

    /// Waits until a rollout's caller has the outcome.
    async fn end(&self, id: &str, is_polled: bool) {
        let end = async {
            if !is_polled {
                let grader = (id.to_owned(), "grader".to_owned());
                let mut called_back = self.called_back.subscribe();
                let has_arrived = |_: &u64| self.ledger().callbacks.contains_key(&grader);
                called_back.wait_for(has_arrived).await.expect("the sender is in `self`");
                return;
            }
            while !self.poll(id).await {}
        };
        let ended = tokio::time::timeout(ROLLOUT_TIME_MAX, end).await;
        ended.unwrap_or_else(|_| panic!("{id} was admitted and has no outcome"));
    }

    /// Polls for a result, and checks that it never changes. Returns whether there is one.
    async fn poll(&self, id: &str) -> bool {
        let lease = self.ledger().admitted[id].clone();
        let answer = self.ask(&format!("/rollout/{id}/result"), None, lease.as_deref()).await;
        let Some((status, text)) = answer else { return false };
        assert_eq!(status, 200, "{id} was admitted and is not known: {text}");
        let body: Value = serde_json::from_str(&text).expect("a result is JSON");
        let is_over = !["queued", "running", "grading"].iter().any(|word| body["status"] == *word);
        let mut ledger = self.ledger();
        match ledger.results.get(id) {
            Some((_, before)) => assert_eq!(*before, text, "{id} had another result before"),
            None if is_over => {
                ledger.results.insert(id.to_owned(), (Instant::now(), text));
                ledger.read.push(id.to_owned());
            }
            None => {}
        }
        is_over
    }

    /// Reads earlier results again, and checks that their ids are in use.
    async fn reads_again(&self, mut random: Random) {
        for _ in 0..READ_AGAIN {
            let id = {
                let ledger = self.ledger();
                let last = &ledger.read[ledger.read.len().saturating_sub(READ_AGAIN_OF)..];
                if last.is_empty() {
                    return;
                }
                last[random.below(last.len() as u64) as usize].clone()
            };
            self.poll(&id).await;
            self.is_taken(&id, true).await;
        }
    }

    async fn is_taken(&self, id: &str, is_polled: bool) {
        let request = self.request(id, "2 steady again", is_polled);
        if let Some((status, text)) = self.ask("/rollout", Some(&request), None).await {
            assert_eq!(status, 409, "the id of {id} is not in use: {text}");
        }
    }

    /// Keeps rollouts in flight until the trainer stops.
    fn keep_busy(self: &Arc<Self>, workers: &mut JoinSet<()>) {
        for _ in 0..IN_FLIGHT {
            let trainer = self.clone();
            workers.spawn(async move {
                while !trainer.stops.load(Ordering::Relaxed) {
                    trainer.run(Plan(trainer.next.fetch_add(1, Ordering::Relaxed))).await;
                }
            });
        }
    }

    /// Returns the outcome of a rollout: its result, or the bodies of its callbacks.
    fn heard(&self, id: &str) -> Option<[String; 2]> {
        let ledger = self.ledger();
        if let Some((_, result)) = ledger.results.get(id) {
            return Some([result.clone(), String::new()]);
        }
        let of = |which: &str| {
            let all = ledger.callbacks.get(&(id.to_owned(), which.to_owned()))?;
            all.first().map(|callback| callback.body.clone())
        };
        Some([of("completion")?, of("grader")?])
    }
}

async fn callback(
    State(trainer): State<Arc<Trainer>>,
    UrlPath(of): UrlPath<(String, String)>,
    body: String,
) -> Json<Value> {
    let place = {
        let mut ledger = trainer.ledger();
        let all = ledger.callbacks.entry(of.clone()).or_default();
        all.push(Callback { at: Instant::now(), acknowledged: None, body });
        all.len() - 1
    };
    // Some servers die while a callback is in transit.
    tokio::time::sleep(Duration::from_millis(place as u64 * 5 % 17 + of.0.len() as u64)).await;
    if let Some(all) = trainer.ledger().callbacks.get_mut(&of) {
        all[place].acknowledged = Some(Instant::now());
    }
    trainer.called_back.send_modify(|count| *count += 1);
    Json(json!({}))
}

/// A generator of random numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn of_env() -> Self {
        let seed = from_env("ROLLOUT_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 16 | 1);
        println!("ROLLOUT_TEST_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn time_below(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(end.as_micros() as u64))
    }
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Returns options of a host with a journal, whose guest takes many turns.
fn long_way(judge_url: &str, journal: &Path) -> Serve {
    TestHost::long_way(judge_url).config(&format!("[journal]\ndir = '{}'\n", journal.display()))
}

/// Waits until no process has locked the journal: a killed one ends a little later.
async fn until_free(journal: &Path) {
    until("the journal to be unlocked", async || {
        let Ok(lock) = std::fs::File::open(journal.join("lock")) else { return Some(()) };
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()
    })
    .await;
}

/// Kills one server after another, each at a random time.
async fn kill_again_and_again(
    trainer: &Arc<Trainer>,
    serve: &Serve,
    journal: &Path,
    random: &mut Random,
    workers: &mut JoinSet<()>,
) {
    let kills = from_env("ROLLOUT_TEST_KILLS").unwrap_or(KILLS);
    for kill in 1..=kills {
        // Some die before they listen, while they recover.
        if random.below(4) == 0 {
            let life = random.time_below(BEGINNING_MAX);
            let started = Instant::now();
            drop(tokio::time::timeout(life, serve.clone().start()).await);
            until_free(journal).await;
            trainer.ledger().killed(started + life);
        }
        let host = serve.clone().start().await;
        trainer.server.send_replace(Some(host.url().to_owned()));
        for (id, is_polled) in HELD {
            trainer.is_taken(id, is_polled).await;
        }
        let (again, life) = (Random(random.next()), random.time_below(LIFE_MAX));
        let trainer_again = trainer.clone();
        workers.spawn(async move { trainer_again.reads_again(again).await });
        tokio::time::sleep(life).await;
        trainer.server.send_replace(None);
        let begins = Instant::now();
        let ran = host.kill().await;
        trainer.ledger().killed(begins);
        check_log(&ran.stderr);
        while let Some(worker) = workers.try_join_next() {
            worker.expect("a worker continues");
        }
        let ledger = trainer.ledger();
        let ends = ledger.results.len() + ledger.callbacks.keys().filter(|key| key.1 == "grader").count();
        println!("kill {kill} after {life:?}: {ends} of {} have ended", ledger.admitted.len());
    }
}

/// Rollouts that run from the first server to the last, because the model does not answer them.
const HELD: [(&str, bool); 2] = [("held-d", true), ("held-c", false)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_kills_lose_change_or_repeat_nothing() {
    let _alone = ALONE.lock().await;
    let mut random = Random::of_env();
    let trainer = Trainer::start().await;
    let journal = tempfile::tempdir().unwrap();
    let serve = long_way(&trainer.oracle.url(), journal.path());
    let host = serve.clone().start().await;
    trainer.server.send_replace(Some(host.url().to_owned()));
    for (id, is_polled) in HELD {
        assert!(trainer.admit(id, &format!("2 steady {id}"), is_polled).await);
    }
    trainer.server.send_replace(None);
    let begins = Instant::now();
    host.kill().await;
    trainer.ledger().killed(begins);

    let mut workers = JoinSet::new();
    trainer.keep_busy(&mut workers);
    kill_again_and_again(&trainer, &serve, journal.path(), &mut random, &mut workers).await;
    let host = serve.clone().start().await;
    trainer.server.send_replace(Some(host.url().to_owned()));
    trainer.stops.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.expect("a worker ends");
    }
    trainer.oracle.release();
    for (id, is_polled) in HELD {
        trainer.end(id, is_polled).await;
    }
    host.idle().await;
    trainer.reads_again(random).await;
    let ran = host.kill().await;
    check_log(&ran.stderr);

    check_results(&trainer, IN_FLIGHT);
    check_callbacks(&trainer.ledger());
    check_calls(&trainer.ledger(), &trainer.oracle.requests());
    let undisturbed = run_undisturbed(&trainer).await;
    println!("{undisturbed} rollouts had the same outcome without a kill");
}

/// Checks that servers log no error.
fn check_log(stderr: &str) {
    for word in ["panicked", "ERROR", "damaged"] {
        assert!(!stderr.contains(word), "a server logs an error: {stderr}");
    }
}

/// Checks that every admitted rollout ended successfully.
fn check_results(trainer: &Trainer, more_than: usize) {
    let ids: Vec<String> = trainer.ledger().admitted.keys().cloned().collect();
    assert!(ids.len() > more_than, "{} rollouts are too few to mean anything", ids.len());
    for id in &ids {
        let heard = trainer.heard(id).unwrap_or_else(|| panic!("{id} was admitted and is lost"));
        for body in heard.iter().filter(|body| !body.is_empty()) {
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["status"], "success", "{id}: {body:#}");
        }
    }
    println!("{} rollouts were admitted, and each ended", ids.len());
}

/// Runs the steady rollouts on a server without kills, and checks that their results are the same.
async fn run_undisturbed(disturbed: &Trainer) -> usize {
    let trainer = Trainer::start().await;
    let journal = tempfile::tempdir().unwrap();
    let host = long_way(&trainer.oracle.url(), journal.path()).start().await;
    trainer.server.send_replace(Some(host.url().to_owned()));
    let all = (0..disturbed.next.load(Ordering::Relaxed)).map(Plan).filter(|plan| plan.is_steady());
    // The first rollouts had most of the kills.
    let heard: Vec<(Plan, [String; 2])> =
        all.filter_map(|plan| Some((plan, disturbed.heard(&plan.id())?))).take(COMPARED_MAX).collect();
    let mut workers = JoinSet::new();
    for (plan, _) in &heard {
        let (trainer, plan) = (trainer.clone(), *plan);
        workers.spawn(async move { trainer.run(plan).await });
    }
    while let Some(worker) = workers.join_next().await {
        worker.expect("a worker ends");
    }
    for (plan, heard) in &heard {
        assert_eq!(trainer.heard(&plan.id()).as_ref(), Some(heard), "{}", plan.id());
    }
    check_log(&host.stop().await.stderr);
    heard.len()
}
