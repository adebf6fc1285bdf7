//! Measures the time to create and drop an instance of a plugin, compared with starting a process:
//! `cargo bench -p rollout-host [-- PLUGIN.wasm]`.
//!
//! Without an argument it compiles `examples/one-turn`. Prints p50 and p99 of many starts and their ratio to
//! the baseline, the start of the process `true`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_core::budget::Budget;
use rollout_core::limits::Limits;
use rollout_core::telemetry::Metrics;
use rollout_guest::engine::Engine;
use rollout_guest::imports::ClockStart;
use rollout_rollout::{Deployment, DeploymentSettings};

const STARTS: usize = 20_000;
const PROCESSES: usize = 300;

fn main() {
    let plugin = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let plugin = plugin.map_or_else(build_example, PathBuf::from);
    let bytes =
        std::fs::read(&plugin).unwrap_or_else(|error| panic!("cannot read {}: {error}", plugin.display()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");

    let processes = sorted((0..PROCESSES).map(|_| {
        let started = Instant::now();
        let status = Command::new("true").status().expect("the program `true`");
        assert!(status.success());
        started.elapsed()
    }));
    println!("instance start of {}, {STARTS} starts, one at a time", plugin.display());
    println!("{:28} {:>10} {:>10}   p50 to baseline", "", "p50", "p99");
    print("baseline: process `true`", &processes, &processes);
    for (name, instances_max) in [("pooled", 1024), ("pooled-eager", 9000), ("on-demand", 19_000)] {
        let deployment = deployment(&bytes, instances_max);
        let (budget, metrics) = (Budget::default(), Arc::new(Metrics::new()));
        let start = || runtime.block_on(deployment.try_start(&budget, &metrics)).expect("an instance").took;
        for _ in 0..STARTS / 10 {
            start();
        }
        print(name, &sorted((0..STARTS).map(|_| start())), &processes);
    }
}

fn deployment(bytes: &[u8], instances_max: u32) -> Deployment {
    let limits = Limits::default();
    let engine = Engine::new(instances_max, limits.memory_bytes_max).expect("an engine");
    let workflow = engine.load(bytes).unwrap_or_else(|error| panic!("{error}"));
    let settings = DeploymentSettings {
        served_as: None,
        workflow,
        grader: None,
        limits,
        plugin_config: None,
        grader_config: None,
        tools: None,
        judge: None,
        clock_begins: ClockStart::default(),
    };
    Deployment::new(settings).unwrap_or_else(|error| panic!("{error}"))
}

fn sorted(times: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times
}

fn print(name: &str, sorted: &[Duration], baseline: &[Duration]) {
    let at = |times: &[Duration], share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let ratio = at(baseline, 0.5).as_secs_f64() / at(sorted, 0.5).as_secs_f64();
    println!("{name:28} {:>8.1?} {:>8.1?}   ÷{ratio:.1}", at(sorted, 0.5), at(sorted, 0.99));
}

fn build_example() -> PathBuf {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/one-turn/rust");
    let component = std::env::temp_dir().join(format!("one-turn-{}.wasm", std::process::id()));
    let status = Command::new(env!("CARGO_BIN_EXE_rollout-host"))
        .arg("build")
        .arg(example)
        .arg("-o")
        .arg(&component)
        .status()
        .expect("rollout-host build");
    assert!(status.success(), "rollout-host build failed");
    component
}
