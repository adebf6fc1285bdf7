//! Snapshots of formats that others read: a trajectory, and the metrics. After a change of either, run
//! `INSTA_UPDATE=always cargo test "${packages[@]}" --test snapshots`, and read the diff.

use rollout_tests::InProcess;
use serde_json::Value;

/// Fields whose values depend on the run or the build: times, memory, ids and versions.
const OF_THIS_RUN: [&str; 11] = [
    "created",
    "duration_ms",
    "grader_digest",
    "guest_cpu_ms",
    "memory_bytes_peak",
    "model_ms",
    "plugin_digest",
    "queued_ms",
    "sample_id",
    "started_at_unix_ms",
    "waited_ms",
];

/// Replaces values that differ in every run.
fn settle(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_measured = name.ends_with("-secs-max") || name.ends_with("bytes-max");
                if OF_THIS_RUN.contains(&name.as_str()) {
                    *value = Value::from(format!("[{name}]"));
                } else if is_measured && !value["used"].is_null() {
                    value["used"] = Value::from("[used]");
                } else {
                    settle(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trajectory_has_this_form() {
    let here = InProcess::start("conform", "").await;
    here.host.run(&here.rollout("r1", "What is 2 + 3?").label("5")).await;
    let mut trajectory = here.host.trajectory("r1").await;
    settle(&mut trajectory);
    trajectory["agent"]["version"] = Value::from("[version]");
    insta::assert_snapshot!(serde_json::to_string_pretty(&trajectory).unwrap());
}

/// Returns the lines of a scrape without the values that differ in every run.
fn settled(scrape: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((series, value)) if !line.starts_with('#') => {
            let name = series.split('{').next().unwrap_or(series);
            let measured = ["_seconds", "_bytes", "_fds", "_mappings", "_max"];
            let is_measured = measured.iter().any(|part| name.contains(part)) && !name.ends_with("_count");
            let series = series.replace(env!("CARGO_PKG_VERSION"), "[version]");
            format!("{series} {}\n", if is_measured { "[measured]" } else { value })
        }
        _ => format!("{line}\n"),
    };
    scrape.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_these_names_and_words() {
    let here = InProcess::start("conform", "max-concurrent = 2\n").await;
    here.host.run(&here.rollout("r1", "What is 2 + 3?").label("5")).await;
    here.host.idle().await;
    let scrape = here.host.get("/metrics").await;
    assert_eq!(here.model.calls(), 1);
    insta::assert_snapshot!(settled(&scrape.text));
}
