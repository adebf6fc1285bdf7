//! Tests of `export`: finished rollouts become rows, which trainers' packages can read.
//!
//! `ROLLOUT_VENVS` names the directory of their environment, which `clients/setup` makes.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rollout_tests::{
    Answer, Controller, Evaluation, Ran, Start, TestHost, example, project_root, rollout_host, sums,
    target_dir, until,
};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Returns the Python with the packages.
async fn python() -> PathBuf {
    static PYTHON: OnceCell<PathBuf> = OnceCell::const_new();
    let made = async || {
        let dir = std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
        let python = dir.join("export/bin/python");
        if !python.is_file() {
            let mut setup = Command::new(project_root().join("tests/clients/setup"));
            // Installing may take longer than other waits.
            let made = setup.arg(&dir).stdin(Stdio::null()).output().await.expect("it can be run");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        python
    };
    PYTHON.get_or_init(made).await.clone()
}

async fn export(dir: &Path, arguments: &[&str]) -> Ran {
    rollout_host(["export"]).args(arguments).current_dir(dir).start().ended().await
}

/// Returns the bits of a double, as Python prints them.
fn bits(number: f64) -> Value {
    format!("{:016x}", number.to_bits()).into()
}

/// Returns a reply as vLLM sends it with ids and log-probabilities.
fn reply(message: &Value, prompt: &[i64], tokens: &[(i64, f64)]) -> Answer {
    let logprob = |(_, logprob): &(i64, f64)| json!({"token": "t", "logprob": logprob, "bytes": [116], "top_logprobs": []});
    let ids: Vec<i64> = tokens.iter().map(|(id, _)| *id).collect();
    let content: Vec<Value> = tokens.iter().map(logprob).collect();
    let choice = json!({
        "index": 0, "message": message, "finish_reason": "stop", "stop_reason": null, "token_ids": ids,
        "logprobs": {"content": content},
    });
    let body = json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice],
        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": tokens.len(), "total_tokens": 9},
        "prompt_token_ids": prompt,
    });
    Answer::Json(body.to_string())
}

