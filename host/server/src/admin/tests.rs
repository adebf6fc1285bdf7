//! Tests of the admin API over a catalog and a fake server.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use rollout_catalog::{NewKey, Rights, TenantSettings};
use rollout_outbound::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A server that loads nothing. It records calls, and fails to load the plugin `unloadable`.
#[derive(Default)]
struct FakeServer {
    calls: Mutex<Vec<String>>,
    /// Number of activations that run.
    activating: AtomicUsize,
    /// Maximum of `activating`.
    max_activating: AtomicUsize,
}

impl FakeServer {
    fn record(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    /// Removes and returns the recorded calls.
    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

struct FakeDeployments(Arc<FakeServer>);

impl Deployments for FakeDeployments {
    fn check(&self, request: CheckRequest) -> BoxFuture<'static, Result<CheckReport, CheckError>> {
        self.0.record(format!("check {}", request.plugin));
        let config = request.config.unwrap_or_default();
        Box::pin(async move {
            match config.as_str() {
                "busy" => Err(CheckError::Busy("four are being checked; retry later".to_owned())),
                config => {
                    let passed = config != "bad";
                    Ok(CheckReport { passed, report: json!({"valid": passed, "checks": []}).to_string() })
                }
            }
        })
    }

    fn activate(
        &self,
        tenant: TenantId,
        plugin: &Name,
        version: u32,
    ) -> BoxFuture<'static, Result<(), String>> {
        let (fake, plugin) = (Arc::clone(&self.0), plugin.clone());
        Box::pin(async move {
            let activating = fake.activating.fetch_add(1, Ordering::SeqCst) + 1;
            fake.max_activating.fetch_max(activating, Ordering::SeqCst);
            tokio::task::yield_now().await;
            fake.activating.fetch_sub(1, Ordering::SeqCst);
            fake.record(format!("activate {tenant} {plugin} {version}"));
            if &*plugin == "unloadable" { Err("it asks for too much memory".to_owned()) } else { Ok(()) }
        })
    }

    fn in_use(&self, _: TenantId, _: &Name) -> Vec<u32> {
        Vec::new()
    }

    fn note_usage(&self, _: TenantId) {}

    fn plugin_removed(&self, tenant: TenantId, plugin: &Name) -> BoxFuture<'static, ()> {
        self.0.record(format!("removed {tenant} {plugin}"));
        Box::pin(async {})
    }

    fn tenant_changed(&self, tenant: TenantId) {
        self.0.record(format!("changed {tenant}"));
    }

    fn tenant_deleted(&self, tenant: TenantId) -> BoxFuture<'static, ()> {
        self.0.record(format!("deleted {tenant}"));
        Box::pin(async {})
    }
}

/// The admin API over a new catalog with the tenants `a` and `b`.
struct TestApi {
    _folder: TempDir,
    catalog: Catalog,
    fake: Arc<FakeServer>,
    router: Router,
    a: TenantId,
    operator: String,
}

const COMPONENT_BYTES_MAX: u64 = 3 << 20;

