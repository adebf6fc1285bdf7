//! Tests of programs for the published packages, and of the shapes of frameworks.

use rollout_tests::Answer;
use serde_json::json;

use super::*;

const UNCHANGED: &str = "guest-sdk/python/tests/unchanged";

/// Returns a model's answer that calls a tool.
fn calls(name: &str, arguments: &Value) -> Answer {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    let call = json!({"id": format!("call-{name}"), "type": "function", "function": function});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let choice = json!({"message": message, "finish_reason": "tool_calls"});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    Answer::Status(200, json!({"choices": [choice], "usage": usage}))
}

/// The projects depend on the published packages by name, and the programs are unchanged. There is one for each shape.
#[tokio::test]
async fn unchanged_programs_for_the_published_packages_are_built_and_rewarded() {
    let double = || calls("double", &json!({"number": 2}));
    for (program, answers) in [
        ("strands_tool", vec![double(), Answer::Say("It is #### 4")]),
        ("strands_sync", vec![double(), Answer::Say("It is #### 4")]),
        (
            "strands_structured",
            vec![
                calls("double", &json!({"number": 200})),
                double(),
                Answer::Say("It is 4."),
                calls("Answer", &json!({"value": 4})),
            ],
        ),
        ("openai_session", vec![double(), Answer::Say("It is #### 4")]),
        (
            "openai_handoff",
            vec![
                calls("transfer_to_sums", &json!({"reason": "a sum"})),
                double(),
                Answer::Say("{\"value\": 4}"),
            ],
        ),
        ("config_tools", vec![double(), Answer::Say("It is #### 4")]),
        ("loop_schemas", vec![double(), Answer::Say("It is #### 4")]),
    ] {
        let calls = answers.len();
        let controller = Controller::start().await;
        let host = TestHost::of_component(python_guest(&format!("{UNCHANGED}/{program}"))).start().await;
        controller.answer_chats(answers);
        let request =
            controller.rollout("Double 2.").label("4").with("metadata", json!({"ground_truth": "4"}));

        let result = host.run(&request).await;

        assert_eq!(result["status"], "success", "{program}: {result:#}");
        assert_eq!(result["sample"]["reward"], 1.0, "{program}: {result:#}");
        assert_eq!(controller.chats().len(), calls, "{program}");
    }
}

#[tokio::test]
async fn a_reward_function_of_the_published_package_grades_another_program() {
    let (agent, reward) = ("examples/one-turn/python", format!("{UNCHANGED}/reward_function"));
    for (reply, earned) in [("so #### 4", 1.0), ("so #### 5", 0.0)] {
        let controller = Controller::start().await;
        let serve = TestHost::of_component(python_guest(agent));
        let host = serve.option("--grader", python_guest(&reward).display()).start().await;
        controller.answer_chats([Answer::Say(reply)]);

        let result = host.run(&controller.rollout("Double 2.").label("4")).await;

        assert_eq!(result["sample"]["reward"], earned, "{result:#}");
    }
}

#[tokio::test]
async fn a_backend_of_the_published_package_has_its_sample_its_files_and_the_operators_judge() {
    let (controller, judge) = (Controller::start().await, Controller::start().await);
    let config = format!("[judge]\nmodel = 'j'\nurl = '{}'\n", judge.model_url());
    let serve = TestHost::of_component(python_guest(&format!("{UNCHANGED}/served_backend"))).config(&config);
    let host = serve.start().await;
    judge.answer_chats([Answer::Say("```json\n{\"score\": 7.5, \"explanation\": \"right\"}\n```")]);

    let result = host.run(&controller.rollout("Recite.").label("4")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(result["sample"]["messages"][1]["content"], "#### 4", "{result:#}");
    assert_eq!(result["sample"]["metrics"]["length"], 2.0, "{result:#}");
    let request = judge.chats().remove(0).body;
    assert_eq!(request["model"], "j", "{request:#}");
    assert!(request["messages"][1]["content"].as_str().unwrap().contains("Is it right?"), "{request:#}");
}

/// Returns a rollout's messages and model calls, with one tool call.
async fn messages_of(example: &str) -> (Value, Vec<Value>) {
    let controller = Controller::start().await;
    let host = TestHost::of_component(python_guest(&format!("examples/{example}/python"))).start().await;
    let call = json!({"id": "call-1", "type": "function", "function": {"name": "calculator", "arguments": "{\"expression\": \"2 + 3\"}"}});
    let completion = json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
    });
    controller.answer_chats([Answer::Status(200, completion), Answer::Say("#### 5")]);

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let requests = controller.chats().into_iter().map(|chat| chat.body).collect();
    (result["sample"]["messages"].clone(), requests)
}

#[tokio::test]
async fn a_strands_agent_stores_blocks_and_sends_content_parts() {
    let (messages, requests) = messages_of("strands-agent").await;

    let tool_use = json!({"toolUseId": "call-1", "name": "calculator", "input": {"expression": "2 + 3"}});
    let tool_result = json!({"toolUseId": "call-1", "status": "success", "content": [{"text": "5"}]});
    assert_eq!(
        messages,
        json!([
            {"role": "user", "content": [{"text": "Calculate 2 + 3."}]},
            {"role": "assistant", "content": [{"toolUse": tool_use}]},
            {"role": "user", "content": [{"toolResult": tool_result}]},
            {"role": "assistant", "content": [{"text": "#### 5"}]},
        ])
    );
    let last = &requests[1]["messages"];
    assert_eq!(last[0]["content"], json!([{"type": "text", "text": "Calculate 2 + 3."}]), "{last:#}");
    assert!(last[1].get("content").is_none(), "{last:#}");
    assert_eq!(last[2], json!({"role": "tool", "tool_call_id": "call-1", "content": "5"}), "{last:#}");
    let function = &requests[0]["tools"][0]["function"];
    assert!(function.get("strict").is_none(), "{function:#}");
    assert!(function["parameters"].get("additionalProperties").is_none(), "{function:#}");
    assert_eq!(requests[0]["temperature"], 0.7);
}

#[tokio::test]
async fn an_openai_agents_session_stores_items_and_sends_plain_text() {
    let (messages, requests) = messages_of("openai-agents").await;

    assert_eq!(messages[0], json!({"role": "user", "content": "Calculate 2 + 3."}));
    let call = &messages[1];
    assert_eq!(
        (&call["type"], &call["call_id"], &call["name"]),
        (&json!("function_call"), &json!("call-1"), &json!("calculator")),
        "{call:#}"
    );
    assert_eq!(call["arguments"], "{\"expression\": \"2 + 3\"}", "{call:#}");
    assert_eq!(messages[2], json!({"type": "function_call_output", "call_id": "call-1", "output": "5"}));
    assert_eq!(messages[3]["type"], "message", "{messages:#}");
    assert_eq!(messages[3]["content"][0]["text"], "#### 5", "{messages:#}");
    assert_eq!(messages[3]["id"], "__fake_id__", "{messages:#}");
    let last = &requests[1]["messages"];
    assert_eq!(last[0]["role"], "system", "{last:#}");
    assert_eq!(last[1], json!({"role": "user", "content": "Calculate 2 + 3."}), "{last:#}");
    assert!(last[2].get("content").is_none(), "{last:#}");
    let tools = &requests[0]["tools"];
    assert_eq!(tools[0]["function"]["strict"], true, "{tools:#}");
    assert_eq!(tools[0]["function"]["parameters"]["additionalProperties"], false, "{tools:#}");
    assert_eq!(tools[1]["function"]["name"], "transfer_to_words", "{tools:#}");
}
