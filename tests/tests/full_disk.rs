//! Tests of a server whose journal's disk is full: it reports that, finishes its rollouts, and continues when there is room.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rollout_tests::{Controller, Serve, TestHost, host_program, until};

/// Starts the host with a private disk under its journal, which only the host's mount namespace has.
const ON_A_SMALL_DISK: &str = r#"#!/bin/sh
exec unshare --map-root-user --mount sh -c '
    mkdir journal && mount -t tmpfs -o size=200m none journal && exec "$HOST_PROGRAM" "$@"' host "$@"
"#;

/// Returns options of a host with a small disk under its journal, and the folder with its script.
fn on_a_small_disk() -> (Serve, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("on_a_small_disk");
    std::fs::write(&script, ON_A_SMALL_DISK).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let serve = TestHost::of("conform").config("[journal]\ndir = 'journal'\n").program(script);
    (serve.variable("HOST_PROGRAM", &host_program().display().to_string()), dir)
}

/// Fills the disk of a host, and returns the file that does so.
fn fill(host: &TestHost) -> PathBuf {
    let disk: PathBuf = format!("/proc/{}/root", host.process().id().unwrap()).into();
    let filler = disk.join(host.dir().strip_prefix("/").unwrap()).join("journal/filler");
    let mut filling = std::fs::File::create(&filler).unwrap();
    while filling.write_all(&[1; 1 << 16]).is_ok() {}
    filler
}

#[tokio::test]
async fn a_worker_with_a_full_disk_leaves_new_rollouts_to_others() {
    let controller = Controller::start().await;
    let (small, _script) = on_a_small_disk();
    let role = |serve: Serve, role: &str| {
        let serve = serve.option("--role", role).option("--cluster-key-env", "CLUSTER_KEY");
        serve.variable("CLUSTER_KEY", "the-key-of-the-cluster")
    };
    let full = role(small, "worker").option("--worker-name", "w0").start().await;
    let other = role(TestHost::of("conform"), "worker").option("--worker-name", "w1").start().await;
    let gateway = role(TestHost::of_gateway(), "gateway");
    let gateway = gateway.option("--worker", full.url()).option("--worker", other.url()).start().await;
    until("both workers", async || {
        let health = gateway.health().await;
        health["workers"].as_array()?.iter().all(|worker| worker["is_up"] == true).then_some(())
    })
    .await;
    fill(&full);
    // Segments are allocated ahead, and take some rollouts.
    let label = "x".repeat(6 << 20);
    until("the full disk", async || {
        gateway.admit(&controller.rollout("Calculate 2 + 3.").label(&label)).await;
        full.get("/ready").await.text.contains("disk is full").then_some(())
    })
    .await;

    let requests: Vec<_> = (0..12).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    for request in &requests {
        let admitted = gateway.admit(request).await;
        assert!(admitted.lease.starts_with("w1-"), "{}", admitted.lease);
        let again = gateway.ask(request).await;
        assert_eq!(again.status, 409, "its own worker remembers the other one: {}", again.text);
        assert_eq!(gateway.result(&admitted).await["sample"]["reward"], 1.0);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_new_rollouts_and_finishes_those_that_run() {
    let controller = Controller::start().await;
    let (serve, _script) = on_a_small_disk();
    let host = serve.start().await;
    let filler = fill(&host);

    // Segments are allocated ahead: admitted rollouts fill the first, and running ones finish in the others.
    controller.hold();
    let label = "x".repeat(6 << 20);
    let (mut admitted, mut refused) = (Vec::new(), None);
    while refused.is_none() && admitted.len() < 24 {
        let request = controller.rollout("Calculate 2 + 3.").label(&label);
        let reply = host.ask(&request).await;
        match reply.status {
            202 => {
                let lease = reply.body["polling_lease_token"].as_str().unwrap().to_owned();
                admitted.push(rollout_tests::Admitted { id: request.rollout_id().to_owned(), lease });
            }
            _ => refused = Some(reply),
        }
        // A separate thread checks the disk.
        tokio::task::yield_now().await;
    }
    let refused = refused.unwrap_or_else(|| panic!("{} rollouts were admitted", admitted.len()));
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("the journal's disk is full"), "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    assert!(admitted.len() >= 2, "the first segment has room for as many: {}", admitted.len());

    controller.release();
    for rollout in &admitted {
        assert_eq!(
            host.result(rollout).await["status"],
            "success",
            "running rollouts are finished and reported"
        );
    }
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    assert_eq!(host.ask(&request).await.status, 503, "there is no more room than before");
    let fork = controller.rollout("Calculate 2 + 3.").with_callbacks("k");
    let fork = fork.with("fork_of", serde_json::json!({"rollout_id": admitted[0].id, "turn": 0}));
    assert_eq!(host.ask(&fork).await.status, 503, "a request that would wait for the disk is refused, too");

    std::fs::remove_file(&filler).unwrap();
    let is_admitted = async || (host.ask(&request).await.status == 202).then_some(());
    until("a rollout is admitted again", is_admitted).await;
}
