//! Workers whose logs are on NATS: another worker continues the rollouts of a dead one.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use rollout_cluster::{Cluster, ClusterSettings};
use rollout_tests::{
    Admitted, Controller, RolloutRequest, Serve, Start, TestHost, TestNats, rollout_host, until,
};
use rustix::process::Signal;
use serde_json::Value;

/// Variables of all workers and gateways.
fn keyed(serve: Serve) -> Serve {
    serve
        .option("--cluster-key-env", "CLUSTER_KEY")
        .variable("CLUSTER_KEY", "the-key-of-the-cluster")
        .variable("JOURNAL_KEY", "the-key-of-all-journals")
}

/// Settings of NATS with short leases.
fn nats_settings(nats: &TestNats) -> String {
    let replicas = nats.urls().len();
    let durability = if replicas == 1 { "accept-weak-durability = true\n" } else { "" };
    format!(
        "[cluster.nats]\nurls = {:?}\nreplicas = {replicas}\nlog-bytes-max = 536870912\nheartbeat-secs = 0.3\n\
         lease-secs = 1.5\n{durability}",
        nats.urls()
    )
}

/// Connects this process with the settings of the workers.
async fn client(nats: &TestNats) -> Cluster {
    let settings =
        ClusterSettings { log_bytes_max: 512 << 20, heartbeat_secs: 0.3, lease_secs: 1.5, ..nats.settings() };
    Cluster::connect(settings).await.expect("the servers answer")
}

fn worker(nats: &TestNats, name: &str) -> Serve {
    let config = format!("[journal]\ndir = 'journal'\nkey-env = 'JOURNAL_KEY'\n{}", nats_settings(nats));
    keyed(TestHost::of("conform")).option("--role", "worker").option("--worker-name", name).config(&config)
}

async fn gateway(nats: &TestNats) -> TestHost {
    keyed(TestHost::of_gateway()).option("--role", "gateway").config(&nats_settings(nats)).start().await
}

/// Waits until the gateway knows workers for exactly these logs.
async fn logs(gateway: &TestHost, expected: &[&str]) {
    let known = async || {
        let health = gateway.health().await;
        let up = health["workers"].as_array()?.iter().filter(|worker| worker["is_up"] == true);
        let logs = up.flat_map(|worker| worker["logs"].as_array().cloned().unwrap_or_default());
        let logs: BTreeSet<String> = logs.filter_map(|log| Some(log["name"].as_str()?.to_owned())).collect();
        (logs.iter().map(String::as_str).eq(expected.iter().copied())).then_some(())
    };
    until("the workers of all logs", known).await;
}

fn log_of(admitted: &Admitted) -> &str {
    admitted.lease.split_once('.').expect("the lease names a log").0
}

/// Admits rollouts until each of the logs has this many.
async fn admit_to_each(
    gateway: &TestHost,
    controller: &Controller,
    logs: &[&str],
    count: usize,
) -> Vec<(RolloutRequest, Admitted)> {
    let mut all: Vec<(RolloutRequest, Admitted)> = Vec::new();
    while logs.iter().any(|log| all.iter().filter(|(_, one)| log_of(one) == *log).count() < count) {
        let request = controller.rollout("Calculate 2 + 3.").label("5");
        let admitted = gateway.admit(&request).await;
        all.push((request, admitted));
    }
    all
}

