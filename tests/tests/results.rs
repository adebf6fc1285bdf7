//! Tests of unread results: they are stored in the journal, survive a restart, and do not affect other callers.

use std::time::Duration;

use rollout_tests::{
    Admitted, Controller, Serve, ServeCatalog, Start, TestHost, in_time, rollout_host, until,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// Settings with a journal beside the artifacts.
const JOURNAL: &str = "[journal]\ndir = 'journal'\n";

/// Returns a prompt of this many bytes, which the result repeats.
fn long_prompt(bytes: usize) -> String {
    format!("Calculate 2 + 3.{}", " ".repeat(bytes))
}

fn journaled() -> Serve {
    TestHost::of("conform").config(JOURNAL)
}

/// Finishes rollouts with long results, and reads none.
async fn unread(host: &TestHost, controller: &Controller, count: usize, bytes: usize) -> Vec<Admitted> {
    let mut admitted = Vec::new();
    for number in 0..count {
        let request = controller.rollout(&long_prompt(bytes)).label("5").id(&format!("long-{number}"));
        admitted.push(host.admit(&request).await);
        // One after the other, so that the measurement does not include running rollouts.
        host.idle().await;
    }
    admitted
}

/// Returns the resident memory of a host, in MiB.
fn rss_mib(host: &TestHost) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.process().id().expect("it runs")));
    let status = status.expect("its status can be read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    let kib = line.trim().trim_end_matches(" kB").trim();
    kib.parse::<u64>().expect("it is a number") >> 10
}

#[tokio::test]
async fn unread_results_are_left_to_the_journal_and_are_the_same_after_a_restart() {
    const COUNT: usize = 36;
    const BYTES: usize = 1_900_000;
    let controller = Controller::start().await;
    let serve = TestHost::of("conform").config(&format!("memory-budget-bytes = 536870912\n{JOURNAL}"));
    let host = serve.clone().start().await;
    let all = unread(&host, &controller, COUNT, BYTES).await;
    let held = host.metrics().await.get("rollout_host_held_bytes{use=\"result\"}").expect("it is counted");
    assert!(held < 10.0 * BYTES as f64, "{held} bytes of {COUNT} unread results are in memory");
    let first = host.result(&all[0]).await;
    assert_eq!(first["sample"]["reward"], 1.0);

    let host = host.killed(&serve).await;

    let (rss, of_empty) = (rss_mib(&host), rss_mib(&journaled().start().await));
    assert!(rss < of_empty + 24, "{rss} MiB after a start with {COUNT} results, {of_empty} MiB without");
    for (number, admitted) in all.iter().enumerate() {
        let request = controller.rollout("Calculate 2 + 3.").label("5").id(&format!("long-{number}"));
        assert_eq!(host.ask(&request).await.status, 409, "its id is in use");
        let wrong = Admitted { lease: "another".to_owned(), ..admitted.clone() };
        assert_eq!(host.poll(&wrong).await.status, 403);
        let result = host.result(admitted).await;
        assert_eq!(result["sample"]["reward"], 1.0);
        if number == 0 {
            assert_eq!(result, first, "a reported result does not change");
        }
    }
    assert_eq!(controller.chats().len(), COUNT, "no rollout ran again");
}

#[tokio::test]
async fn the_journal_stores_a_message_once_besides_the_prompt_of_its_admission() {
    const WORD: &str = "quinquagesima";
    let journal = tempfile::tempdir().unwrap();
    let controller = Controller::start().await;
    let serve = TestHost::of("conform").config(&format!("[journal]\ndir = '{}'\n", journal.path().display()));
    let host = serve.clone().start().await;
    let prompt = format!("Calculate 2 + 3. {WORD}{}", " ".repeat(4 << 10));
    let admitted = host.admit(&controller.rollout(&prompt).label("5")).await;
    let result = host.result(&admitted).await;
    let reported = result.to_string();
    assert!(reported.contains(WORD), "{reported}");

    let host = host.killed(&serve).await;

    assert_eq!(host.result(&admitted).await, result);
    let segment = std::fs::read(journal.path().join("00000000000000000001.seg")).unwrap();
    let found = segment.windows(WORD.len()).filter(|bytes| *bytes == WORD.as_bytes()).count();
    assert_eq!(found, 2, "the admission and the request have it, and the outcome does not");
}

