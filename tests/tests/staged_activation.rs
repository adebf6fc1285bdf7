//! Activations in a cluster: all workers load a version before it becomes active, in real processes.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join};
use reqwest::Method;
use rollout_cluster::{
    Claim, ClaimedLog, Cluster, ClusterSettings, Heartbeats, StageVersions, StagedVersion, Staging,
    StagingError, WorkerState,
};
use rollout_tests::{
    Admitted, Controller, Reply, ServeCatalog, TestCatalog, TestHost, TestNats, TestTenant, guest, in_time,
    until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use crate::shared_catalog::{greeting, section};

/// Two workers, each behind a gateway of its own, so that a test selects the worker of each request.
struct Two {
    one: TestCatalog,
    other: TestCatalog,
    _gateways: [TestHost; 2],
}

impl Two {
    /// Starts them, and waits until their gateways reach them. The second one has more lines in its configuration.
    async fn start(section: &str, of_other: &str) -> Self {
        let (one, other) = tokio::join!(
            ServeCatalog::worker("w1", section).start(),
            ServeCatalog::worker("w2", &format!("{section}{of_other}")).start()
        );
        let gateway_to = async |worker: &TestCatalog| {
            ServeCatalog::gateway().option("--worker", worker.own_url()).start().await
        };
        let (to_one, to_other) = tokio::join!(gateway_to(&one), gateway_to(&other));
        let (one, other) = (one.behind(to_one.url()), other.behind(to_other.url()));
        for catalog in [&one, &other] {
            is_reached(catalog).await;
        }
        Self { one, other, _gateways: [to_one, to_other] }
    }
}

/// Waits until a worker's gateway reaches it.
async fn is_reached(catalog: &TestCatalog) {
    until("a worker behind its gateway", async || {
        let metrics = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
        let is_up = |line: &str| line.starts_with("rollout_host_gateway_worker_up{") && line.ends_with(" 1");
        metrics.lines().any(is_up).then_some(())
    })
    .await;
}

/// Returns the configuration of a cluster whose workers keep their leases while they are stopped.
fn patient(nats: &TestNats) -> String {
    section(nats).replace("lease-secs = 2.5", "lease-secs = 300.0")
}

/// Pushes a version of `tunable` that greets like this, and does not activate it.
async fn push(catalog: &TestCatalog, tenant: &TestTenant, name: &str) {
    let config = format!("[plugin]\ngreeting = '{name}'\n");
    let reply = catalog.push(tenant, "p", &guest("tunable"), &config, false).await;
    assert!(reply.status < 300 && reply.body["passed"] == true, "{}", reply.text);
}

/// Creates a tenant whose plugin serves a version that greets with `v1`, and pushes versions that greet like this.
async fn serving(catalog: &TestCatalog, names: &[&str]) -> TestTenant {
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "tunable", "[plugin]\ngreeting = 'v1'\n").await;
    for name in names {
        push(catalog, &tenant, name).await;
    }
    tenant
}

async fn activate(catalog: &TestCatalog, tenant: &TestTenant, version: u32) -> Reply {
    let body = json!({"version": version});
    catalog.ask(&tenant.author, Method::POST, "/admin/v1/plugins/p/activate", body).await
}

/// Activates a version at a worker that was stopped, as soon as its gateway reaches it again.
async fn activate_again(catalog: &TestCatalog, tenant: &TestTenant, version: u32) {
    until("the activation", async || {
        let reply = activate(catalog, tenant, version).await;
        assert!(matches!(reply.status, 200 | 503), "{}", reply.text);
        (reply.status == 200).then_some(())
    })
    .await;
}

/// Returns the active version in the copy of the catalog at a worker.
async fn active(catalog: &TestCatalog, tenant: &TestTenant) -> Value {
    until("the plugin", async || {
        let reply = catalog.ask(&tenant.viewer, Method::GET, "/admin/v1/plugins/p", Value::Null).await;
        (reply.status == 200).then(|| reply.body["active"].clone())
    })
    .await
}

