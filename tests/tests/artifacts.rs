//! Tests that the files of rollouts are bounded, and that a failure to write them loses no reward.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rollout_tests::{Controller, Serve, TestHost, host_program, until};

/// Returns options of a server with files and no journal, as an evaluator starts it.
fn writing(lines: &str) -> Serve {
    TestHost::of("conform").config(&format!("trajectories = 'files'\n{lines}"))
}

/// Returns the rollouts with a trajectory in a directory.
fn kept(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).unwrap().flatten();
    let has_one = entries.filter(|entry| entry.path().join("trajectory.json").exists());
    let mut names: Vec<String> = has_one.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_oldest_rollouts_are_deleted_when_files_exceed_their_limit() {
    const ROLLOUTS: usize = 12;
    let controller = Controller::start().await;
    let host = writing("[artifacts]\nbytes-max = 1048576\n").start().await;
    // Files of another program, older than all.
    let others = host.kept().join("thesis");
    std::fs::create_dir_all(&others).unwrap();
    std::fs::write(others.join("chapter.tex"), vec![b'x'; 1 << 20]).unwrap();

    let prompt = format!("Calculate 2 + 3. {}", "x".repeat(300_000));
    for n in 0..ROLLOUTS {
        let result = host.run(&controller.rollout(&prompt).id(&format!("r{n:02}")).label("5")).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
    let is_within = async || Some(kept(&host.kept())).filter(|kept| kept.len() <= 3);
    let kept = until("the oldest to go", is_within).await;
    assert_eq!(kept.last().map(String::as_str), Some("r11"), "{kept:?}");
    assert!(others.join("chapter.tex").exists());
}

#[tokio::test]
async fn files_from_before_the_start_are_counted_and_bounded() {
    let controller = Controller::start().await;
    let prompt = format!("Calculate 2 + 3. {}", "x".repeat(300_000));
    let first = writing("").start().await;
    for n in 0..6 {
        first.run(&controller.rollout(&prompt).id(&format!("r{n}")).label("5")).await;
    }
    assert_eq!(kept(&first.kept()).len(), 6);

    let bounded = writing("[artifacts]\nbytes-max = 1048576\n");
    let (_, second) = first.stopped(&bounded).await;
    let is_within = async || Some(kept(&second.kept())).filter(|kept| kept.len() <= 3);
    let left = until("the oldest to go", is_within).await;
    assert_eq!(left.last().map(String::as_str), Some("r5"), "{left:?}");
}

/// Starts the host with a small private disk under its artifact root.
const ON_A_SMALL_DISK: &str = r#"#!/bin/sh
exec unshare --map-root-user --mount sh -c '
    mkdir -p kept && mount -t tmpfs -o size=4m none kept && exec "$HOST_PROGRAM" "$@"' host "$@"
"#;

#[tokio::test]
async fn a_full_disk_loses_the_trajectory_and_no_reward() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("on_a_small_disk");
    std::fs::write(&script, ON_A_SMALL_DISK).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let controller = Controller::start().await;
    let serve = writing("").program(script);
    let host = serve.variable("HOST_PROGRAM", &host_program().display().to_string()).start().await;
    let disk: PathBuf = format!("/proc/{}/root", host.process().id().unwrap()).into();
    let disk = disk.join(host.kept().strip_prefix("/").unwrap());
    let filler = disk.join("filler");
    let mut filling = std::fs::File::create(&filler).unwrap();
    while filling.write_all(&[1; 4096]).is_ok() {}
    drop(filling);

    let prompt = format!("Calculate 2 + 3. {}", "x".repeat(100_000));
    let result = host.run(&controller.rollout(&prompt).id("full").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let metrics = host.metrics().await;
    assert_eq!(metrics.get("rollout_host_trajectories_unwritten_total"), Some(1.0));
    assert!(host.process().stderr().contains("trajectory not written"), "{}", host.process().stderr());
    assert!(!disk.join("full").exists(), "incomplete files of a rollout are removed");

    std::fs::remove_file(&filler).unwrap();
    let result = host.run(&controller.rollout(&prompt).id("room").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert!(disk.join("room/trajectory.json").exists());
}
