//! Tests of pushes with slow checks, and of callers that disconnect: the resources that each may hold, and for how long.

use std::time::Duration;

use reqwest::Method;
use rollout_tests::{Process, ServeCatalog, TestCatalog, TestTenant, guest, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum number of concurrent pushes of a tenant.
const PUSHES_MAX: usize = 8;

/// Returns the head and the body of a push.
fn push(tenant: &TestTenant, component: &str, config: &str) -> (String, String) {
    let body = json!({"component": component, "config": config}).to_string();
    let head = format!(
        "POST /admin/v1/plugins/slow/deployments HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        tenant.author,
        body.len()
    );
    (head, body)
}

async fn connect(catalog: &TestCatalog) -> TcpStream {
    let address = catalog.url().trim_start_matches("http://").to_owned();
    TcpStream::connect(address).await.expect("the server listens")
}

/// Returns the processes that check pushed components of a server.
fn checks_of(process: &Process) -> Vec<u32> {
    let server = process.id().expect("it runs");
    let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_check = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        parent == Some(server) && command.split(|byte| *byte == 0).any(|word| word == b"validate")
    };
    ids.filter(is_check).collect()
}

async fn request_bytes(catalog: &TestCatalog) -> u64 {
    let text = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
    let line = text.lines().find_map(|line| line.strip_prefix("rollout_host_held_bytes{use=\"request\"} "));
    line.and_then(|bytes| bytes.parse::<f64>().ok()).expect("the metrics have it") as u64
}

#[tokio::test]
async fn a_push_whose_guest_waits_fails_at_the_deadline_of_checks() {
    let catalog = ServeCatalog::default().config("[catalog]\ncheck-secs-max = 2.0\n").start().await;
    let tenant = catalog.tenant("t", json!({})).await;

    let reply = catalog.push(&tenant, "slow", &guest("sleep_always"), "", true).await;

    assert_eq!(reply.status, 201, "{}", reply.text);
    assert_eq!(reply.body["passed"], false, "{}", reply.text);
    assert!(reply.text.contains("its checks did not end within 2 s"), "{}", reply.text);
    assert_eq!(checks_of(catalog.process()), Vec::<u32>::new());
}

#[tokio::test]
async fn a_push_whose_guest_needs_more_memory_than_checks_have_fails_with_the_reason() {
    // A budget of all memory leaves nothing to checks, which have their minimum then.
    let catalog = ServeCatalog::default().option("--memory-budget-bytes", 1_u64 << 40).start().await;
    let tenant = catalog.tenant("t", json!({})).await;

    let filling = catalog.push(&tenant, "fills", &guest("fill_memory"), "", true).await;
    let usual = catalog.push(&tenant, "p", &guest("conform"), "", true).await;

    assert_eq!(filling.body["passed"], false, "{}", filling.text);
    let reason =
        "memory-bytes-max of 100663296 bytes, which is what this server's memory leaves to an instance";
    assert!(filling.text.contains(reason), "{}", filling.text);
    assert_eq!(usual.body["active"], true, "{}", usual.text);
}

#[tokio::test]
async fn checks_end_with_the_server_that_started_them() {
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    let digest = catalog.upload(&tenant, &guest("sleep_always")).await;
    let (head, body) = push(&tenant, &digest, "");
    let mut caller = connect(&catalog).await;
    caller.write_all(format!("{head}{body}").as_bytes()).await.expect("the server reads");
    let check = until("the check", async || checks_of(catalog.process()).first().copied()).await;

    let _next = catalog.killed().await;

    until("the end of the check", async || {
        let stat = std::fs::read_to_string(format!("/proc/{check}/stat"));
        // A process that has ended may still be a zombie.
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn pushes_whose_callers_disconnected_are_charged_and_bounded_and_delay_no_other_tenant() {
    const CONFIG_BYTES: usize = 500_000;
    let catalog = TestCatalog::start().await;
    let (tenant, neighbour) = (catalog.tenant("t", json!({})).await, catalog.tenant("n", json!({})).await);
    let digest = catalog.upload(&tenant, &guest("sleep_always")).await;
    let config = format!("# {}\n", "x".repeat(CONFIG_BYTES));
    let (head, body) = push(&tenant, &digest, &config);
    let mut callers = Vec::new();
    for _ in 0..PUSHES_MAX {
        let mut caller = connect(&catalog).await;
        caller.write_all(format!("{head}{body}").as_bytes()).await.expect("the server reads");
        callers.push(caller);
    }

    // The charge is for the text and its parsed form.
    let expected = (2 * PUSHES_MAX * CONFIG_BYTES) as u64;
    until("all of them to be charged", async || (request_bytes(&catalog).await >= expected).then_some(()))
        .await;
    // One more push is refused by its head alone.
    let mut caller = connect(&catalog).await;
    caller.write_all(head.as_bytes()).await.expect("the server reads");
    let mut answer = vec![0; 4096];
    let read = caller.read(&mut answer).await.expect("the server answers");
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("8 pushes of this tenant are in progress"), "{answer}");
    drop(callers);

    let component = guest("conform");
    let pushed = catalog.push(&neighbour, "p", &component, "", true);
    let reply = tokio::time::timeout(Duration::from_secs(30), pushed).await.expect("no turn is waited for");
    assert_eq!(reply.body["active"], true, "{}", reply.text);
    assert!(request_bytes(&catalog).await >= expected, "the abandoned pushes stay charged");
}
