//! Tests of groups: rollouts whose samples are rated together, and forks that one request starts as a group.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{
    Admitted, Answers, Controller, Oracle, RolloutRequest, Serve, Start, TestHost, guest, has_javascript,
    javascript_guest, project_root, python_program, rollout_host, until,
};
use serde_json::{Value, json};

/// Time for a build in Python.
const BUILD: Duration = Duration::from_secs(600);

/// Returns options of a host with a journal, for a plugin that ranks the answers of a group.
fn grouped() -> Serve {
    TestHost::of("grouped").config("[journal]\ndir = 'journal'\n")
}

/// Returns a request for a member whose model answers with this number.
fn member(controller: &Controller, group: &str, (number, size): (u32, u32), answer: u32) -> RolloutRequest {
    let request = controller.rollout(&format!("Calculate {answer} + 0.")).label("2");
    request.with("group", json!({"id": group, "size": size, "member": number}))
}

/// Requests a group whose members' models answer with 1, 2, 3 and so on.
async fn admit(host: &TestHost, controller: &Controller, group: &str, size: u32) -> Vec<Admitted> {
    let mut admitted = Vec::new();
    for number in 0..size {
        admitted.push(host.admit(&member(controller, group, (number, size), number + 1)).await);
    }
    admitted
}

async fn results(host: &TestHost, admitted: &[Admitted]) -> Vec<Value> {
    let mut results = Vec::new();
    for one in admitted {
        results.push(host.result(one).await);
    }
    results
}

fn rewards(results: &[Value]) -> Vec<Option<f64>> {
    results.iter().map(|result| result["sample"]["reward"].as_f64()).collect()
}

