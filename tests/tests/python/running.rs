//! Tests of the behaviour of Python components at run time.

use std::time::Instant;

use rollout_tests::{Answer, InitRequest, check_completed};
use serde_json::json;

use super::*;

const SAYS: &str = r#"
import logging
import warnings

from rollout_sdk import *

warnings.warn("old at import", UserWarning)


class Config(AgentWorkflowConfig):
    depth: int = 3
    """How deep to look.

    Deeper is slower."""
    name_of_tool: str = "find"


def inner(value):
    return {}["missing"]


class Says(AgentWorkflow[Config]):
    async def run(self, ctx):
        print("printed")
        logging.getLogger("mine").warning("logged %s", 1)
        warnings.warn("old in a rollout", RuntimeWarning)
        await ctx.agent().run()
        try:
            inner(1)
        except KeyError as error:
            raise RuntimeError("outer") from error
"#;

#[tokio::test]
async fn the_output_of_a_program_is_shown_as_in_cpython() {
    let dir = project(SAYS, "version = \"1\"\n");

    let built = build(dir.path()).await;

    assert_eq!(built.code, Some(0), "{}", built.stderr);
    let place = dir.path().canonicalize().unwrap().join("made_up.py");
    let warning = format!("{}:7: UserWarning: old at import\n  warnings.warn(", place.display());
    assert!(built.stderr.contains(&warning), "{}", built.stderr);

    let mut config = rollout_host(["config", "made.wasm"]);
    let shown = config.current_dir(dir.path()).start().ended_within(COMMAND).await;
    let docs = "depth          integer  3\n      How deep to look.\n      \n      Deeper is slower.\n";
    let table: Vec<String> =
        shown.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected: Vec<String> =
        docs.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(table.windows(expected.len()).any(|lines| lines == expected), "{}", shown.stdout);

    write(dir.path(), "rows.jsonl", "{\"user_prompt\": \"2 + 3?\", \"ground_truth\": \"5\"}\n");
    let mut test =
        rollout_host(["test", "made.wasm", "--data", "rows.jsonl", "--model", "mock", "--out", "out"]);
    let ran = test.current_dir(dir.path()).start().ended_within(COMMAND).await;
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let log = std::fs::read_to_string(dir.path().join("out/row-00000-run-0/log.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines: Vec<String> = lines
        .iter()
        .map(|line| format!("{}: {}", line["level"].as_str().unwrap(), line["text"].as_str().unwrap()))
        .collect();
    assert_eq!(
        lines,
        [
            "info: printed",
            "warn: logged 1",
            "warn: made_up.py:26: RuntimeWarning: old in a rollout",
            "warn:   warnings.warn(\"old in a rollout\", RuntimeWarning)",
            "error: Traceback (most recent call last):",
            "error:   File \"made_up.py\", line 29, in run",
            "error:     inner(1)",
            "error:   File \"made_up.py\", line 19, in inner",
            "error:     return {}[\"missing\"]",
            "error: KeyError: 'missing'",
            "error: The above exception was the direct cause of the following exception:",
            "error: Traceback (most recent call last):",
            "error:   File \"made_up.py\", line 31, in run",
            "error:     raise RuntimeError(\"outer\") from error",
            "error: RuntimeError: outer",
        ]
    );
}

#[tokio::test]
async fn a_failure_is_reported_with_file_and_line_of_the_authors_code() {
    let controller = Controller::start().await;
    let host = host().await;
    for (what, named) in [
        ("divide", vec!["ZeroDivisionError: ", "(only_python.py:", ", in divide)"]),
        ("recurse", vec!["RecursionError: ", "only_python.py:", "in deep"]),
        ("exit", vec!["called sys.exit(3)", "only_python.py:"]),
        ("import", vec!["ModuleNotFoundError: ", "neither in the project", "only_python.py:"]),
        ("deadlock", vec!["waits for another thread", "only_python.py:"]),
        ("wait for nothing", vec!["waits for an event that cannot happen", "only_python.py:"]),
        ("group", vec!["told to refuse"]),
        ("object", vec!["message 0 is not JSON", "object is not JSON serializable"]),
        ("be left alone", vec!["unknown behaviour: be left alone"]),
    ] {
        let request = asking(&controller, &format!("python: {what}"));

        let result = host.run(&request).await;

        assert_eq!(result["status"], "failure", "{what}: {result:#}");
        let text = result.to_string();
        for text in named {
            assert!(text.contains(text), "{what}: {result:#}");
        }
        assert!(!text.contains("/0/") && !text.contains("/tmp"), "{what}: {result:#}");
    }
    let request = asking(&controller, "python: divide");
    host.run(&request).await;
    let log = std::fs::read_to_string(host.kept().join(request.rollout_id()).join("log.jsonl")).unwrap();
    assert!(log.contains("Traceback (most recent call last):"), "{log}");
    assert!(log.contains(r#"File \"only_python.py\", line"#), "{log}");
    assert!(log.contains("return a / b"), "{log}");
    assert!(!log.contains("rollout_sdk/"), "{log}");
}

#[tokio::test]
async fn an_exception_is_reported_with_the_protocols_category() {
    let controller = Controller::start().await;
    let host = host().await;
    for (what, category) in [
        ("divide", "agent_error"),
        ("value", "validation_error"),
        ("type", "validation_error"),
        ("be left alone", "validation_error"),
        ("own timeout", "timeout"),
    ] {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(result["err_category"], category, "{what}: {result:#}");
    }
}

#[tokio::test]
async fn metrics_written_to_a_sample_are_recorded() {
    let controller = Controller::start().await;

    let result = host().await.run(&asking(&controller, "python: metrics")).await;

    assert_eq!(result["sample"]["metrics"]["height"], 1.5, "{result:#}");
    assert_eq!(result["sample"]["metrics"]["depth"], 2.0, "{result:#}");
}

#[tokio::test]
async fn modules_that_were_not_imported_during_the_build_can_be_imported_later() {
    let controller = Controller::start().await;

    let result = host().await.run(&asking(&controller, "python: late")).await;

    let expected = r"[0.5, 'scheduler', 42, True, 'one\ntwo', ['inner'], b'\x80', b'\x82\xa0', 6]";
    assert_eq!(last_text(&result), expected, "{result:#}");
}

/// Without these functions, libraries would get wrong answers silently.
#[tokio::test]
async fn probes_by_libraries_return_facts_or_raise() {
    let controller = Controller::start().await;
    let host = host().await;
    let look = "[True, True, True, True, False, ['table.txt'], ['table.txt'], 1, (True, False), \
                'run_docstring_examples', True]";
    let processes = "[[[1, 2], 2.0, [3], [4.0], False, 5], ['NoProcesses', 'NoProcesses', 'NoProcesses', 'OSError', \
                     'ProcessLookupError', '[Errno 58] asyncio.create_subprocess_exec']]";
    let elsewhere = "['Error', 'C', 'None', 'NotImplementedError', 'OSError', True, True, True, None, 'OSError', '', \
         (True, '/nonexistent')]";
    for (what, expected) in [("look", look), ("processes", processes), ("elsewhere", elsewhere)] {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(last_text(&result), expected, "{what}: {result:#}");
    }
}

#[tokio::test]
async fn threads_timers_and_alarms_run_in_the_only_thread() {
    let controller = Controller::start().await;
    let host = host().await;
    let threads = "['worker', False, True, 'begun', 1, 2, 3, 'ZeroDivisionError', 'NoneType', (1, 3), 4, 5, \
                   False, False, 'empty']";
    for (what, expected) in [
        ("threads", threads),
        ("alarm", "[100, 'alarm', True]"),
        ("timer", "[True, 'came', False, 'joined']"),
    ] {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(last_text(&result), expected, "{what}: {result:#}");
    }
}

/// Returns a reply that calls the tool of the agent loop example.
fn calls_calculator(expression: &str) -> Answer {
    let arguments = json!({"expression": expression}).to_string();
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": arguments}});
    Answer::Status(
        200,
        json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls": [call]}}]}),
    )
}

/// Checks the messages of that loop, under any protocol.
fn check_looped(messages: &Value) {
    let messages = messages.as_array().unwrap_or_else(|| panic!("{messages:#}"));
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!((&messages[2]["content"], &messages[2]["tool_call_id"]), (&json!("5"), &json!("c1")));
    assert_eq!(messages[3]["content"], "It is #### 5");
}

#[tokio::test]
async fn an_agent_loop_runs_under_its_own_protocol() {
    let controller = Controller::start().await;
    let host = TestHost::of_component(python_guest("examples/agent-loop/python")).start().await;
    controller.answer_chats([calls_calculator("2 + 3"), Answer::Say("It is #### 5")]);
    let request =
        InitRequest::new(&controller, "Add 2 and 3.").with("metadata", json!({"ground_truth": "5"}));

    let reply = host.post("/v1/rollout/init", &request.body()).await;

    assert_eq!(reply.status, 202, "{}", reply.text);
    let tool = &reply.body["tools"][0]["function"];
    assert_eq!(tool["name"], "calculator");
    assert_eq!(tool["parameters"]["required"], json!(["expression"]));
    assert_eq!(host.stop().await.code, Some(0));
    let [completed] = &controller.callbacks()[..] else { panic!("{:?}", controller.callbacks()) };
    check_completed(completed, request.id());
    let outcome = (&completed.body["status"], &completed.body["finish_reason"], &completed.body["reward"]);
    assert_eq!(outcome, (&json!("COMPLETED"), &json!("stop"), &json!(1.0)));
    check_looped(&completed.body["final_messages"]);
    let metrics = &completed.body["metrics"];
    assert_eq!((&metrics["num_llm_calls"], &metrics["num_tool_calls"]), (&json!(2), &json!(1)));
}

#[tokio::test]
async fn an_agent_loop_is_polled_and_called_back_like_a_workflow() {
    let host = TestHost::of_component(python_guest("examples/agent-loop/python")).start().await;
    for callbacks in [false, true] {
        let controller = Controller::start().await;
        controller.answer_chats([calls_calculator("10 - 5"), Answer::Say("It is #### 5")]);
        let request = controller.rollout("Work it out.").with("metadata", json!({"ground_truth": "5"}));

        let outcome = if callbacks {
            let request = request.with_callbacks("key");
            assert_eq!(host.ask(&request).await.status, 202);
            controller.callbacks_arrived(2).await;
            controller.callbacks()[1].body.clone()
        } else {
            host.run(&request).await
        };

        assert_eq!(outcome["status"], "success", "{outcome:#}");
        assert_eq!(outcome["sample"]["reward"], 1.0, "{outcome:#}");
        if !callbacks {
            check_looped(&outcome["sample"]["messages"]);
        }
        assert_eq!(controller.chats().len(), 2);
    }
}

/// Objects whose references are not counted are never written, so all instances share them.
#[tokio::test]
async fn references_to_objects_from_the_build_are_not_counted() {
    let controller = Controller::start().await;
    let host = host().await;

    let result = host.run(&asking(&controller, "python: count")).await;

    assert_eq!(last_text(&result), "[False, False, False, False, False, True]", "{result:#}");
}

#[tokio::test]
async fn calls_of_one_gather_run_concurrently() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();

    let admitted = host.admit(&asking(&controller, "parallel")).await;
    controller.chats_open(3).await;
    controller.release();

    let result = host.result(&admitted).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(last_text(&result), "The sum is #### 11\nThe sum is #### 12\nThe sum is #### 13");
}

#[tokio::test]
async fn a_timeout_ends_a_call_and_a_cancelled_task_abandons_its_own() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();

    let result = host.run(&asking(&controller, "python: timeout")).await;

    assert_eq!(last_text(&result), "timed out", "{result:#}");
    assert_eq!(controller.chats().len(), 2);
    controller.chats_open(0).await;
}

#[tokio::test]
async fn a_sleep_takes_its_time_and_sleeps_of_one_gather_overlap() {
    let controller = Controller::start().await;
    let host = host().await;
    // The first rollout may wait for its component's pages.
    host.run(&asking(&controller, "nothing")).await;
    let started = Instant::now();

    let result = host.run(&asking(&controller, "python: sleep")).await;

    assert_eq!(last_text(&result), "slept", "{result:#}");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(1400), "{took:?}");
}

#[tokio::test]
async fn leftover_tasks_threads_and_broken_unicode_are_handled() {
    let controller = Controller::start().await;
    let host = host().await;
    for (what, expected) in
        [("leave", "left a task behind"), ("thread", "3"), ("surrogate", "half \u{fffd} of a pair")]
    {
        let result = host.run(&asking(&controller, &format!("python: {what}"))).await;

        assert_eq!(last_text(&result), expected, "{result:#}");
    }
}

#[tokio::test]
async fn random_numbers_differ_between_rollouts_and_are_not_those_of_the_build() {
    let controller = Controller::start().await;
    let host = host().await;
    let draw = async |id: &str| last_text(&host.run(&asking(&controller, "python: random").id(id)).await);
    let (first, second) = (draw("first").await, draw("second").await);
    let again = host_of_another_process(&controller, "first").await;

    assert_ne!(first, second);
    assert_eq!(first, again);
}

async fn host_of_another_process(controller: &Controller, id: &str) -> String {
    last_text(&host().await.run(&asking(controller, "python: random").id(id)).await)
}

#[tokio::test]
async fn a_guest_that_spins_in_python_is_stopped_at_its_deadline() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();

    let result = host.run(&asking(&controller, "unhandled").agent_secs(0.3)).await;

    assert_eq!(result["status"], "failure", "{result:#}");
    assert_eq!(result["err_category"], "timeout", "{result:#}");
    controller.chats_open(0).await;
}