/// Runs a rollout at a worker, and returns its greeting.
async fn runs(catalog: &TestCatalog, tenant: &TestTenant, controller: &Controller) -> Option<String> {
    let plugin = catalog.plugin(tenant, "p");
    let reply = plugin.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let text = |name: &str| Some(reply.body[name].as_str()?.to_owned());
    let admitted = Admitted { id: text("rollout_id")?, lease: text("polling_lease_token")? };
    Some(greeting(&plugin.result(&admitted).await))
}

/// Waits until a worker runs rollouts with this version.
async fn serves(catalog: &TestCatalog, tenant: &TestTenant, controller: &Controller, version: &str) {
    until("the worker to serve the version", async || {
        (runs(catalog, tenant, controller).await.as_deref() == Some(version)).then_some(())
    })
    .await;
}

/// Waits until a worker has staged so many versions.
async fn has_staged(catalog: &TestCatalog, count: usize) {
    let staged = || catalog.process().stderr().matches("a version is staged").count();
    until("staged versions", async || (staged() >= count).then_some(())).await;
}

/// Returns how many components a worker has loaded, compiled or from the cache.
fn loads(catalog: &TestCatalog) -> usize {
    let log = catalog.process().stderr();
    ["compiled code loaded from cache", "compiled code shared", "component compiled"]
        .iter()
        .map(|text| log.matches(text).count())
        .sum()
}

fn settings_on(nats: &TestNats) -> ClusterSettings {
    ClusterSettings {
        urls: nats.urls(),
        replicas: 1,
        accept_weak_durability: true,
        log_bytes_max: 256 << 20,
        heartbeat_secs: 0.5,
        lease_secs: 2.5,
        ..ClusterSettings::default()
    }
}

/// Loads versions when the test says so, and notes what happens.
struct Loading {
    permits: Semaphore,
    events: Mutex<Vec<String>>,
}

impl Loading {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self { permits: Semaphore::new(permits), events: Mutex::default() })
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    fn note(&self, what: &str, version: u32) {
        self.events.lock().unwrap().push(format!("{what} {version}"));
    }
}

/// A [`Loading`] as the cluster calls it.
struct Loads(Arc<Loading>);

impl StageVersions for Loads {
    fn stage(&self, version: StagedVersion) -> BoxFuture<'static, Result<(), String>> {
        let loading = self.0.clone();
        Box::pin(async move {
            loading.note("stage", version.version);
            loading.permits.acquire().await.unwrap().forget();
            Ok(())
        })
    }

    fn end(&self, version: StagedVersion) -> BoxFuture<'static, ()> {
        self.0.note("end", version.version);
        Box::pin(async {})
    }
}

/// A worker in this process that takes part in staged activations and does nothing else. It dies when it is dropped.
struct Member {
    staging: Staging,
    _serving: AbortOnDropHandle<()>,
    _heartbeats: Heartbeats,
    _claimed: ClaimedLog,
}

impl Member {
    async fn start(settings: ClusterSettings, log: &str, loading: &Arc<Loading>) -> Self {
        let cluster = Cluster::connect(settings).await.unwrap();
        let owner = WorkerState { url: "http://127.0.0.1:9".to_owned(), ..WorkerState::default() };
        let claimed = cluster.claim(Claim::Own(log), &owner).await.unwrap();
        let heartbeats = claimed.announce();
        let members = Arc::new(cluster.members().await.unwrap());
        let staging = cluster.staging(&claimed, members).await.unwrap();
        let serving = staging.serve(Arc::new(Loads(loading.clone()))).await.unwrap();
        in_time("a heartbeat", heartbeats.set_staging(true)).await;
        Self { staging, _serving: serving, _heartbeats: heartbeats, _claimed: claimed }
    }
}

fn version(version: u32) -> StagedVersion {
    StagedVersion { tenant: 1, plugin: 2, name: "p".to_owned(), version }
}