#[tokio::test]
async fn the_packages_of_trainers_read_exported_rows_to_the_last_bit() {
    const AWKWARD: f64 = -0.123_456_789_012_345_67;
    let controller = Controller::start().await;
    let call = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": "{\"expression\": \"1 + 3\"}"}},
    ]});
    let answer = json!({"role": "assistant", "content": "It is #### 4"});
    controller.answer_chats([
        reply(&call, &[1, 2], &[(3, AWKWARD), (4, -1e-300)]),
        reply(&answer, &[1, 2, 3, 4, 5], &[(6, -5e-324)]),
        // A server that tokenizes its own text differently in the next prompt.
        reply(&call, &[1, 2], &[(3, -0.5), (4, -0.5)]),
        reply(&answer, &[1, 2, 34, 5], &[(6, -0.5)]),
        // A server without tokens.
        Answer::Say("#### 4"),
    ]);
    let rows: Vec<Value> =
        (1..4).map(|number| json!({"user_prompt": "Calculate 1 + 3.", "ground_truth": if number == 3 { "5" } else { "4" }, "metadata": {"number": number}})).collect();
    let mut evaluation = Evaluation::of("conform", &rows).model(&controller).options(["--concurrency", "1"]);
    evaluation.guest = example("example-calculator");
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let dir = evaluation.path("");

    let parquet = export(&dir, &["out", "--out", "rows.parquet"]).await;
    let lines = export(&dir, &["out", "--out", "rows.jsonl"]).await;
    let mut reader = Command::new(python().await);
    reader.arg(project_root().join("tests/clients/read_rows.py")).args(["rows.parquet", "rows.jsonl"]);
    let read = reader.env("HF_HUB_OFFLINE", "1").current_dir(&dir).start().ended().await;

    assert_eq!(parquet.code, Some(0), "{}", parquet.stderr);
    assert!(parquet.stderr.contains("3 rows of 3 trajectories to rows.parquet"), "{}", parquet.stderr);
    assert_eq!((lines.code, parquet.stdout.as_str(), lines.stdout.as_str()), (Some(0), "", ""));
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    let read: Value = serde_json::from_str(&read.stdout).unwrap();
    assert_eq!(read["lengths"], json!([[6, 3]]));
    let mut rows = read["rows"].as_array().unwrap().clone();
    rows.sort_by_key(|row| row["rollout_id"].as_str().unwrap().to_owned());
    let [aligned, apart, silent] = rows.as_slice() else { panic!("{rows:#?}") };

    assert_eq!(aligned["rollout_id"], "row-00000-run-0");
    assert_eq!((&aligned["outcome"], &aligned["reward"]), (&json!("scored"), &bits(1.0)));
    assert_eq!((&aligned["label"], &aligned["metadata"]), (&json!("4"), &json!(r#"{"number":1}"#)));
    let metrics =
        json!([{"name": "answered", "value": bits(1.0)}, {"name": "tool_calls", "value": bits(1.0)}]);
    assert_eq!(aligned["metrics"], metrics);
    let messages = aligned["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[2]["tool_calls"], call["tool_calls"]);
    assert_eq!((&messages[2]["content"], &messages[2]["raw"]), (&Value::Null, &Value::Null));
    assert_eq!((&messages[3]["content"], &messages[3]["tool_call_id"]), (&json!("4"), &json!("c1")));
    assert_eq!(aligned["prompt"], json!(&messages[..2]));
    assert_eq!(aligned["mask"], json!([0, 0, 1, 0, 1]));
    assert!(aligned["tools"].as_str().unwrap().contains("Works out an arithmetic expression."));
    assert_eq!(aligned["turns"][1]["message"], 4);
    assert_eq!(aligned["turns"][1]["model"], "served");
    assert_eq!(aligned["turns"][1]["prompt_token_ids"], json!([1, 2, 3, 4, 5]));
    assert_eq!(aligned["input_ids"], json!([1, 2, 3, 4, 5, 6]));
    assert_eq!(aligned["assistant_masks"], json!([0, 0, 1, 1, 0, 1]));
    let logprobs = [0.0, 0.0, AWKWARD, -1e-300, 0.0, -5e-324].map(bits);
    assert_eq!(aligned["logprobs"], json!(logprobs));
    assert_eq!(aligned["tokens_missing"], Value::Null);

    assert_eq!(apart["input_ids"], Value::Null);
    let why = "request 1: its prompt does not begin with the 4 tokens before it, from token 2 on";
    assert_eq!(apart["tokens_missing"], why);
    assert_eq!(apart["turns"][0]["logprobs"], json!([bits(-0.5), bits(-0.5)]));
    assert_eq!((&silent["reward"], &silent["mask"]), (&bits(0.0), &json!([0, 0, 1])));
    assert_eq!(silent["tokens_missing"], "request 0: no token ids of the prompt");
}

/// Returns the Python with the package `inspect_ai`, which is large: if `ROLLOUT_TEST_INSPECT` is set, or if it is installed.
fn python_with_inspect() -> Option<PathBuf> {
    let dir = std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
    let python = dir.join("inspect/bin/python");
    let is_requested = std::env::var_os("ROLLOUT_TEST_INSPECT").is_some();
    assert!(
        python.is_file() || !is_requested,
        "{python:?} is missing; run: tests/clients/setup {} inspect",
        dir.display()
    );
    python.is_file().then_some(python)
}

#[tokio::test]
async fn the_package_inspect_reads_exported_logs() {
    let Some(python) = python_with_inspect() else {
        println!("not tested: inspect_ai, which ROLLOUT_TEST_INSPECT=1 requests");
        return;
    };
    let controller = Controller::start().await;
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": "{\"expression\": \"1 + 3\"}"}},
    ]});
    let answer = json!({"role": "assistant", "content": "It is #### 4", "reasoning_content": "because"});
    controller.answer_chats([
        reply(&call, &[1, 2], &[(3, -0.25), (4, -1e-300)]),
        reply(&answer, &[1, 2, 3, 4, 5], &[(6, -0.5)]),
        Answer::Say("#### 5"),
        Answer::Status(400, json!({"error": "too long"})),
    ]);
    let rows: Vec<Value> =
        (0..3).map(|_| json!({"user_prompt": "Calculate 1 + 3.", "ground_truth": "4"})).collect();
    let mut evaluation = Evaluation::of("conform", &rows).model(&controller).options(["--concurrency", "1"]);
    evaluation.guest = example("example-calculator");
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(2), "one rollout has no reward: {}", ran.stderr);
    let dir = evaluation.path("");

    let exported = export(&dir, &["out", "--format", "inspect", "--out", "log.json"]).await;
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let mut reader = Command::new(&python);
    reader.arg(project_root().join("tests/clients/read_inspect.py")).arg("log.json").current_dir(&dir);
    let read = reader.start().ended().await;
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    let read: Value = serde_json::from_str(&read.stdout).unwrap();

    assert_eq!((&read["status"], &read["model"]), (&json!("success"), &json!("a-model")));
    assert_eq!((&read["results"], &read["counts"]), (&json!([["reward", 0.5]]), &json!([3, 2])));
    assert_eq!(read["summaries"], 3);
    let mut samples = read["samples"].as_array().unwrap().clone();
    samples.sort_by_key(|sample| sample["id"].as_str().unwrap().to_owned());
    let [good, wrong, failed] = samples.as_slice() else { panic!("{samples:#?}") };
    assert_eq!((&good["id"], &good["epoch"], &good["target"]), (&json!("row-00000"), &json!(1), &json!("4")));
    assert_eq!(good["scores"], json!({"reward": 1.0, "answered": 1.0, "tool_calls": 1.0}));
    let prompt = json!([
        ["system", "Use the calculator for every calculation.", []],
        ["user", "Calculate 1 + 3.", []]
    ]);
    assert_eq!(good["input"], prompt);
    let roles: Vec<_> = good["messages"].as_array().unwrap().iter().map(|message| &message[0]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert_eq!(good["messages"][2][2], json!([["calculator", {"expression": "1 + 3"}]]));
    let events = good["events"].as_array().unwrap();
    assert_eq!(events.len(), 2, "{events:#?}");
    assert_eq!(events[0][1], prompt);
    assert_eq!(events[0][3], json!([-0.25, -1e-300]));
    assert_eq!(events[0][4], json!(["calculator"]));
    assert_eq!(events[1][1].as_array().unwrap()[..4], good["messages"].as_array().unwrap()[..4]);
    assert_eq!(events[1][3], json!([-0.5]));
    assert_eq!(good["output"], "It is #### 4");
    assert_eq!(wrong["scores"]["reward"], 0.0);
    assert!(failed["error"].as_str().unwrap().contains("in the workflow, at fault: "), "{failed}");
    assert!(failed["events"][0][5].as_str().unwrap().contains("400"), "{failed}");
}

