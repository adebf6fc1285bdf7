//! Usage of tenants by day that workers exchange, on a real NATS server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollout_catalog::{Day, TenantUsage};
use rollout_cluster::{
    Claim, Cluster, ClusterSettings, MeteredTenants, SharedUsage, UsageExchange, WorkerState,
};
use rollout_tests::{TestNats, in_time, until};
use tokio::sync::watch;

const TENANT: i64 = 7;

fn tokens(model_tokens: u64) -> TenantUsage {
    TenantUsage { model_tokens, guest_cpu_nanos: 3 * model_tokens }
}

/// The tenants of a worker, which has counted some usage.
#[derive(Clone)]
struct Counted {
    today: Arc<Mutex<Day>>,
    own: Arc<Mutex<BTreeMap<(Day, i64), TenantUsage>>>,
    elsewhere: watch::Sender<BTreeMap<(Day, i64), TenantUsage>>,
    is_readable: Arc<AtomicBool>,
}

impl Counted {
    fn new(today: Day) -> Self {
        let today = Arc::new(Mutex::new(today));
        let is_readable = Arc::new(AtomicBool::new(true));
        Self { today, own: Arc::default(), elsewhere: watch::Sender::default(), is_readable }
    }

    fn count(&self, tenant: i64, usage: TenantUsage) {
        self.own.lock().unwrap().insert((self.today(), tenant), usage);
    }

    /// Waits until this worker knows this usage of today at other workers.
    async fn hears(&self, usage: TenantUsage) {
        let day = self.today();
        let mut elsewhere = self.elsewhere.subscribe();
        let knows = elsewhere.wait_for(|known| known.get(&(day, TENANT)) == Some(&usage));
        in_time(&format!("{usage:?} at other workers"), knows).await.unwrap();
    }
}

impl MeteredTenants for Counted {
    fn today(&self) -> Day {
        *self.today.lock().unwrap()
    }

    fn usage(&self, day: Day) -> BoxFuture<'_, Option<Vec<(i64, TenantUsage)>>> {
        let own = self.own.lock().unwrap();
        let of_day = own.iter().filter(|((of, _), _)| *of == day);
        let of_day = of_day.map(|((_, tenant), usage)| (*tenant, *usage)).collect();
        std::future::ready(self.is_readable.load(Ordering::SeqCst).then_some(of_day)).boxed()
    }

    fn set_elsewhere(&self, tenant: i64, day: Day, usage: TenantUsage) {
        self.elsewhere.send_modify(|known| {
            known.insert((day, tenant), usage);
        });
    }
}

/// Starts to exchange the usage of a worker with this log and this name of its count.
async fn exchange(
    cluster: &Cluster,
    [log, count]: [&str; 2],
    counted: &Counted,
) -> (SharedUsage, UsageExchange) {
    let owner = WorkerState { url: format!("http://{log}.example"), version: "0.1.0".to_owned() };
    let claimed = in_time("the claim", cluster.claim(Claim::Own(log), &owner)).await.unwrap();
    let usage = claimed.usage(count.to_owned()).await.unwrap();
    (usage.clone(), usage.exchange(counted.clone()))
}

#[tokio::test]
async fn each_worker_knows_the_usage_of_the_others_through_restarts_outages_and_midnight() {
    let nats = TestNats::start().await;
    let settings = ClusterSettings { heartbeat_secs: 0.2, ..nats.settings() };
    let cluster = until("the cluster", async || Cluster::connect(settings.clone()).await.ok()).await;
    let monday: Day = "2026-11-30".parse().unwrap();
    let (one, other) = (Counted::new(monday), Counted::new(monday));
    let (shared, of_one) = exchange(&cluster, ["w1", "a"], &one).await;
    let (_, of_other) = exchange(&cluster, ["w2", "b"], &other).await;

    one.count(TENANT, tokens(10));
    other.hears(tokens(10)).await;
    other.count(TENANT, tokens(5));
    other.count(TENANT + 1, tokens(1));
    one.hears(tokens(5)).await;
    one.count(TENANT, tokens(12));
    other.hears(tokens(12)).await;

    // The next process of a worker has lost the disk: what its former count had is usage elsewhere.
    of_other.end().await.unwrap();
    let without_disk = Counted::new(monday);
    let (_, of_other) = exchange(&cluster, ["w2", "c"], &without_disk).await;
    without_disk.hears(tokens(12 + 5)).await;
    without_disk.count(TENANT, tokens(2));
    one.hears(tokens(5 + 2)).await;
    drop(of_other);

    // One with the disk goes on counting, under any name of the worker. It had not stored everything.
    let with_disk = Counted::new(monday);
    with_disk.count(TENANT, tokens(7));
    with_disk.own.lock().unwrap().insert((monday.pred_opt().unwrap(), TENANT), tokens(40));
    // What cannot be read now is stored later.
    with_disk.is_readable.store(false, Ordering::SeqCst);
    let (_, of_other) = exchange(&cluster, ["w3", "b"], &with_disk).await;
    with_disk.hears(tokens(12 + 2)).await;
    with_disk.is_readable.store(true, Ordering::SeqCst);
    one.hears(tokens(7 + 2)).await;
    with_disk.count(TENANT, tokens(8));
    one.hears(tokens(8 + 2)).await;

    nats.kill_all().await;
    one.count(TENANT, tokens(20));
    nats.restart_all().await;
    with_disk.hears(tokens(20 + 2)).await;

    // The last usage of a day is stored on the next one, of which nothing is known.
    let tuesday = monday.succ_opt().unwrap();
    one.count(TENANT, tokens(21));
    for counted in [&one, &with_disk] {
        *counted.today.lock().unwrap() = tuesday;
    }
    one.count(TENANT, tokens(1));
    with_disk.hears(tokens(1)).await;
    with_disk.count(TENANT, tokens(3));
    one.hears(tokens(3)).await;

    // The worker's own usage may not be stored yet, and the last one of a day is stored after its end.
    one.count(TENANT, tokens(4));
    let sunday = monday.pred_opt().unwrap();
    let expected =
        BTreeMap::from([(sunday, tokens(40)), (monday, tokens(21 + 8 + 2)), (tuesday, tokens(4 + 3))]);
    until("the usage of all days", async || {
        let own = BTreeMap::from([(monday, tokens(21)), (tuesday, tokens(4))]);
        let days = shared.days(TENANT, sunday.iter_days().take(4), own).await.unwrap();
        (days == expected).then_some(())
    })
    .await;
    of_one.end().await.unwrap();
    with_disk.hears(tokens(4)).await;

    // An entry of another program is no usage of nothing, and what was known of it remains.
    let bucket = cluster.jetstream().get_key_value("rollout-usage").await.unwrap();
    bucket.put(format!("{TENANT}.{tuesday}.b"), "{}x".into()).await.unwrap();
    let error = shared.days(TENANT, tuesday.iter_days().take(1), BTreeMap::new()).await.unwrap_err();
    let expected = format!("the entry {TENANT}.{tuesday}.b of the bucket rollout-usage cannot be read: ");
    assert!(error.to_string().starts_with(&expected), "{error}");
    // The worker whose count it is stores its usage again.
    drop(of_other);
    let restarted = Counted::new(tuesday);
    restarted.count(TENANT, tokens(9));
    let (_, of_restarted) = exchange(&cluster, ["w3", "b"], &restarted).await;
    until("the usage of the day", async || {
        let days = shared.days(TENANT, tuesday.iter_days().take(1), BTreeMap::new()).await.ok()?;
        (days.get(&tuesday) == Some(&tokens(9))).then_some(())
    })
    .await;
    drop(of_restarted);
}
