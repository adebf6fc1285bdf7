//! Guests that mean harm, beside those of `misbehaving.rs`: what stops each, what its
//! caller is told, and that neither host nor neighbours are the worse for it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollout_tests::{
    Answer, Controller, RolloutRequest, Serve, Start, TestHost, component_text, in_time, rollout_host,
};
use serde_json::Value;

/// A budget of CPU time that is spent soon, under a deadline that is far.
const LITTLE_CPU: &str = "[limits]\nguest-cpu-secs-max = 0.2\n";
const LITTLE_CPU_IS_NAMED: &str = "used more CPU time than guest-cpu-secs-max, 0.2 s";

/// The guests that are large hand over 2 MiB.
const SMALL_CALLS: &str = "[limits]\nhost-call-bytes-max = 1048576\n";
const SMALL_CALLS_ARE_NAMED: &str = "handed over more than host-call-bytes-max, 1048576 bytes";

fn check_fails(result: &Value, category: &str, part: &str) {
    assert_eq!(result["status"], "failure", "{part}: {result:#}");
    assert_eq!(result["err_category"], category, "{part}: {result:#}");
    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains(part), "{message:?} does not hold {part:?}");
    assert!(message.len() < 20_000, "a guest's words are bounded: {} bytes", message.len());
    assert_eq!(result["sample"]["reward"], Value::Null, "no reward is made up: {result:#}");
}

/// The next rollout, an ordinary one, succeeds, and nothing is left running.
async fn check_goes_on(host: &TestHost, controller: &Controller) {
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
    host.idle().await;
}

/// Runs a workflow that misbehaves as its prompt says, and is ended for it.
async fn check_ended(host: Serve, text: &str, part: &str) {
    let controller = Controller::start().await;
    let host = host.start().await;

    let result = host.run(&controller.rollout(text).label("5")).await;

    check_fails(&result, "agent_error", part);
    check_goes_on(&host, &controller).await;
}

/// Runs a grader that misbehaves as its label says, and is ended for it.
async fn check_grader_ended(lines: &str, label: &str, part: &str) {
    let controller = Controller::start().await;
    let host = TestHost::of("misuse_grading").config(lines).start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label(label)).await;

    check_fails(&result, "agent_error", part);
    check_goes_on(&host, &controller).await;
}

fn misuse(lines: &str) -> Serve {
    TestHost::of("misuse").config(lines)
}

