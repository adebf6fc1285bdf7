//! Tests of forks, which continue another rollout from one of its turns.

use rollout_mock_model::{MockModel, MockModelSettings};
use rollout_tests::{
    Answers, Controller, Oracle, RolloutRequest, Serve, Start, TestCatalog, TestHost, example, guest,
    project_root, python_program, rollout_host,
};
use serde_json::{Value, json};

/// Returns options of a host for a guest in which every turn depends on the previous ones, with a tool and a judge.
fn long_way(judge_url: &str) -> Serve {
    let tools = guest("tool_kit");
    TestHost::of("long_way").config(&format!(
        "[journal]\ndir = 'journal'\n[judge]\nurl = '{judge_url}'\nmodel = 'judge'\n[[tools.component]]\npath = '{}'\n",
        tools.display()
    ))
}

/// Returns a request for a rollout of this many turns, with two calls each.
fn turns(controller: &Controller, oracle: &Oracle, turns: u32) -> RolloutRequest {
    let request = controller.rollout(&turns.to_string()).label("x");
    request.with("chat_completions_url", oracle.url()).with("agent_timeout_sec", 120.0)
}

/// Returns a request for a fork of another rollout after this many model calls.
fn fork(controller: &Controller, oracle: &Oracle, of: (u32, &str), turn: u32) -> RolloutRequest {
    turns(controller, oracle, of.0).with("fork_of", json!({"rollout_id": of.1, "turn": turn}))
}