/// Waits until the rollout has left its workflow, which it does to wait for its group.
async fn waits(host: &TestHost, admitted: &Admitted) {
    let path = format!("/rollout/{}/status", admitted.id);
    until("a member that waits for its group", async || {
        (host.get(&path).await.body["status"] == "grading").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_group_is_rated_at_once_and_its_members_finish_together() {
    let controller = Controller::start().await;
    let host = TestHost::start("grouped").await;
    controller.hold_after(2);
    let admitted = admit(&host, &controller, "g", 3).await;
    controller.chats_arrived(3).await;
    let (held, waiting): (Vec<_>, Vec<_>) = {
        let held = controller.chats()[2].path.clone();
        admitted.iter().partition(|one| held.contains(&format!("/{}/", one.id)))
    };
    assert_eq!((held.len(), waiting.len()), (1, 2));
    for one in waiting {
        waits(&host, one).await;
    }
    controller.release();

    let results = results(&host, &admitted).await;

    assert_eq!(rewards(&results), [Some(0.0), Some(0.5), Some(1.0)], "{results:#?}");
    let group = json!({
        "id": "g", "size": 3, "member": 1, "graded": true, "own_reward": 1.0, "failed": [],
    });
    assert_eq!(results[1]["group"], group);
    assert_eq!(results[0]["group"]["own_reward"], 0.0, "the grader rated the wrong answer before");
    assert_eq!(results[1]["sample"]["metrics"], json!({"before": 1.0, "failed": 0.0}));
}

#[tokio::test]
async fn the_trajectory_of_a_member_and_its_page_name_its_group() {
    let controller = Controller::start().await;
    let host = grouped().start().await;
    let admitted = admit(&host, &controller, "g", 2).await;
    results(&host, &admitted).await;

    let trajectory = host.served_trajectory(&admitted[0].id).await;

    let group = json!({"id": "g", "size": 2, "member": 0, "graded": true, "own_reward": 0.0, "failed": []});
    assert_eq!(trajectory["extra"]["rollout_host"]["group"], group);
    let page = host.get(&format!("/ui/rollouts/{}", admitted[1].id)).await.text;
    assert!(page.contains("g, member 1 of 2"), "{page}");
    assert!(page.contains("the group grader"), "{page}");
}

#[tokio::test]
async fn the_others_are_rated_without_a_failed_member_and_the_report_names_it() {
    let controller = Controller::start().await;
    let host = TestHost::start("grouped").await;
    let failing = controller.rollout("please fail").label("2");
    let failing = failing.with("group", json!({"id": "g", "size": 3, "member": 1}));
    let failed = host.admit(&failing).await;
    let first = host.admit(&member(&controller, "g", (0, 3), 8)).await;
    let last = host.admit(&member(&controller, "g", (2, 3), 2)).await;

    let results = results(&host, &[first, failed, last]).await;

    let reason = "the workflow was told to fail";
    assert_eq!(rewards(&results), [Some(1.0), None, Some(0.0)], "{results:#?}");
    assert_eq!(results[1]["err_message"], reason);
    for result in &results {
        let named = json!([{"member": 1, "rollout_id": failing.rollout_id(), "reason": reason}]);
        assert_eq!(result["group"]["failed"], named, "{result:#}");
    }
    assert_eq!(results[0]["sample"]["metrics"]["failed"], 1.0, "the group grader knows");
}

#[tokio::test]
async fn a_group_whose_member_never_arrives_is_rated_after_its_time_to_join() {
    let controller = Controller::start().await;
    let host = TestHost::start("grouped").await;
    let group = json!({"id": "g", "size": 2, "member": 0, "join_timeout_sec": 1});
    let request = controller.rollout("Calculate 1 + 1.").label("2").with("group", group);

    let result = host.run(&request).await;

    assert_eq!(result["status"], "success", "{result:#}");
    let reason = "no request for this member arrived in time";
    assert_eq!(result["group"]["failed"], json!([{"member": 1, "rollout_id": null, "reason": reason}]));
}

#[tokio::test]
async fn a_cancelled_member_leaves_its_group_and_another_request_may_take_the_seat() {
    let controller = Controller::start().await;
    let host = TestHost::start("grouped").await;
    controller.hold_after(2);
    let first = host.admit(&member(&controller, "g", (0, 3), 1)).await;
    let second = host.admit(&member(&controller, "g", (1, 3), 2)).await;
    waits(&host, &first).await;
    waits(&host, &second).await;
    let third = host.admit(&member(&controller, "g", (2, 3), 3)).await;
    controller.chats_arrived(3).await;

    host.cancel(&second.id).await;
    let cancelled = host.result(&second).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled:#}");
    let again = host.admit(&member(&controller, "g", (1, 3), 2)).await;
    controller.chats_arrived(4).await;
    host.cancel(&again.id).await;
    host.result(&again).await;
    controller.release();

    let results = results(&host, &[first, third]).await;
    assert_eq!(rewards(&results), [Some(0.0), Some(1.0)], "{results:#?}");
    let failed = json!([{"member": 1, "rollout_id": again.id, "reason": "rollout cancelled"}]);
    assert_eq!(results[1]["group"]["failed"], failed);
}

#[tokio::test]
async fn a_group_that_is_cancelled_while_it_waits_for_a_member_ends() {
    let controller = Controller::start().await;
    let host = TestHost::start("grouped").await;
    let first = host.admit(&member(&controller, "g", (0, 3), 1)).await;
    let second = host.admit(&member(&controller, "g", (1, 3), 2)).await;
    waits(&host, &first).await;

    host.post("/rollout/cancel", &json!({"all": true})).await;

    for one in [&first, &second] {
        assert_eq!(host.result(one).await["status"], "cancelled");
    }
    let anew = admit(&host, &controller, "g", 2).await;
    assert_eq!(rewards(&results(&host, &anew).await), [Some(0.0), Some(1.0)], "the id is free again");
}

#[tokio::test]
async fn a_request_takes_its_own_seat_only() {
    let controller = Controller::start().await;
    let serve = TestHost::of("grouped").option("--max-concurrent", 2).option("--queue-max", 3);
    let host = serve.start().await;
    controller.hold();
    let request = member(&controller, "g", (0, 2), 1);
    host.admit(&request).await;
    let refused = async |request: &RolloutRequest, status: u16, reason: &str| {
        let reply = host.ask(request).await;
        assert_eq!(reply.status, status, "{}", reply.text);
        assert!(reply.text.contains(reason), "{}", reply.text);
    };
    let of = |group: Value| controller.rollout("Calculate 1 + 1.").label("2").with("group", group);

    refused(&request, 409, "rollout_id is already registered").await;
    let taken = format!("member 0 of group 'g' is rollout '{}'", request.rollout_id());
    refused(&of(json!({"id": "g", "size": 2, "member": 0})), 422, &taken).await;
    refused(&of(json!({"id": "g", "size": 3, "member": 1})), 422, "group 'g' has 2 members").await;
    refused(&of(json!({"id": "g", "size": 2, "member": 2})), 422, "numbered from 0 to 1").await;
    refused(&of(json!({"id": "g", "size": 0, "member": 0})), 422, "1 to 128 members").await;
    let many = json!({"id": "h", "size": 6, "member": 0});
    refused(&of(many), 422, "6 members, and this host has room for 5 rollouts").await;
    refused(&of(json!({"id": "g", "size": 2})), 422, "missing field `member`").await;
    refused(&of(json!({"id": "g", "size": 2, "member": 1})).with("grade", false), 422, "are graded").await;
    refused(&controller.rollout("x").with("continuations", 2), 422, "needs fork_of").await;
}

#[tokio::test]
async fn a_group_grader_that_fails_leaves_every_member_without_a_reward() {
    let check = async |group: &str, message: &str| {
        let controller = Controller::start().await;
        let host = TestHost::start("grouped").await;
        let admitted = admit(&host, &controller, group, 2).await;
        for result in results(&host, &admitted).await {
            assert_eq!(result["status"], "failure", "{group}: {result:#}");
            let found = result["err_message"].as_str().unwrap();
            assert!(found.contains(message), "{group}: {found}");
            assert_eq!(result["group"]["graded"], false);
            assert_eq!(result["sample"]["reward"], Value::Null);
        }
    };
    check("reject", "group grader: there is no order among 2 samples").await;
    check("forget", "group grader gave no rating of sample").await;
    check("trap", "group grader panicked at").await;
}

#[tokio::test]
async fn members_of_a_plugin_without_a_group_grader_finish_together_with_their_own_rewards() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let admitted = admit(&host, &controller, "g", 2).await;

    let results = results(&host, &admitted).await;

    assert_eq!(rewards(&results), [Some(0.0), Some(1.0)], "{results:#?}");
    assert_eq!(results[0]["group"]["graded"], false);
}

#[tokio::test]
async fn a_group_survives_the_death_of_its_host() {
    let controller = Controller::start().await;
    let serve = grouped();
    let host = serve.clone().start().await;
    controller.hold_after(2);
    let first = host.admit(&member(&controller, "g", (0, 4), 1)).await;
    let second = host.admit(&member(&controller, "g", (1, 4), 2)).await;
    waits(&host, &first).await;
    waits(&host, &second).await;
    let failing = controller.rollout("please fail").label("2");
    let failed = host.admit(&failing.with("group", json!({"id": "g", "size": 4, "member": 2}))).await;

    // Two members wait, one has failed, and one was not requested.
    let host = host.killed(&serve).await;
    let last = host.admit(&member(&controller, "g", (3, 4), 4)).await;
    controller.chats_arrived(3).await;

    // The last member waits for its model.
    let host = host.killed(&serve).await;
    controller.chats_arrived(4).await;
    controller.release();
    let ends = results(&host, &[first.clone(), failed.clone()]).await;
    assert_eq!(rewards(&ends), [Some(0.0), None], "{ends:#?}");

    // Two members were reported, and the others have the same decision.
    let host = host.killed(&serve).await;
    let ends = results(&host, &[second.clone(), last]).await;
    assert_eq!(rewards(&ends), [Some(0.5), Some(1.0)], "{ends:#?}");
    for end in &ends {
        assert_eq!(end["group"]["failed"][0]["rollout_id"], failed.id.as_str(), "{end:#}");
    }
    assert_eq!(controller.chats().len(), 4, "only the unanswered call was repeated");
    let arguments = ["replay", "--journal", "journal", "--config", "config.toml", &second.id];
    let ran = rollout_host(arguments).current_dir(host.dir()).start().ended().await;
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
}

#[tokio::test]
async fn a_cancelled_member_stays_out_of_its_group_after_the_death_of_its_host() {
    let controller = Controller::start().await;
    let serve = grouped();
    let host = serve.clone().start().await;
    let first = host.admit(&member(&controller, "g", (0, 3), 1)).await;
    let gone = host.admit(&member(&controller, "g", (1, 3), 2)).await;
    waits(&host, &first).await;
    host.cancel(&gone.id).await;
    assert_eq!(host.result(&gone).await["status"], "cancelled");

    let host = host.killed(&serve).await;
    let last = host.admit(&member(&controller, "g", (2, 3), 3)).await;

    let ends = results(&host, &[first, last]).await;
    assert_eq!(rewards(&ends), [Some(0.0), Some(1.0)], "{ends:#?}");
    assert_eq!(ends[0]["group"]["failed"][0]["rollout_id"], gone.id.as_str());
}

#[tokio::test]
async fn a_group_is_decided_once_whenever_its_host_dies() {
    let controller = Controller::start().await;
    // Each request to the judge has another answer, so that two decisions would differ.
    let judge = Oracle::start(Answers::New).await;
    let config = format!("[journal]\ndir = 'journal'\n[judge]\nurl = '{}'\nmodel = 'judge'\n", judge.url());
    let serve = TestHost::of("grouped").config(&config);
    let mut host = serve.clone().start().await;
    for round in 0..6 {
        let admitted = admit(&host, &controller, &format!("judged-{round}"), 3).await;
        let (first, rest) = admitted.split_at(round % 3);
        let mut ends = results(&host, first).await;
        host = host.killed(&serve).await;
        ends.extend(results(&host, rest).await);
        let rewards = rewards(&ends);
        assert!(rewards[0].is_some() && rewards.iter().all(|one| *one == rewards[0]), "{round}: {ends:#?}");
    }
}

#[tokio::test]
async fn a_group_of_rollouts_with_callbacks_is_rated_before_their_rewards_are_sent() {
    let controller = Controller::start().await;
    let host = TestHost::start("grouped").await;
    for number in 0..3 {
        let request = member(&controller, "c", (number, 3), number + 1).with_callbacks("key");
        assert_eq!(host.ask(&request).await.status, 202);
    }
    let callbacks = controller.callbacks_arrived(6).await;
    let rewards = callbacks.iter().filter_map(|callback| callback.body["sample"]["reward"].as_f64());
    let mut rewards: Vec<f64> = rewards.collect();
    rewards.sort_by(f64::total_cmp);
    assert_eq!(rewards, [0.0, 0.5, 1.0], "{callbacks:#?}");

    let requests = [0, 1, 2].map(|number| member(&controller, "b", (number, 3), number + 1).as_b());
    for request in &requests {
        let admitted = host.ask(request).await;
        assert!((200..300).contains(&admitted.status), "{}", admitted.text);
    }
    controller.callbacks_arrived(12).await;
    for (request, expected) in requests.iter().zip([0.0, 0.5, 1.0]) {
        let rewards = controller.outcome_of_b(request.rollout_id()).unwrap();
        assert_eq!(rewards.into_values().collect::<Vec<_>>(), [Some(expected)]);
    }

    let ungraded = member(&controller, "u", (0, 1), 1).with_callbacks("key").without("grader_callback_url");
    let refused = host.ask(&ungraded).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(refused.text.contains("give grader_callback_url"), "{}", refused.text);
}

/// Returns options of a host for a guest in which every turn depends on the previous ones.
fn long_way(judge_url: &str, limits: &str) -> Serve {
    let tools = guest("tool_kit");
    TestHost::of("long_way").config(&format!(
        "{limits}\n[journal]\ndir = 'journal'\n[judge]\nurl = '{judge_url}'\nmodel = 'judge'\n\
         [[tools.component]]\npath = '{}'\n",
        tools.display()
    ))
}

/// Returns a request for a rollout of three turns, with two calls each.
fn three_turns(controller: &Controller, oracle: &Oracle) -> RolloutRequest {
    let request = controller.rollout("3").label("x");
    request.with("chat_completions_url", oracle.url()).with("agent_timeout_sec", 120.0)
}

/// Returns the admitted rollouts of a tree.
fn branches(tree: &Value) -> Vec<Admitted> {
    let branch = |one: &Value| Admitted {
        id: one["rollout_id"].as_str().unwrap().to_owned(),
        lease: one["polling_lease_token"].as_str().unwrap().to_owned(),
    };
    tree["rollouts"].as_array().unwrap().iter().map(branch).collect()
}

#[tokio::test]
async fn one_request_starts_a_group_of_forks_that_share_a_prefix() {
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let serve = long_way(&oracle.url(), "");
    let host = serve.clone().start().await;
    let parent = host.admit(&three_turns(&controller, &oracle)).await;
    let of_parent = host.result(&parent).await;
    let calls = oracle.count();
    let tree = three_turns(&controller, &oracle).id("tree").with("continuations", 3);
    let tree = tree.with("fork_of", json!({"rollout_id": parent.id, "turn": 4}));

    let reply = host.ask(&tree).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    assert_eq!(reply.body["group"], json!({"id": "tree", "size": 3}));
    assert_eq!(reply.body["fork_of"], json!({"rollout_id": parent.id, "turn": 4}));
    let branches = branches(&reply.body);
    assert_eq!(branches.iter().map(|one| &*one.id).collect::<Vec<_>>(), ["tree-0", "tree-1", "tree-2"]);
    let host = host.killed(&serve).await;
    for (member, result) in results(&host, &branches).await.iter().enumerate() {
        assert_eq!(result["status"], "success", "{result:#}");
        assert_eq!(result["fork_of"], json!({"rollout_id": parent.id, "turn": 4}));
        assert_eq!(result["group"]["id"], "tree");
        assert_eq!(result["group"]["member"], member);
        for shared in 0..3 {
            let message = &result["sample"]["messages"][shared];
            assert_eq!(*message, of_parent["sample"]["messages"][shared], "the prefix is the parent's");
        }
    }
    let each = oracle.count() - calls;
    assert!(each < 3 * calls, "the first two turns were not repeated: {calls} and {each}");
    assert_eq!(host.ask(&tree).await.status, 409, "the same request makes no other tree");
}

#[tokio::test]
async fn a_group_of_forks_starts_only_if_there_is_room_for_all() {
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let serve = long_way(&oracle.url(), "max-concurrent = 1\nqueue-max = 2");
    let host = serve.clone().start().await;
    let parent = host.admit(&three_turns(&controller, &oracle)).await;
    host.result(&parent).await;
    let calls = oracle.count();
    let tree = |count: u32| {
        let tree = three_turns(&controller, &oracle).id("tree").with("continuations", count);
        tree.with("fork_of", json!({"rollout_id": parent.id, "turn": 2}))
    };

    let never = host.ask(&tree(8)).await;
    assert_eq!(never.status, 422, "{}", never.text);
    assert!(never.text.contains("this host has room for 3 rollouts"), "{}", never.text);
    controller.hold();
    let other = host.admit(&controller.rollout("3").label("x")).await;

    let refused = host.ask(&tree(3)).await;

    assert_eq!(refused.status, 429, "{}", refused.text);
    host.cancel(&other.id).await;
    host.result(&other).await;
    controller.release();
    host.idle().await;
    let host = host.killed(&serve).await;
    host.idle().await;
    assert_eq!(oracle.count(), calls, "no fork ran, and none is in the journal");
    let admitted = host.ask(&tree(2)).await;
    assert_eq!(admitted.status, 202, "{}", admitted.text);
    for result in results(&host, &branches(&admitted.body)).await {
        assert_eq!(result["status"], "success", "{result:#}");
    }
}

/// Builds the guest of these tests in Python.
async fn python_guest(folder: &Path) -> PathBuf {
    let made = folder.join("grouped.wasm");
    let project = project_root().join("tests/guests/python/grouped");
    let componentize = python_program("componentize-py");
    let arguments = ["--componentize-py".as_ref(), componentize.as_os_str(), "-o".as_ref(), made.as_os_str()];
    let built = rollout_host(["build"]).arg(project).args(arguments).start().ended_within(BUILD).await;
    assert_eq!(built.code, Some(0), "{}\n{}", built.stdout, built.stderr);
    made
}

#[tokio::test]
async fn a_group_grader_in_python_rates_a_group() {
    let folder = tempfile::tempdir().unwrap();
    check_group_grader(python_guest(folder.path()).await).await;
}

#[tokio::test]
async fn a_group_grader_in_typescript_rates_a_group() {
    if has_javascript() {
        let built = tokio::task::spawn_blocking(|| javascript_guest("tests/guests/js/grouped"));
        check_group_grader(built.await.unwrap()).await;
    }
}

/// Checks a plugin that does what the guest in Rust does.
async fn check_group_grader(component: PathBuf) {
    let controller = Controller::start().await;
    let host = TestHost::of_component(component).start().await;

    for group in ["returned", "rated"] {
        let admitted = admit(&host, &controller, group, 3).await;
        let results = results(&host, &admitted).await;
        assert_eq!(rewards(&results), [Some(0.0), Some(0.5), Some(1.0)], "{results:#?}");
        assert_eq!(results[1]["sample"]["metrics"]["before"], 1.0, "the label is 2: {results:#?}");
        assert_eq!(results[1]["sample"]["metrics"]["failed"], 0.0);
    }
    for (group, message) in
        [("reject", "group grader: there is no order among 2 samples"), ("forget", "did not rate sample")]
    {
        let admitted = admit(&host, &controller, group, 2).await;
        let result = host.result(&admitted[0]).await;
        let found = result["err_message"].as_str().unwrap_or_default();
        assert!(found.contains(message), "{group}: {result:#}");
        host.result(&admitted[1]).await;
    }
}
