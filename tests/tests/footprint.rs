//! Tests of the memory that instances take in addition to their own.

use std::path::{Path, PathBuf};

use rollout_tests::{Controller, Ran, Start, TestHost, component_text, rollout_host, until};

/// Memory of one instance, in bytes.
const MEMORY_BYTES_MAX: usize = 8 << 20;

/// Numbers of slots that lead to each allocation plan.
const PLANS: [(&str, u32); 3] = [("pooled", 64), ("pooled-eager", 9000), ("on-demand", 19_000)];

/// Creates a component whose workflow runs this code and never returns, with additional module fields.
fn made(dir: &Path, what: &str, more: &str) -> PathBuf {
    let module = format!(
        r#"
        (memory (export "memory") 1)
        {more}
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "run") (param i32 i32) (result i32) (local $at i32)
            {what}
            (loop $again (br $again)) unreachable)
        (func (export "post") (param i32))
        "#
    );
    component(dir, &module)
}

/// Creates a component around this core module; see [`component_text`].
fn component(dir: &Path, module: &str) -> PathBuf {
    let path = dir.join("made.wasm");
    let bytes =
        wat::parse_str(component_text(module, "I say #### 5")).unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(&path, bytes).expect("it can be written");
    path
}

fn resident_bytes(host: &TestHost) -> usize {
    status_bytes(host, "VmRSS:")
}

fn status_bytes(host: &TestHost, figure: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.process().id().expect("it runs")));
    let status = status.expect("this is a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(figure)).expect("a process has memory");
    line.trim_end_matches("kB").trim().parse::<usize>().expect("it is a number") << 10
}

/// Recurses until at least 300 KiB of its stack are written.
const DEEP: &str = "(drop (call $deep (i32.const 6000)))";
const DEEP_FUNCTION: &str = r#"
    (func $deep (param i32) (result i32) (local $a i64) (local $b i64)
        (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
        (local.set $a (i64.extend_i32_u (call $deep (i32.sub (local.get 0) (i32.const 1)))))
        (i32.wrap_i64 (i64.add (local.get $a) (i64.const 1))))
"#;

#[tokio::test]
async fn deep_stacks_of_guests_are_returned_to_the_kernel() {
    const GUESTS: usize = 32;
    const KEPT_BYTES_MAX: usize = 48 << 10;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let component = made(dir.path(), DEEP, DEEP_FUNCTION);
    let controller = Controller::start().await;
    let host = TestHost::of_component(component).option("--max-concurrent", 64).start().await;
    let anonymous = || anonymous_bytes(&host);
    let before = anonymous();
    let mut guests = Vec::new();
    for _ in 0..GUESTS {
        guests.push(host.admit(&controller.rollout("misbehave")).await);
    }

    let deep = GUESTS * (128 << 10);
    until("all of them to be deep", async || (anonymous() > before + deep).then_some(())).await;
    for guest in &guests {
        host.cancel(&guest.id).await;
    }

    let kept = GUESTS * (KEPT_BYTES_MAX + (64 << 10));
    until("the memory to be released", async || (anonymous() < before + kept).then_some(())).await;
}

/// Returns the anonymous memory of the process.
fn anonymous_bytes(host: &TestHost) -> usize {
    status_bytes(host, "RssAnon:")
}

/// Measures the memory of one more instance of a component.
async fn resident_an_instance(component: &Path, slots: u32) -> usize {
    const INSTANCES: usize = 8;
    let controller = Controller::start().await;
    let host = TestHost::of_component(component.to_owned())
        .option("--max-concurrent", slots)
        .option("--limit-memory-bytes-max", MEMORY_BYTES_MAX)
        .start()
        .await;
    let before = resident_bytes(&host);
    let mut guests = Vec::new();
    for _ in 0..INSTANCES {
        guests.push(host.admit(&controller.rollout("misbehave")).await);
    }
    until("the guests at work", async || {
        (host.health().await["concurrency"]["running"] == INSTANCES).then_some(())
    })
    .await;
    // The guests take turns, so it takes a while until each has touched all of its memory.
    const STEADY: u32 = 100;
    let (mut largest, mut steady) = (0, 0);
    until("no more memory", async || {
        let now = resident_bytes(&host);
        steady = if now > largest { 0 } else { steady + 1 };
        largest = largest.max(now);
        (steady >= STEADY).then_some(())
    })
    .await;
    for guest in &guests {
        host.cancel(&guest.id).await;
    }
    largest.saturating_sub(before) / INSTANCES
}

/// Grows the memory page by page and writes to all of it.
const GROW: &str = r#"
    (loop $more
        (if (i32.ne (memory.grow (i32.const 1)) (i32.const -1)) (then (br $more))))
    (local.set $at (i32.const 131072))
    (loop $touch
        (i32.store (local.get $at) (i32.const 1))
        (local.set $at (i32.add (local.get $at) (i32.const 4096)))
        (br_if $touch (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536)))))
"#;

/// Grows a table in small steps, which writes to all of it.
const GROW_TABLE: &str = r#"
    (loop $more
        (if (i32.ne (table.grow $table (ref.func $f) (i32.const 100)) (i32.const -1)) (then (br $more))))
"#;

#[tokio::test]
async fn an_instance_takes_little_beyond_its_own_memory() {
    check_footprint(GROW, "").await;
}

#[tokio::test]
async fn an_instance_takes_little_beyond_its_own_tables() {
    check_footprint(GROW_TABLE, "(table $table 1 funcref) (func $f) (elem declare func $f)").await;
}

async fn check_footprint(what: &str, more: &str) {
    const BESIDE_MAX: usize = 4 << 20;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let component = made(dir.path(), what, more);
    for (plan, slots) in PLANS {
        let resident = resident_an_instance(&component, slots).await;

        println!("{plan}: {} KiB an instance that may have {} KiB", resident >> 10, MEMORY_BYTES_MAX >> 10);
        assert!(resident < MEMORY_BYTES_MAX + BESIDE_MAX, "{plan}: {resident} bytes");
    }
}

/// Tries to serve a component.
async fn serve(component: &Path, slots: u32) -> Ran {
    let mut command = rollout_host(["serve"]);
    command.arg(component).args(["--listen", "127.0.0.1:0"]);
    command.args(["--max-concurrent", &slots.to_string()]);
    command.args(["--limit-memory-bytes-max", &MEMORY_BYTES_MAX.to_string()]);
    command.current_dir(component.parent().expect("it is in a directory")).start().ended().await
}

#[tokio::test]
async fn the_engines_records_for_an_instance_count_as_its_memory() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    // Each element takes one byte in the file, and sixteen in every instance.
    let elements = format!("(func $f) (elem func {})", "$f ".repeat(600_000));
    let component = made(dir.path(), "", &elements);
    for (plan, slots) in PLANS {
        let ran = serve(&component, slots).await;

        assert_eq!(ran.code, Some(1), "{plan}: {}", ran.stderr);
        assert!(ran.stderr.contains("memory-bytes-max of 8388608 bytes"), "{plan}: {}", ran.stderr);
    }
}