/// Waits until nothing of an activation is left on NATS.
async fn nothing_is_left(nats: &TestNats) {
    let cluster = Cluster::connect(settings_on(nats)).await.unwrap();
    let bucket = cluster.jetstream().get_key_value("rollout-activations").await.unwrap();
    until("an empty bucket", async || {
        let keys = bucket.keys().await.ok()?.collect::<Vec<_>>().await;
        keys.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_version_becomes_active_when_all_workers_have_loaded_it_and_none_loads_it_again() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let Two { one, other, _gateways } = Two::start(&patient(&nats), "").await;
    let tenant = one.tenant("t", json!({})).await;
    push(&one, &tenant, "v1").await;
    // At the second worker the plugin was not loaded.
    assert_eq!(activate(&one, &tenant, 1).await.status, 200);
    let loaded = loads(&other);
    assert_eq!(loaded, 1, "{}", other.process().stderr());
    serves(&other, &tenant, &controller, "v1").await;
    serves(&one, &tenant, &controller, "v1").await;
    assert_eq!(loads(&other), loaded, "{}", other.process().stderr());

    push(&one, &tenant, "v2").await;
    other.process().signal(Signal::STOP);
    let activating = activate(&one, &tenant, 2);
    let checks = async {
        has_staged(&one, 2).await;
        assert_eq!(active(&one, &tenant).await, 1);
        assert_eq!(runs(&one, &tenant, &controller).await.as_deref(), Some("v1"));
        other.process().signal(Signal::CONT);
    };
    let (reply, ()) = join(activating, checks).await;

    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(runs(&one, &tenant, &controller).await.as_deref(), Some("v2"));
    assert_eq!(loads(&other), loaded + 1, "loaded before it was active: {}", other.process().stderr());
    serves(&other, &tenant, &controller, "v2").await;
    assert_eq!(loads(&other), loaded + 1, "{}", other.process().stderr());
    nothing_is_left(&nats).await;
}

#[tokio::test]
async fn a_worker_that_cannot_load_a_version_refuses_its_activation_with_the_reason() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let limit = "[limits]\ncomponent-bytes-max = 300000\n";
    let Two { one, other, _gateways } = Two::start(&section(&nats), limit).await;
    let tenant = one.tenant("t", json!({})).await;
    one.serve(&tenant, "p", "conform", "").await;

    let pushed = one.push(&tenant, "p", &guest("tunable"), "[plugin]\ngreeting = 'v2'\n", true).await;

    let error = pushed.body["activation_error"].as_str().unwrap_or_default();
    let expected = "version 2 of plugin 'p' is not activated: worker 'w2' cannot load it: ";
    assert!(error.starts_with(expected) && error.contains("component-bytes-max"), "{}", pushed.text);
    for worker in [&one, &other] {
        let reply = activate(worker, &tenant, 2).await;
        assert_eq!(reply.status, 409, "{}", reply.text);
        assert!(reply.text.contains(expected), "{}", reply.text);
        assert_eq!(active(worker, &tenant).await, 1);
        let plugin = worker.plugin(&tenant, "p");
        let admitted = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert_eq!(plugin.result(&admitted).await["sample"]["reward"], 1.0);
    }
    nothing_is_left(&nats).await;
}

#[tokio::test]
async fn a_worker_that_does_not_answer_refuses_an_activation_and_is_named() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let Two { one, other, _gateways } = Two::start(&patient(&nats), "activation-secs = 5.0\n").await;
    let tenant = serving(&one, &["v2"]).await;

    one.process().signal(Signal::STOP);
    let reply = activate(&other, &tenant, 2).await;

    assert_eq!(reply.status, 409, "{}", reply.text);
    for expected in ["no answer from worker 'w1'", "within 5 s; look at its log"] {
        assert!(reply.text.contains(expected), "{}", reply.text);
    }
    assert_eq!(active(&other, &tenant).await, 1);
    one.process().signal(Signal::CONT);
    activate_again(&one, &tenant, 2).await;
    serves(&other, &tenant, &controller, "v2").await;
}

