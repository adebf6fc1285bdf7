//! Tests that a conversation is stored once, and that every reader sees each request as it was sent.

use rollout_tests::{Answer, Controller, TestHost};
use serde_json::{Value, json};

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[tokio::test]
async fn every_request_is_sent_and_recorded_completely() {
    let controller = Controller::start().await;
    let host = TestHost::start("conversations").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    controller.answer_chats(std::iter::repeat_with(|| Answer::Say("The sum is #### 5")).take(6));

    let result = host.run(&request).await;

    let reply = json!({"role": "assistant", "content": "The sum is #### 5"});
    let prompt = user("Calculate 2 + 3.");
    let first = [prompt.clone(), reply.clone(), user("two"), user("three")];
    let expected = [
        json!([prompt]),
        json!(first),
        json!(first),
        json!([prompt, user("four")]),
        json!([prompt, user("four"), reply]),
        json!([user("five"), user("six")]),
    ];
    let sent: Vec<Value> = controller.chats().iter().map(|chat| chat.body["messages"].clone()).collect();
    assert_eq!(sent, expected);
    assert_eq!(result["sample"]["messages"], json!([user("five"), user("six"), user("seven"), reply]));
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");

    let trajectory = host.trajectory(request.rollout_id()).await;
    let observed = trajectory["extra"]["rollout_host"]["observed"].as_array().expect("there are some");
    let repeated: Vec<&Value> = observed.iter().map(|seen| &seen["request"]["messages_repeated"]).collect();
    assert_eq!(repeated, [0, 1, 4, 1, 2, 0], "{observed:#?}");
    let mut seen: Vec<Value> = Vec::new();
    for (exchange, expected) in observed.iter().zip(&expected) {
        let repeated = exchange["request"]["messages_repeated"].as_u64().expect("a number") as usize;
        seen.truncate(repeated);
        seen.extend(exchange["request"]["messages_new"].as_array().expect("a list").iter().cloned());
        assert_eq!(&json!(seen), expected);
    }
}

#[tokio::test]
async fn an_invalid_request_gets_an_error_with_its_reason() {
    let controller = Controller::start().await;
    let host = TestHost::start("conversations").await;

    let result = host.run(&controller.rollout("invalid requests").label("5")).await;

    let errors = result["sample"]["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
    let errors: Vec<&str> = errors.split('|').collect();
    for (errors, expected) in errors.iter().zip([
        "the policy is asked for a sample; give one",
        "messages is empty",
        "messages is empty",
        "messages[0] is not a JSON object but an array",
        "messages[1] is not valid JSON",
    ]) {
        assert!(errors.contains(expected), "{errors} / {expected}");
    }
    assert_eq!((errors.len(), controller.chats().len()), (5, 0), "{result:#}");
}

#[tokio::test]
async fn a_workflow_that_calls_the_judge_is_ended() {
    let controller = Controller::start().await;
    let host = TestHost::start("conversations").await;

    let result = host.run(&controller.rollout("ask the judge").label("5")).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("a workflow called models for a judge, which only a grader may"), "{result:#}");
    assert_eq!(controller.chats().len(), 0);
}

/// Returns a completion that calls the tool `echo`.
fn echo(text: &str) -> Answer {
    let function = json!({"name": "echo", "arguments": json!({"text": text}).to_string()});
    let message = json!({
        "role": "assistant",
        "content": null,
        "tool_calls": [{"id": text, "type": "function", "function": function}],
    });
    Answer::Json(json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).to_string())
}

#[tokio::test]
async fn an_agent_can_read_its_whole_conversation_back_from_the_host() {
    let controller = Controller::start().await;
    let host = TestHost::start("left_to_host").await;
    let request = controller.rollout("Say it.").label("5");
    let answers = [Answer::Say("that is all"), Answer::Say("again"), Answer::Say("#### 5")];
    controller.answer_chats([echo("one"), echo("two")].into_iter().chain(answers));

    let result = host.run(&request).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let chats = controller.chats();
    let roles = |at: usize| -> Vec<&str> {
        let messages = chats[at].body["messages"].as_array().expect("a list");
        messages.iter().filter_map(|message| message["role"].as_str()).collect()
    };
    let whole = ["user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant", "user"];
    assert_eq!(roles(2), whole[..5]);
    assert_eq!(roles(3), whole[..7]);
    // The sample's history differs by then, and the agent calls with its own conversation.
    assert_eq!(roles(4), whole);
    let kept: Vec<&str> = result["sample"]["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|m| m["content"].as_str())
        .collect();
    assert_eq!(kept, ["shorter still", "and now", "#### 5"]);
}
