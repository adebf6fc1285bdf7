//! Tests of handwritten components that misbehave in phases which no language exposes.

use std::path::{Path, PathBuf};

use rollout_tests::{Start, component_text, rollout_host, waiting_component};

use super::*;

/// The misbehaviour of a component.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Spin,
    Trap,
    Exit,
}

/// The phase in which a component misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Site {
    /// The start function, which runs before any call.
    Start,
    /// The allocation of the arguments.
    Realloc,
    /// The workflow itself.
    Run,
    /// The cleanup after the result was read.
    PostReturn,
}

const PLACES: [Site; 4] = [Site::Start, Site::Realloc, Site::Run, Site::PostReturn];

/// Creates a workflow that answers 5, and misbehaves in about every second rollout. The rollout's own random numbers
/// select these, so that they are the same each time and exclude the trial run before the host serves.
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

/// Creates a component around this core module; see [`component_text`].
pub(super) fn component(dir: &Path, module: &str) -> PathBuf {
    let path = dir.join("made.wasm");
    let bytes =
        wat::parse_str(component_text(module, "I say #### 5")).unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(&path, bytes).expect("it can be written");
    path
}

/// Runs hostile and ordinary rollouts of a handwritten component concurrently.
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
            assert_eq!(answer_in(&result), "I say #### 5", "{place:?} {deed:?}: {result:#}");
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
async fn a_guest_that_spins_while_it_receives_its_arguments_is_stopped() {
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
            // In these phases the engine forbids calls of imports.
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

/// Creates a component whose start function sleeps for this many seconds, without using CPU time.
fn waiting_to_start(dir: &Path, seconds: u32) -> PathBuf {
    let path = dir.join("waiting.wasm");
    std::fs::write(&path, waiting_component(seconds)).expect("it can be written");
    path
}

#[tokio::test]
async fn a_component_whose_every_start_waits_is_not_served_and_does_not_validate() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = waiting_to_start(dir.path(), 3000);

    let ran = serve(&path, &[]).await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("can be started: it ran past its deadline"), "{}", ran.stderr);

    let validated = rollout_host(["validate"]).arg(&path).current_dir(dir.path()).start().ended().await;
    assert_eq!(validated.code, Some(1), "{}", validated.stderr);
}

#[tokio::test]
async fn a_component_with_a_short_wait_at_its_start_is_served() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let controller = Controller::start().await;
    let host = TestHost::of_component(waiting_to_start(dir.path(), 1)).start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").with("grade", false)).await;

    assert_eq!(answer_in(&result), "I say #### 5", "{result:#}");
}

/// Tries to serve a component, which must fail.
pub(super) async fn serve(component: &Path, more: &[&str]) -> rollout_tests::Ran {
    let mut command = rollout_host(["serve"]);
    command.arg(component).args(["--listen", "127.0.0.1:0"]).args(more);
    command.current_dir(component.parent().expect("it is in a directory"));
    command.start().ended().await
}
