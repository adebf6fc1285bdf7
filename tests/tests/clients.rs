//! The published Python package drives the host: `osmosis-ai` 0.3.7 in generation D, 0.3.2 in generation C, installed
//! into virtual environments by `clients/setup`. No release with a controller of generation B can be installed; 0.2.31
//! has its types, which check the messages, and its server, which proves the scenarios.
//!
//! Every scenario must run: one that the options here leave out is a failure. `ROLLOUT_VENVS` names the directory of the
//! environments.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{
    Answer, Controller, Ran, ServeCatalog, Start, TestCatalog, TestHost, client_python, guest, host_program,
    project_root, rollout_host,
};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard};

/// Maximum number of concurrent rollouts, and of accepted ones before the host answers 429.
const SLOTS: u32 = 8;
const FULL_AT: u32 = 40;

/// The timeout of all scenarios of a driver. Each has its own deadline.
const DRIVER: Duration = Duration::from_secs(300);

fn clients(file: &str) -> PathBuf {
    project_root().join("tests/clients").join(file)
}

/// Runs one driver at a time: scenarios have deadlines of seconds, in which, for example, a server must be filled.
async fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::const_new(());
    MACHINE.lock().await
}

/// Returns the Python of an environment with this version of the package.
async fn python(version: &str) -> PathBuf {
    client_python(&format!("osmosis-{version}")).await
}

/// Checks that every line is a scenario that ran and succeeded.
fn check_scenarios(ran: &Ran, at_least: usize) {
    check_scenarios_but(ran, at_least, &[]);
}

/// Checks that every line is a scenario that ran and succeeded, or one of these, which did not run.
fn check_scenarios_but(ran: &Ran, at_least: usize, not_run: &[&str]) {
    let scenarios: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let (left_out, run): (Vec<_>, Vec<_>) = scenarios.iter().partition(|scenario| scenario["ok"].is_null());
    let failed: Vec<_> = run.iter().filter(|scenario| scenario["ok"] != true).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", ran.stderr);
    let left_out: Vec<_> = left_out.iter().filter_map(|scenario| scenario["scenario"].as_str()).collect();
    assert_eq!(left_out, not_run, "scenarios that were not run");
    assert!(run.len() >= at_least, "only {} scenarios: {}", scenarios.len(), ran.stdout);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn the_published_client_of_generation_d_is_served() {
    let _alone = alone().await;
    let python = python("0.3.7").await;
    let host = TestHost::of("conform")
        .variable("KEY_OF_THE_SERVER", "secret-of-the-server")
        .option("--server-key-env", "KEY_OF_THE_SERVER")
        .option("--max-concurrent", SLOTS)
        .option("--queue-max", FULL_AT - SLOTS)
        .config("[osmosis]\nresult-wait-secs = 1.0\nlease-secs = 4.0\n[model]\ndelay-base-secs = 0.1\n")
        .start()
        .await;
    let mut driver = Command::new(python);
    driver.arg(clients("drive_d.py")).arg(host.url()).args(["--api-key", "secret-of-the-server"]);
    driver.args(["--slots", &SLOTS.to_string(), "--full-at", &FULL_AT.to_string()]);

    let ran = driver.start().ended_within(DRIVER).await;

    check_scenarios(&ran, 28);
}

/// Returns a catalog, a plugin of one of two tenants at its own address, and a key of that tenant.
async fn of_a_tenant(config: &str, model: &str) -> (TestCatalog, TestHost, String) {
    let catalog = ServeCatalog::default()
        .option("--max-concurrent", SLOTS)
        .option("--queue-max", FULL_AT - SLOTS)
        .option("--trajectories", "files")
        .config(config)
        .start()
        .await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "conform", "conform", model).await;
    let plugin = catalog.plugin(&tenant, "conform");
    (catalog, plugin, tenant.caller)
}

