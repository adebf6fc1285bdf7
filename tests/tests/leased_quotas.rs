//! The quotas of a tenant that several workers share, in real processes. The model counts the calls that are open at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use reqwest::Method;
use rollout_cluster::{Claim, Cluster as NatsCluster, LeasedSlots, QuotaLeases, SlotDemand, WorkerState};
use rollout_tests::{
    Admitted, Controller, ServeCatalog, TestCatalog, TestHost, TestNats, TestTenant, in_time, until,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

fn section(nats: &TestNats) -> String {
    format!(
        "[cluster.nats]\nurls = {:?}\nreplicas = 1\naccept-weak-durability = true\nlog-bytes-max = 268435456\n\
         heartbeat-secs = 0.5\nlease-secs = 2.5\n",
        nats.urls()
    )
}

/// Workers, each of which has a gateway of its own, so that a test chooses the worker of a rollout.
struct Cluster {
    workers: Vec<TestCatalog>,
    gateways: Vec<TestHost>,
    nats: TestNats,
}

impl Cluster {
    async fn start(count: usize) -> Self {
        let nats = TestNats::start().await;
        let section = section(&nats);
        let starting =
            (1..=count).map(|number| ServeCatalog::worker(&format!("w{number}"), &section).start());
        let workers = join_all(starting).await;
        let gateways =
            workers.iter().map(|worker| ServeCatalog::gateway().option("--worker", worker.own_url()).start());
        let gateways = join_all(gateways).await;
        let behind = workers.into_iter().zip(&gateways).map(|(worker, gateway)| worker.behind(gateway.url()));
        let cluster = Self { workers: behind.collect(), gateways, nats };
        for worker in &cluster.workers {
            until("a worker behind its gateway", async || {
                let health = worker.as_operator(Method::GET, "/health", Value::Null).await.body;
                (health["workers"][0]["is_up"] == true).then_some(())
            })
            .await;
        }
        cluster
    }

    /// Creates a tenant with a plugin of one model call, and waits until all workers serve it.
    async fn tenant(&self, name: &str, quotas: Value) -> TestTenant {
        let tenant = self.workers[0].tenant(name, quotas).await;
        self.workers[0].serve(&tenant, "p", "conform", "").await;
        for worker in &self.workers {
            let plugin = worker.plugin(&tenant, "p");
            until("a worker to serve the plugin", async || {
                (plugin.get("/health").await.status == 200).then_some(())
            })
            .await;
        }
        tenant
    }

    /// Admits rollouts of a tenant at one worker.
    async fn admit(
        &self,
        at: usize,
        tenant: &TestTenant,
        controller: &Controller,
        count: usize,
    ) -> Vec<(TestHost, Admitted)> {
        let mut all = Vec::new();
        for _ in 0..count {
            let plugin = self.workers[at].plugin(tenant, "p");
            let admitted = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
            assert!(admitted.lease.starts_with(&format!("w{}.", at + 1)), "{}", admitted.lease);
            all.push((plugin, admitted));
        }
        all
    }
}

/// Returns the numbers of slots that a worker has leased, and of those that are free.
async fn leased(worker: &TestCatalog) -> [u64; 2] {
    let metrics = worker.as_operator(Method::GET, "/metrics", Value::Null).await.text;
    ["slots", "slots_free"].map(|name| {
        let start = format!("rollout_host_leased_{name}{{");
        let line = metrics.lines().find(|line| line.starts_with(&start));
        let number = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        number.unwrap_or_else(|| panic!("{start} is not in\n{metrics}"))
    })
}

async fn check_scored(admitted: &[(TestHost, Admitted)]) {
    let results = join_all(admitted.iter().map(|(plugin, admitted)| plugin.result(admitted))).await;
    assert!(results.iter().all(|result| result["sample"]["reward"] == 1.0), "{results:#?}");
}

#[tokio::test]
async fn a_tenant_reaches_its_quota_at_whichever_worker_its_load_is() {
    let cluster = Cluster::start(2).await;
    let controller = Controller::start().await;
    let tenant = cluster.tenant("t", json!({"running": 6, "queued": 40})).await;
    for (at, before) in [(0, 0), (1, 9)] {
        controller.hold_after(before);
        let admitted = cluster.admit(at, &tenant, &controller, 9).await;
        // The other worker returns what it has not used for a while.
        controller.chats_open(6).await;
        for (number, worker) in cluster.workers.iter().enumerate() {
            let expected = if number == at { [6, 0] } else { [0, 0] };
            until("the leases in the metrics", async || (leased(worker).await == expected).then_some(()))
                .await;
        }
        controller.release();
        check_scored(&admitted).await;
    }
    assert_eq!(controller.chats_open_max(), 6);
    assert_eq!(cluster.gateways.len(), 2);
}

#[tokio::test]
async fn workers_together_never_run_more_than_the_quota_of_a_tenant() {
    const EACH: usize = 6;
    let cluster = Cluster::start(3).await;
    let check = async |quota: usize| {
        let controller = Controller::start().await;
        let tenant = cluster.tenant(&format!("t{quota}"), json!({"running": quota, "queued": 60})).await;
        controller.hold();
        let each = (0..3).map(|at| cluster.admit(at, &tenant, &controller, EACH));
        let admitted: Vec<_> = join_all(each).await.into_iter().flatten().collect();
        for ended in 0..=admitted.len() {
            controller.hold_after(ended);
            let arrived = (ended + quota).min(admitted.len());
            controller.chats_arrived(arrived).await;
        }
        check_scored(&admitted).await;
        assert_eq!(controller.chats_open_max(), quota);
    };
    tokio::join!(check(1), check(2), check(4));
}

#[tokio::test]
async fn the_part_of_a_killed_worker_is_free_when_another_one_has_continued_its_rollouts() {
    let mut cluster = Cluster::start(2).await;
    let controller = Controller::start().await;
    let tenant = cluster.tenant("t", json!({"running": 4, "queued": 40})).await;
    controller.hold();
    let of_dead = cluster.admit(0, &tenant, &controller, 3).await;
    controller.chats_open(3).await;
    let of_other = cluster.admit(1, &tenant, &controller, 4).await;
    controller.chats_open(4).await;

    cluster.workers.remove(0).stop_at_once().await;
    // Its calls are made again by the process that continues its log, and by no other within its part.
    controller.chats_arrived(4 + 3).await;
    controller.chats_open(4).await;
    assert_eq!(controller.chats_open_max(), 4);
    controller.release();
    check_scored(&of_other).await;
    // Only a gateway that knows all processes from NATS finds the one that continues the log.
    let gateway = ServeCatalog::gateway().config(&section(&cluster.nats)).start().await;
    let front = cluster.workers.remove(0).behind(gateway.url());
    let of_dead: Vec<_> =
        of_dead.into_iter().map(|(_, admitted)| (front.plugin(&tenant, "p"), admitted)).collect();
    check_scored(&of_dead).await;
    cluster.workers.push(front.behind(cluster.gateways[1].url()));

    let before = controller.chats().len();
    controller.hold_after(before);
    let plugin = cluster.workers[0].plugin(&tenant, "p");
    let mut admitted = Vec::new();
    for _ in 0..6 {
        let one = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        admitted.push((cluster.workers[0].plugin(&tenant, "p"), one));
    }
    controller.chats_open(4).await;
    controller.release();
    check_scored(&admitted).await;
    assert!(controller.chats_open_max() <= 4);
}

#[tokio::test]
async fn a_worker_that_starts_again_has_its_part_and_a_reduced_quota_is_obeyed() {
    let mut cluster = Cluster::start(2).await;
    let controller = Controller::start().await;
    let tenant = cluster.tenant("t", json!({"running": 6, "queued": 40})).await;
    controller.hold();
    let mut admitted = cluster.admit(0, &tenant, &controller, 5).await;
    controller.chats_open(5).await;
    admitted.extend(cluster.admit(1, &tenant, &controller, 6).await);
    controller.chats_open(6).await;
    let first = cluster.workers.remove(0).killed().await;
    cluster.workers.insert(0, first);
    controller.chats_arrived(6 + 5).await;
    controller.chats_open(6).await;
    assert_eq!(controller.chats_open_max(), 6);

    let quotas = json!({"quotas": {"running": 2}});
    cluster.workers[0].operate(Method::PATCH, "/tenants/t", quotas).await;
    for worker in &cluster.workers {
        let plugin = worker.plugin(&tenant, "p");
        until("the worker to know the quota", async || {
            let health = plugin.get("/health").await.body;
            (health["concurrency"]["max_concurrent"] == 2).then_some(())
        })
        .await;
    }
    let before = controller.chats().len();
    controller.hold_after(before - 2);
    controller.chats_open(2).await;
    assert_eq!(controller.chats().len(), before, "none started while more ran");
    controller.chats_open_max();
    for ended in before - 1..=before + 5 {
        controller.hold_after(ended);
        controller.chats_arrived((ended + 2).min(before + 5)).await;
    }
    check_scored(&admitted).await;
    assert_eq!(controller.chats_open_max(), 2);
}

#[tokio::test]
async fn the_usage_of_a_day_is_that_of_all_workers() {
    let cluster = Cluster::start(2).await;
    let controller = Controller::start().await;
    // A model call takes ten tokens.
    let tenant = cluster.tenant("t", json!({"model-tokens-per-day": 30})).await;
    let used = async |at: usize| {
        let answer =
            cluster.workers[at].as_operator(Method::GET, "/admin/v1/tenants/t/usage", Value::Null).await;
        answer.body["days"][0]["model_tokens"].clone()
    };

    check_scored(&cluster.admit(0, &tenant, &controller, 2).await).await;
    until("the usage at the other worker", async || (used(1).await == 20).then_some(())).await;
    check_scored(&cluster.admit(1, &tenant, &controller, 1).await).await;

    for worker in &cluster.workers {
        let plugin = worker.plugin(&tenant, "p");
        until("a refusal", async || {
            let body = controller.rollout("Calculate 2 + 3.").label("5").body();
            let answer = plugin.post("/rollout", &body).await;
            (answer.status == 429).then(|| {
                let expected = "the quota model-tokens-per-day of this tenant is used up: ";
                assert!(answer.text.contains(expected), "{}", answer.text);
            })
        })
        .await;
    }
    let total = used(0).await;
    assert_eq!((&total, total.as_u64() >= Some(30)), (&used(1).await, true), "both workers report the sum");
}

/// A tenant's rollouts at a worker, as far as leases are concerned.
#[derive(Clone)]
struct Rollouts {
    quota: u32,
    /// Numbers of rollouts that may run, that run and that wait.
    counts: Arc<Mutex<[u32; 3]>>,
    changed: Arc<Notify>,
    /// Numbers of rollouts that have started here, and that run at all workers.
    started: watch::Sender<u32>,
    all_running: Arc<AtomicU32>,
}

impl Rollouts {
    fn new(quota: u32, all_running: &Arc<AtomicU32>) -> Self {
        let (counts, changed, started) = Default::default();
        Self {
            quota,
            counts,
            changed,
            started: watch::Sender::new(started),
            all_running: all_running.clone(),
        }
    }

    /// Changes the numbers, starts what may run, and returns the number that runs.
    fn change(&self, change: impl FnOnce(&mut [u32; 3])) -> u32 {
        let mut counts = self.counts.lock().unwrap();
        change(&mut counts);
        let [granted, running, waiting] = &mut *counts;
        while *waiting > 0 && *running < *granted {
            (*waiting, *running) = (*waiting - 1, *running + 1);
            let before = self.all_running.fetch_add(1, Ordering::SeqCst);
            assert!(before < self.quota, "more than the quota runs");
            self.started.send_modify(|started| *started += 1);
        }
        *running
    }

    fn admit(&self, count: u32) {
        self.change(|[_, _, waiting]| *waiting += count);
        self.changed.notify_one();
    }

    fn end(&self, count: u32) {
        self.all_running.fetch_sub(count, Ordering::SeqCst);
        self.change(|[_, running, _]| *running -= count);
        self.changed.notify_one();
    }

    async fn started(&self, count: u32) {
        let mut started = self.started.subscribe();
        in_time("rollouts to start", started.wait_for(|started| *started == count)).await.unwrap();
    }
}

const TENANT: i64 = 7;

impl LeasedSlots for Rollouts {
    fn changed(&self) -> BoxFuture<'_, BTreeSet<i64>> {
        self.changed.notified().map(|()| BTreeSet::from([TENANT])).boxed()
    }

    fn demand(&self, tenant: i64) -> Option<SlotDemand> {
        let [_, running, waiting] = *self.counts.lock().unwrap();
        (tenant == TENANT).then_some(SlotDemand { quota: self.quota, running, peak: running, waiting })
    }

    fn is_resumed(&self, _tenant: i64) -> bool {
        true
    }

    fn set(&self, tenant: i64, now: u32, _reachable: u32) -> u32 {
        assert_eq!(tenant, TENANT);
        self.change(|[granted, _, _]| *granted = now)
    }

    fn set_workers(&self, _count: u32) {}
}