#[tokio::test]
async fn an_activation_that_does_not_wait_is_made_while_a_worker_hangs_and_ends_one_that_waits() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let Two { one, other, _gateways } = Two::start(&patient(&nats), "").await;
    let tenant = serving(&one, &["v2", "v3"]).await;
    activate_again(&one, &tenant, 2).await;
    serves(&other, &tenant, &controller, "v2").await;
    let staged = one.process().stderr().matches("a version is staged").count();

    other.process().signal(Signal::STOP);
    let rolling_back = async {
        // The version of the one that waits.
        has_staged(&one, staged + 1).await;
        let path = "/admin/v1/plugins/p/rollback?wait=false";
        // The same version is active as before in the end, and nevertheless the other one does not become active.
        for version in [1, 2] {
            let reply = one.ask(&tenant.author, Method::POST, path, Value::Null).await;
            assert_eq!((reply.status, &reply.body["version"]), (200, &json!(version)), "{}", reply.text);
            let greeting = format!("v{version}");
            assert_eq!(runs(&one, &tenant, &controller).await.as_deref(), Some(&*greeting));
        }
        other.process().signal(Signal::CONT);
    };
    let (reply, ()) = join(activate(&one, &tenant, 3), rolling_back).await;

    assert_eq!(reply.status, 409, "{}", reply.text);
    assert_eq!(active(&one, &tenant).await, 2);
    serves(&other, &tenant, &controller, "v2").await;
    nothing_is_left(&nats).await;
}

#[tokio::test]
async fn a_worker_that_is_killed_while_it_loads_a_version_delays_its_activation_until_its_lease_expires() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let Two { one, other, _gateways } = Two::start(&section(&nats), "").await;
    let tenant = serving(&one, &["v2"]).await;

    other.process().signal(Signal::STOP);
    let killing = async {
        has_staged(&one, 2).await;
        other.stop_at_once().await;
    };
    let (reply, ()) = join(activate(&one, &tenant, 2), killing).await;

    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(runs(&one, &tenant, &controller).await.as_deref(), Some("v2"));
}

#[tokio::test]
async fn an_activation_whose_worker_is_killed_changes_nothing_and_a_second_one_succeeds() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let Two { one, other, _gateways } = Two::start(&section(&nats), "").await;
    let tenant = serving(&one, &["v2"]).await;

    other.process().signal(Signal::STOP);
    let killing = async {
        has_staged(&one, 2).await;
        one.process().signal(Signal::KILL);
    };
    let (reply, ()) = join(activate(&one, &tenant, 2), killing).await;
    other.process().signal(Signal::CONT);

    assert!(reply.status >= 500, "{}", reply.text);
    assert_eq!(active(&other, &tenant).await, 1);
    serves(&other, &tenant, &controller, "v1").await;
    activate_again(&other, &tenant, 2).await;
    assert_eq!(runs(&other, &tenant, &controller).await.as_deref(), Some("v2"));
    nothing_is_left(&nats).await;
}

#[tokio::test]
async fn activations_at_two_workers_at_once_leave_one_version_active_at_both() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let Two { one, other, _gateways } = Two::start(&section(&nats), "").await;
    let tenant = serving(&one, &["v2", "v3"]).await;
    for _ in 0..3 {
        let both = join(activate(&one, &tenant, 2), activate(&other, &tenant, 3)).await;

        for reply in [&both.0, &both.1] {
            let is_clear = reply.status == 409 && reply.text.contains("activate");
            assert!(reply.status == 200 || is_clear, "{}", reply.text);
        }
        assert!(both.0.status == 200 || both.1.status == 200, "{both:?}");
        let last = active(&one, &tenant).await;
        assert_eq!(active(&other, &tenant).await, last);
        for worker in [&one, &other] {
            serves(worker, &tenant, &controller, &format!("v{last}")).await;
        }
    }
    nothing_is_left(&nats).await;
}