#[tokio::test]
async fn inspect_view_lists_and_sends_exported_logs() {
    let Some(python) = python_with_inspect() else {
        println!("not tested: inspect view, which ROLLOUT_TEST_INSPECT=1 requests");
        return;
    };
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(2)).model(&controller);
    assert_eq!(evaluation.run().await.code, Some(0));
    let dir = evaluation.path("");
    let logs = dir.join("logs");
    std::fs::create_dir(&logs).unwrap();
    let file = "2026-01-31T12-00-00_sums.json";
    let exported = export(&dir, &["out", "--format", "inspect", "--out", &format!("logs/{file}")]).await;
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut view = Command::new(python.with_file_name("inspect"));
    view.args(["view", "start", "--host", "127.0.0.1", "--port", &port.to_string(), "--log-dir"]).arg(&logs);
    let view = view.current_dir(&dir).env("HOME", &dir).start();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let get = async |path: &str| {
        let response = http.get(format!("http://127.0.0.1:{port}/{path}")).send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.text().await.ok()?))
    };
    let (status, listed) = until("inspect view", async || get("api/logs").await).await;
    assert_eq!(status, 200, "{listed}{}", view.stderr());
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let files = listed["files"].as_array().unwrap();
    assert_eq!(files.len(), 1, "{listed:#}");
    let name = files[0]["name"].as_str().unwrap();
    assert!(name.ends_with(file), "{name}");
    let name: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let (status, log) = get(&format!("api/logs/{name}")).await.unwrap();
    assert_eq!(status, 200, "{log}");
    let log: Value = serde_json::from_str(&log).unwrap();
    assert_eq!((&log["status"], log["samples"].as_array().unwrap().len()), (&json!("success"), 2));
    let (status, page) = get("").await.unwrap();
    assert!(status == 200 && page.contains("<html"), "{status} {page}");
}

