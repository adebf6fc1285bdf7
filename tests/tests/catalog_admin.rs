//! Tests of the admin API of a server with a catalog: acknowledged changes survive a kill, and two servers cannot share
//! a catalog.

use std::path::Path;

use reqwest::{Method, StatusCode};
use rollout_tests::{Process, Start, in_time, rollout_host};
use rollout_wire::digest::sha256_hex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Number of kills during changes.
const KILLS: u64 = 6;

/// A server with a catalog.
struct Server {
    process: Process,
    url: String,
    http: reqwest::Client,
    operator: String,
}

impl Server {
    async fn start(catalog: &Path) -> Self {
        let operator = format!("rh_{}A", "0".repeat(42));
        let process = serve(catalog).env("OPERATOR", &operator).start();
        let url = process.line("listening on ").await;
        Self { process, url, http: rollout_outbound::http_client().unwrap(), operator }
    }

    fn asking(&self, key: &str) -> Asking {
        Asking { url: self.url.clone(), http: self.http.clone(), key: key.to_owned() }
    }
}

fn serve(catalog: &Path) -> tokio::process::Command {
    let mut command = rollout_host(["serve", "--listen", "127.0.0.1:0", "--operator-key-env", "OPERATOR"]);
    command.arg("--catalog").arg(catalog);
    command
}

/// A client with a key.
#[derive(Clone)]
struct Asking {
    url: String,
    http: reqwest::Client,
    key: String,
}

impl Asking {
    /// Sends a request; returns status and answer, or `None` if the server is gone.
    async fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Option<(StatusCode, Value)> {
        let request = self.http.request(method, format!("{}/admin/v1{path}", self.url)).body(body);
        let answer = request.header("authorization", format!("Bearer {}", self.key)).send().await.ok()?;
        let status = answer.status();
        let body = answer.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.ask(Method::GET, path, Vec::new()).await.expect("the server is there")
    }

    async fn done(&self, method: Method, path: &str, body: Value) -> Option<Value> {
        let (status, answer) = self.ask(method, path, body.to_string().into_bytes()).await?;
        assert!(status.is_success(), "{path}: {status} {answer}");
        Some(answer)
    }
}

/// A change that a server acknowledged.
enum Acknowledged {
    Key(String),
    Revoked(String),
    Component(Vec<u8>),
    Tenant(String),
    Deleted(String),
    Secret(String),
}