/// What the guest says in its sample that it was told.
fn told(result: &Value) -> &str {
    let messages = result["sample"]["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let text = messages.last().and_then(|message| message["content"].as_str());
    text.unwrap_or_else(|| panic!("nothing was told: {result:#}"))
}

/// Runs a workflow that reports what it was told.
async fn ask_what_it_is_told(host: &TestHost, controller: &Controller, text: &str) -> String {
    let result = host.run(&controller.rollout(text).label("5")).await;
    told(&result).to_owned()
}

/// Runs a workflow that misbehaves as its prompt says, and is told of a limit.
async fn check_told(lines: &str, text: &str, part: &str) {
    let controller = Controller::start().await;
    let host = misuse(lines).start().await;

    let answer = ask_what_it_is_told(&host, &controller, text).await;

    assert!(answer.contains(part), "{answer:?} does not hold {part:?}");
    check_goes_on(&host, &controller).await;
}

// CPU.

#[tokio::test]
async fn a_workflow_that_spins_is_stopped_when_its_cpu_time_is_spent() {
    check_ended(TestHost::of("spin").config(LITTLE_CPU), "misbehave", LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_grader_that_spins_is_stopped_when_its_cpu_time_is_spent() {
    check_grader_ended(LITTLE_CPU, "spin", LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_spins_in_a_destructor_is_stopped_when_its_cpu_time_is_spent() {
    check_ended(misuse(LITTLE_CPU), "other: spin when dropped", LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_waits_spends_no_cpu_time() {
    let controller = Controller::start().await;
    let host = misuse(LITTLE_CPU).start().await;
    controller.hold();
    let rollout = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;

    // Nothing shows that time has passed but time.
    tokio::time::sleep(Duration::from_secs(1)).await;
    controller.release();

    let result = host.result(&rollout).await;
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
}

#[tokio::test]
async fn a_guest_that_calls_the_host_without_end_is_ended_at_its_number_of_calls() {
    let host = misuse("[limits]\nhost-calls-max = 5000\n");
    check_ended(host, "many: host calls", "called the host more often than host-calls-max, 5000 times").await;
}

#[tokio::test]
async fn a_storm_of_host_calls_is_stopped_when_its_cpu_time_is_spent() {
    let lines = "[limits]\nguest-cpu-secs-max = 0.2\nhost-calls-max = 18446744073709551\n";
    check_ended(misuse(lines), "many: host calls", LITTLE_CPU_IS_NAMED).await;
}

// Phases that no language's author sees: a component made by hand misbehaves in them.

/// What a component does where it is hostile.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Spin,
    Trap,
    Exit,
}

/// Where it does so.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Site {
    /// The start function, which runs before anything is called.
    Start,
    /// Making room for the arguments.
    Realloc,
    /// The workflow itself.
    Run,
    /// After it has returned and the result was taken.
    PostReturn,
}

const PLACES: [Site; 4] = [Site::Start, Site::Realloc, Site::Run, Site::PostReturn];

/// A workflow that answers 5, and in about every second rollout misbehaves: which, the
/// rollout's own random numbers decide, so that it is the same ones each time, and not
/// the one with which the host tries it before it serves.
fn made(dir: &Path, place: Site, deed: Deed) -> PathBuf {
    let deed = match deed {
        Deed::Spin => "(loop $again (br $again))",
        Deed::Trap => "unreachable",
        Deed::Exit => "(call $exit (i32.const 0))",
    };
    let at = |here| match place == here {
        true => format!("(if (global.get $hostile) (then {deed}))"),
        false => String::new(),
    };
    let module = format!(
        r#"
        (import "host" "random" (func $random (result i64)))
        (import "host" "exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (global $hostile (mut i32) (i32.const 0))
        (global $top (mut i32) (i32.const 4096))
        (func $start
            (global.set $hostile (i64.eq (i64.and (call $random) (i64.const 1)) (i64.const 1)))
            {})
        (start $start)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32)
            {}
            (global.set $top (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
            (global.get $top)
            (global.set $top (i32.add (global.get $top) (local.get 3))))
        (func (export "run") (param i32 i32) (result i32)
            {}
            (i32.const 16))
        (func (export "post") (param i32)
            {})
        "#,
        at(Site::Start),
        at(Site::Realloc),
        at(Site::Run),
        at(Site::PostReturn),
    );
    component(dir, &module)
}

/// A component around this core module; see [`component_text`].
fn component(dir: &Path, module: &str) -> PathBuf {
    let path = dir.join("made.wasm");
    let bytes =
        wat::parse_str(component_text(module, "I say #### 5")).unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(&path, bytes).expect("it can be written");
    path
}

/// Runs hostile and ordinary rollouts of a made component side by side.
async fn check_made(place: Site, deed: Deed, part: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let controller = Controller::start().await;
    let host = TestHost::of_component(made(dir.path(), place, deed)).config(LITTLE_CPU).start().await;
    let mut rollouts = Vec::new();
    for number in 0..8 {
        let request =
            controller.rollout("Calculate 2 + 3.").id(&format!("made-{number}")).with("grade", false);
        rollouts.push(host.admit(&request).await);
    }
    let mut ended = 0;
    for rollout in &rollouts {
        let result = host.result(rollout).await;
        if result["err_message"].as_str().is_some_and(|message| message.contains(part)) {
            check_fails(&result, "agent_error", part);
            ended += 1;
        } else {
            assert_eq!(told(&result), "I say #### 5", "{place:?} {deed:?}: {result:#}");
        }
    }
    assert!((1..8).contains(&ended), "{place:?} {deed:?}: {ended} of 8 were ended");
    host.idle().await;
}

#[tokio::test]
async fn a_guest_that_spins_in_its_start_function_is_stopped() {
    check_made(Site::Start, Deed::Spin, LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_spins_while_it_is_given_its_arguments_is_stopped() {
    check_made(Site::Realloc, Deed::Spin, LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_spins_after_it_has_returned_is_stopped() {
    check_made(Site::PostReturn, Deed::Spin, LITTLE_CPU_IS_NAMED).await;
}

#[tokio::test]
async fn a_guest_that_traps_in_any_phase_fails_its_rollout_only() {
    for place in PLACES {
        check_made(place, Deed::Trap, "workflow trapped: wasm trap: wasm `unreachable` instruction executed")
            .await;
    }
}

#[tokio::test]
async fn a_guest_that_exits_in_any_phase_is_at_fault_and_ends_no_other() {
    for place in PLACES {
        let part = match place {
            Site::Start | Site::Run => "workflow called exit(0) instead of returning",
            // Here the engine lets no guest call anything.
            Site::Realloc | Site::PostReturn => {
                "workflow trapped: wasm trap: cannot leave component instance"
            }
        };
        check_made(place, Deed::Exit, part).await;
    }
}

#[tokio::test]
async fn a_component_whose_every_start_spins_is_not_served() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let module = r#"
        (memory (export "memory") 1)
        (func $start (loop $again (br $again)))
        (start $start)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "run") (param i32 i32) (result i32) (i32.const 16))
        (func (export "post") (param i32))
    "#;
    let path = component(dir.path(), module);

    let ran = serve(&path, &["--limit-guest-cpu-secs-max", "0.2"]).await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("guest-cpu-secs-max"), "{}", ran.stderr);
}

/// Serves what cannot be served.
async fn serve(component: &Path, more: &[&str]) -> rollout_tests::Ran {
    let mut command = rollout_host(["serve"]);
    command.arg(component).args(["--listen", "127.0.0.1:0"]).args(more);
    command.current_dir(component.parent().expect("it is in a directory"));
    command.start().ended().await
}

// Memory.

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
    // So many that memory comes from no pool, in which a module has one table.
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
    // From a pool, and from the kernel: neither has that many mappings to give.
    for slots in ["8", "3000"] {
        let ran = serve(&path, &["--max-concurrent", slots]).await;

        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("memor"), "{}", ran.stderr);
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
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn a_large_text_that_may_be_handed_over_is_refused_where_it_is_too_large() {
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
        let answer = ask_what_it_is_told(&host, &controller, &format!("large: {place}")).await;

        assert!(answer.contains(part), "{place}: {answer:?} does not hold {part:?}");
        assert!(answer.len() < 2000, "{place}: what it handed over is not repeated");
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn a_tool_call_with_an_id_that_nobody_could_keep_ends_the_guest() {
    let part = "gave a tool call an id of 2097152 bytes; 4096 are the most";
    check_ended(misuse(""), "large: tool call", part).await;
}

#[tokio::test]
async fn a_long_panic_is_told_in_part() {
    check_ended(misuse(""), "large: failure", "workflow panicked at").await;
}

#[tokio::test]
async fn large_lines_and_events_are_dropped_where_the_log_is_full() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    for place in ["line", "event name", "event"] {
        let request = controller.rollout(&format!("large: {place}")).label("5");
        let result = host.run(&request).await;

        assert_eq!(told(&result), "taken");
        host.trajectory(request.rollout_id()).await;
        let kept = size_below(&host.kept().join(request.rollout_id()));
        assert!(kept < 100_000, "{place}: {kept} bytes are kept");
    }
    check_goes_on(&host, &controller).await;
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
async fn a_wait_for_more_calls_than_can_be_under_way_is_ended_by_that_name() {
    let host = misuse("[limits]\nhandles-max = 2000000\n");
    check_ended(host, "many: waits", "1000000 calls, more than concurrent-calls-max, 64").await;
}

#[tokio::test]
async fn a_sample_of_a_million_messages_is_refused() {
    let lines = "[limits]\nrecord-bytes-max = 4194304\n";
    check_told(lines, "many: messages", "record-bytes-max of 4194304 bytes").await;
}

#[tokio::test]
async fn a_request_of_a_million_messages_is_refused() {
    let lines = "[limits]\nrecord-bytes-max = 1048576\n";
    check_told(lines, "many: chat messages", "record-bytes-max of 1048576 bytes").await;
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

// Handles.

#[tokio::test]
async fn chat_calls_that_are_started_and_forgotten_are_refused_at_their_number() {
    let lines = "[limits]\nconcurrent-calls-max = 8\n";
    check_told(lines, "handle: forgotten chat calls", "concurrent-calls-max of 8 calls").await;
}

#[tokio::test]
async fn handles_that_are_kept_without_end_end_the_guest() {
    let host = misuse("[limits]\nhandles-max = 100\n");
    check_ended(host, "handle: forgotten tool calls", "more handles than handles-max, 100").await;
}

#[tokio::test]
async fn samples_that_are_opened_without_end_are_refused_at_their_number() {
    check_told("", "handle: forgotten samples", "TooMany(1)").await;
}

#[tokio::test]
async fn a_handle_that_the_host_never_gave_ends_the_guest() {
    for what in ["made up", "zero", "largest"] {
        check_ended(misuse(""), &format!("handle: {what}"), "unknown handle index").await;
    }
}

#[tokio::test]
async fn a_handle_of_another_kind_ends_the_guest() {
    check_ended(misuse(""), "handle: of another kind", "handle index").await;
}

#[tokio::test]
async fn a_handle_that_was_given_back_ends_the_guest() {
    for what in ["dropped", "dropped twice"] {
        check_ended(misuse(""), &format!("handle: {what}"), "unknown handle index").await;
    }
}

// Lies.

#[tokio::test]
async fn what_is_no_json_is_refused_in_every_place() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    let request = controller.rollout("no json: anywhere").label("5");

    let result = host.run(&request).await;

    let answers: Value = serde_json::from_str(told(&result)).expect("it reports in JSON");
    for (place, answer) in answers.as_object().expect("an object") {
        let text = answer.as_str().unwrap_or_default();
        assert_ne!(text, "taken", "{place}");
        assert!(text.contains("nvalid") || text.contains("not"), "{place}: {text}");
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    let trajectory = host.trajectory(request.rollout_id()).await;
    assert!(trajectory.is_object(), "it can be read all the same");
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn a_field_that_is_too_deep_for_its_readers_is_refused() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    let request = controller.rollout("other: deep field").label("5");

    let result = host.run(&request).await;

    let answers: Value = serde_json::from_str(told(&result)).expect("it reports in JSON");
    assert_eq!(answers["deepest"], "taken");
    for place in ["deeper", "deep"] {
        let answer = answers[place].as_str().unwrap_or_default();
        assert!(answer.contains("nested more than 100 deep") || answer.contains("recursion"), "{answer}");
    }
    assert!(host.trajectory(request.rollout_id()).await.is_object(), "it can be read all the same");
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn a_name_that_a_sample_has_is_refused_to_another() {
    let rows = [serde_json::json!({"user_prompt": "other: same name twice", "ground_truth": "5"})];
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(dir.path().join("rows.jsonl"), lines).expect("it can be written");
    let mut command = rollout_host(["eval"]);
    command.arg(rollout_tests::guest("misuse")).args(["--data", "rows.jsonl", "--model", "mock"]);
    command.args(["--out", "out"]).current_dir(dir.path()).start().ended().await;

    let path = dir.path().join("out/rollouts/row-00000-run-0/trajectory.json");
    let text = std::fs::read_to_string(path).expect("it was written");
    assert!(text.contains("Taken(\\\"twin\\\")"), "{text}");
}

#[tokio::test]
async fn random_bytes_past_their_number_end_the_guest_by_that_name_and_are_counted() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    let request = controller.rollout("other: random bytes").label("5");

    let result = host.run(&request).await;

    check_fails(
        &result,
        "agent_error",
        "2097152 random bytes in one call, more than random-bytes-max, 65536",
    );
    let trajectory = host.trajectory(request.rollout_id()).await;
    let limit = &trajectory["extra"]["rollout_host"]["limits"]["random-bytes-max"];
    assert_eq!(*limit, serde_json::json!({"max": 65536, "hits": 1, "asked": 2_097_152}));
    let hits = host.metrics().await.get("rollout_host_limit_hits_total{limit=\"random-bytes-max\"}");
    assert_eq!(hits, Some(1.0));
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_cannot_be_handed_over() {
    let controller = Controller::start().await;
    let host = misuse("").start().await;
    for place in ["line", "sample name", "message", "artifact name", "request"] {
        let result = host.run(&controller.rollout(&format!("no text: {place}")).label("5")).await;

        check_fails(&result, "agent_error", "utf-8");
    }
    assert_eq!(controller.chats().len(), 0, "none of it was sent");
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn a_grader_sees_nothing_of_another_rollout() {
    let controller = Controller::start().await;
    let host = TestHost::start("misuse_grading").await;
    let other = host.run(&controller.rollout("Calculate 2 + 3.").label("observe nobody")).await;
    let other = other["err_message"].as_str().unwrap_or_default();
    let (other, _) = other.split_once(" saw 1 and 0").unwrap_or_else(|| panic!("{other}"));

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label(&format!("observe {other}"))).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("saw 1 and 0") && !message.contains(other), "{message}");
    host.idle().await;
}

#[tokio::test]
async fn a_grader_that_exits_or_traps_fails_its_rollout_only() {
    check_grader_ended("", "exit", "grader called exit(0)").await;
    check_grader_ended("", "panic", "this grader traps").await;
}

// What a run can be told apart by.

#[tokio::test]
async fn a_guests_clocks_and_random_numbers_are_its_rollouts_own() {
    let controller = Controller::start().await;
    let request = |id: &str| controller.rollout("other: clocks").id(id).label("5");
    let (one, two) = (misuse("").start().await, misuse("").start().await);

    let first = one.run(&request("clocks-1")).await;
    let again = two.run(&request("clocks-1")).await;
    let sibling = one.run(&request("clocks-2")).await;

    assert_eq!(told(&first), told(&again), "a run can be repeated");
    let seen = |result: &Value| serde_json::from_str::<Value>(told(result)).expect("it reports in JSON");
    let (first, sibling) = (seen(&first), seen(&sibling));
    for clock in ["today", "elapsed"] {
        assert_eq!(first[clock], sibling[clock], "nobody's clock says what the machine is busy with");
    }
    for random in ["random", "sample"] {
        assert_ne!(first[random], sibling[random], "siblings differ");
    }
}

// What is left, and what it does to neighbours.

/// What a process has of the machine.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    mappings: usize,
    descriptors: usize,
    resident_kib: usize,
}

fn footprint(host: &TestHost) -> Footprint {
    let dir = PathBuf::from(format!("/proc/{}", host.process().id().expect("it runs")));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("this is a Linux");
    let status = read("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    Footprint {
        mappings: read("maps").lines().count(),
        descriptors: std::fs::read_dir(dir.join("fd")).expect("it is there").count(),
        resident_kib: resident.expect("a process has memory"),
    }
}

/// Rollouts of every kind of misuse, many at once, some cancelled.
async fn onslaught(host: &TestHost, controller: &Controller, count: usize) {
    const TEXTS: [&str; 14] = [
        "Calculate 2 + 3.",
        "handle: forgotten chat calls",
        "handle: forgotten tool calls",
        "handle: forgotten samples",
        "handle: made up",
        "handle: dropped twice",
        "large: message",
        "large: artifact",
        "large: line",
        "many: waits",
        "no json: anywhere",
        "no text: message",
        "other: trap",
        "other: exit",
    ];
    let rollouts: Vec<RolloutRequest> = (0..count)
        .map(|number| match number % 20 {
            19 => controller.rollout("other: spin when dropped"),
            _ => controller.rollout(TEXTS[number % TEXTS.len()]),
        })
        .collect();
    for some in rollouts.chunks(40) {
        let mut admitted = Vec::new();
        for request in some {
            admitted.push(host.admit(&request.clone().label("5")).await);
        }
        for rollout in admitted.iter().step_by(7) {
            host.cancel(&rollout.id).await;
        }
        for rollout in &admitted {
            host.result(rollout).await;
        }
    }
    host.idle().await;
}

#[tokio::test]
async fn hundreds_of_hostile_rollouts_leave_nothing_behind() {
    let controller = Controller::start().await;
    let lines = "[limits]\nguest-cpu-secs-max = 0.1\n[osmosis]\nresult-ttl-secs = 10\n";
    let host = misuse(lines).option("--max-concurrent", 8).option("--queue-max", 100).start().await;
    onslaught(&host, &controller, 200).await;
    controller.chats_open(0).await;
    let before = footprint(&host);

    onslaught(&host, &controller, 200).await;

    controller.chats_open(0).await;
    let after = footprint(&host);
    assert!(after.mappings < before.mappings + 200, "{before:?} became {after:?}");
    // Connections that are kept for the next request are no leak: one for each that ran at once.
    assert!(after.descriptors < before.descriptors + 64, "{before:?} became {after:?}");
    assert!(after.resident_kib < before.resident_kib + (64 << 10), "{before:?} became {after:?}");
    check_goes_on(&host, &controller).await;
}

#[tokio::test]
async fn spinning_guests_hold_up_no_neighbour() {
    const SPINNING: usize = 4;
    const NEIGHBOURS: usize = 100;
    let controller = Controller::start().await;
    let host = TestHost::start("spin").await;
    let alone = slowest(&host, &controller, NEIGHBOURS).await;
    let mut spinning = Vec::new();
    for _ in 0..SPINNING {
        spinning.push(host.admit(&controller.rollout("misbehave")).await);
    }

    let beside = slowest(&host, &controller, NEIGHBOURS).await;

    println!("slowest of {NEIGHBOURS}: alone {alone:?}, beside {SPINNING} spinning guests {beside:?}");
    assert!(beside < Duration::from_secs(5), "alone {alone:?}, beside spinning guests {beside:?}");
    for spinner in &spinning {
        assert_eq!(host.cancel(&spinner.id).await, "cancelled_running");
    }
    check_goes_on(&host, &controller).await;
}

/// Runs ordinary rollouts one after the other; gives what 99 in 100 of them took at most.
async fn slowest(host: &TestHost, controller: &Controller, count: usize) -> Duration {
    let running = async {
        let mut times = Vec::new();
        for _ in 0..count {
            controller.answer_chats([Answer::Say("#### 5")]);
            let started = Instant::now();
            let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
            times.push(started.elapsed());
            assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
        }
        times.sort();
        times[count * 99 / 100 - 1]
    };
    in_time("the neighbours", running).await
}