#[tokio::test]
async fn a_plugin_of_a_tenant_is_driven_by_the_published_clients() {
    let _alone = alone().await;
    for (version, file, at_least) in
        [("0.3.7", "drive_d.py", 28), ("0.3.2", "drive_c.py", 20), ("0.2.31", "drive_b.py", 27)]
    {
        let python = python(version).await;
        // The settings are those of the tests with a server of one plugin.
        let (config, model) = match file {
            "drive_d.py" => {
                ("[osmosis]\nresult-wait-secs = 1.0\nlease-secs = 4.0\n", "[model]\ndelay-base-secs = 0.1\n")
            }
            _ => ("", ""),
        };
        let (catalog, plugin, key) = of_a_tenant(config, model).await;
        let mut driver = Command::new(python);
        driver.arg(clients(file)).arg(plugin.url()).args(["--api-key", &key]);
        match file {
            "drive_b.py" => driver.arg("--artifacts").arg(catalog.folder().join("tenants/1/rollouts")),
            "drive_c.py" => driver.args(["--full-at", &FULL_AT.to_string()]),
            _ => driver.args(["--slots", &SLOTS.to_string(), "--full-at", &FULL_AT.to_string()]),
        };

        let ran = driver.start().ended_within(DRIVER).await;

        check_scenarios(&ran, at_least);
    }
}

#[tokio::test]
async fn the_published_driver_of_generation_c_is_served() {
    let _alone = alone().await;
    let python = python("0.3.2").await;
    let host = TestHost::of("conform")
        .option("--max-concurrent", SLOTS)
        .option("--queue-max", FULL_AT - SLOTS)
        .start()
        .await;
    let mut driver = Command::new(python);
    driver.arg(clients("drive_c.py")).arg(host.url()).args(["--full-at", &FULL_AT.to_string()]);

    let ran = driver.start().ended_within(DRIVER).await;

    check_scenarios(&ran, 20);
}

#[tokio::test]
async fn clients_without_a_key_option_pass_the_key_in_the_url() {
    const KEY: &str = "secret-of-the-server";
    let _alone = alone().await;
    let keyed = |generation: &str| {
        let serve = TestHost::of("conform").option("--osmosis-generation", generation);
        serve.variable("KEY_OF_THE_SERVER", KEY).option("--server-key-env", "KEY_OF_THE_SERVER").start()
    };
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "my_agent", "conform", "").await;
    let (b, c) = (keyed("b").await, keyed("c").await);
    let plugin = format!("{}/p/my_agent", catalog.url());
    for (version, file, url, key, scenarios) in [
        ("0.3.2", "drive_c.py", c.url(), KEY, &["happy", "controller-cancels", "health"][..]),
        ("0.3.2", "drive_c.py", &plugin, tenant.caller.as_str(), &["happy", "controller-cancels", "health"]),
        ("0.2.31", "drive_b.py", b.url(), KEY, &["happy", "several-samples", "health"]),
        ("0.2.31", "drive_b.py", &plugin, tenant.caller.as_str(), &["happy", "health"]),
    ] {
        for (key, scenarios, succeeds) in [(key, scenarios, true), ("not-the-key", &["health"], false)] {
            let mut driver = Command::new(python(version).await);
            let url = url.replace("http://", &format!("http://trainer:{key}@"));
            driver.arg(clients(file)).arg(url);
            driver.args(scenarios.iter().flat_map(|scenario| ["--scenario", scenario]));

            let ran = driver.start().ended_within(DRIVER).await;

            match succeeds {
                true => check_scenarios(&ran, scenarios.len()),
                false => assert!(!ran.stdout.contains("\"ok\": true"), "{}", ran.stdout),
            }
        }
    }
}

#[tokio::test]
async fn a_controller_of_generation_b_is_served() {
    let _alone = alone().await;
    let python = python("0.2.31").await;
    for generation in ["auto", "b"] {
        let host = TestHost::of("conform").option("--osmosis-generation", generation).start().await;
        let mut driver = Command::new(&python);
        driver.arg(clients("drive_b.py")).arg(host.url()).arg("--artifacts").arg(host.kept());

        let ran = driver.start().ended_within(DRIVER).await;

        check_scenarios(&ran, 27);
    }
}