#[tokio::test]
async fn rows_are_selected_by_a_condition_and_an_invalid_one_is_explained() {
    let controller = Controller::start().await;
    let rows = [json!({"user_prompt": "2 + 3", "ground_truth": "5"})];
    let evaluation = Evaluation::of("two_samples", &rows).model(&controller);
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let dir = evaluation.path("");
    let samples = async |condition: &str| {
        let ran = export(&dir, &["out/rollouts", "--where", condition]).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let lines = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut samples: Vec<_> = lines.map(|row| row["sample_id"].as_str().unwrap().to_owned()).collect();
        samples.sort_unstable();
        (samples, ran.stderr)
    };

    let (both, _) = samples("reward is not null").await;
    assert_eq!(both, ["first", "second"], "a row for each sample, with the sample's own reward");
    let (one, stderr) = samples("reward >= 1 and outcome = 'scored'").await;
    assert_eq!(one, ["first"]);
    assert!(stderr.contains("1 row of 2 trajectories; --where excluded 1"), "{stderr}");

    let ran = export(&dir, &["out", "--where", "attempt = 1 and rewrad >= 1"]).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("unknown column `rewrad`; the columns are rollout_id, "), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("\n  attempt = 1 and rewrad >= 1\n  {:16}^", "")), "{}", ran.stderr);
}

#[tokio::test]
async fn unreadable_trajectories_are_named_and_the_rest_is_written() {
    let controller = Controller::start().await;
    let host = TestHost::start("small_json").await;
    let rollout = host.run(&controller.rollout("2 + 3").label("5")).await;
    let broken = host.kept().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("trajectory.json"), "{").unwrap();
    let kept = host.kept().display().to_string();
    let read = |dir: &Path| std::fs::read_to_string(dir.join("rows.jsonl")).map(|rows| rows.lines().count());

    let ran = export(host.dir(), &[&kept, "--out", "rows.jsonl"]).await;
    assert_eq!((ran.code, read(host.dir()).ok()), (Some(2), Some(1)), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("broken/trajectory.json: not a trajectory of this host: EOF"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("1 row of 2 trajectories to rows.jsonl; 1 cannot be read"), "{}", ran.stderr);
    let ran = export(host.dir(), &[&kept, "--out", "rows.jsonl", "--skip-unreadable"]).await;
    assert_eq!((ran.code, read(host.dir()).ok()), (Some(0), Some(1)), "{}", ran.stderr);

    std::fs::create_dir(host.dir().join("empty")).unwrap();
    let ran = export(host.dir(), &["empty", "--out", "none.parquet"]).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("there are no trajectories in empty"), "{}", ran.stderr);
    assert!(!host.dir().join("none.parquet").exists() && !host.dir().join("none.parquet.partial").exists());
    drop(rollout);
}

#[tokio::test]
async fn a_full_disk_is_reported_and_leaves_no_partial_file() {
    let controller = Controller::start().await;
    let host = TestHost::start("small_json").await;
    host.run(&controller.rollout("2 + 3").label("5")).await;
    let kept = host.kept().display().to_string();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();

    // Standard output goes to the full disk.
    let mut command = rollout_host(["export", &kept, "--format", "parquet"]);
    let process = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let ran = process.wait_with_output().await.unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot write to standard output: No space left on device"), "{stderr}");

    // A limit on file sizes simulates a disk that becomes full in the middle of a file.
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(rollout_tests::host_program());
    command.args(["export", &kept, "--out", "rows.parquet"]).current_dir(host.dir());
    let ran = command.output().await.unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot write to rows.parquet: File too large"), "{stderr}");
    let names: Vec<_> =
        std::fs::read_dir(host.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("rows")), "{names:?}");
}