#[tokio::test]
async fn rollouts_start_within_the_leases_of_their_worker_while_nats_is_away() {
    let nats = TestNats::start().await;
    let settings = nats.settings();
    let cluster = until("the cluster", async || NatsCluster::connect(settings.clone()).await.ok()).await;
    let running = Arc::default();
    let lease = async |log: &str| {
        let rollouts = Rollouts::new(4, &running);
        let owner = WorkerState { url: format!("http://{log}.example"), version: "0.1.0".to_owned() };
        let claimed = in_time("the claim", cluster.claim(Claim::Own(log), &owner)).await.unwrap();
        let leases: QuotaLeases = claimed.quotas().await.unwrap().lease(rollouts.clone());
        (rollouts, leases, claimed)
    };
    let (one, _of_one, _claimed) = lease("w1").await;
    let (other, _of_other, _claimed_too) = lease("w2").await;
    other.admit(1);
    other.started(1).await;
    one.admit(3);
    one.started(3).await;

    nats.kill_all().await;
    // At each worker, rollouts start as others end.
    one.admit(10);
    other.admit(10);
    for number in 1..=4 {
        one.end(1);
        one.started(3 + number).await;
        other.end(1);
        other.started(1 + number).await;
    }
    assert_eq!(running.load(Ordering::SeqCst), 4, "all leases are used");
    // Leases that are not used cannot be given to another worker, which waits.
    one.change(|[_, _, waiting]| *waiting = 0);
    one.end(3);
    other.end(1);
    other.started(6).await;
    assert_eq!(running.load(Ordering::SeqCst), 1);

    nats.restart_all().await;
    other.started(9).await;
    assert_eq!(running.load(Ordering::SeqCst), 4, "it has all");
}