#[tokio::test]
async fn the_published_server_of_generation_b_passes_the_same_scenarios() {
    let _alone = alone().await;
    let python = python("0.2.31").await;
    let kept = tempfile::tempdir().expect("a temporary directory can be made");
    let mut server = Command::new(&python);
    let server = server.arg(clients("baseline_b.py")).arg("--artifacts").arg(kept.path()).start();
    let url = server.line("listening on ").await;
    let mut driver = Command::new(&python);
    driver.arg(clients("drive_b.py")).args([&url, "--original", "--artifacts"]).arg(kept.path());

    let ran = driver.start().ended_within(DRIVER).await;

    // That server does not enforce the caller's timeouts.
    check_scenarios_but(&ran, 25, &["workflow-times-out", "grader-times-out"]);
}

#[tokio::test]
async fn the_published_local_evaluation_starts_the_host_and_is_served() {
    let _alone = alone().await;
    // Generations D and C.
    for version in ["0.3.7", "0.3.2"] {
        let python = python(version).await;
        let mut evaluation = Command::new(python);
        evaluation.arg(clients("local_eval.py")).arg("--").arg(host_program());
        evaluation.arg("serve").arg(guest("conform")).args(["--listen", "127.0.0.1:{port}"]);

        let ran = evaluation.start().ended_within(DRIVER).await;

        check_scenarios(&ran, 1);
    }
}

/// Reads trajectories with a published reader; all must have this version.
async fn read_trajectories(python: &Path, files: &[PathBuf], version: &str) {
    assert!(!files.is_empty(), "there is nothing to read");
    let mut reader = Command::new(python);
    let ran = reader.arg(clients("read_trajectories.py")).args(files).start().ended_within(DRIVER).await;
    check_scenarios(&ran, files.len());
    let count = ran.stdout.matches(&format!("\"version\": \"{version}\"")).count();
    assert_eq!(count, files.len(), "{}", ran.stdout);
}

fn trajectories_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("it is there").flatten() {
        let path = entry.path();
        let name = entry.file_name().into_string().expect("a name is text");
        if path.is_dir() {
            trajectories_below(&path, found);
        } else if name.starts_with("trajectory") && name.ends_with(".json") {
            found.push(path);
        }
    }
}

#[tokio::test]
async fn trajectories_are_read_by_the_published_readers() {
    let (harbor, osmosis) = (client_python("atif").await, python("0.3.7").await);

    // Trajectories of an evaluation have the newest version.
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let rows = "{\"user_prompt\":\"Calculate 2 + 3.\",\"ground_truth\":\"5\"}\n";
    std::fs::write(dir.path().join("rows.jsonl"), rows).expect("it can be written");
    let mut eval = rollout_host(["eval"]);
    eval.arg(guest("conform")).args(["--data", "rows.jsonl", "--model", "mock", "--out", "out"]);
    let ran = eval.current_dir(dir.path()).start().ended().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut evaluated = Vec::new();
    trajectories_below(dir.path(), &mut evaluated);
    read_trajectories(&harbor, &evaluated, "ATIF-v1.8").await;

    // The readers of protocol callers refuse newer versions than their own.
    let controller = Controller::start().await;
    let host = TestHost::start("small_json").await;
    for text in ["2 + 3", "tools", "names", "calls"] {
        host.run(&controller.rollout(text).label("5")).await;
    }
    let call = json!({"prompt_tokens": 3, "cost_usd": 0.5, "logprobs": [-1, -0.5], "prompt_token_ids": [1]});
    let report = json!({"trajectory": {"samples": {"s": {"llm_call_metrics": [call]}}}});
    controller.answer_callbacks([Answer::Status(200, report)]);
    host.ask(&controller.rollout("2 + 3").label("5").with_callbacks("k")).await;
    controller.callbacks_arrived(2).await;
    host.idle().await;
    let mut served = Vec::new();
    trajectories_below(&host.kept(), &mut served);
    assert_eq!(served.len(), 5, "{served:?}");
    read_trajectories(&harbor, &served, "ATIF-v1.7").await;
    read_trajectories(&osmosis, &served, "ATIF-v1.7").await;
}