fn check_scored(results: &[Value]) {
    for result in results {
        assert_eq!(result["status"], "success", "{result:#}");
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
}

#[tokio::test]
async fn another_worker_continues_the_rollouts_of_a_dead_one() {
    let controller = Controller::start().await;
    let nats = TestNats::start().await;
    let first = worker(&nats, "w0").start().await;
    let second = worker(&nats, "w1").start().await;
    let gateway = gateway(&nats).await;
    logs(&gateway, &["w0", "w1"]).await;
    // When the worker dies, some rollouts are over and unread, and others wait for the model.
    let over = gateway.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    check_scored(&[over]);
    let unread = admit_to_each(&gateway, &controller, &["w0", "w1"], 1).await;
    controller.chats_arrived(1 + unread.len()).await;
    let idle = async || (gateway.health().await["lifecycle"]["active_rollouts"] == 0).then_some(());
    until("the unread rollouts to end", idle).await;
    controller.hold();
    let waiting = admit_to_each(&gateway, &controller, &["w0", "w1"], 3).await;
    let before = 1 + unread.len() + waiting.len();
    controller.chats_arrived(before).await;

    first.kill().await;
    let polls: Vec<_> = waiting.iter().chain(&unread).map(|(_, admitted)| gateway.result(admitted)).collect();
    let polls = join_all(polls);
    let released = async {
        let of_dead = waiting.iter().filter(|(_, admitted)| log_of(admitted) == "w0").count();
        // The calls without an answer are repeated, and only these.
        controller.chats_arrived(before + of_dead).await;
        controller.release();
        before + of_dead
    };
    let (results, chats) = tokio::join!(polls, released);

    check_scored(&results);
    assert_eq!(controller.chats().len(), chats);
    metric(&gateway, "rollout_host_log_takeovers_total{worker=\"w1\"}", 1.0).await;
    let metrics = gateway.metrics().await;
    let taken = metrics.get("rollout_host_log_takeover_rollouts_total{worker=\"w1\"}").unwrap();
    let of_dead = waiting.iter().filter(|(_, admitted)| log_of(admitted) == "w0").count();
    assert!(taken >= of_dead as f64, "{taken} of {of_dead}");
    assert_eq!(metrics.get("rollout_host_log_takeover_seconds_count{worker=\"w1\"}"), Some(1.0));
    // The other worker must live until all results are read.
    drop(second);
}

#[tokio::test]
async fn a_worker_that_was_stopped_and_wakes_after_its_lease_stops_at_once() {
    let controller = Controller::start().await;
    let nats = TestNats::start().await;
    let serve = worker(&nats, "w0");
    let stopped = serve.clone().start().await;
    let _second = worker(&nats, "w1").start().await;
    let gateway = gateway(&nats).await;
    logs(&gateway, &["w0", "w1"]).await;
    controller.hold();
    let waiting = admit_to_each(&gateway, &controller, &["w0"], 2).await;
    controller.chats_arrived(waiting.len()).await;

    stopped.process().signal(Signal::STOP);
    let of_stopped = waiting.iter().filter(|(_, admitted)| log_of(admitted) == "w0").count();
    controller.chats_arrived(waiting.len() + of_stopped).await;
    stopped.process().signal(Signal::CONT);
    let (ran, _again) = stopped.ended_and_started(&serve).await;
    assert_eq!(ran.code, Some(3), "{:?} {}", ran.code, ran.stderr);
    assert!(ran.stderr.contains("log was taken over"), "{}", ran.stderr);
    controller.release();

    let results = join_all(waiting.iter().map(|(_, admitted)| gateway.result(admitted))).await;
    check_scored(&results);
    metric(&gateway, "rollout_host_log_fenced_total{worker=\"w0\"}", 1.0).await;
    metric(&gateway, "rollout_host_log_unacknowledged_bytes{worker=\"w0\"}", 0.0).await;
}

/// Waits until a series of a gateway has this value.
async fn metric(gateway: &TestHost, series: &str, value: f64) {
    let is_there = async || (gateway.metrics().await.get(series) == Some(value)).then_some(());
    until(series, is_there).await;
}

#[tokio::test]
async fn a_restarted_worker_takes_its_log_from_nats_also_without_its_disk() {
    let controller = Controller::start().await;
    let nats = TestNats::start_cluster().await;
    let serve = worker(&nats, "w0");
    let host = until_started(&serve).await;
    let gateway = gateway(&nats).await;
    logs(&gateway, &["w0"]).await;
    controller.hold();
    let waiting = admit_to_each(&gateway, &controller, &["w0"], 3).await;
    controller.chats_arrived(3).await;

    host.kill().await;
    let _restarted = serve.start().await;
    controller.release();

    let results = join_all(waiting.iter().map(|(_, admitted)| gateway.result(admitted))).await;
    check_scored(&results);
    assert_eq!(controller.chats().len(), 6, "only calls without an answer were repeated");
}

/// Starts a worker as soon as the NATS cluster has elected its leaders.
async fn until_started(serve: &Serve) -> TestHost {
    let ready = async || {
        let host = serve.clone().try_start().await;
        host.ok()
    };
    until("a worker", ready).await
}

#[tokio::test]
async fn without_nats_running_rollouts_wait_and_new_ones_are_asked_to_retry() {
    let controller = Controller::start().await;
    let nats = TestNats::start().await;
    let _host = worker(&nats, "w0").start().await;
    let gateway = gateway(&nats).await;
    logs(&gateway, &["w0"]).await;
    controller.hold();
    let waiting = admit_to_each(&gateway, &controller, &["w0"], 2).await;
    controller.chats_arrived(2).await;

    nats.kill(0).await;
    controller.release();
    let refused = until("a refusal", async || {
        let request = controller.rollout("Calculate 2 + 3.").label("5");
        let asked = tokio::time::timeout(Duration::from_secs(20), gateway.ask(&request)).await.ok()?;
        (asked.status == 429).then_some(asked)
    });
    assert!(refused.await.headers.contains_key("retry-after"));
    nats.restart(0).await;

    let results = join_all(waiting.iter().map(|(_, admitted)| gateway.result(admitted))).await;
    check_scored(&results);
    until("new rollouts", async || {
        let asked = gateway.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        (asked.status == 202).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_operator_abandons_a_log_that_no_worker_can_continue() {
    let controller = Controller::start().await;
    let nats = TestNats::start().await;
    let first = worker(&nats, "w0").start().await;
    let _second = worker(&nats, "w1").start().await;
    let gateway = keyed(TestHost::of_gateway())
        .option("--role", "gateway")
        .option("--lost-after-secs", 1)
        .config(&nats_settings(&nats))
        .start()
        .await;
    logs(&gateway, &["w0", "w1"]).await;
    controller.hold();
    let admitted = admit_to_each(&gateway, &controller, &["w0", "w1"], 1).await;
    controller.chats_arrived(admitted.len()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let config = format!("[cluster]\nrole = 'gateway'\nkey-env = 'CLUSTER_KEY'\n{}", nats_settings(&nats));
    std::fs::write(&file, config).unwrap();
    let cluster = async |arguments: &[&str]| {
        let mut command = rollout_host(["cluster"]);
        command.args(arguments).arg("--config").arg(&file).start().ended().await
    };
    let listed = async || {
        let ran = cluster(&["logs", "--json"]).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let log =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["log"].as_str().unwrap().to_owned();
        ran.stdout.lines().map(log).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, ["w0", "w1"]);
    let refused = cluster(&["forget-log", "w1"]).await;
    assert!(
        refused.code == Some(2) && refused.stderr.contains("has an owner that sends heartbeats"),
        "{refused:?}"
    );
    let refused = cluster(&["forget-log", "w7"]).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("there is no log 'w7'"), "{refused:?}");

    first.kill().await;
    let client = client(&nats).await;
    let stored = client.jetstream().publish("rollout.log.w0", "of another program".into()).await.unwrap();
    stored.await.unwrap();
    let abandoned = cluster(&["forget-log", "w0"]).await;

    assert_eq!(abandoned.code, Some(0), "{}", abandoned.stderr);
    assert_eq!(listed().await, ["w1"]);
    let text = cluster(&["logs"]).await.stdout;
    assert!(text.starts_with("log  owner") && text.contains("\nw1   http://127.0.0.1:"), "{text}");
    controller.release();
    for (_, admitted) in &admitted {
        let result = gateway.result(admitted).await;
        match log_of(admitted) {
            "w0" => assert_eq!(result["err_category"], "internal_error", "{result:#}"),
            _ => check_scored(&[result]),
        }
    }
}

#[tokio::test]
async fn a_worker_whose_log_was_abandoned_while_it_was_away_stops() {
    let nats = TestNats::start().await;
    let host = worker(&nats, "w0").start().await;
    let gateway = gateway(&nats).await;
    logs(&gateway, &["w0"]).await;
    host.process().signal(Signal::STOP);
    client(&nats).await.forget_log("w0").await.unwrap();
    host.process().signal(Signal::CONT);

    let ran = host.ended().await;

    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("an operator has abandoned it, or the servers have lost it"),
        "{}",
        ran.stderr
    );
}

#[tokio::test]
async fn a_journal_with_rollouts_is_not_left_behind_when_its_server_becomes_a_worker() {
    let controller = Controller::start().await;
    let nats = TestNats::start().await;
    let folder = tempfile::tempdir().unwrap();
    let journal = format!("[journal]\ndir = {:?}\nkey-env = 'JOURNAL_KEY'\n", folder.path());
    let single = keyed(TestHost::of("conform")).config(&journal);
    let single = || single.clone().start();
    let host = single().await;
    let admitted = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let idle = async || (host.health().await["lifecycle"]["active_rollouts"] == 0).then_some(());
    until("the rollout to end", idle).await;
    host.kill().await;
    let worker = keyed(TestHost::of("conform")).option("--role", "worker").option("--worker-name", "w0");
    let worker = worker.config(&format!("{journal}{}", nats_settings(&nats)));

    let error = worker.clone().try_start().await.err().expect("it is refused");

    // The kill may have come before the result was stored.
    assert!(error.contains("with rollouts that callers wait for ("), "{error}");
    let host = single().await;
    check_scored(&[host.result(&admitted).await]);
    host.stop().await;
    worker.start().await;
}

#[tokio::test]
async fn settings_that_cannot_survive_a_machine_are_refused() {
    let nats = TestNats::start().await;
    let check = async |serve: Serve, expected: &str| {
        let error = serve.try_start().await.err().expect("it is refused");
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let weak = nats_settings(&nats).replace("accept-weak-durability = true\n", "");
    let serve = || keyed(TestHost::of("conform")).option("--role", "worker").option("--worker-name", "w0");
    let journal = "[journal]\ndir = 'journal'\n";
    check(serve().config(&format!("{journal}key-env = 'JOURNAL_KEY'\n{weak}")), "sync_interval: always")
        .await;
    check(serve().config(&format!("{journal}{}", nats_settings(&nats))), "journal.key-env").await;
    check(serve().config(&format!("[journal]\noff = true\n{}", nats_settings(&nats))), "needs a journal")
        .await;
}
