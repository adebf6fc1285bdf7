//! A tenant within its quotas next to one that makes every kind of attack, on a server with 2 GiB of memory and 400
//! open files: every rollout of the first succeeds, the server keeps its memory budget, and the kernel kills no process.
//!
//! The test prints a table. `scripts/bench-tenants --hostile` runs it with a release build and for longer, and compares the
//! latencies; here they are only printed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use reqwest::Method;
use rollout_tests::{
    Controller, MemoryGroup, Process, RolloutRequest, ServeCatalog, Start, TestCatalog, TestTenant, guest,
    rollout_host, until, waiting_component,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const MIB: u64 = 1 << 20;

/// The memory of the server's control group: the server, its checks and its compilers.
const GROUP_BYTES: u64 = 2048 * MIB;

const OPEN_FILES: u32 = 400;

/// Number of concurrent rollouts of the steady tenant.
const STEADY: usize = 4;

/// Number of plugins of the hostile tenant, besides the one that it misuses.
const PLUGINS: usize = 40;

/// Number of plugins that start slowly, and the time that their start takes.
const SLOW_PLUGINS: usize = 3;
const START_SECS: u32 = 2;

/// Duration of each of the two phases, unless `ROLLOUT_HOSTILE_SECS` sets it.
const PHASE_SECS: u64 = 12;

/// Number of the server's slots.
const SLOTS: u32 = 16;

/// The results of the steady tenant's callers.
#[derive(Debug, Default)]
struct Met {
    /// Durations from the request to the result, of rollouts that succeeded with the right reward.
    latencies: Vec<Duration>,
    /// Durations from the request to its admission.
    admissions: Vec<Duration>,
    /// Number of connections that ended without an answer. A caller retries on another one, as trainers' clients do.
    reconnected: usize,
    /// Other answers, with their number.
    failures: BTreeMap<String, usize>,
}

impl Met {
    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.admissions.extend(other.admissions);
        self.reconnected += other.reconnected;
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
    }

    fn row(&self) -> String {
        let failed: usize = self.failures.values().sum();
        format!(
            "{:>9}{failed:>9}{:>10.0}{:>10.0}{:>16.0}{:>14}",
            self.latencies.len(),
            percentile(&self.latencies, 50) * 1000.0,
            percentile(&self.latencies, 99) * 1000.0,
            percentile(&self.admissions, 99) * 1000.0,
            self.reconnected
        )
    }
}

/// Returns a percentile in seconds; 0 if there are no times.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(place).copied().unwrap_or_default().as_secs_f64()
}