impl TestApi {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let catalog =
            Catalog::open(rollout_catalog::CatalogSettings::new(folder.path().join("catalog"))).unwrap();
        let fake = Arc::new(FakeServer::default());
        let admin = Admin::new(AdminSettings {
            catalog: catalog.clone(),
            deployments: Arc::new(FakeDeployments(Arc::clone(&fake))),
            seal: Arc::new(Seal::from_secret(&Secret::new("host"))),
            budget: Budget::default(),
            component_bytes_max: COMPONENT_BYTES_MAX,
        });
        let router = authenticate(&catalog, admin.router());
        let [a, _] = ["a", "b"].map(|name| {
            let settings = TenantSettings::default();
            catalog.create_tenant(&name.parse().unwrap(), &settings).unwrap().id
        });
        let api = Self { _folder: folder, catalog, fake, router, a, operator: String::new() };
        let operator = api.key(None, Rights::Operator);
        Self { operator, ..api }
    }

    fn key(&self, tenant: Option<&str>, rights: Rights) -> String {
        let tenant = tenant.map(|name| self.catalog.tenant_named(name).unwrap().id);
        let new = NewKey { name: "test".to_owned(), rights, tenant, expires_at: None };
        self.catalog.create_key(new).unwrap().key
    }

    async fn request_bytes(&self, key: &str, method: &str, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(format!("{BASE}{path}"))
            .header(AUTHORIZATION, format!("Bearer {key}"))
            .body(Body::from(body))
            .unwrap();
        let response = TowerToHyperService::new(self.router.clone()).call(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        (status, body)
    }

    async fn request(&self, key: &str, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.request_bytes(key, method, path, body).await
    }

    /// Sends a request that must succeed, and returns the body of the response.
    async fn send(&self, key: &str, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.request(key, method, path, body).await;
        assert!(status.is_success(), "{method} {path}: {status} {answer}");
        answer
    }

    /// Sends a request that must fail with a status, and returns the message of the error.
    async fn send_refused(&self, key: &str, method: &str, path: &str, body: Value, status: u16) -> String {
        let (found, answer) = self.request(key, method, path, body).await;
        assert_eq!(found, status, "{method} {path}: {answer}");
        assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
        assert_eq!(answer["error"].as_object().unwrap().len(), 2, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    }

    async fn upload(&self, key: &str, bytes: &[u8]) -> String {
        let digest = Digest::of(bytes).to_string();
        let (status, answer) =
            self.request_bytes(key, "PUT", &format!("/components/{digest}"), bytes.to_vec()).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer, json!({"digest": digest, "bytes": bytes.len()}));
        digest
    }

    async fn push(&self, key: &str, plugin: &str, config: &str, activate: bool) -> Value {
        let component = self.upload(key, config.as_bytes()).await;
        let body = json!({"component": component, "config": config, "activate": activate});
        self.send(key, "POST", &format!("/plugins/{plugin}/deployments"), body).await
    }
}

/// Adds the identity of the key to each request, as the dispatcher does. A request without a valid key has no identity.
fn authenticate(catalog: &Catalog, router: Router) -> Router {
    async fn identify(State(catalog): State<Catalog>, mut request: Request, next: Next) -> Response {
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = header.and_then(|value| value.strip_prefix("Bearer "));
        if let Some(identity) = key.and_then(|key| catalog.authenticate(key)) {
            request.extensions_mut().insert(identity);
        }
        next.run(request).await
    }
    router.layer(middleware::from_fn_with_state(catalog.clone(), identify))
}

/// Returns the methods and paths of the description, below the base.
fn described_operations() -> BTreeSet<(String, String)> {
    let api = serde_json::to_value(description()).unwrap();
    let mut found = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            found.insert((method.to_uppercase(), path.strip_prefix(BASE).unwrap().to_owned()));
        }
    }
    found
}

/// The operations with the least rights that each needs.
const OPERATIONS: [(&str, &str, Rights); 24] = [
    ("GET", "/tenants", Rights::Operator),
    ("POST", "/tenants", Rights::Operator),
    ("GET", "/tenants/{tenant}", Rights::Operator),
    ("PATCH", "/tenants/{tenant}", Rights::Operator),
    ("DELETE", "/tenants/{tenant}", Rights::Operator),
    ("GET", "/tenants/{tenant}/usage", Rights::Operator),
    ("GET", "/keys", Rights::Operator),
    ("POST", "/keys", Rights::Operator),
    ("DELETE", "/keys/{id}", Rights::Operator),
    ("GET", "/plugins", Rights::Viewer),
    ("GET", "/plugins/{name}", Rights::Viewer),
    ("PATCH", "/plugins/{name}", Rights::Author),
    ("DELETE", "/plugins/{name}", Rights::Author),
    ("POST", "/plugins/{name}/activate", Rights::Author),
    ("POST", "/plugins/{name}/rollback", Rights::Author),
    ("GET", "/plugins/{name}/deployments", Rights::Viewer),
    ("POST", "/plugins/{name}/deployments", Rights::Author),
    ("GET", "/plugins/{name}/deployments/{version}", Rights::Viewer),
    ("GET", "/components/{sha256}", Rights::Viewer),
    ("PUT", "/components/{sha256}", Rights::Author),
    ("GET", "/secrets", Rights::Author),
    ("PUT", "/secrets/{name}", Rights::Author),
    ("DELETE", "/secrets/{name}", Rights::Author),
    ("GET", "/openapi.json", Rights::Viewer),
];

