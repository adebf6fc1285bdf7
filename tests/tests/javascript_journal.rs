//! Rollouts of JavaScript guests that are resumed after a kill, replayed and forked.

use rollout_tests::{
    Admitted, Answers, Controller, Oracle, Ran, RolloutRequest, Serve, Start, TestHost, guest,
    has_javascript, javascript_guest, rollout_host, until,
};
use serde_json::{Value, json};

/// Returns options of a host for a guest in which every turn depends on the previous ones, with a tool and a judge.
fn long_way(judge_url: &str) -> Serve {
    let component = javascript_guest("tests/guests/js/long-way");
    TestHost::of_component(component).config(&format!(
        "[journal]\ndir = 'journal'\n[judge]\nurl = '{judge_url}'\nmodel = 'judge'\n[[tools.component]]\npath = '{}'\n",
        guest("tool_kit").display()
    ))
}

/// Returns a request for a rollout of this many turns, with two calls each.
fn turns(controller: &Controller, oracle: &Oracle, turns: usize) -> RolloutRequest {
    let request = controller.rollout(&turns.to_string()).label("x");
    request.with("chat_completions_url", oracle.url()).with("agent_timeout_sec", 120.0)
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

async fn replay(host: &TestHost, admitted: &Admitted) -> Ran {
    let arguments = ["replay", "--journal", "journal", "--config", "config.toml", &admitted.id];
    rollout_host(arguments).current_dir(host.dir()).start().ended().await
}

#[tokio::test]
async fn a_rollout_that_is_killed_repeatedly_is_the_same_rollout() {
    if !has_javascript() {
        return;
    }
    const TURNS: usize = 8;
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let serve = long_way(&oracle.url());
    let mut host = serve.clone().start().await;
    let admitted = host.admit(&turns(&controller, &oracle, TURNS)).await;
    for kills in 1..=3 {
        until("it has come further", async || (oracle.count() > kills * 4).then_some(())).await;
        host = host.killed(&serve).await;
    }

    let result = host.result(&admitted).await;

    // Every answer in the result was given by the model, and is in it once.
    let texts = texts(&result);
    assert_eq!(texts.len(), 2 * TURNS);
    let requests = oracle.requests();
    let text = texts.join("\n");
    let is_used = |answer: &str| text.contains(&answer.to_uppercase());
    let used = requests.iter().filter(|request| is_used(&request.answer)).count();
    assert_eq!(used, 2 * TURNS, "{text}");
    // A rollout that continued with other times or random numbers would differ from its recorded calls.
    let ran = replay(&host, &admitted).await;
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let reward = result["sample"]["reward"].as_f64().unwrap();
    assert!(ran.stdout.contains(&format!("the same: reward {reward}")), "{}", ran.stdout);
}

#[tokio::test]
async fn a_replay_is_the_same_without_model_calls_and_shows_another_components_difference() {
    if !has_javascript() {
        return;
    }
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let host = long_way(&oracle.url()).start().await;
    let admitted = host.admit(&turns(&controller, &oracle, 3)).await;
    let result = host.result(&admitted).await;
    let requests = oracle.count();
    assert_eq!(requests, 7, "two calls a turn, and the judge's: {result:#}");

    let same = replay(&host, &admitted).await;
    let rust = guest("long_way").display().to_string();
    let arguments = ["replay", "--journal", "journal", "--config", "config.toml", "--plugin", &rust];
    let mut other = rollout_host(arguments);
    let other = other.arg(&admitted.id).current_dir(host.dir()).start().ended().await;

    assert_eq!(same.code, Some(0), "{}\n{}", same.stdout, same.stderr);
    assert!(same.stdout.contains("workflow call 1, move ") && same.stdout.contains("upper("));
    assert!(same.stdout.contains("grader call 1"), "{}", same.stdout);
    assert_eq!(other.code, Some(1), "{}\n{}", other.stdout, other.stderr);
    // Which of its moves differs first depends on the order of the answers.
    assert!(other.stdout.contains("not the same: in the workflow, "), "{}", other.stdout);
    assert_eq!(oracle.count(), requests, "no model was called");
}

#[tokio::test]
async fn forks_share_the_first_calls_of_their_parent_and_continue_independently() {
    if !has_javascript() {
        return;
    }
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let serve = long_way(&oracle.url());
    let host = serve.clone().start().await;
    let parent = host.admit(&turns(&controller, &oracle, 3)).await;
    let of_parent = texts(&host.result(&parent).await);
    let fork = |of: &str, turn: usize| {
        turns(&controller, &oracle, 3).with("fork_of", json!({"rollout_id": of, "turn": turn}))
    };

    let first = host.admit(&fork(&parent.id, 2)).await;
    let second = host.admit(&fork(&parent.id, 2)).await;
    let (one, two) = (texts(&host.result(&first).await), texts(&host.result(&second).await));

    assert_eq!(oracle.count(), 7 + 2 * 5, "the first turn's calls were not made again");
    for of_fork in [&one, &two] {
        assert_eq!(of_fork[0], of_parent[0], "the reply of the first turn");
        assert_ne!(of_fork[2], of_parent[2], "that of the second");
    }
    let mut numbers = [&of_parent, &one, &two].map(|texts| number(&texts[1])).to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "a fork has random numbers of its own");

    // A fork of a fork, in another process.
    let host = host.killed(&serve).await;
    let third = host.admit(&fork(&first.id, 4)).await;
    let three = texts(&host.result(&third).await);
    assert_eq!(three[..3], one[..3], "two turns are the fork's, with its number");
    assert_ne!(number(&three[3]), number(&one[3]));
    for admitted in [&first, &third] {
        let ran = replay(&host, admitted).await;
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    }
}