#[tokio::test]
async fn a_result_of_an_earlier_process_expires_and_its_id_stays_free() {
    let controller = Controller::start().await;
    let serve = journaled().config("[osmosis]\nresult-ttl-secs = 3.0\n");
    let host = serve.clone().start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let admitted = host.admit(&request).await;
    host.idle().await;
    let host = host.killed(&serve).await;
    assert_eq!(host.ask(&request).await.status, 409);
    assert_eq!(host.poll(&admitted).await.status, 200);

    let gone = async || (host.poll(&admitted).await.status == 404).then_some(());
    until("the result to be forgotten", gone).await;
    let again = host.admit(&request).await;
    assert_eq!(host.result(&again).await["sample"]["reward"], 1.0);

    let host = host.killed(&serve).await;
    assert_eq!(host.poll(&admitted).await.status, 403, "it is another's by now");
    assert_eq!(host.result(&again).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn unread_results_of_one_tenant_do_not_affect_another() {
    const BYTES: usize = 1_900_000;
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default().config("memory-budget-bytes = 134217728\n").start().await;
    let (hoards, works) =
        (catalog.tenant("hoards", json!({})).await, catalog.tenant("works", json!({})).await);
    for tenant in [&hoards, &works] {
        catalog.serve(tenant, "p", "conform", "").await;
    }
    let (of_hoards, of_works) = (catalog.plugin(&hoards, "p"), catalog.plugin(&works, "p"));
    let mut left = Vec::new();
    // The results exceed the whole budget.
    for _ in 0..72 {
        let request = controller.rollout(&long_prompt(BYTES)).label("5");
        let admitted = of_hoards.admit(&request).await;
        of_hoards.idle().await;
        left.push(admitted);
    }

    for _ in 0..30 {
        let result = of_works.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
    let last = left.pop().expect("there are some");
    assert_eq!(of_hoards.result(&last).await["sample"]["reward"], 1.0);
    assert_eq!(of_hoards.result(&left[0]).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn a_rollout_of_a_tenant_is_replayed_with_the_component_of_the_catalog() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default().start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");
    let admitted = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(plugin.result(&admitted).await["sample"]["reward"], 1.0);
    let mut tenants = std::fs::read_dir(catalog.folder().join("tenants")).expect("it is there");
    let journal = tenants.next().expect("one tenant").expect("it can be read").path().join("journal");

    let mut replay = rollout_host(["replay", &admitted.id, "--journal"]);
    let ran = replay.arg(&journal).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("the same: reward 1"), "{}", ran.stdout);
    let saved = catalog.folder().join("saved");
    let mut save = rollout_host(["replay", &admitted.id, "--save"]);
    let ran = save.arg(&saved).arg("--journal").arg(&journal).start().ended().await;
    let component = ran.stdout.split_whitespace().find(|word| word.ends_with(".wasm")).expect("it is named");
    assert!(std::path::Path::new(component).is_file(), "{}", ran.stdout);
}

#[tokio::test]
async fn slow_readers_of_trajectories_delay_no_other_caller() {
    let controller = Controller::start().await;
    let host = journaled().start().await;
    let long = host.admit(&controller.rollout(&long_prompt(6 << 20)).label("5")).await;
    host.result(&long).await;
    let short = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    host.result(&short).await;
    let whole = host.get(&format!("/rollout/{}/trajectory", long.id)).await;
    assert!(whole.text.len() > 6 << 20, "more than sockets buffer: {}", whole.text.len());
    let at = host.url().trim_start_matches("http://").to_owned();
    let mut slow = JoinSet::new();
    for _ in 0..6 {
        let (at, id) = (at.clone(), long.id.clone());
        slow.spawn(async move {
            // A small receive buffer, so that the server has to wait.
            let socket = TcpSocket::new_v4().expect("there is a socket");
            socket.set_recv_buffer_size(4 << 10).expect("it has a size");
            let at_once = at.parse().expect("it is an address");
            let mut stream = socket.connect(at_once).await.expect("it listens");
            let head = format!("GET /rollout/{id}/trajectory HTTP/1.1\r\nhost: {at}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("it is sent");
            let mut begins = [0; 64];
            stream.read_exact(&mut begins).await.expect("it is answered");
            assert!(begins.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begins));
            // The stream is kept open and not read.
            stream
        });
    }
    let held = in_time("their beginnings", slow.join_all()).await;

    let path = format!("/rollout/{}/trajectory", short.id);
    let reply = tokio::time::timeout(Duration::from_secs(10), host.get(&path)).await;
    assert_eq!(reply.expect("no slow reader delays it").status, 200);
    drop(held);
}
