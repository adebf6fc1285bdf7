//! Tests that the machine's resources determine the number of slots, and that callers get an answer when all are in use.

use rollout_tests::{Controller, Start, TestHost, guest, rollout_host_with_open_files};

/// Open files for 20 rollouts with two connections each, in addition to the process's own.
const OPEN_FILES: u32 = 128 + 40;

#[tokio::test]
async fn a_host_accepts_as_many_rollouts_as_the_machine_allows_and_fails_none() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--max-concurrent", 1000).open_files(OPEN_FILES).start().await;
    controller.hold();
    let mut admitted = Vec::new();

    loop {
        let request = controller.rollout("Calculate 2 + 3.").label("5");
        let reply = host.ask(&request).await;
        if reply.status == 429 {
            assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
            break;
        }
        assert_eq!(reply.status, 202, "{reply:?}");
        admitted.push(request);
    }

    assert_eq!(admitted.len(), 20);
    assert_eq!(host.health().await["concurrency"]["max_concurrent"], 20);
    controller.release();
    host.idle().await;
    let stderr = host.stop().await.stderr;
    assert!(stderr.contains("slots=20"), "{stderr}");
    assert!(stderr.contains("168 open files; 'ulimit -n'"), "the command that raises it is named: {stderr}");
    assert!(!stderr.contains("unscored"), "{stderr}");
}

#[tokio::test]
async fn an_evaluation_runs_as_many_concurrent_rollouts_as_the_machine_allows() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..60)
        .map(|n| format!("{{\"user_prompt\": \"Calculate {n} + 1.\", \"ground_truth\": \"{}\"}}\n", n + 1))
        .collect();
    std::fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    let mut command = rollout_host_with_open_files(OPEN_FILES, ["eval"]);
    command.arg(guest("conform")).args(["--data", "rows.jsonl", "--model", "mock", "--concurrency", "60"]);
    let mut by_default = rollout_host_with_open_files(OPEN_FILES, ["eval"]);
    by_default.arg(guest("conform")).args(["--data", "rows.jsonl", "--model", "mock"]);

    let ran = command.args(["--out", "out"]).current_dir(dir.path()).start().ended().await;
    let by_default = by_default.args(["--out", "out-2"]).current_dir(dir.path()).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let results = std::fs::read_to_string(dir.path().join("out/results.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 60, "{}", ran.stderr);
    assert!(ran.stderr.contains("has no room for the requested number"), "{}", ran.stderr);
    assert_eq!(by_default.code, Some(0), "{}", by_default.stderr);
    assert!(!by_default.stderr.contains("has no room"), "no number was requested: {}", by_default.stderr);
}

#[tokio::test]
async fn fewer_slots_are_a_warning_if_more_were_requested_and_otherwise_not() {
    let warning = "has no room for the requested number";
    let requested =
        TestHost::of("conform").option("--max-concurrent", 1000).open_files(OPEN_FILES).start().await;
    let by_default = TestHost::of("conform").open_files(OPEN_FILES).start().await;

    let (requested, by_default) = (requested.stop().await.stderr, by_default.stop().await.stderr);

    assert!(requested.contains(warning), "{requested}");
    assert!(!by_default.contains(warning), "{by_default}");
    assert!(by_default.contains("slots=20"), "{by_default}");
}
