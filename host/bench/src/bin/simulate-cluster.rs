//! `simulate-cluster`: how many machines a load needs, and how evenly they are used, from costs that `scripts/bench-scale`
//! has measured.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are its output")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rollout_bench::simulation::{Costs, Plan, simulate};
use serde::Deserialize;

/// Use of the cores up to which machines are planned.
const USE_MAX: f64 = 0.6;

/// Simulates gateways, workers and NATS servers with the costs that scripts/bench-scale has measured.
#[derive(Debug, Parser)]
struct Args {
    /// JSON file of scripts/bench-scale
    measured: PathBuf,
    /// Number of workers
    #[arg(long, default_value = "1000")]
    workers: usize,
    /// Slots of each worker
    #[arg(long, default_value = "1250")]
    slots: u32,
    /// Cores of each machine
    #[arg(long, default_value = "16")]
    cores: usize,
    /// Number of gateways
    #[arg(long, default_value = "4")]
    gateways: usize,
    /// Number of groups of three NATS servers
    #[arg(long, default_value = "1")]
    nats_groups: usize,
    /// Rollouts in flight
    #[arg(long, default_value = "1000000")]
    in_flight: u64,
    /// Mean time of a rollout, in seconds
    #[arg(long, default_value = "600")]
    rollout_secs: f64,
    /// Simulated time, in seconds
    #[arg(long, default_value = "600")]
    secs: f64,
    /// Time of a request and its answer between two machines, in milliseconds
    #[arg(long, default_value = "0.5")]
    network_ms: f64,
    /// Seconds between two heartbeats of a worker
    #[arg(long, default_value = "5")]
    heartbeat_secs: f64,
    /// CPU time of the delivery of a heartbeat to one watcher, in milliseconds
    #[arg(long, default_value = "0.005")]
    delivery_ms: f64,
    /// Workers that die within the simulated time
    #[arg(long, default_value = "2")]
    deaths: usize,
    /// Seed of the random numbers
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// The result of `scripts/bench-scale`.
#[derive(Debug, Deserialize)]
struct Measured {
    log_bytes: f64,
    status_cpu_ms: f64,
    arrangements: BTreeMap<String, Arrangement>,
}

#[derive(Debug, Deserialize)]
struct Arrangement {
    cpu_ms: BTreeMap<String, f64>,
}

impl Measured {
    /// Returns the costs of a rollout in the arrangement of two workers and a gateway.
    fn costs(&self) -> Option<Costs> {
        let cpu = &self.arrangements.get("gateway")?.cpu_ms;
        Some(Costs {
            worker_ms: cpu.get("w1")? + cpu.get("w2")?,
            gateway_ms: *cpu.get("gateway-of-gateway")?,
            nats_ms: *cpu.get("nats-server")?,
            status_ms: self.status_cpu_ms,
            log_bytes: self.log_bytes,
        })
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let read = std::fs::read(&args.measured).map_err(|error| error.to_string());
    let measured: Result<Measured, String> =
        read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    let costs = measured.and_then(|measured| {
        measured.costs().ok_or_else(|| "it has no figures of two workers and a gateway".to_owned())
    });
    let costs = match costs {
        Ok(costs) => costs,
        Err(why) => {
            eprintln!("error: {}: {why}; write it with scripts/bench-scale", args.measured.display());
            return ExitCode::from(2);
        }
    };
    let plan = Plan {
        workers: args.workers,
        slots: args.slots,
        cores: args.cores,
        gateways: args.gateways,
        nats_groups: args.nats_groups,
        in_flight: args.in_flight,
        rollout_secs: args.rollout_secs,
        secs: args.secs,
        network_ms: args.network_ms,
        heartbeat_secs: args.heartbeat_secs,
        lease_secs: 6.0 * args.heartbeat_secs,
        delivery_ms: args.delivery_ms,
        deaths: args.deaths,
        seed: args.seed,
    };
    let outcome = simulate(&plan, costs);
    if args.json {
        match serde_json::to_string_pretty(&outcome) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("error: {error}"),
        }
        return ExitCode::SUCCESS;
    }
    println!(
        "{} workers of {} slots and {} cores, {} gateways, {} NATS servers, {} rollouts in flight of {} s",
        plan.workers,
        plan.slots,
        plan.cores,
        plan.gateways,
        3 * plan.nats_groups,
        plan.in_flight,
        plan.rollout_secs
    );
    let [p50, p99, p999] = outcome.admission_ms;
    println!("admissions           {:.0} a second, {} refused", outcome.admitted_per_sec, outcome.refused);
    println!("time of an admission p50 {p50:.1} ms, p99 {p99:.1} ms, p99.9 {p999:.1} ms");
    println!(
        "placement            {} of {} at another worker than their id's, {} waited although a slot was free elsewhere",
        outcome.placed_elsewhere, outcome.admitted, outcome.waited_needlessly
    );
    println!("fullest worker       {:.1} % of its slots", outcome.fullest_worker * 100.0);
    let [gateways, workers, nats] = outcome.use_of_cores.map(|used| used * 100.0);
    println!(
        "use of cores         gateways {gateways:.1} %, workers {workers:.1} %, NATS servers {nats:.1} %"
    );
    println!("log                  {:.1} MB a second", outcome.log_mb_per_sec);
    println!("heartbeats           {:.0} deliveries a second", outcome.deliveries_per_sec);
    println!(
        "deaths               {} rollouts continued elsewhere, after at most {:.1} s",
        outcome.taken_over, outcome.longest_pause_secs
    );
    println!();
    println!(
        "machines of {} cores at {:.0} % use, for rollouts of {} s",
        plan.cores,
        USE_MAX * 100.0,
        plan.rollout_secs
    );
    for a_day in [1e6, 1e7, 1e8] {
        println!("{}", machines(a_day, &plan, costs));
    }
    ExitCode::SUCCESS
}

/// Returns a line with the machines that a number of rollouts a day needs. Loads of a day are uneven: the peak is twice the
/// mean.
fn machines(a_day: f64, plan: &Plan, costs: Costs) -> String {
    let peak = 2.0 * a_day / 86_400.0;
    let for_cpu = |ms: f64| (peak * ms / 1e3 / (plan.cores as f64 * USE_MAX)).ceil().max(1.0);
    let in_flight = peak * plan.rollout_secs;
    let by_slots = (in_flight / (f64::from(plan.slots) * 0.8)).ceil();
    let workers = for_cpu(costs.worker_ms).max(by_slots).max(2.0);
    // Each gateway reads the status of each worker every second.
    let status = workers * costs.status_ms / 2.0;
    let gateways = (1..10_000)
        .map(f64::from)
        .find(|count| peak * costs.gateway_ms / count + status <= plan.cores as f64 * USE_MAX * 1e3)
        .unwrap_or(f64::INFINITY)
        .max(2.0);
    let deliveries = workers * (workers + gateways) / plan.heartbeat_secs * plan.delivery_ms;
    let nats = ((peak * costs.nats_ms + deliveries) / 1e3 / (plan.cores as f64 * USE_MAX)).ceil().max(1.0);
    format!(
        "{a_day:>11.0} a day: {peak:>6.0} a second at the peak, {in_flight:>8.0} in flight: {workers:>4.0} workers ({by_slots:.0} by slots), \
         {gateways:.0} gateways, {:.0} NATS servers, log {:.1} MB a second, {:.0} GB a day",
        3.0 * nats,
        peak * costs.log_bytes / 1e6,
        a_day * costs.log_bytes / 1e9
    )
}