/// Returns the texts of a result's messages after the prompt.
fn texts(result: &Value) -> Vec<String> {
    assert_eq!(result["status"], "success", "{result:#}");
    let messages = result["sample"]["messages"].as_array().unwrap();
    messages[1..].iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// Returns the random number at the end of a message.
fn number(text: &str) -> u64 {
    text.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn forks_share_the_first_calls_of_their_parent_and_continue_independently() {
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let serve = long_way(&oracle.url());
    let host = serve.clone().start().await;
    let parent = host.admit(&turns(&controller, &oracle, 3)).await;
    let parent_texts = texts(&host.result(&parent).await);
    assert_eq!(oracle.count(), 7, "two calls a turn, and the judge's");

    let first = host.admit(&fork(&controller, &oracle, (3, &parent.id), 2)).await;
    let second = host.admit(&fork(&controller, &oracle, (3, &parent.id), 2)).await;
    let (one, two) = (host.result(&first).await, host.result(&second).await);

    assert_eq!(oracle.count(), 7 + 2 * 5, "the first turn's calls were not made again");
    let (one_texts, two_texts) = (texts(&one), texts(&two));
    for of_fork in [&one_texts, &two_texts] {
        assert_eq!(of_fork[0], parent_texts[0], "the reply of the first turn");
        assert_ne!(of_fork[2], parent_texts[2], "that of the second");
    }
    let numbers = [&parent_texts, &one_texts, &two_texts].map(|texts| number(&texts[1]));
    assert_eq!(
        std::collections::BTreeSet::from(numbers).len(),
        3,
        "from there chance is its own: {numbers:?}"
    );

    // A fork of a fork, after its parent has ended and the process died.
    let host = host.killed(&serve).await;
    let third = host.admit(&fork(&controller, &oracle, (3, &first.id), 4)).await;
    let host = host.killed(&serve).await;
    let three_texts = texts(&host.result(&third).await);
    assert_eq!(three_texts[..3], one_texts[..3], "two turns are the fork's, with its number");
    assert_ne!(number(&three_texts[3]), number(&one_texts[3]));

    let trajectory = host.served_trajectory(&third.id).await;
    let origin = &trajectory["extra"]["rollout_host"]["fork_of"];
    assert_eq!(*origin, json!({"rollout_id": first.id, "turn": 4}));
    let observed = trajectory["extra"]["rollout_host"]["observed"].as_array().unwrap();
    assert_eq!(observed.len(), 6, "all calls from the beginning");

    for id in [&first.id, &third.id] {
        let arguments = ["replay", "--journal", "journal", "--config", "config.toml", id];
        let ran = rollout_host(arguments).current_dir(host.dir()).start().ended().await;
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    }
}

#[tokio::test]
async fn a_running_rollout_can_be_forked_and_one_with_callbacks_too() {
    let controller = Controller::start().await;
    let host = TestHost::of("long_way")
        .config(&format!(
            "[journal]\ndir = 'journal'\n[judge]\nmodel = 'mock'\n[[tools.component]]\npath = '{}'\n",
            guest("tool_kit").display()
        ))
        .start()
        .await;
    controller.hold_after(2);
    let parent = host.admit(&controller.rollout("2").label("x").with("agent_timeout_sec", 120.0)).await;
    controller.chats_arrived(4).await;

    let of_parent = json!({"rollout_id": parent.id, "turn": 2});
    let forked = controller.rollout("2").with("agent_timeout_sec", 120.0).with("fork_of", of_parent);
    assert_eq!(host.ask(&forked.with_callbacks("k")).await.status, 202);
    controller.chats_arrived(6).await;
    controller.release();

    controller.callbacks_arrived(2).await;
    let graded = controller.callbacks().remove(1).body;
    assert_eq!(graded["status"], "success", "{graded:#}");
    let trajectory = host.served_trajectory(graded["rollout_id"].as_str().unwrap()).await;
    assert_eq!(trajectory["extra"]["osmosis"]["label"], "x", "the label is the parent's");
    assert_eq!(host.result(&parent).await["status"], "success");
}

#[tokio::test]
async fn forks_run_from_the_command_line_with_another_model_name() {
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let host = long_way(&oracle.url()).start().await;
    let parent = host.admit(&turns(&controller, &oracle, 2)).await;
    host.result(&parent).await;
    let before = oracle.count();

    let url = oracle.url();
    let run = async |turn: &str| {
        let mut command = rollout_host(["fork", &parent.id, "--turn", turn, "--count", "3"]);
        command.args(["--journal", "journal", "--config", "config.toml", "--out", "forks"]);
        command.args(["--model", "another", "--base-url", &url, "--no-model-check"]);
        command.current_dir(host.dir()).start().ended().await
    };
    let (ran, far) = (run("2").await, run("9").await);

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert_eq!(oracle.count(), before + 3 * 3, "the second turn, and the judge");
    assert!(ran.stdout.contains(&format!("3 forks of {} at turn 2: 3 with a reward, mean", parent.id)));
    let document = host.dir().join(format!("forks/{}-turn-2-fork-2/trajectory.json", parent.id));
    let document: Value = serde_json::from_slice(&std::fs::read(document).unwrap()).unwrap();
    let ours = &document["extra"]["rollout_host"];
    assert_eq!(ours["fork_of"]["turn"], 2);
    assert_eq!(ours["observed"][3]["request"]["rest"]["model"], "another");
    assert_eq!(far.code, Some(2));
    assert!(far.stderr.contains("it has 4 calls of the model"), "{}", far.stderr);
}

#[tokio::test]
async fn a_rollout_in_a_tenants_journal_is_forked_and_replayed_with_the_component_of_the_catalog() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let parent = catalog.plugin(&tenant, "p").run(&controller.rollout("2 + 3").id("r").label("5")).await;
    assert_eq!(parent["sample"]["reward"], 1.0, "{parent:#}");
    let mut tenants = std::fs::read_dir(catalog.folder().join("tenants")).unwrap();
    let journal = tenants.next().unwrap().unwrap().path().join("journal");
    let dir = tempfile::tempdir().unwrap();
    let run = async |arguments: &[&str]| {
        let mut command = rollout_host(arguments.iter().copied());
        command.arg("--journal").arg(&journal).current_dir(dir.path());
        command.start().ended().await
    };

    let forked = run(&["fork", "r", "--turn", "1", "--count", "2", "--model", "mock"]).await;
    let replayed = run(&["replay", "r"]).await;

    assert_eq!(forked.code, Some(0), "{}\n{}", forked.stdout, forked.stderr);
    assert!(
        forked.stdout.contains("2 forks of r at turn 1: 2 with a reward, mean 1.0000"),
        "{}",
        forked.stdout
    );
    assert_eq!(replayed.code, Some(0), "{}\n{}", replayed.stdout, replayed.stderr);
    assert_eq!(controller.chats().len(), 1, "shared turns are not requested again");
}

#[tokio::test]
async fn an_impossible_fork_is_refused_with_the_reason() {
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let host = long_way(&oracle.url()).start().await;
    let parent = host.admit(&turns(&controller, &oracle, 1)).await;
    host.result(&parent).await;

    let refused = async |host: &TestHost, request: RolloutRequest| {
        let reply = host.ask(&request).await;
        assert_eq!(reply.status, 422, "{}", reply.text);
        let problem = &reply.body["detail"][0];
        assert_eq!(problem["loc"], json!(["body", "fork_of"]));
        problem["msg"].as_str().unwrap().to_owned()
    };

    let many = refused(&host, fork(&controller, &oracle, (1, &parent.id), 3)).await;
    assert!(many.contains("has 2 calls of the model") && many.contains("the 3 requested"), "{many}");
    let unknown = refused(&host, fork(&controller, &oracle, (1, "nobody"), 1)).await;
    assert!(unknown.contains("no rollout 'nobody'"), "{unknown}");
    let other = refused(&host, fork(&controller, &oracle, (2, &parent.id), 1)).await;
    assert!(other.contains("the prompt differs from that"), "{other}");
    let wrong = turns(&controller, &oracle, 1).with("fork_of", json!({"rollout_id": parent.id}));
    let wrong = refused(&host, wrong).await;
    assert!(wrong.contains("missing field `turn`"), "{wrong}");

    let elsewhere = TestHost::of("long_way").start().await;
    let no_journal = refused(&elsewhere, fork(&controller, &oracle, (1, &parent.id), 1)).await;
    assert!(no_journal.contains("--journal"), "{no_journal}");
    let changed = TestHost::of("conform").config("[journal]\ndir = 'journal'\n");
    let changed = host.killed(&changed).await;
    let changed = refused(&changed, fork(&controller, &oracle, (1, &parent.id), 1)).await;
    assert!(changed.contains("the component was"), "{changed}");
}

#[tokio::test]
async fn the_example_estimates_the_value_of_each_turn() {
    let settings = MockModelSettings { error_rate: 0.4, ..MockModelSettings::default() };
    let model = MockModel::start(([127, 0, 0, 1], 0).into(), settings).await.unwrap();
    let host = TestHost::of_component(example("example-calculator"));
    let host = host.config("[journal]\ndir = 'journal'\n").start().await;
    let tree = project_root().join("examples/fork-tree");
    let mut command = tokio::process::Command::new(python_program("python"));
    command.arg(tree.join("advantages.py")).arg(tree.join("rows.jsonl"));
    command.args(["--limit", "6", "--forks", "4", "--host", host.url(), "--model", &model.base_url()]);

    let ran = command.start().ended().await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let trees: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(trees.len(), 6);
    let mut turns = 0;
    for tree in &trees {
        let numbers = |name: &str| -> Vec<f64> {
            tree[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
        };
        let (values, advantages) = (numbers("values"), numbers("advantages"));
        assert_eq!(values.last().copied(), tree["reward"].as_f64(), "after the last turn it is its reward");
        assert_eq!(advantages.len() + 1, values.len(), "{tree}");
        assert!((values[0] + advantages.iter().sum::<f64>() - values[values.len() - 1]).abs() < 1e-9);
        turns += advantages.len();
    }
    assert!(turns > trees.len(), "several turns a rollout");
    let worth =
        |tree: &Value| tree["advantages"].as_array().unwrap().iter().any(|one| one.as_f64() != Some(0.0));
    assert!(trees.iter().any(worth), "of a model that is wrong now and then a turn matters: {}", ran.stdout);
}

#[tokio::test]
async fn a_fork_at_a_full_host_is_refused_before_its_parent_is_read() {
    let controller = Controller::start().await;
    controller.hold();
    let serve = TestHost::of("conform").config("[journal]\ndir = 'journal'\n");
    let host = serve.option("--max-concurrent", 1).option("--queue-max", 0).start().await;
    host.admit(&controller.rollout("Calculate 2 + 3.")).await;
    let fork =
        || controller.rollout("Calculate 2 + 3.").with("fork_of", json!({"rollout_id": "nobody", "turn": 1}));

    // The host does not look up whether the rollout exists.
    let full = host.ask(&fork()).await;
    assert_eq!(full.status, 429, "{}", full.text);

    controller.release();
    host.idle().await;
    let unknown = host.ask(&fork()).await;
    assert_eq!(unknown.status, 422, "{}", unknown.text);
}
