//! Tests of a tenant's share of a server's connections, and of polls of one lease.

use rollout_tests::{Controller, ServeCatalog, TestCatalog, TestTenant, in_time};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn connected(catalog: &TestCatalog) -> TcpStream {
    let at = catalog.url().trim_start_matches("http://").to_owned();
    in_time("a connection", TcpStream::connect(at)).await.expect("it is accepted")
}

/// Reads a whole answer on a connection that stays open.
async fn read_answer(stream: &mut TcpStream) -> String {
    let head = head(stream).await;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)];
    let _ = stream.read_exact(&mut body).await;
    head
}

/// Opens a connection that polls for a rollout.
async fn polling(catalog: &TestCatalog, tenant: &TestTenant, id: &str, lease: &str) -> TcpStream {
    let mut stream = connected(catalog).await;
    let head = format!(
        "GET /p/p/rollout/{id}/result HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         x-osmosis-rollout-lease: {lease}\r\n\r\n",
        tenant.caller
    );
    stream.write_all(head.as_bytes()).await.expect("it reads");
    stream
}

/// Reads the head of an answer, or a part of it if the connection ends.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

#[tokio::test]
async fn a_tenant_whose_polls_use_every_connection_makes_room_for_another_tenant() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default()
        .open_files_max(400)
        .option("--max-concurrent", 8)
        .option("--queue-max", 256)
        .config("[osmosis]\nresult-wait-secs = 50.0\n")
        .start()
        .await;
    let greedy = catalog.tenant("greedy", json!({"running": 1})).await;
    let steady = catalog.tenant("steady", json!({})).await;
    catalog.serve(&greedy, "p", "conform", "").await;
    catalog.serve(&steady, "p", "conform", "").await;
    let (of_greedy, of_steady) = (catalog.plugin(&greedy, "p"), catalog.plugin(&steady, "p"));
    let rollout = || controller.rollout("Calculate 2 + 3.").label("5");
    assert_eq!(of_steady.run(&rollout()).await["sample"]["reward"], 1.0);
    let kept_alive = format!(
        "GET /p/p/health HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        steady.caller
    );
    let mut idle = connected(&catalog).await;
    idle.write_all(kept_alive.as_bytes()).await.expect("it reads");
    read_answer(&mut idle).await;
    controller.hold();
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(of_greedy.admit(&rollout()).await);
    }
    let mut waiting = Vec::new();
    for of in held.iter().cycle().take(300) {
        waiting.push(polling(&catalog, &greedy, &of.id, &of.lease).await);
    }

    idle.write_all(kept_alive.as_bytes()).await.expect("it is open");
    let answer = in_time("an answer on the idle connection", read_answer(&mut idle)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "an idle connection within the share stays: {answer:?}");
    controller.release();
    for _ in 0..8 {
        let result = of_steady.run(&rollout()).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
    for stream in &mut waiting {
        let answer = in_time("an answer", head(stream)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "a poll is answered early, and not cut off: {answer:?}");
    }
}

#[tokio::test]
async fn the_next_poll_of_a_lease_answers_the_one_that_waits() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default().config("[osmosis]\nresult-wait-secs = 100.0\n").start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");
    controller.hold();
    let held = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_open(1).await;
    plugin.poll(&held).await;
    let mut waiting = polling(&catalog, &tenant, &held.id, &held.lease).await;
    for _ in 0..5 {
        let mut next = polling(&catalog, &tenant, &held.id, &held.lease).await;
        // The server may read the polls in either order.
        let one = async {
            tokio::select! {
                answer = head(&mut waiting) => (answer, true),
                answer = head(&mut next) => (answer, false),
            }
        };
        let (answer, is_older) = in_time("the older one", one).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        if is_older {
            waiting = next;
        }
    }
    controller.release();
    let answer = in_time("the result", head(&mut waiting)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
}