/// Changes a catalog in every way until the server is gone, and sends each acknowledged change.
async fn change(
    operator: Asking,
    author: Asking,
    name: String,
    acknowledged: mpsc::UnboundedSender<Acknowledged>,
) {
    let is_sent = |what| acknowledged.send(what).is_ok();
    for n in 0_u64.. {
        let Some(made) =
            operator.done(Method::POST, "/keys", json!({"rights": "viewer", "tenant": "team"})).await
        else {
            return;
        };
        let key = made["key"].as_str().unwrap().to_owned();
        if n % 2 == 0 {
            is_sent(Acknowledged::Key(key));
        } else {
            let path = format!("/keys/{}", made["id"]);
            let Some(_) = operator.done(Method::DELETE, &path, Value::Null).await else { return };
            is_sent(Acknowledged::Revoked(key));
        }
        let bytes = format!("{name} {n} ").repeat(1000).into_bytes();
        let path = format!("/components/{}", sha256_hex(&bytes));
        let Some((status, answer)) = author.ask(Method::PUT, &path, bytes.clone()).await else { return };
        assert_eq!(status, 200, "{answer}");
        is_sent(Acknowledged::Component(bytes));
        let tenant = format!("{name}-{n}");
        let Some(_) = operator.done(Method::POST, "/tenants", json!({"name": tenant})).await else { return };
        // The same names in each run, because the number of a tenant's secrets is limited.
        let kept = format!("s{}", tenant.split_once('-').unwrap().1);
        let secret = format!("/secrets/{kept}");
        let Some(_) = author.done(Method::PUT, &secret, json!({"value": "v"})).await else { return };
        if n % 10 == 9 {
            let Some(_) = author.done(Method::DELETE, &secret, Value::Null).await else { return };
        } else {
            is_sent(Acknowledged::Secret(kept));
        }
        if n % 3 == 0 {
            let path = format!("/tenants/{tenant}");
            let Some(_) = operator.done(Method::DELETE, &path, Value::Null).await else { return };
            is_sent(Acknowledged::Deleted(tenant));
        } else {
            is_sent(Acknowledged::Tenant(tenant));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_changes_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = dir.path().join("catalog");
    let mut server = Server::start(&catalog).await;
    let operator = server.asking(&server.operator);
    operator.done(Method::POST, "/tenants", json!({"name": "team"})).await.unwrap();
    let body = json!({"rights": "author", "tenant": "team"});
    let made = operator.done(Method::POST, "/keys", body).await.unwrap();
    let author = made["key"].as_str().unwrap().to_owned();
    let mut checked = 0;
    for kill in 0..KILLS {
        let (send, mut acknowledged) = mpsc::unbounded_channel();
        let mut changing = tokio::task::JoinSet::new();
        for one in 0..3 {
            let (operator, author) = (server.asking(&server.operator), server.asking(&author));
            changing.spawn(change(operator, author, format!("k{kill}-{one}"), send.clone()));
        }
        drop(send);
        // The kill happens between two writes, or during one.
        let mut all = Vec::new();
        while (all.len() as u64) < 7 + 13 * kill {
            all.extend(in_time("an acknowledgement", acknowledged.recv()).await);
        }
        server.process.kill().await;
        in_time("the end of all requests", changing.join_all()).await;
        while let Some(more) = acknowledged.recv().await {
            all.push(more);
        }
        server = Server::start(&catalog).await;
        let operator = server.asking(&server.operator);
        let owner = server.asking(&author);
        let (_, listed) = owner.get("/secrets").await;
        for what in &all {
            checked += 1;
            match what {
                Acknowledged::Key(key) => assert_eq!(server.asking(key).get("/plugins").await.0, 200),
                Acknowledged::Revoked(key) => assert_eq!(server.asking(key).get("/plugins").await.0, 401),
                Acknowledged::Component(bytes) => {
                    let digest = sha256_hex(bytes);
                    assert_eq!(owner.get(&format!("/components/{digest}")).await.0, 200);
                    let file = catalog.join("components").join(&digest[..2]).join(format!("{digest}.wasm"));
                    assert_eq!(&std::fs::read(file).unwrap(), bytes);
                }
                Acknowledged::Tenant(name) => {
                    assert_eq!(operator.get(&format!("/tenants/{name}")).await.0, 200);
                }
                Acknowledged::Deleted(name) => {
                    assert_eq!(operator.get(&format!("/tenants/{name}")).await.0, 404);
                }
                Acknowledged::Secret(name) => {
                    assert!(listed["items"].as_array().unwrap().contains(&json!(name)), "{name}: {listed}");
                }
            }
        }
        // An interrupted deletion was finished, and no directory is left of an unlisted tenant.
        let (_, tenants) = operator.get("/tenants?limit=1000").await;
        let folders = std::fs::read_dir(catalog.join("tenants")).unwrap().count();
        assert_eq!(folders, tenants["items"].as_array().unwrap().len());
        let parts = std::fs::read_dir(catalog.join("components")).unwrap();
        assert_eq!(parts.filter(|entry| entry.as_ref().unwrap().path().is_file()).count(), 0);
    }
    assert!(checked > 100, "{checked} acknowledged");
}

#[tokio::test]
async fn a_catalog_belongs_to_one_server_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = dir.path().join("catalog");
    let first = Server::start(&catalog).await;
    let second = serve(&catalog).env("OPERATOR", &first.operator).start().ended().await;
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    let expected = format!("the catalog in {} is locked by another process", catalog.display());
    assert!(second.stderr.contains(&expected), "{}", second.stderr);
    assert_eq!(first.asking(&first.operator).get("/tenants").await.0, 200);
}

#[tokio::test]
async fn every_operation_of_the_description_is_answered_by_the_api_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("catalog")).await;
    let stranger = server.asking("rh_nobody");
    let (status, api) = stranger.get("/openapi.json").await;
    assert_eq!(status, 200);
    let mut count = 0;
    for (path, item) in api["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.strip_prefix("/admin/v1").unwrap().replace(['{', '}'], "");
            let (status, answer) = stranger.ask(method.clone(), &path, Vec::new()).await.unwrap();
            assert_eq!(
                (status.as_u16(), &answer["error"]["kind"]),
                (401, &json!("unauthorized")),
                "{method} {path}"
            );
            count += 1;
        }
    }
    assert!(count > 20, "{count} operations");
    let (status, answer) = server.asking(&server.operator).get("/nothing").await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (404, &json!("not-found")));
}
