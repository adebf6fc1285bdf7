//! Tests of the memory budget of all rollouts: new work is refused first, then the rollout that holds the most is
//! ended, and the host is named as the cause.

use rollout_tests::{Admitted, Controller, Serve, TestHost, until};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn host_with_budget(mebibytes: usize) -> Serve {
    TestHost::of("hold").option("--memory-budget-bytes", mebibytes * MIB)
}

/// Waits until the host counts nothing as held for guests and their records.
async fn nothing_held(host: &TestHost) {
    let nothing = async || {
        let metrics = host.metrics().await;
        let held = |use_: &str| metrics.get(&format!("rollout_host_held_bytes{{use=\"{use_}\"}}"));
        (held("guest") == Some(0.0) && held("record") == Some(0.0)).then_some(())
    };
    until("all memory to be released", nothing).await;
}

fn check_ended_for_memory(result: &Value) {
    assert_eq!(result["status"], "failure", "{result:#}");
    assert_eq!(result["sample"], Value::Null, "there is no invented reward: {result:#}");
    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("the host ran out of memory"), "{message}");
    assert!(message.contains("memory-budget-bytes"), "{message}");
}

#[tokio::test]
async fn without_memory_the_largest_rollout_is_ended_and_the_host_is_named() {
    let (others, grower) = (Controller::start().await, Controller::start().await);
    others.hold();
    grower.hold();
    let host = host_with_budget(256).start().await;
    let largest = host.admit(&others.rollout("110").label("5")).await;
    others.chats_open(1).await;

    // Two guests' initial memory and 110 MiB leave less than this.
    let too_large = host.run(&grower.rollout("220").label("5")).await;
    check_ended_for_memory(&too_large);

    let small = host.admit(&others.rollout("40").label("5")).await;
    others.chats_open(2).await;
    let growing = host.admit(&grower.rollout("30 75").label("5")).await;
    grower.chats_open(1).await;
    assert_eq!(host.health().await["concurrency"]["running"], 3, "all of them run");
    grower.release();

    let grown = host.result(&growing).await;
    assert_eq!(grown["status"], "success", "{grown:#}");
    check_ended_for_memory(&host.result(&largest).await);
    others.release();
    let small = host.result(&small).await;
    assert_eq!(small["status"], "success", "{small:#}");

    nothing_held(&host).await;
    let metrics = host.metrics().await;
    let by_label = metrics.counted("rollout_host_rollouts_ended_total");
    let for_memory: f64 = by_label
        .iter()
        .filter(|(labels, _)| labels.contains("\"memory\"") && labels.contains("\"host\""))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(for_memory, 2.0, "{by_label:?}");
    assert_eq!(metrics.get("rollout_host_limit_hits_total{limit=\"memory-budget-bytes\"}"), Some(2.0));
}

/// Returns a value of the host's process in `/proc/PID/status`, in bytes.
fn status_bytes(host: &TestHost, figure: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.process().id().expect("it runs")));
    let status = status.expect("this is a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(figure)).expect("a process has memory");
    line.trim_end_matches("kB").trim_start_matches(':').trim().parse::<usize>().expect("a number") << 10
}

#[tokio::test]
async fn a_guests_memory_is_returned_to_the_kernel() {
    const GUEST_MIB: usize = 120;
    const BUDGET_MIB: usize = 256;
    /// The memory of the process itself; the unreturned memory of a guest would exceed it.
    const REST_BYTES_MAX: usize = 100 * MIB;
    // A number of slots for each allocation plan.
    for slots in [64, 9000, 19_000] {
        let controller = Controller::start().await;
        let host = host_with_budget(BUDGET_MIB).option("--max-concurrent", slots).start().await;
        for number in 0..14 {
            let result = host.run(&controller.rollout(&GUEST_MIB.to_string()).label("5")).await;
            assert_eq!(result["status"], "success", "{slots} slots: {result:#}");
            nothing_held(&host).await;
            let resident = status_bytes(&host, "VmRSS");
            assert!(resident < REST_BYTES_MAX, "{slots} slots: {} MiB after guest {number}", resident / MIB);
        }
        let most = status_bytes(&host, "VmHWM");
        let bound = BUDGET_MIB * MIB / 10 * 11 + 64 * MIB;
        assert!(most < bound, "{slots} slots: {} MiB at the most", most / MIB);
    }
}

#[tokio::test]
async fn a_deep_stack_is_charged_while_its_guest_waits() {
    /// Each call of the guest takes more than this of its stack.
    const CALL_BYTES_MIN: f64 = 16.0;
    const CALLS: f64 = 4000.0;
    let controller = Controller::start().await;
    controller.hold();
    let host = TestHost::of("deep_stack").start().await;
    let held =
        async || host.metrics().await.get("rollout_host_held_bytes{use=\"guest\"}").unwrap_or_default();

    let shallow = host.admit(&controller.rollout("0 chat").label("5")).await;
    controller.chats_open(1).await;
    // The charge is made as soon as the guest waits, after its call was sent.
    let one =
        until("the first guest to be charged", async || Some(held().await).filter(|bytes| *bytes > 0.0))
            .await;
    let _waiting = host.admit(&controller.rollout(&format!("{CALLS} chat")).label("5")).await;
    let deep = CALLS * CALL_BYTES_MIN;
    until("the deep guest to be charged", async || (held().await >= 2.0 * one + deep).then_some(())).await;
    let _asleep = host.admit(&controller.rollout(&format!("{CALLS} sleep")).label("5")).await;
    until("the sleeper to be charged", async || (held().await >= 3.0 * one + 2.0 * deep).then_some(())).await;

    controller.release();
    assert_eq!(host.result(&shallow).await["status"], "success");
}

#[tokio::test]
async fn new_rollouts_are_refused_before_a_running_one_is_ended() {
    let controller = Controller::start().await;
    controller.hold();
    let host = host_with_budget(64).start().await;
    let running = host.admit(&controller.rollout("50").label("5")).await;
    controller.chats_open(1).await;

    let refused = host.ask(&controller.rollout("1").label("5")).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert!(refused.text.contains("memory budget"), "{}", refused.text);
    let metrics = host.metrics().await;
    assert_eq!(metrics.get("rollout_host_rollouts_refused_total{reason=\"memory\"}"), Some(1.0));

    controller.release();
    assert_eq!(host.result(&running).await["status"], "success");
    nothing_held(&host).await;
    let result = host.run(&controller.rollout("1").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
}

#[tokio::test]
async fn read_results_make_room_and_unread_ones_are_kept() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--memory-budget-bytes", 64 * MIB).start().await;
    // The maximum size of a request to the fake model.
    let request = || controller.rollout(&format!("Calculate 2 + 3.{}", " ".repeat(MIB * 3 / 2))).label("5");
    let mut unread = Vec::new();
    let refused = loop {
        let reply = host.ask(&request()).await;
        if reply.status != 202 {
            break reply;
        }
        let text = |field: &str| reply.body[field].as_str().expect("an admission has it").to_owned();
        unread.push(Admitted { id: text("rollout_id"), lease: text("polling_lease_token") });
        host.idle().await;
        assert!(unread.len() < 64, "results are charged");
    };
    assert!([429, 503].contains(&refused.status), "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");

    for admitted in &unread {
        let result = host.result(admitted).await;
        assert_eq!(result["sample"]["reward"], 1.0, "an unread result is stored");
        let again = host.result(admitted).await;
        assert_eq!(again["sample"]["reward"], 1.0, "and may be read again");
    }
    let accepted = async || (host.ask(&request()).await.status == 202).then_some(());
    until("room for new work", accepted).await;
}