#[tokio::test]
async fn a_reservation_excludes_other_workers_until_it_ends_and_no_other_plugin() {
    let nats = TestNats::start().await;
    let loading = Loading::new(Semaphore::MAX_PERMITS);
    let impatient = ClusterSettings { activation_secs: 1.0, ..settings_on(&nats) };
    let (a, b) = tokio::join!(
        Member::start(settings_on(&nats), "a", &loading),
        Member::start(impatient, "b", &loading)
    );
    let held = a.staging.reserve(1, 2).await.unwrap();

    assert_eq!(b.staging.reserve(1, 2).await.err(), Some(StagingError::Busy("a".to_owned())));
    drop(in_time("another plugin", b.staging.reserve(1, 3)).await.unwrap());
    drop(held);
    drop(until("the reservation", async || b.staging.reserve(1, 2).await.ok()).await);
    let mut reserved = in_time("the reservation", a.staging.reserve(1, 2)).await.unwrap();
    reserved.stage(version(1)).await.unwrap();
    reserved.confirm().await.unwrap();
    drop(reserved);
    nothing_is_left(&nats).await;
    assert_eq!(loading.events().iter().filter(|event| *event == "end 1").count(), 2);
}

#[tokio::test]
async fn a_version_of_a_dead_worker_is_dropped_by_the_others_and_its_reservation_is_removed() {
    let nats = TestNats::start().await;
    let (of_a, of_b) = (Loading::new(0), Loading::new(1));
    let (a, b) = tokio::join!(
        Member::start(settings_on(&nats), "a", &of_a),
        Member::start(settings_on(&nats), "b", &of_b)
    );
    let mut reserved = a.staging.reserve(1, 2).await.unwrap();
    tokio::select! {
        staged = reserved.stage(version(1)) => panic!("{staged:?}: one worker has not loaded it"),
        () = until("both to load it", async || {
            (of_a.events().len() + of_b.events().len() == 2).then_some(())
        }) => {}
    }
    // A process that is killed removes nothing.
    std::mem::forget(reserved);
    drop(a);

    until("the version to be dropped", async || (of_b.events() == ["stage 1", "end 1"]).then_some(())).await;
    nothing_is_left(&nats).await;
    // Its log was not claimed, and its answer does not count.
    let mut reserved = in_time("the reservation", b.staging.reserve(1, 2)).await.unwrap();
    of_b.permits.add_permits(1);
    reserved.stage(version(1)).await.unwrap();
}

#[tokio::test]
async fn an_activation_ends_at_once_if_another_worker_takes_over_its_reservation() {
    let nats = TestNats::start().await;
    let loading = Loading::new(0);
    let a = Member::start(settings_on(&nats), "a", &loading).await;
    let cluster = Cluster::connect(settings_on(&nats)).await.unwrap();
    let bucket = cluster.jetstream().get_key_value("rollout-activations").await.unwrap();
    let mut reserved = a.staging.reserve(1, 2).await.unwrap();
    let taking = async {
        until("the version to be loaded", async || (loading.events() == ["stage 1"]).then_some(())).await;
        bucket.put("request.1.2", "of another worker".into()).await.unwrap();
    };

    let (staged, ()) = in_time("the activation", join(reserved.stage(version(1)), taking)).await;

    assert_eq!(staged, Err(StagingError::Lost));
    drop(reserved);
    loading.permits.add_permits(1);
    until("the version to be dropped", async || (loading.events() == ["stage 1", "end 1"]).then_some(()))
        .await;
    assert!(bucket.get("request.1.2").await.unwrap().is_some(), "the other one's is not removed");
}

#[tokio::test]
async fn a_plugin_that_is_loaded_while_its_next_version_is_staged_serves_one_after_the_other() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let worker = ServeCatalog::worker("w1", &section(&nats)).start().await;
    let gateway = ServeCatalog::gateway().option("--worker", worker.own_url()).start().await;
    let worker = worker.behind(gateway.url());
    is_reached(&worker).await;
    let tenant = serving(&worker, &["v2"]).await;
    let worker = worker.killed().await;
    is_reached(&worker).await;
    let loading = Loading::new(0);
    let _slow = Member::start(settings_on(&nats), "slow", &loading).await;
    let meanwhile = async {
        has_staged(&worker, 1).await;
        serves(&worker, &tenant, &controller, "v1").await;
        assert_eq!(active(&worker, &tenant).await, 1);
        loading.permits.add_permits(1);
    };

    let (reply, ()) = join(activate(&worker, &tenant, 2), meanwhile).await;

    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(runs(&worker, &tenant, &controller).await.as_deref(), Some("v2"));
    nothing_is_left(&nats).await;
}
