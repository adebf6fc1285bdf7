//! A gateway in a control group of 2 GiB with 400 open files, between a tenant within its quotas and one that attacks the
//! gateway itself: with connections that say nothing, bodies that do not end, bodies that are large, uploads, polls that wait,
//! open pages, and requests to all workers. Every rollout of the first tenant succeeds, and the kernel kills nothing.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use reqwest::Method;
use rollout_tests::{Controller, MemoryGroup, ServeCatalog, TestNats, host_program, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const MIB: u64 = 1 << 20;

/// The memory of the gateway's control group.
const GROUP_BYTES: u64 = 2048 * MIB;

const OPEN_FILES: u32 = 400;

/// Number of rollouts of the steady tenant beside the attacks, four at a time.
const ROLLOUTS: usize = 24;

/// Number of tasks of each attack.
const EACH: usize = 54;

fn section(nats: &TestNats) -> String {
    format!(
        "[cluster.nats]\nurls = {:?}\nreplicas = 1\naccept-weak-durability = true\nlog-bytes-max = 268435456\n",
        nats.urls()
    )
}

/// The answers to the attacks, by attack.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<BTreeMap<(&'static str, String), usize>>>);

impl Answers {
    fn note(&self, attack: &'static str, answer: &str) {
        let line = answer.lines().next().unwrap_or_default().chars().take(40).collect();
        *self.0.lock().unwrap().entry((attack, line)).or_default() += 1;
    }
}

/// Sends some text on a connection of its own, and waits for an answer or the end. Returns the beginning of the answer and
/// the connection.
async fn raw(address: &str, texts: &[Vec<u8>]) -> std::io::Result<(String, TcpStream)> {
    let mut connection = TcpStream::connect(address).await?;
    for text in texts {
        connection.write_all(text).await?;
    }
    let mut answer = vec![0; 4096];
    let length = connection.read(&mut answer).await?;
    Ok((String::from_utf8_lossy(&answer[..length]).into_owned(), connection))
}

/// Reads a connection until it ends.
async fn read_to_end(mut connection: TcpStream) {
    let mut text = vec![0; 4096];
    while connection.read(&mut text).await.is_ok_and(|length| length > 0) {}
}

/// Attacks the gateway until the task is dropped.
async fn attack(kind: &'static str, address: String, key: String, answers: Answers) {
    let head = |what: &str, length: usize| {
        format!("{what} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n")
            .into_bytes()
    };
    let large = vec![b'x'; 8 << 20];
    let id = "0".repeat(64);
    loop {
        let texts = match kind {
            "a connection that says nothing" => vec![],
            "a head that does not end" => vec![b"POST /rollout HTTP/1.1\r\nhost: x\r\n".to_vec()],
            "a body that does not end" => {
                vec![head("POST /p/p/rollout", 64 << 20), large[..100_000].to_vec()]
            }
            "a large body" => vec![head("POST /p/p/rollout", 8 << 20), large.clone()],
            "a large body without a key" => {
                let head = format!(
                    "POST /p/p/rollout HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n",
                    8 << 20
                );
                vec![head.into_bytes(), large.clone()]
            }
            "an upload that does not end" => {
                vec![head(&format!("PUT /admin/v1/components/{id}"), 64 << 20), large[..100_000].to_vec()]
            }
            "a poll that waits" => {
                let poll = format!(
                    "GET /p/p/rollout/r/result HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
                     x-osmosis-rollout-lease: gone.{id}\r\n\r\n"
                );
                vec![poll.into_bytes()]
            }
            "metrics" => vec![head("GET /metrics", 0)],
            LIVE => vec![head("GET /ui/events", 0)],
            _ => vec![head("GET /ui/data", 0)],
        };
        match raw(&address, &texts).await {
            Ok((answer, connection)) => {
                answers.note(kind, &answer);
                if kind == LIVE {
                    read_to_end(connection).await;
                }
            }
            Err(error) => answers.note(kind, &error.kind().to_string()),
        }
    }
}

/// The attack that holds streams of changes open.
const LIVE: &str = "changes of the pages";

const ATTACKS: [&str; 10] = [
    "a connection that says nothing",
    "a head that does not end",
    "a body that does not end",
    "a large body",
    "a large body without a key",
    "an upload that does not end",
    "a poll that waits",
    "metrics",
    "data of the pages",
    LIVE,
];

/// Runs a rollout as published clients do: refused ones and broken connections are tried again.
async fn run((url, key): (&str, &str), controller: &Controller) -> Value {
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let admitted = until("an admission", async || {
        let sent = http.post(format!("{url}/p/p/rollout")).bearer_auth(key).json(&request.body());
        let answer = sent.send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        assert!([202, 409, 429, 503].contains(&status), "{status}: {text}");
        (status == 202).then(|| serde_json::from_str::<Value>(&text).unwrap())
    })
    .await;
    let id = admitted["rollout_id"].as_str().unwrap();
    let lease = admitted["polling_lease_token"].as_str().unwrap();
    until("a result", async || {
        let poll = http.get(format!("{url}/p/p/rollout/{id}/result")).bearer_auth(key);
        let answer = poll.header("x-osmosis-rollout-lease", lease).send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        assert!([200, 502, 503].contains(&status), "{status}: {text}");
        let result: Value = serde_json::from_str(&text).ok()?;
        ["success", "failure", "cancelled"].iter().any(|end| result["status"] == *end).then_some(result)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_runs_its_rollouts_through_a_gateway_that_another_one_attacks() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let section = section(&nats);
    let (one, other) = tokio::join!(
        ServeCatalog::worker("w1", &section).start(),
        ServeCatalog::worker("w2", &section).start()
    );
    let group = MemoryGroup::new(GROUP_BYTES).map(Arc::new);
    let enter = match &group {
        Ok(group) => format!("echo $$ > {}", group.processes_file().display()),
        Err(why) => {
            println!("NOT IN A CONTROL GROUP, which this machine does not allow: {why}");
            String::new()
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("gateway");
    let text =
        format!("#!/bin/sh\nulimit -n {OPEN_FILES}\n{enter}\nexec {} \"$@\"\n", host_program().display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let gateway = ServeCatalog::gateway()
        .program(script)
        .option("--memory-budget-bytes", GROUP_BYTES / 100 * 70)
        .config(&section)
        .start()
        .await;
    let (catalog, _other) = (one.behind(gateway.url()), other.behind(gateway.url()));
    until("both workers", async || {
        let health = catalog.as_operator(Method::GET, "/health", Value::Null).await.body;
        let up = health["workers"].as_array()?.iter().filter(|worker| worker["is_up"] == true).count();
        (up == 2).then_some(())
    })
    .await;
    let steady = catalog.tenant("steady", json!({"running": 16, "queued": 64})).await;
    let hostile = catalog.tenant("hostile", json!({})).await;
    for tenant in [&steady, &hostile] {
        catalog.serve(tenant, "p", "conform", "").await;
    }
    let plugin = (gateway.url(), &*steady.caller);
    assert_eq!(run(plugin, &controller).await["sample"]["reward"], 1.0);
    let address = gateway.url().trim_start_matches("http://").to_owned();
    let answers = Answers::default();
    let mut attacks = JoinSet::new();
    for kind in ATTACKS {
        for _ in 0..EACH {
            attacks.spawn(attack(kind, address.clone(), hostile.author.clone(), answers.clone()));
        }
    }
    until("the attacks to be under way", async || {
        (answers.0.lock().unwrap().values().sum::<usize>() > EACH).then_some(())
    })
    .await;

    let mut ended = 0;
    while ended < ROLLOUTS {
        let results = join_all((0..4).map(|_| run(plugin, &controller))).await;
        for result in &results {
            assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
        }
        ended += results.len();
    }

    attacks.shutdown().await;
    assert!(answers.0.lock().unwrap().contains_key(&(LIVE, "HTTP/1.1 200 OK".to_owned())), "pages were open");
    for ((attack, answer), count) in answers.0.lock().unwrap().iter() {
        println!("  {attack:<34} {answer} × {count}");
    }
    let id = gateway.process().id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("the gateway lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    let peak: u64 = peak.strip_suffix("kB").unwrap().trim().parse().unwrap();
    println!("  the gateway has used {} MiB", peak >> 10);
    assert!(peak << 10 < GROUP_BYTES, "{peak} KiB");
    if let Ok(group) = &group {
        assert_eq!(group.kills(), 0);
    }
    // It serves afterwards, too.
    assert_eq!(run(plugin, &controller).await["sample"]["reward"], 1.0);
}