/// Fills the parameters of a path with values that do not exist.
fn fill_parameters(path: &str) -> String {
    path.replace("{tenant}", "nobody")
        .replace("{name}", "nothing")
        .replace("{version}", "7")
        .replace("{id}", "7777")
        .replace("{sha256}", &"0".repeat(64))
}

#[tokio::test]
async fn a_name_is_checked_before_the_body_is_read() {
    let api = TestApi::new();
    let author = api.key(Some("a"), Rights::Author);
    for (method, path) in [("POST", "/plugins/My.Agent/deployments"), ("PUT", "/secrets/My.Key")] {
        let (status, answer) = api.request_bytes(&author, method, path, b"no JSON".to_vec()).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("invalid name"), "{path}: {message}");
    }
}

#[tokio::test]
async fn the_description_has_exactly_the_routes_of_the_api() {
    let api = TestApi::new();
    let (status, shown) = api.request_bytes("", "GET", "/openapi.json", Vec::new()).await;
    assert_eq!(status, 200);
    assert_eq!(shown, serde_json::to_value(description()).unwrap());
    let mut expected: BTreeSet<(String, String)> =
        OPERATIONS.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    expected.remove(&("GET".to_owned(), "/openapi.json".to_owned()));
    assert_eq!(described_operations(), expected);
    for (method, path) in described_operations() {
        let (status, answer) = api.request("", &method, &fill_parameters(&path), Value::Null).await;
        assert_eq!(status, 401, "{method} {path} must be a route that needs a key: {answer}");
        let operation = &shown["paths"][format!("{BASE}{path}")][method.to_lowercase()];
        assert!(operation["responses"]["default"].is_object(), "{method} {path}");
        assert!(
            operation["summary"].as_str().is_some_and(|summary| summary.ends_with('.')),
            "{method} {path}"
        );
    }
    // There are no routes besides those of the description.
    let all = [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE];
    for (_, path) in described_operations() {
        for method in &all {
            if !described_operations().contains(&(method.to_string(), path.clone())) {
                let message = api
                    .send_refused(&api.operator, method.as_str(), &fill_parameters(&path), Value::Null, 405)
                    .await;
                assert!(message.contains("no such method"), "{message}");
            }
        }
    }
    for path in ["", "/", "/tenant", "/plugins/a/b/c"] {
        let message = api.send_refused(&api.operator, "GET", path, Value::Null, 404).await;
        assert!(message.contains("no such route"), "{message}");
    }
    // Every reference has a target.
    let text = shown.to_string();
    for name in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(shown["components"]["schemas"][name].is_object(), "{name}");
    }
}