/// Counts the answers to the hostile tenant, by attack.
#[derive(Debug, Default)]
struct Attacks(Mutex<BTreeMap<&'static str, BTreeMap<String, usize>>>);

impl Attacks {
    fn note(&self, attack: &'static str, answer: impl Into<String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(attack).or_default().entry(answer.into()).or_default() += 1;
    }

    fn rows(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(attack, answers): (&&str, &BTreeMap<String, usize>)| {
            let answers: Vec<_> =
                answers.iter().map(|(answer, count)| format!("{answer} × {count}")).collect();
            format!("  {attack:<34} {}\n", answers.join(", "))
        };
        all.iter().map(row).collect()
    }
}

/// Watches the resident memory of a process.
struct Watch {
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn start(process: u32) -> Self {
        let (most, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (its_most, its_stop) = (most.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !its_stop.load(Ordering::Relaxed) {
                its_most.fetch_max(resident_peak(process).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { most, stop, thread: Some(thread) }
    }

    /// Returns the maximum of resident bytes so far.
    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the maximum of a process's resident memory, by the kernel's count.
fn resident_peak(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// A model that answers after 100 ms, and never if the prompt contains `wait`.
struct Model {
    _process: Process,
    url: String,
    _script: tempfile::NamedTempFile,
}

impl Model {
    async fn start() -> Self {
        let script = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        std::fs::write(script.path(), "{\"when\": {\"contains\": \"wait\"}, \"hang\": true}\n")
            .expect("it can be written");
        let mut command = rollout_host(["mock-model", "--listen", "127.0.0.1:0", "--latency", "100"]);
        let process = command.arg("--script").arg(script.path()).start();
        let url = process.line("listening on ").await;
        let url = format!("{}/v1", url.trim_end_matches('/').trim_end_matches("/v1"));
        Self { _process: process, url, _script: script }
    }
}

/// A client with its own connections, which reports a failed connection as an answer.
struct Caller {
    http: reqwest::Client,
    base: String,
    key: String,
}

/// An answer to a caller.
struct Answered {
    /// The status; 0 if the connection failed.
    status: u16,
    /// The body, or the reason why there is none.
    text: String,
    body: Value,
}

impl Caller {
    fn new(base: String, key: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().http1_only().timeout(Duration::from_secs(60));
        Self { http: http.build().expect("a client can be made"), base, key: key.to_owned() }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Answered {
        let failed = |error: reqwest::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            Answered { status: 0, text: cause.unwrap_or_else(|| error.to_string()), body: Value::Null }
        };
        let response = match request.header("authorization", format!("Bearer {}", self.key)).send().await {
            Ok(response) => response,
            Err(error) => return failed(error),
        };
        let status = response.status().as_u16();
        match response.text().await {
            Ok(text) => Answered { status, body: serde_json::from_str(&text).unwrap_or_default(), text },
            Err(error) => failed(error),
        }
    }

    async fn ask(&self, request: &RolloutRequest) -> Answered {
        self.send(self.http.post(format!("{}/rollout", self.base)).json(&request.body())).await
    }

    /// Sends a request with one more field, as JSON text.
    async fn ask_with(&self, request: &RolloutRequest, field: &str) -> Answered {
        let body = request.body().to_string();
        let body = format!("{{{field},{}", body.strip_prefix('{').expect("it is an object"));
        let request =
            self.http.post(format!("{}/rollout", self.base)).header("content-type", "application/json");
        self.send(request.body(body)).await
    }

    /// Polls until an admitted rollout has ended.
    async fn result(&self, admitted: &Answered) -> Answered {
        let text = |field: &str| admitted.body[field].as_str().expect("an admission has it").to_owned();
        let url = format!("{}/rollout/{}/result", self.base, text("rollout_id"));
        loop {
            let poll = self.http.get(&url).header("x-osmosis-rollout-lease", text("polling_lease_token"));
            let answered = self.send(poll).await;
            let is_over =
                ["success", "failure", "cancelled"].iter().any(|end| answered.body["status"] == *end);
            if is_over || answered.status != 200 {
                return answered;
            }
        }
    }
}

/// The servers and tenants of the test.
struct Scene {
    catalog: TestCatalog,
    controller: Controller,
    model: Model,
    steady: TestTenant,
    hostile: TestTenant,
    /// A second hostile tenant, because the checks of the first one are busy with guests that wait.
    accomplice: TestTenant,
    /// The digest of a component that waits forever.
    waits: String,
    /// The digest of a component that fills memory.
    fills: String,
    /// A long field of a request.
    long_field: String,
    attacks: Attacks,
    rollouts: AtomicUsize,
}

impl Scene {
    fn request(&self, prompt: &str) -> RolloutRequest {
        let id = format!("h{}", self.rollouts.fetch_add(1, Ordering::Relaxed));
        self.controller.rollout(prompt).id(&id).with("chat_completions_url", self.model.url.clone())
    }

    /// Runs ordinary rollouts of the steady tenant for this time, on a separate thread: the measurement must not
    /// include the attacker's own work.
    async fn run_steadily(self: &Arc<Self>, time: Duration) -> Met {
        let scene = self.clone();
        let thread = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(scene.run_callers(time))
        });
        thread.await.expect("no caller panics")
    }

    async fn run_callers(&self, time: Duration) -> Met {
        let end = Instant::now() + time;
        let callers = (0..STEADY).map(|_| async {
            let host = Caller::new(format!("{}/p/p", self.catalog.url()), &self.steady.caller);
            let mut met = Met::default();
            while Instant::now() < end {
                let began = Instant::now();
                match self.run_one(&host, &mut met).await {
                    Ok(()) => met.latencies.push(began.elapsed()),
                    Err(failure) => {
                        *met.failures.entry(failure).or_default() += 1;
                        // A refused caller retries a little later, as published clients do.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
            met
        });
        let mut all = Met::default();
        join_all(callers).await.into_iter().for_each(|met| all.add(met));
        all
    }

    async fn run_one(&self, caller: &Caller, met: &mut Met) -> Result<(), String> {
        const RECONNECTED_MAX: usize = 3;
        let began = Instant::now();
        let request = self.request("What is 2 + 3?").label("5");
        let mut admitted = caller.ask(&request).await;
        for _ in 0..RECONNECTED_MAX {
            if admitted.status == 0 {
                met.reconnected += 1;
                admitted = caller.ask(&request).await;
            }
        }
        if admitted.status != 202 {
            return Err(format!("admission: {} {}", admitted.status, admitted.text));
        }
        met.admissions.push(began.elapsed());
        let mut result = caller.result(&admitted).await;
        for _ in 0..RECONNECTED_MAX {
            if result.status == 0 {
                met.reconnected += 1;
                result = caller.result(&admitted).await;
            }
        }
        match result.body["sample"]["reward"] == 1.0 {
            true => Ok(()),
            false => Err(format!("result: {} {}", result.status, result.text)),
        }
    }

    /// Returns a caller of the hostile tenant's plugin of this name.
    fn hostile(&self, plugin: &str) -> Caller {
        Caller::new(format!("{}/p/{plugin}", self.catalog.url()), &self.hostile.caller)
    }

    /// Runs a guest that fills the memory of an instance.
    async fn fill_memory(&self) {
        let host = self.hostile("burden");
        let reply = host.ask(&self.request("memory 200").label("5")).await;
        if reply.status == 202 {
            let result = host.result(&reply).await;
            self.attacks.note("guests of 200 MiB", result.body["status"].as_str().unwrap_or("no result"));
        } else {
            self.refused("guests of 200 MiB", reply.status).await;
        }
    }

    /// Requests a long result that is never read.
    async fn leave_results(&self) {
        let host = self.hostile("burden");
        let reply = host.ask(&self.request("result 40").label("5")).await;
        self.attacks.note("unread results of 40 MiB", reply.status.to_string());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// Runs a guest that computes forever.
    async fn spin(&self) {
        let host = self.hostile("burden");
        let reply = host.ask(&self.request("spin 1").label("5")).await;
        if reply.status == 202 {
            self.attacks.note("guests that compute", "202");
            // The guest runs until the host stops it.
            std::future::pending::<()>().await;
        }
        self.refused("guests that compute", reply.status).await;
    }

    /// Sends a large request that waits for a slot.
    async fn queue(&self) {
        let host = self.hostile("burden");
        let reply = host.ask_with(&self.request("wait"), &self.long_field).await;
        self.attacks.note("requests of 4 MiB that wait", reply.status.to_string());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Polls for a rollout that does not end, on a new connection.
    async fn poll(&self, path: &str, lease: &str) {
        let Ok(mut stream) = TcpStream::connect(self.address()).await else {
            return self.refused("polls", 0).await;
        };
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             x-osmosis-rollout-lease: {lease}\r\n\r\n",
            self.hostile.caller
        );
        let mut answer = vec![0; 4096];
        let status = async {
            stream.write_all(head.as_bytes()).await.ok()?;
            let read = stream.read(&mut answer).await.ok().filter(|read| *read > 0)?;
            String::from_utf8_lossy(answer.get(9..12.min(read))?).parse::<u16>().ok()
        };
        match status.await {
            Some(200) => self.attacks.note("polls", "200"),
            other => self.refused("polls", other.unwrap_or(0)).await,
        }
    }

    /// Starts to upload a component or a deployment, and disconnects.
    async fn leave_upload(&self) {
        const CONFIG_BYTES: usize = 900 << 10;
        let Ok(mut stream) = TcpStream::connect(self.address()).await else {
            return self.refused("uploads whose callers leave", 0).await;
        };
        let body = json!({"component": "0".repeat(64), "config": "#".repeat(CONFIG_BYTES)}).to_string();
        let head = format!(
            "POST /admin/v1/plugins/left/deployments HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.hostile.author,
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(body.as_bytes()).await;
        self.attacks.note("uploads whose callers leave", "left");
        let digest = "1".repeat(64);
        if let Ok(mut stream) = TcpStream::connect(self.address()).await {
            let head = format!(
                "PUT /admin/v1/components/{digest} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
                 content-length: {}\r\n\r\n",
                self.hostile.author,
                64 * MIB
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&vec![b'x'; 4 << 20]).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Pushes a plugin whose check lasts until its deadline.
    async fn push_what_waits(&self) {
        self.push("pushes whose guests wait", &self.hostile, &self.waits).await;
    }

    /// Pushes a plugin whose check fills memory.
    async fn push_what_fills(&self) {
        self.push("pushes whose guests fill memory", &self.accomplice, &self.fills).await;
    }

    /// Pushes a component, and notes the answer as one of this attack.
    async fn push(&self, attack: &'static str, tenant: &TestTenant, component: &str) {
        let author = Caller::new(self.catalog.url(), &tenant.author);
        let deployment = json!({"component": component, "activate": false});
        let url = format!("{}/admin/v1/plugins/pushed/deployments", author.base);
        let pushing = author.send(author.http.post(url).json(&deployment));
        let answered = tokio::time::timeout(Duration::from_secs(20), pushing).await;
        match answered {
            Ok(answered) if answered.status >= 300 => self.refused(attack, answered.status).await,
            Ok(answered) => {
                let verdict = if answered.body["passed"] == false { " (failed)" } else { "" };
                self.attacks.note(attack, format!("{}{verdict}", answered.status));
            }
            Err(_) => self.attacks.note(attack, "no answer in 20 s"),
        }
    }

    /// Starts rollouts of plugins that start slowly, which the next process continues.
    async fn leave_slow_starts(&self) {
        for plugin in 0..SLOW_PLUGINS {
            let url = format!("{}/p/slow{plugin}", self.catalog.url());
            let caller = Caller::new(url, &self.accomplice.caller);
            let reply = caller.ask(&self.request("What is 2 + 3?")).await;
            self.attacks.note("slow starts, before kill -9", reply.status.to_string());
        }
    }

    /// Runs a rollout of each of many plugins.
    async fn use_plugins(&self) {
        for plugin in 0..PLUGINS {
            let reply = self.hostile(&format!("p{plugin}")).ask(&self.request("What is 2 + 3?")).await;
            self.attacks.note("each of many plugins", reply.status.to_string());
        }
    }

    /// Reads a long trajectory byte by byte.
    async fn read_slowly(&self, id: &str) {
        let Ok(mut stream) = TcpStream::connect(self.address()).await else { return };
        let head = format!(
            "GET /p/burden/rollout/{id}/trajectory HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
            self.hostile.caller
        );
        let _ = stream.write_all(head.as_bytes()).await;
        let mut byte = [0];
        while let Ok(1..) = stream.read(&mut byte).await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.attacks.note("slow readers of trajectories", "ended");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    fn address(&self) -> String {
        self.catalog.url().trim_start_matches("http://").to_owned()
    }

    /// Counts a refusal, and pauses as briefly as an attacker.
    async fn refused(&self, attack: &'static str, status: u16) {
        self.attacks.note(attack, status.to_string());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Repeats a task until the token is cancelled.
fn again<F>(
    tasks: &mut JoinSet<()>,
    over: &CancellationToken,
    scene: &Arc<Scene>,
    count: usize,
    does: impl Fn(Arc<Scene>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    for _ in 0..count {
        let (scene, over, does) = (scene.clone(), over.clone(), does.clone());
        tasks.spawn(async move {
            let always = async {
                loop {
                    does(scene.clone()).await;
                }
            };
            over.run_until_cancelled(always).await;
        });
    }
}

fn text(admitted: &Answered, field: &str) -> String {
    admitted.body[field].as_str().expect("an admission has it").to_owned()
}

/// Returns whether `ROLLOUT_HOSTILE_ONLY` names this attack, or is not set.
fn is_chosen(attack: &str) -> bool {
    let only = std::env::var("ROLLOUT_HOSTILE_ONLY").ok();
    only.is_none_or(|only| only.split(',').any(|chosen| chosen == attack))
}

/// Runs all attacks concurrently.
async fn attack(scene: &Arc<Scene>, over: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let host = scene.hostile("burden");
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let reply = host.ask(&scene.request("wait")).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        waiting.push(reply);
    }
    let long = host.ask(&scene.request("result 20").label("5")).await;
    host.result(&long).await;
    let long = text(&long, "rollout_id");
    if is_chosen("polls") {
        for number in 0..OPEN_FILES as usize {
            let of = &waiting[number % waiting.len()];
            let path = format!("/p/burden/rollout/{}/result", text(of, "rollout_id"));
            let lease = text(of, "polling_lease_token");
            again(&mut tasks, over, scene, 1, move |scene| {
                let (path, lease) = (path.clone(), lease.clone());
                async move { scene.poll(&path, &lease).await }
            });
        }
    }
    let mut begin = |attack: &str, count: usize, does: fn(Arc<Scene>) -> BoxFuture<'static, ()>| {
        if is_chosen(attack) {
            again(&mut tasks, over, scene, count, does);
        }
    };
    begin("memory", 3, |scene| Box::pin(async move { scene.fill_memory().await }));
    begin("results", 2, |scene| Box::pin(async move { scene.leave_results().await }));
    begin("spin", 2, |scene| Box::pin(async move { scene.spin().await }));
    begin("queue", 4, |scene| Box::pin(async move { scene.queue().await }));
    begin("uploads", 8, |scene| Box::pin(async move { scene.leave_upload().await }));
    begin("checks", 4, |scene| Box::pin(async move { scene.push_what_waits().await }));
    begin("fills", 2, |scene| Box::pin(async move { scene.push_what_fills().await }));
    begin("plugins", 1, |scene| Box::pin(async move { scene.use_plugins().await }));
    if is_chosen("readers") {
        again(&mut tasks, over, scene, 8, move |scene| {
            let id = long.clone();
            async move { scene.read_slowly(&id).await }
        });
    }
    tasks
}

/// Returns the server's memory budget from its metrics.
async fn budget_bytes(catalog: &TestCatalog) -> u64 {
    let text = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
    let line = text.lines().find_map(|line| line.strip_prefix("rollout_host_held_bytes_max "));
    let bytes: f64 = line.and_then(|bytes| bytes.trim().parse().ok()).expect("the metrics have it");
    bytes as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_keeps_its_rollouts_during_all_attacks_of_another() {
    let secs = std::env::var("ROLLOUT_HOSTILE_SECS").ok().and_then(|secs| secs.parse().ok());
    let phase = Duration::from_secs(secs.unwrap_or(PHASE_SECS));
    let group = match MemoryGroup::new(GROUP_BYTES) {
        Ok(group) => Some(Arc::new(group)),
        Err(why) => {
            println!("NOT IN A CONTROL GROUP, which this machine does not allow: {why}");
            None
        }
    };
    let serve = ServeCatalog::default()
        .open_files_max(OPEN_FILES)
        .option("--max-concurrent", SLOTS)
        .option("--queue-max", 256);
    let serve = match &group {
        Some(group) => serve.memory_group(group.clone()),
        // The server's default in such a group.
        None => serve.option("--memory-budget-bytes", GROUP_BYTES / 100 * 70),
    };
    let catalog = serve.start().await;
    let steady = catalog.tenant("steady", json!({"running": 8, "queued": 8})).await;
    let hostile = catalog.tenant("hostile", json!({})).await;
    let accomplice = catalog.tenant("accomplice", json!({})).await;
    catalog.serve(&steady, "p", "conform", "").await;
    catalog.serve(&hostile, "burden", "burden", "").await;
    for plugin in 0..PLUGINS {
        catalog.serve(&hostile, &format!("p{plugin}"), "conform", "").await;
    }
    let waits = catalog.upload(&hostile, &guest("sleep_always")).await;
    let fills = catalog.upload(&accomplice, &guest("fill_memory")).await;
    let slow = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(slow.path(), waiting_component(START_SECS)).expect("it can be written");
    for plugin in 0..SLOW_PLUGINS {
        let reply = catalog.push(&accomplice, &format!("slow{plugin}"), slow.path(), "", true).await;
        assert_eq!(reply.body["active"], true, "{}", reply.text);
    }
    let budget = budget_bytes(&catalog).await;
    let may_have = budget + budget / 10 + 64 * MIB;
    let watch = Watch::start(catalog.process().id().expect("it runs"));
    let scene = Arc::new(Scene {
        catalog,
        controller: Controller::start().await,
        model: Model::start().await,
        steady,
        hostile,
        accomplice,
        waits,
        fills,
        long_field: format!("\"metadata\":{{\"text\":\"{}\"}}", "x".repeat(4 << 20)),
        attacks: Attacks::default(),
        rollouts: AtomicUsize::new(0),
    });

    // Warm up, so that plugins are loaded in both phases.
    scene.run_steadily(Duration::from_secs(2)).await;
    let alone = scene.run_steadily(phase).await;
    let over = CancellationToken::new();
    let mut tasks = attack(&scene, &over).await;
    let attacked = scene.run_steadily(phase).await;
    over.cancel();
    while tasks.join_next().await.is_some() {}
    scene.leave_slow_starts().await;
    let most = watch.most();
    drop(watch);

    // The remains of the attack do not prevent the next process from serving.
    let Ok(mut scene) = Arc::try_unwrap(scene) else { panic!("every task has ended") };
    let killed = Instant::now();
    scene.catalog = scene.catalog.killed().await;
    let started = killed.elapsed();
    let watch = Watch::start(scene.catalog.process().id().expect("it runs"));
    let scene = Arc::new(scene);
    let after = scene.run_steadily(phase / 2).await;
    let most_after = watch.most();

    println!("\nthe steady tenant  succeeded   failed    p50 ms    p99 ms    admission p99   reconnected");
    for (name, met) in [("alone", &alone), ("with the hostile", &attacked), ("after kill -9", &after)] {
        println!("  {name:<18}{}", met.row());
    }
    let ratio = percentile(&attacked.latencies, 99) / percentile(&alone.latencies, 99);
    println!("p99 with the hostile tenant: x{ratio:.2}");
    println!(
        "resident at most: {} MiB, and {} MiB after kill -9, of {} MiB (a budget of {} MiB, 10 % and 64 MiB)",
        most / MIB,
        most_after / MIB,
        may_have / MIB,
        budget / MIB
    );
    println!("listens {:.1} s after kill -9", started.as_secs_f64());
    println!("answers to the hostile tenant:\n{}", scene.attacks.rows());
    if let Some(group) = &group {
        println!("processes killed because of memory: {}", group.kills());
        assert_eq!(group.kills(), 0, "the kernel killed a process");
    }

    assert_eq!(alone.failures, BTreeMap::new());
    assert_eq!(attacked.failures, BTreeMap::new(), "with the hostile tenant");
    assert_eq!(after.failures, BTreeMap::new(), "after kill -9");
    assert!(!attacked.latencies.is_empty() && !after.latencies.is_empty());
    assert!(most <= may_have && most_after <= may_have, "{most} and {most_after} of {may_have} bytes");
    if std::env::var_os("ROLLOUT_HOSTILE_RATIO").is_some() {
        assert!(ratio <= 3.0, "p99 x{ratio:.2}, more than 3 times that of the tenant alone");
    }
    until("the server to say that it is there", async || {
        (scene.catalog.get_open("/health").await.status == 200).then_some(())
    })
    .await;
}
