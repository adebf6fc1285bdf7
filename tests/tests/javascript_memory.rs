//! Tests of the private memory of a waiting JavaScript rollout.

use rollout_tests::{
    Admitted, Controller, TestHost, has_javascript, instances_rest, javascript_guest, memory_kib,
};

#[tokio::test]
async fn each_more_waiting_javascript_rollout_takes_little_memory() {
    const FEW: usize = 32;
    const MANY: usize = 160;
    /// Maximum number of private pages of the image that an instance at rest has.
    const PAGES_AT_REST_MAX: usize = 16;
    /// Maximum of each further rollout at rest. 180 were measured, 31 of them words that differ from the image.
    const EACH_KIB_MAX: u64 = 220;
    if !has_javascript() {
        return;
    }
    let controller = Controller::start().await;
    let host = TestHost::of_component(javascript_guest("examples/one-turn/js")).start().await;
    let mut waiting: Vec<Admitted> = Vec::new();
    controller.hold();
    let mut wait_in = async |count: usize| {
        while waiting.len() < count {
            waiting.push(host.admit(&controller.rollout("What is 2 + 2?").label("4")).await);
        }
        controller.chats_arrived(count).await;
        instances_rest(&host, count, PAGES_AT_REST_MAX).await;
        memory_kib(&host)
    };

    let few = wait_in(FEW).await;
    let many = wait_in(MANY).await;
    controller.release();

    for admitted in waiting {
        let result = host.result(&admitted).await;
        assert_eq!(result["status"], "success", "{result:#}");
    }
    let each = many.saturating_sub(few) / (MANY - FEW) as u64;
    println!("{FEW} rollouts: {few} KiB; {MANY}: {many} KiB, {each} KiB for each more");
    assert!(each <= EACH_KIB_MAX, "each of {} more takes {each} KiB", MANY - FEW);
}
