//! Tests of guests that hold or pass too much: memory, texts, lists and handles.

use std::path::Path;

use rollout_tests::component_text;

use super::made::{component, serve};
use super::*;

#[tokio::test]
async fn tables_count_as_memory() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let module = r#"
        (memory (export "memory") 1)
        (table $first 1 funcref)
        (table $second 1 funcref)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "run") (param i32 i32) (result i32)
            (loop $again (br_if $again
                (i32.ne (table.grow $first (ref.null func) (i32.const 1000)) (i32.const -1))))
            (loop $again (br_if $again
                (i32.ne (table.grow $second (ref.null func) (i32.const 1000)) (i32.const -1))))
            unreachable)
        (func (export "post") (param i32))
    "#;
    let path = component(dir.path(), module);
    let controller = Controller::start().await;
    // So many slots that memory does not come from a pool, in which a module has one table.
    let host = TestHost::of_component(path)
        .option("--max-concurrent", 3000)
        .option("--limit-memory-bytes-max", 1 << 20)
        .start()
        .await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.")).await;

    check_fails(&result, "agent_error", "memory-bytes-max of 1048576 bytes");
    host.idle().await;
}

#[tokio::test]
async fn many_memories_are_refused_before_they_are_served() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let module = |memories: &str| {
        format!(
            r#"
            (memory (export "memory") 1)
            {memories}
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
            (func (export "run") (param i32 i32) (result i32) (i32.const 16))
            (func (export "post") (param i32))
            "#
        )
    };
    let path = component(dir.path(), &module(&"(memory 0)\n".repeat(90)));
    // With a pool and without: neither provides that many mappings.
    for slots in ["8", "3000"] {
        let ran = serve(&path, &["--max-concurrent", slots]).await;

        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("memor"), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn memories_of_several_modules_are_counted_together_and_named() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let module = r#"
        (memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "run") (param i32 i32) (result i32) (i32.const 16))
        (func (export "post") (param i32))
    "#;
    let path = component(dir.path(), module);
    let more = "(core module $more (memory 1)) (core instance (instantiate $more))
        (core instance (instantiate $more)) (core instance (instantiate $more))";
    let text =
        component_text(module, "I say #### 5").replacen("(component", &format!("(component {more}"), 1);
    std::fs::write(&path, wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))).expect("written");
    for slots in ["8", "3000"] {
        let ran = serve(&path, &["--max-concurrent", slots]).await;

        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("has more parts than this host gives one component"), "{}", ran.stderr);
        assert!(ran.stderr.contains("linear memories"), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_large_text_is_stopped_before_the_host_has_a_copy_of_it() {
    let controller = Controller::start().await;
    let host = misuse(SMALL_CALLS).start().await;
    let places = [
        "line",
        "event name",
        "event",
        "artifact name",
        "artifact",
        "sample name",
        "metric name",
        "field name",
        "field",
        "message",
        "request",
        "tool",
        "params",
        "tool call",
        "return",
    ];
    for place in places {
        let result = host.run(&controller.rollout(&format!("large: {place}")).label("5")).await;

        check_fails(&result, "agent_error", SMALL_CALLS_ARE_NAMED);
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_text_within_the_call_limit_is_refused_by_smaller_limits() {
    let controller = Controller::start().await;
    let lines =
        "[limits]\nmessage-bytes-max = 1048576\nrecord-bytes-max = 1100000\nartifact-bytes-max = 1048576\n";
    let host = misuse(lines).start().await;
    for (place, part) in [
        ("message", "message-bytes-max, 1048576 bytes"),
        ("request", "message-bytes-max, 1048576 bytes"),
        ("field", "record-bytes-max of 1100000 bytes"),
        ("params", "record-bytes-max of 1100000 bytes"),
        ("tool", "record-bytes-max of 1100000 bytes"),
        ("artifact", "artifact-bytes-max of 1048576 bytes"),
        ("artifact name", "it is longer than 255 bytes"),
        ("metric name", "256 are the most"),
        ("field name", "256 are the most"),
    ] {
        let answer = answer_to(&host, &controller, &format!("large: {place}")).await;

        assert!(answer.contains(part), "{place}: {answer:?} does not hold {part:?}");
        assert!(answer.len() < 2000, "{place}: the value is not repeated");
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    check_still_works(&host, &controller).await;
}

#[tokio::test]
async fn a_tool_call_with_a_huge_id_ends_the_guest() {
    let part = "gave a tool call an id of 2097152 bytes; 4096 are the most";
    check_ended(misuse(""), "large: tool call", part).await;
}

#[tokio::test]
async fn a_long_panic_message_is_cut() {
    check_ended(misuse(""), "large: failure", "workflow panicked at").await;
}

#[tokio::test]
async fn large_lines_and_events_are_dropped_where_the_log_is_full() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    for place in ["line", "event name", "event"] {
        let request = controller.rollout(&format!("large: {place}")).label("5");
        let result = host.run(&request).await;

        assert_eq!(answer_in(&result), "taken");
        host.trajectory(request.rollout_id()).await;
        let kept = size_below(&host.kept().join(request.rollout_id()));
        assert!(kept < 100_000, "{place}: {kept} bytes are stored");
    }
    check_still_works(&host, &controller).await;
}

fn size_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.path() {
            path if path.is_dir() => size_below(&path),
            path => path.metadata().map_or(0, |about| about.len()),
        })
        .sum()
}

#[tokio::test]
async fn a_wait_for_a_million_calls_is_ended() {
    check_ended(misuse(""), "many: waits", "names in one call, more handles than handles-max, 10000").await;
}

#[tokio::test]
async fn a_wait_for_more_calls_than_can_be_in_progress_ends_the_guest_with_the_limits_name() {
    let host = misuse("[limits]\nhandles-max = 2000000\n");
    check_ended(host, "many: waits", "1000000 calls, more than concurrent-calls-max, 64").await;
}

#[tokio::test]
async fn a_sample_of_a_million_messages_is_refused() {
    let lines = "[limits]\nrecord-bytes-max = 4194304\n";
    check_limit_error(lines, "many: messages", "record-bytes-max of 4194304 bytes").await;
}

#[tokio::test]
async fn a_request_of_a_million_messages_is_refused() {
    let lines = "[limits]\nrecord-bytes-max = 1048576\n";
    check_limit_error(lines, "many: chat messages", "record-bytes-max of 1048576 bytes").await;
}

#[tokio::test]
async fn a_list_of_a_million_messages_is_stopped_before_the_host_has_a_copy_of_it() {
    check_ended(misuse(SMALL_CALLS), "many: messages", SMALL_CALLS_ARE_NAMED).await;
}

#[tokio::test]
async fn a_grader_that_returns_too_much_is_ended() {
    for label in ["many verdicts", "large id", "large metric name", "large failure"] {
        check_grader_ended(SMALL_CALLS, label, SMALL_CALLS_ARE_NAMED).await;
    }
}

#[tokio::test]
async fn chat_calls_that_are_started_and_forgotten_are_refused_at_their_limit() {
    let lines = "[limits]\nconcurrent-calls-max = 8\n";
    check_limit_error(lines, "handle: forgotten chat calls", "concurrent-calls-max of 8 calls").await;
}

#[tokio::test]
async fn handles_that_are_never_dropped_end_the_guest_at_their_limit() {
    let host = misuse("[limits]\nhandles-max = 100\n");
    check_ended(host, "handle: forgotten tool calls", "more handles than handles-max, 100").await;
}

#[tokio::test]
async fn samples_that_are_opened_endlessly_are_refused_at_their_limit() {
    check_limit_error("", "handle: forgotten samples", "TooMany(1)").await;
}

#[tokio::test]
async fn an_invented_handle_ends_the_guest() {
    for what in ["made up", "zero", "largest"] {
        check_ended(misuse(""), &format!("handle: {what}"), "unknown handle index").await;
    }
}

#[tokio::test]
async fn a_handle_of_another_kind_ends_the_guest() {
    check_ended(misuse(""), "handle: of another kind", "handle index").await;
}

#[tokio::test]
async fn a_dropped_handle_ends_the_guest() {
    for what in ["dropped", "dropped twice"] {
        check_ended(misuse(""), &format!("handle: {what}"), "unknown handle index").await;
    }
}