#[tokio::test]
async fn a_journal_gives_the_same_rows_as_the_files_and_a_fork_names_its_parent() {
    let controller = Controller::start().await;
    let serve = TestHost::of("conform").config("[journal]\ndir = 'journal'\n");
    let host = serve.option("--trajectories", "files").start().await;
    let sum = || controller.rollout("Calculate 2 + 3.").label("5");
    // The caller reports data that the model's server did not send.
    let report = json!({"model_name": "engine", "samples": {"s": {"llm_call_metrics": [
        {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.125]},
    ]}}});
    controller.answer_callbacks([Answer::Status(200, json!({"trajectory": report}))]);
    host.ask(&sum().with_callbacks("k")).await;
    controller.callbacks_arrived(2).await;
    let parent = host.admit(&sum()).await;
    assert_eq!(host.result(&parent).await["status"], "success");
    let fork_of = json!({"rollout_id": parent.id, "turn": 1});
    let fork = host.admit(&sum().with("fork_of", fork_of)).await;
    assert_eq!(host.result(&fork).await["status"], "success");
    host.idle().await;
    let lines = async |dir: &str| {
        let ran = export(host.dir(), &[dir]).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let mut lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };

    // The server has the journal open meanwhile.
    let of_journal = lines("journal").await;

    assert_eq!(of_journal.len(), 3);
    assert_eq!(of_journal, lines(&host.kept().display().to_string()).await);
    let rows = of_journal.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = rows.collect();
    let having = |name: &str| rows.iter().filter(|row| !row[name].is_null()).collect::<Vec<_>>();
    let [reported] = having("logprobs")[..] else { panic!("{rows:#?}") };
    assert_eq!(reported["logprobs"], json!([0.0, 0.0, -0.125]));
    assert_eq!((&reported["model"], &reported["mask"]), (&json!("engine"), &json!([0, 1])));
    let [forked] = having("parent_rollout_id")[..] else { panic!("{rows:#?}") };
    assert_eq!((&forked["parent_rollout_id"], &forked["parent_turn"]), (&json!(parent.id), &json!(1)));
    assert_eq!((&forked["rollout_id"], &forked["mask"]), (&json!(fork.id), &json!([0, 1])));
}

#[tokio::test]
async fn an_evaluation_without_trajectories_is_exported_from_its_journal() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(2)).model(&controller).options(["--no-trajectories"]);
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);

    let ran = export(&evaluation.path(""), &["out", "--where", "reward = 1 and label = '4'"]).await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let row: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&row["rollout_id"], &row["mask"]), (&json!("row-00000-run-0"), &json!([0, 1])));
}

#[tokio::test]
async fn a_flipped_bit_in_a_journal_is_an_error_for_every_reader_and_a_repair_keeps_the_rest() {
    let controller = Controller::start().await;
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let serve = TestHost::of("conform").config(&format!("[journal]\ndir = '{}'\n", journal.display()));
    let host = serve.clone().start().await;
    for _ in 0..10 {
        let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert_eq!(result["status"], "success", "{result:#}");
    }
    host.kill().await;
    let segment = journal.join("00000000000000000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    // The flipped bit is in the request of the first rollout.
    let prompt = b"Calculate 2 + 3.";
    let place = bytes.windows(prompt.len()).position(|window| window == prompt).unwrap();
    bytes[place] ^= 0x10;
    std::fs::write(&segment, &bytes).unwrap();

    let rows = export(dir.path(), &["journal"]).await;
    let skipping = export(dir.path(), &["journal", "--skip-unreadable"]).await;
    let all = rollout_host(["trajectory", "--all", "--journal", "journal", "--out", "out"]);
    let all = { all }.current_dir(dir.path()).start().ended().await;
    let mut refused = rollout_host(["serve"]);
    refused.arg(rollout_tests::guest("conform")).args(["--listen", "127.0.0.1:0", "--journal", "journal"]);
    let refused = refused.current_dir(dir.path()).start().ended().await;
    for ran in [rows, skipping, all, refused] {
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("00000000000000000001.seg is damaged at byte "), "{}", ran.stderr);
        assert!(ran.stderr.contains("`rollout-host journal repair`"), "{}", ran.stderr);
    }

    let repair =
        async || rollout_host(["journal", "repair", "journal"]).current_dir(dir.path()).start().ended().await;
    let repaired = repair().await;
    assert_eq!(repaired.code, Some(0), "{}", repaired.stderr);
    assert!(repaired.stdout.contains("00000000000000000001.seg: bytes "), "{}", repaired.stdout);
    assert!(repaired.stdout.contains(" lost records and is removed"), "{}", repaired.stdout);
    assert_eq!(std::fs::read(journal.join("00000000000000000001.seg.damaged")).unwrap(), bytes);
    assert_eq!(repair().await.stdout, "the journal is undamaged\n");
    let rows = export(dir.path(), &["journal"]).await;
    assert_eq!((rows.code, rows.stdout.lines().count()), (Some(0), 9), "{}", rows.stderr);
    let host = serve.start().await;
    let again = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(again["status"], "success", "{again:#}");
}
