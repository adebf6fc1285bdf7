//! Tests that the trajectories from the journal are equal to the files that a server writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rollout_rollout::StoredRollout;
use rollout_server::Trajectories;
use rollout_tests::{Answer, Controller, Ran, Serve, Start, TestHost, guest, rollout_host};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Returns options of a host that stores rollouts in a journal and also writes files.
fn both(guest_name: &str) -> Serve {
    journaled(guest_name).option("--trajectories", "files")
}

/// Returns options of a host that stores rollouts only in a journal.
fn journaled(guest_name: &str) -> Serve {
    TestHost::of(guest_name).config("[journal]\ndir = 'journal'\n")
}

/// Returns all files below a directory, by their relative paths.
fn files(below: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![below.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(below).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// Checks that the output of the journal for every rollout is equal to the written files, byte for byte; returns the
/// names.
fn are_the_same(host: &TestHost) -> Vec<String> {
    let again = tempfile::tempdir().unwrap();
    for stored in StoredRollout::all(&host.dir().join("journal")).unwrap() {
        let trajectories = Trajectories::of(stored.unwrap()).unwrap();
        trajectories.write_files(again.path()).unwrap();
        let folder = again.path().join(trajectories.finished().id.as_str());
        let documents = trajectories.documents();
        for (place, document) in documents.iter().enumerate() {
            let mut written = Vec::new();
            trajectories.write(&documents, place, &mut written).unwrap();
            assert!(written == std::fs::read(folder.join(document.file_name())).unwrap());
        }
    }
    let (then, again) = (files(&host.kept()), files(again.path()));
    for (name, file) in &then {
        let text = |file: &[u8]| String::from_utf8_lossy(file).into_owned();
        let of_journal = again.get(name).unwrap_or_else(|| panic!("{name} is not of the journal"));
        if name.ends_with(".json") {
            assert_eq!(text(of_journal), text(file), "{name}");
        }
        assert!(of_journal == file, "{name}");
    }
    assert_eq!(then.len(), again.len(), "{:?}", again.keys());
    then.into_keys().collect()
}

#[tokio::test]
async fn several_turns_lists_and_histories_are_the_same_from_the_journal() {
    let controller = Controller::start().await;
    let host = both("conversations").start().await;
    for text in ["Calculate 2 + 3.", "invalid requests", "ask the judge"] {
        host.run(&controller.rollout(text).label("5")).await;
    }
    assert_eq!(are_the_same(&host).len(), 3);

    let host = both("long_way").start().await;
    let prompts = ["6", "3 steady", "1 restless"];
    for prompt in prompts {
        host.run(&controller.rollout(prompt).label("5").id(prompt).with("metadata", json!({"row": 7}))).await;
    }
    let fork = json!({"rollout_id": "6", "turn": 2});
    host.run(&controller.rollout("6").label("5").id("fork").with("fork_of", fork)).await;
    assert_eq!(are_the_same(&host).iter().filter(|name| name.ends_with("trajectory.json")).count(), 4);
}

#[tokio::test]
async fn several_samples_withdrawn_ones_and_judgements_are_the_same() {
    let controller = Controller::start().await;
    let host = both("conform").start().await;
    let branched = controller.rollout("please branch: 2 + 3").label("5").as_b();
    assert_eq!(host.ask(&branched).await.status, 202);
    controller.callbacks_arrived(2).await;
    for text in ["please remove", "Calculate 2 + 3.", "please fail"] {
        host.run(&controller.rollout(text).label("5")).await;
    }
    host.run(&controller.rollout("Calculate 2 + 3.")).await;
    host.idle().await;
    let names = are_the_same(&host);
    assert!(names.iter().any(|name| name.ends_with("trajectory-second.json")), "{names:?}");

    let host = both("judged").config("[judge]\nmodel = 'mock'\n").start().await;
    for label in ["5", "ask three at once", "give up after a good answer", "send a model"] {
        host.run(&controller.rollout("Calculate 2 + 3.").label(label)).await;
    }
    are_the_same(&host);
}

#[tokio::test]
async fn failed_abandoned_and_interrupted_calls_are_the_same() {
    let controller = Controller::start().await;
    let host = both("conform").start().await;
    controller.answer_chats([Answer::Status(400, json!({"error": "no"}))]);
    host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.answer_chats([Answer::Text("no completion")]);
    host.run(&controller.rollout("Calculate 2 + 3.").label("5").agent_secs(3.0)).await;
    controller.hold();
    let cancelled = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    host.run(&controller.rollout("Calculate 2 + 3.").label("5").agent_secs(0.5)).await;
    host.cancel(&cancelled.id).await;
    host.result(&cancelled).await;
    controller.release();
    are_the_same(&host);

    let host = both("drop_calls").start().await;
    host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    are_the_same(&host);
}

#[tokio::test]
async fn answers_without_room_in_the_record_are_the_same() {
    let controller = Controller::start().await;
    let lines = "[limits]\nrecord-bytes-max = 20000\nartifact-bytes-max = 5000000\n";
    let host = both("greedy").config(lines).start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    host.run(&request).await;
    are_the_same(&host);
    let observed = host.trajectory(request.rollout_id()).await["extra"]["rollout_host"]["observed"].clone();
    let last = observed.as_array().and_then(|calls| calls.last()).cloned().unwrap_or_default();
    assert!(last["error"].as_str().is_some_and(|why| why.contains("record-bytes-max")), "{last:#}");

    let tools = format!("[[tools.component]]\npath = '{}'\n", guest("tool_kit").display());
    let host = both("call_host_tools").config("[limits]\nrecord-bytes-max = 6000\n").config(&tools);
    let host = host.start().await;
    let long = "x".repeat(2500);
    let calls =
        json!({"calls": [["upper", {"text": long}], ["none", {}], ["upper", {"text": long}], ["upper", {}]]});
    let result = host.run(&controller.rollout(&calls.to_string()).label("5")).await;
    are_the_same(&host);
    assert!(result.to_string().contains("record-bytes-max"), "{result:#}");
}

#[tokio::test]
async fn called_refused_and_failed_tools_are_the_same() {
    let controller = Controller::start().await;
    let tools = format!("[[tools.component]]\npath = '{}'\ncalls-max = 4\n", guest("tool_kit").display());
    let host = both("call_host_tools").config(&tools).start().await;
    let calls = json!([
        ["none", {"a": "é\n"}], ["upper", {"text": "a"}], ["none", {}], ["panic", {}], ["upper", "{no json"],
        ["upper", {"text": "b"}], ["upper", {"text": "one too many"}],
    ]);
    for start in [false, true] {
        let wanted = json!({"calls": calls, "start": start});
        host.run(&controller.rollout(&wanted.to_string()).label("5")).await;
    }
    are_the_same(&host);
}

#[tokio::test]
async fn artifacts_and_logs_with_dropped_parts_are_the_same() {
    let controller = Controller::start().await;
    for (guest_name, text) in [
        ("noisy", "misbehave"),
        ("keep_too_much", "Calculate 2 + 3."),
        ("artifact_names", "x"),
        ("observe", "x"),
    ] {
        let lines = "[limits]\nartifact-bytes-max = 5000000\nrecord-bytes-max = 5000000\n";
        let host = both(guest_name).config(lines).start().await;
        host.run(&controller.rollout(text).label("5")).await;
        are_the_same(&host);
    }
}

#[tokio::test]
async fn a_callers_report_is_in_the_trajectory_from_the_journal() {
    let reporting = |report: Value| Answer::Status(200, json!({"trajectory": report}));
    let calls = |tokens: u64, count: usize| json!({"model_name": "engine", "samples": {"s": {"llm_call_metrics": vec![json!({"prompt_tokens": tokens}); count]}}});
    let none = || Answer::Status(200, json!({}));
    let several = json!({"samples": {
        "second": {"model_name": "engine", "llm_call_metrics": [{"prompt_tokens": 22}]},
        "nobody": {"llm_call_metrics": [{"prompt_tokens": 99}]},
    }});
    for (text, answers, expected) in [
        ("Calculate 2 + 3.", [reporting(calls(100, 1)), none()], "\"prompt_tokens\":100"),
        ("Calculate 2 + 3.", [none(), reporting(calls(101, 1))], "\"prompt_tokens\":101"),
        ("Calculate 2 + 3.", [reporting(calls(100, 1)), reporting(calls(102, 2))], "\"prompt_tokens\":102"),
        ("please branch: 2 + 3", [reporting(several), none()], "\"prompt_tokens\":22"),
    ] {
        let controller = Controller::start().await;
        controller.answer_callbacks(answers);
        let serve = both("conform");
        let host = serve.clone().start().await;
        let request = controller.rollout(text).label("5").as_b();
        assert_eq!(host.ask(&request).await.status, 202);
        controller.callbacks_arrived(2).await;
        // The last report is merged after its callback was acknowledged; the host ends after both.
        let (ran, host) = host.stopped(&serve).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);

        let names = are_the_same(&host);

        let all: String =
            names.iter().map(|name| std::fs::read_to_string(host.kept().join(name)).unwrap()).collect();
        assert!(all.contains(expected), "{expected} in {all}");
    }
}

#[tokio::test]
async fn a_rollout_that_another_process_continued_is_the_same() {
    let controller = Controller::start().await;
    let serve = both("long_way");
    let mut host = serve.clone().start().await;
    controller.hold_after(3);
    let admitted = host.admit(&controller.rollout("5").label("5")).await;
    for held in [4, 9] {
        controller.chats_arrived(held).await;
        controller.hold_after(8);
        host = host.killed(&serve).await;
    }
    controller.release();
    host.result(&admitted).await;

    assert!(!are_the_same(&host).is_empty());
}

/// Runs `rollout-host trajectory` on a host's journal.
async fn command(host: &TestHost, arguments: &[&str]) -> Ran {
    let mut command = rollout_host(["trajectory", "--config", "config.toml"]);
    command.args(arguments).current_dir(host.dir());
    command.start().ended().await
}

#[tokio::test]
async fn a_server_with_a_journal_writes_no_files_and_serves_trajectories() {
    let controller = Controller::start().await;
    let serve = journaled("conform").option("--api-key", "k");
    let host = serve.clone().start().await.with_key("k");
    let one = controller.rollout("Calculate 2 + 3.").label("5").id("a b/c".replace('/', "%").as_str());
    host.run(&one).await;
    let several = controller.rollout("please branch: 2 + 3").label("5").as_b();
    controller.answer_callbacks([Answer::Status(200, json!({"trajectory": {"model_name": "engine"}}))]);
    host.ask(&several).await;
    controller.callbacks_arrived(2).await;
    host.idle().await;
    assert_eq!(files(&host.kept()).keys().count(), 0, "no file is written for a rollout");

    let reply = host.get("/rollout/a%20b%25c/trajectory").await;
    assert_eq!((reply.status, &reply.body["session_id"]), (200, &json!("a b%c")), "{reply:?}");
    assert_eq!(reply.headers["content-type"], "application/json");
    assert_eq!(reply.body["extra"]["osmosis"]["reward"], 1.0);
    let path = format!("/rollout/{}/trajectory", several.rollout_id());
    let both = host.get(&path).await.body;
    let second = host.get(&format!("{path}?sample=second")).await.body;
    assert_eq!(both[1], second);
    assert_eq!(second["extra"]["rollout_host"]["sample_id"], "second");
    assert_eq!(both[0]["agent"]["model_name"], "engine", "it has the caller's report");
    for (path, status, says) in [
        (format!("{path}?sample=third"), 404, "no sample 'third'; it has first, second"),
        ("/rollout/nobody/trajectory".to_owned(), 404, "there is no rollout 'nobody'"),
        ("/rollout/a%2Fb/trajectory".to_owned(), 404, "invalid rollout id"),
    ] {
        let reply = host.get(&path).await;
        assert_eq!(reply.status, status, "{path}: {reply:?}");
        assert!(reply.text.contains(says), "{path}: {}", reply.text);
    }
    assert_eq!(host.with_key("another").get(&path).await.status, 401);
}

#[tokio::test]
async fn an_unfinished_rollout_is_a_conflict_and_a_missing_one_is_reported() {
    let controller = Controller::start().await;
    let serve = journaled("conform");
    let host = serve.clone().start().await;
    controller.hold();
    let admitted = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let path = format!("/rollout/{}/trajectory", admitted.id);
    let early = host.get(&path).await;
    assert_eq!(early.status, 409, "{early:?}");
    assert!(early.text.contains("has not finished"), "{}", early.text);
    let ran = command(&host, &[&admitted.id]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("has not finished"), "{}", ran.stderr);
    controller.release();
    host.result(&admitted).await;
    let before = host.get(&path).await;
    assert_eq!(before.status, 200, "{before:?}");
    let host = host.killed(&serve).await;
    assert_eq!(host.get(&path).await.text, before.text, "another process gives the same");

    let host = TestHost::start("conform").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    host.run(&request).await;
    let none = host.get(&format!("/rollout/{}/trajectory", request.rollout_id())).await;
    assert_eq!(none.status, 404);
    assert!(none.text.contains("--journal DIR"), "{}", none.text);
    assert!(host.trajectory(request.rollout_id()).await.is_object(), "it is a file there");
}

#[tokio::test]
async fn an_evaluator_that_sets_a_directory_gets_files() {
    let controller = Controller::start().await;
    let serve = journaled("conform").variable("_OSMOSIS_ROLLOUT_INSTANCE_ID", "one");
    let host = serve.start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    host.run(&request).await;

    assert!(host.trajectory(request.rollout_id()).await.is_object());
    assert_eq!(host.get(&format!("/rollout/{}/trajectory", request.rollout_id())).await.status, 200);
}

#[tokio::test]
async fn the_command_writes_the_same_files_as_a_server() {
    let controller = Controller::start().await;
    let host = both("observe").start().await;
    for id in ["one", "two"] {
        host.run(&controller.rollout("Calculate 2 + 3.").label("5").id(id)).await;
    }

    let ran = command(&host, &["--all", "--out", "again"]).await;

    assert_eq!((ran.code, ran.stderr.contains("2 rollouts")), (Some(0), true), "{}", ran.stderr);
    let (then, again) = (files(&host.kept()), files(&host.dir().join("again")));
    assert!(then == again, "{:?} and {:?}", then.keys(), again.keys());
    let reply = host.get("/rollout/one/trajectory").await;
    let ran = command(&host, &["one"]).await;
    assert_eq!(ran.stdout, format!("{}\n", reply.text));
    assert_eq!(
        reply.text.as_bytes(),
        then["one/trajectory.json"],
        "the printed trajectory is the written one"
    );
    let all = command(&host, &["--all"]).await;
    assert_eq!(serde_json::Deserializer::from_str(&all.stdout).into_iter::<Value>().count(), 2);
    let missing = command(&host, &["nobody"]).await;
    assert!(missing.code == Some(2) && missing.stderr.contains("there is no rollout 'nobody'"));
}

#[tokio::test]
async fn many_concurrent_readers_stay_within_the_memory_budget() {
    let controller = Controller::start().await;
    let host = journaled("conform").option("--memory-budget-bytes", 64 << 20).start().await;
    let long = format!("Calculate 2 + 3. {}", "x".repeat(1 << 20));
    let request = controller.rollout(&long).label("5");
    host.run(&request).await;
    let path = format!("/rollout/{}/trajectory", request.rollout_id());
    let whole = host.get(&path).await.text.len();
    assert!(whole > 2 << 20, "{whole}");

    let host = Arc::new(host);
    let asking = (0..200).map(|_| {
        let (host, path) = (host.clone(), path.clone());
        async move { host.get(&path).await }
    });
    let replies = asking.collect::<JoinSet<_>>().join_all().await;

    for reply in &replies {
        assert!(reply.status == 200 && reply.text.len() == whole || reply.status == 503, "{}", reply.status);
    }
    assert!(replies.iter().any(|reply| reply.status == 200));
    let metrics = host.metrics().await;
    assert_eq!(metrics.get(r#"rollout_host_held_bytes{use="request"}"#), Some(0.0), "the memory is released");
}
