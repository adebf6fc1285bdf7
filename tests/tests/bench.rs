//! Tests of `rollout-host bench` with a real server: its diagram and its soak test.

use std::path::Path;

use rollout_tests::{Ran, Start, guest, host_program, rollout_host};
use serde_json::Value;

async fn bench(dir: &Path, options: &[&str]) -> Ran {
    bench_of("conform", dir, options).await
}

async fn bench_of(plugin: &str, dir: &Path, options: &[&str]) -> Ran {
    let serve = format!(
        "{} serve {} --listen 127.0.0.1:0 --max-concurrent 8 --artifact-root kept",
        host_program().display(),
        guest(plugin).display()
    );
    let mut command = rollout_host(["bench", "--command", &serve]);
    command.args(options).current_dir(dir).start().ended().await
}

#[tokio::test]
async fn a_report_can_be_drawn() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");

    let ran =
        bench(dir.path(), &["--in-flight", "1,4", "--rollouts", "20", "--rounds", "1", "--plot", "out.svg"])
            .await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let drawn = std::fs::read_to_string(dir.path().join("out.svg")).expect("it was written");
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{drawn}");
    for text in
        ["rollouts a second", "latency in milliseconds", "rollouts in flight", "server p50", "server p99"]
    {
        assert!(drawn.contains(text), "{text} is not in {drawn}");
    }
    assert!(drawn.matches("<circle").count() >= 8, "a point for each figure at each number: {drawn}");
}

#[tokio::test]
async fn a_soak_reports_whether_the_server_grows() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");

    let ran = bench(dir.path(), &["--in-flight", "4", "--soak", "400", "--json"]).await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!(report["rollouts"], 400, "{report:#}");
    assert_eq!(report["errors"], serde_json::json!({}));
    assert_eq!(report["looks"].as_array().map(Vec::len), Some(100), "{report:#}");
    for figure in ["rss_mib", "mappings", "fds"] {
        assert!(report[figure]["first"].as_f64() > Some(1.0), "{figure}: {report:#}");
        assert_eq!(report[figure]["grows"], false, "{figure}: {report:#}");
    }
}

#[tokio::test]
async fn a_soak_of_several_numbers_in_flight_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");

    let ran = bench(dir.path(), &["--soak", "400"]).await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("one number in flight"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_long_conversation_has_tool_results_of_the_requested_length() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let long = ["--turns", "20", "--tool-bytes", "4096"];
    let options = ["--in-flight", "2", "--rollouts", "4", "--rounds", "1", "--json"];

    let ran = bench_of("long_reads", dir.path(), &[&long[..], &options[..]].concat()).await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!((&report["turns"], &report["tool_bytes"]), (&20.into(), &4096.into()), "{report:#}");
    let trajectories = walk(dir.path(), "trajectory.json");
    let text = std::fs::read_to_string(&trajectories[0]).expect("it was written");
    assert_eq!(text.matches(&format!("\"{}\"", "x".repeat(4096))).count(), 2 * 19, "a result and its sight");
}

/// Returns the files of this name below a directory.
fn walk(dir: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let entries =
        std::fs::read_dir(dir).expect("it can be read").map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => walk(&path, name),
            false => Vec::from_iter(Some(path).filter(|path| path.ends_with(name))),
        })
        .collect()
}