#[tokio::test]
async fn each_operation_is_refused_to_keys_with_too_few_rights() {
    let api = TestApi::new();
    let rights = [Rights::Viewer, Rights::Caller, Rights::Author, Rights::Operator];
    for (method, path, needed) in OPERATIONS {
        for given in rights {
            if path == "/openapi.json" {
                continue;
            }
            let key = api.key((given != Rights::Operator).then_some("a"), given);
            let rank = |wanted: &Rights| rights.iter().position(|found| found == wanted);
            let (status, answer) = api.request(&key, method, &fill_parameters(path), Value::Null).await;
            if rank(&given) < rank(&needed) {
                assert_eq!(status, 403, "{method} {path} as {given}: {answer}");
                let message = answer["error"]["message"].as_str().unwrap();
                assert!(message.contains(&format!("the rights of a {given}")), "{message}");
            } else {
                assert!(![401, 403].contains(&status.as_u16()), "{method} {path} as {given}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_wrong_or_revoked_key_is_refused() {
    let api = TestApi::new();
    let key = api.key(Some("a"), Rights::Author);
    api.send(&key, "GET", "/plugins", Value::Null).await;
    let id = api.catalog.authenticate(&key).unwrap().key;
    api.send(&api.operator, "DELETE", &format!("/keys/{id}"), Value::Null).await;
    for wrong in [key.as_str(), "rh_", ""] {
        api.send_refused(wrong, "GET", "/plugins", Value::Null, 401).await;
    }
}

#[tokio::test]
async fn items_of_another_tenant_look_like_missing_items() {
    let api = TestApi::new();
    let (a, b) = (api.key(Some("a"), Rights::Author), api.key(Some("b"), Rights::Author));
    api.push(&a, "calc", "one", true).await;
    api.send(&a, "PUT", "/secrets/calc", json!({"value": "s3cret"})).await;
    let digest = Digest::of(b"one").to_string();
    let attempts = |plugin: &str, digest: &str, tenant: &str| {
        [
            ("GET", format!("/plugins/{plugin}"), Value::Null),
            ("PATCH", format!("/plugins/{plugin}"), json!({"default": true})),
            ("DELETE", format!("/plugins/{plugin}"), Value::Null),
            ("GET", format!("/plugins/{plugin}/deployments"), Value::Null),
            ("GET", format!("/plugins/{plugin}/deployments/1"), Value::Null),
            ("POST", format!("/plugins/{plugin}/activate"), json!({"version": 1})),
            ("POST", format!("/plugins/{plugin}/rollback"), Value::Null),
            ("GET", format!("/components/{digest}"), Value::Null),
            ("POST", "/plugins/mine/deployments".to_owned(), json!({"component": digest})),
            ("DELETE", format!("/secrets/{plugin}"), Value::Null),
            ("GET", format!("/plugins?tenant={tenant}"), Value::Null),
            ("GET", format!("/plugins/{plugin}?tenant={tenant}"), Value::Null),
            ("PUT", format!("/secrets/x?tenant={tenant}"), json!({"value": "v"})),
            ("GET", format!("/tenants/{tenant}"), Value::Null),
            ("DELETE", format!("/tenants/{tenant}"), Value::Null),
        ]
    };
    let (no_digest, existing) = ("f".repeat(64), attempts("calc", &digest, "a"));
    let missing = attempts("none", &no_digest, "nobody");
    for ((method, path, body), (_, missing_path, missing_body)) in existing.into_iter().zip(missing) {
        let (status, answer) = api.request(&b, method, &path, body).await;
        let (missing_status, missing_answer) = api.request(&b, method, &missing_path, missing_body).await;
        assert!(status.is_client_error(), "{method} {path}: {answer}");
        assert_eq!(status, missing_status, "{method} {path}");
        let expected = missing_answer.to_string();
        let expected = expected.replace("none", "calc").replace(&no_digest, &digest).replace("nobody", "a");
        assert_eq!(answer.to_string(), expected, "{method} {path}");
    }
    assert_eq!(api.send(&b, "GET", "/plugins", Value::Null).await["items"], json!([]));
    assert_eq!(api.send(&b, "GET", "/secrets", Value::Null).await["items"], json!([]));
    // The upload of the same bytes by b does not reveal that a has them.
    api.upload(&b, b"one").await;
    assert!(api.fake.take_calls().iter().all(|call| !call.contains(" mine")));
    let own = api.send(&a, "GET", "/plugins?tenant=a", Value::Null).await;
    assert_eq!(own["items"][0]["name"], "calc");
}

#[tokio::test]
async fn a_pushed_deployment_that_passes_its_checks_is_activated_and_rolled_back() {
    let api = TestApi::new();
    let author = api.key(Some("a"), Rights::Author);
    let a = api.a;
    let pushed = api.push(&author, "calc", "one", true).await;
    assert_eq!(
        (&pushed["version"], &pushed["passed"], &pushed["active"]),
        (&json!(1), &json!(true), &json!(true))
    );
    assert_eq!(pushed["report"]["valid"], true);
    assert_eq!(pushed["created_by"], json!(author[..11]));
    assert_eq!(api.fake.take_calls(), ["check calc".to_owned(), format!("activate {a} calc 1")]);
    let message = api.send_refused(&author, "POST", "/plugins/calc/rollback", Value::Null, 404).await;
    assert!(message.contains("no earlier active version"), "{message}");
    let pushed = api.push(&author, "calc", "bad", true).await;
    assert_eq!(
        (&pushed["version"], &pushed["passed"], &pushed["active"]),
        (&json!(2), &json!(false), &json!(false))
    );
    assert_eq!(api.fake.take_calls(), ["check calc"]);
    let message =
        api.send_refused(&author, "POST", "/plugins/calc/activate", json!({"version": 2}), 409).await;
    assert!(message.contains("failed its checks"), "{message}");
    let pushed = api.push(&author, "calc", "three", false).await;
    assert_eq!(pushed["active"], false);
    let active = api.send(&author, "POST", "/plugins/calc/activate", json!({"version": 3})).await;
    assert_eq!((&active["version"], &active["before"]), (&json!(3), &json!(1)));
    let active = api.send(&author, "POST", "/plugins/calc/rollback", Value::Null).await;
    assert_eq!((&active["version"], &active["before"]), (&json!(1), &json!(3)));
    let plugin = api.send(&author, "GET", "/plugins/calc", Value::Null).await;
    assert_eq!((&plugin["active"], &plugin["newest"]), (&json!(1), &json!(3)));
    let list = api.send(&author, "GET", "/plugins/calc/deployments?limit=2", Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let rest = format!("/plugins/calc/deployments?limit=2&after={}", list["next"].as_str().unwrap());
    let rest = api.send(&author, "GET", &rest, Value::Null).await;
    assert_eq!((&rest["items"][0]["version"], &rest["next"]), (&json!(1), &Value::Null));
    let one = api.send(&author, "GET", "/plugins/calc/deployments/2", Value::Null).await;
    assert_eq!((&one["config"], &one["report"]["valid"]), (&json!("bad"), &json!(false)));
    api.fake.take_calls();
    api.send(&author, "PATCH", "/plugins/calc", json!({"default": true, "quotas": {"running": 2}})).await;
    assert_eq!(api.fake.take_calls(), [format!("changed {a}")]);
    let tenant = api.send(&api.operator, "GET", "/tenants/a", Value::Null).await;
    assert_eq!(tenant["default_plugin"], "calc");
    api.send(&author, "DELETE", "/plugins/calc", Value::Null).await;
    assert_eq!(api.fake.take_calls(), [format!("removed {a} calc")]);
    api.send_refused(&author, "GET", "/plugins/calc", Value::Null, 404).await;
}

#[tokio::test]
async fn a_deployment_that_cannot_be_loaded_does_not_become_active() {
    let api = TestApi::new();
    let author = api.key(Some("a"), Rights::Author);
    let pushed = api.push(&author, "unloadable", "one", true).await;
    assert_eq!((&pushed["passed"], &pushed["active"]), (&json!(true), &json!(false)));
    let error = pushed["activation_error"].as_str().unwrap();
    assert!(error.contains("it asks for too much memory"), "{error}");
    let plugin = api.send(&author, "GET", "/plugins/unloadable", Value::Null).await;
    assert_eq!(plugin["active"], Value::Null);
    let message =
        api.send_refused(&author, "POST", "/plugins/unloadable/activate", json!({"version": 1}), 409).await;
    assert!(message.contains("version 1 of plugin 'unloadable' cannot be loaded"), "{message}");
}

#[tokio::test]
async fn a_push_is_refused_without_a_trace_while_there_is_no_room_for_its_check() {
    let api = TestApi::new();
    let author = api.key(Some("a"), Rights::Author);
    let component = api.upload(&author, b"c").await;
    let body = json!({"component": component, "config": "busy"});
    let message = api.send_refused(&author, "POST", "/plugins/calc/deployments", body, 503).await;
    assert_eq!(message, "four are being checked; retry later");
    api.send_refused(&author, "GET", "/plugins/calc", Value::Null, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn activations_of_a_plugin_run_one_after_the_other() {
    let api = Arc::new(TestApi::new());
    let author = api.key(Some("a"), Rights::Author);
    for config in ["one", "two"] {
        api.push(&author, "calc", config, false).await;
    }
    let all = (0..20).map(|n| {
        let (api, author) = (Arc::clone(&api), author.clone());
        tokio::spawn(async move {
            let body = json!({"version": 1 + n % 2});
            api.send(&author, "POST", "/plugins/calc/activate", body).await
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert_eq!(api.fake.max_activating.load(Ordering::SeqCst), 1);
    let last = api.fake.take_calls().pop().unwrap();
    let active = api.catalog.plugin(api.a, "calc").unwrap().active.unwrap();
    assert!(last.ends_with(&format!(" {active}")), "{last}, and {active} is active");
}

#[tokio::test]
async fn tenants_are_created_changed_and_deleted_with_all_their_files() {
    let api = TestApi::new();
    let operator = &api.operator;
    let body = json!({"name": "c", "quotas": {"running": 4}, "network": {"allow": ["10.0.0.0/8"]}});
    let created = api.send(operator, "POST", "/tenants", body).await;
    assert_eq!((&created["quotas"], &created["network"]["public"]), (&json!({"running": 4}), &json!("open")));
    api.send_refused(operator, "POST", "/tenants", json!({"name": "c"}), 409).await;
    let change = json!({"quotas": {"running": null, "plugins": 1, "weight": 3}});
    let changed = api.send(operator, "PATCH", "/tenants/c", change).await;
    assert_eq!(changed["quotas"], json!({"plugins": 1, "weight": 3}));
    assert_eq!(changed["network"], created["network"]);
    let change = json!({"network": {"public": "listed"}});
    let changed = api.send(operator, "PATCH", "/tenants/c", change).await;
    assert_eq!(changed["network"], json!({"allow": ["10.0.0.0/8"], "public": "listed"}));
    let id = &created["id"];
    assert_eq!(api.fake.take_calls(), [format!("changed {id}"), format!("changed {id}")]);
    for (body, expected) in [
        (json!({"name": "C"}), "lower-case letters"),
        (json!({"name": "d", "quotas": {"runing": 1}}), "unknown field `runing`"),
        (json!({"name": "d", "network": {"allow": ["http://h"]}}), "'http://h' is a URL"),
        (json!({"nam": "d"}), "unknown field `nam`"),
        (json!([]), "invalid body"),
    ] {
        let message = api.send_refused(operator, "POST", "/tenants", body, 400).await;
        assert!(message.contains(expected), "{message}");
    }
    let author = api.key(Some("c"), Rights::Author);
    api.push(&author, "one", "c", true).await;
    let body = json!({"component": Digest::of(b"c")});
    let message = api.send_refused(&author, "POST", "/plugins/two/deployments", body, 403).await;
    assert_eq!(message, "quota plugins is 1: 1 in use, 1 more requested");
    let names: Vec<_> = api.send(operator, "GET", "/tenants?limit=2", Value::Null).await["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tenant| tenant["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let usage = api.send(operator, "GET", "/tenants/c/usage", Value::Null).await;
    assert_eq!(usage, json!({"component_bytes": 1, "days": []}));
    api.fake.take_calls();
    let folder = api.catalog.tenant_folder(serde_json::from_value(id.clone()).unwrap());
    api.send(operator, "DELETE", "/tenants/c", Value::Null).await;
    assert_eq!(api.fake.take_calls(), [format!("deleted {id}")]);
    assert!(!folder.exists());
    api.send_refused(&author, "GET", "/plugins", Value::Null, 401).await;
    api.send_refused(operator, "GET", "/tenants/c", Value::Null, 404).await;
}

#[tokio::test]
async fn an_operator_must_select_a_tenant() {
    let api = TestApi::new();
    let message = api.send_refused(&api.operator, "GET", "/plugins", Value::Null, 400).await;
    assert!(message.contains("?tenant=NAME"), "{message}");
    let listed = api.send(&api.operator, "GET", "/plugins?tenant=a", Value::Null).await;
    assert_eq!(listed["items"], json!([]));
    api.send_refused(&api.operator, "GET", "/plugins?tenant=nobody", Value::Null, 404).await;
}

#[tokio::test]
async fn a_key_is_shown_once_and_listed_by_its_first_characters() {
    let api = TestApi::new();
    let body =
        json!({"name": "laptop", "rights": "caller", "tenant": "a", "expires_at": "2999-01-01T00:00:00Z"});
    let created = api.send(&api.operator, "POST", "/keys", body).await;
    let key = created["key"].as_str().unwrap();
    assert!(api.catalog.authenticate(key).is_some());
    let list = api.send(&api.operator, "GET", "/keys?tenant=a", Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let mut shown = created.clone();
    shown.as_object_mut().unwrap().remove("key");
    assert_eq!(list["items"][0], shown);
    assert_eq!((&shown["tenant"], &shown["expires_at"]), (&json!("a"), &json!("2999-01-01T00:00:00Z")));
    assert!(!list.to_string().contains(&key[11..]));
    for body in [json!({"rights": "author"}), json!({"rights": "operator", "tenant": "a"})] {
        let message = api.send_refused(&api.operator, "POST", "/keys", body, 400).await;
        assert!(message.contains("a key for an operator must have no tenant"), "{message}");
    }
    let body = json!({"rights": "operator", "expires_at": "2020-01-01T00:00:00Z"});
    let message = api.send_refused(&api.operator, "POST", "/keys", body, 400).await;
    assert_eq!(message, "invalid expires_at: it must be in the future");
    let (path, missing) = (format!("/keys/{}", created["id"]), "/keys/7777");
    api.send(&api.operator, "DELETE", &path, Value::Null).await;
    assert_eq!(api.catalog.authenticate(key), None);
    api.send_refused(&api.operator, "DELETE", missing, Value::Null, 404).await;
    let first = api.send(&api.operator, "GET", "/keys?limit=1", Value::Null).await;
    let rest = format!("/keys?limit=1&after={}", first["next"].as_str().unwrap());
    assert_eq!(api.send(&api.operator, "GET", &rest, Value::Null).await["items"][0]["name"], "laptop");
}

#[tokio::test]
async fn a_secret_is_stored_sealed_and_never_returned() {
    let api = TestApi::new();
    let author = api.key(Some("a"), Rights::Author);
    api.send(&author, "PUT", "/secrets/judge", json!({"value": "a very secret text"})).await;
    let list = api.send(&author, "GET", "/secrets", Value::Null).await;
    assert_eq!(list, json!({"items": ["judge"]}));
    let seal = Seal::from_secret(&Secret::new("host"));
    let opened = open_secrets(&api.catalog, &seal, api.a).unwrap();
    assert_eq!((&*opened[0].0, opened[0].1.expose()), ("judge", "a very secret text"));
    let other = Seal::from_secret(&Secret::new("another host"));
    assert!(open_secrets(&api.catalog, &other, api.a).unwrap().is_empty());
    for file in ["catalog.db", "catalog.db-wal"] {
        let bytes = std::fs::read(api.catalog.path().join(file)).unwrap();
        assert!(!bytes.windows(11).any(|part| part == b"very secret"), "{file}");
    }
    assert_eq!(api.fake.take_calls(), [format!("changed {}", api.a)]);
    api.send_refused(&author, "PUT", "/secrets/judge", json!({"value": ""}), 400).await;
    api.send(&author, "DELETE", "/secrets/judge", Value::Null).await;
    api.send_refused(&author, "DELETE", "/secrets/judge", Value::Null, 404).await;
}

#[tokio::test]
async fn the_size_of_bodies_is_limited() {
    let api = TestApi::new();
    let author = api.key(Some("a"), Rights::Author);
    let body = json!({"name": "x".repeat(1 << 20)});
    let message = api.send_refused(&api.operator, "POST", "/tenants", body, 413).await;
    assert_eq!(message, "the body is larger than 1048576 bytes");
    let large = vec![7; COMPONENT_BYTES_MAX as usize + 1];
    let path = format!("/components/{}", Digest::of(&large));
    let (status, answer) = api.request_bytes(&author, "PUT", &path, large).await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (413, &json!("too-large")), "{answer}");
    let path = format!("/components/{}", Digest::of(b"other"));
    let (status, answer) = api.request_bytes(&author, "PUT", &path, b"this".to_vec()).await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (400, &json!("invalid")), "{answer}");
    api.send_refused(&author, "PUT", "/components/xyz", Value::Null, 400).await;
    api.upload(&author, &vec![7; 2_500_000]).await;
    api.send(&api.operator, "PATCH", "/tenants/a", json!({"quotas": {"component-bytes": 2_600_000}})).await;
    let more = vec![8; 200_000];
    let path = format!("/components/{}", Digest::of(&more));
    let (status, answer) = api.request_bytes(&author, "PUT", &path, more).await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (403, &json!("forbidden")), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("quota component-bytes is 2600000: 2500000 in use"), "{message}");
}
