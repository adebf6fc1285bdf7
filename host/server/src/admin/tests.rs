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
use rollout_catalog::{NewKey, Quotas, Rights, TenantSettings};
use rollout_outbound::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A server that loads nothing: it says what it was asked, and refuses what it is told to.
#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<String>>,
    activating: AtomicUsize,
    activated_at_once: AtomicUsize,
}

impl Fake {
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

struct Shared(Arc<Fake>);

impl Deployments for Shared {
    fn check(&self, pushed: Pushed) -> BoxFuture<'static, Result<CheckReport, CheckError>> {
        self.0.note(format!("check {}", pushed.plugin));
        let config = pushed.config.unwrap_or_default();
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
            let at_once = fake.activating.fetch_add(1, Ordering::SeqCst) + 1;
            fake.activated_at_once.fetch_max(at_once, Ordering::SeqCst);
            tokio::task::yield_now().await;
            fake.activating.fetch_sub(1, Ordering::SeqCst);
            fake.note(format!("activate {tenant} {plugin} {version}"));
            if &*plugin == "unloadable" { Err("it asks for too much memory".to_owned()) } else { Ok(()) }
        })
    }

    fn in_use(&self, _: TenantId, _: &Name) -> Vec<u32> {
        Vec::new()
    }

    fn note_usage(&self, _: TenantId) {}

    fn plugin_removed(&self, tenant: TenantId, plugin: &Name) -> BoxFuture<'static, ()> {
        self.0.note(format!("removed {tenant} {plugin}"));
        Box::pin(async {})
    }

    fn tenant_changed(&self, tenant: TenantId) {
        self.0.note(format!("changed {tenant}"));
    }

    fn tenant_deleted(&self, tenant: TenantId) -> BoxFuture<'static, ()> {
        self.0.note(format!("deleted {tenant}"));
        Box::pin(async {})
    }
}

/// The API over a catalog of its own, with tenants `a` and `b`.
struct Scene {
    _folder: TempDir,
    catalog: Catalog,
    fake: Arc<Fake>,
    router: Router,
    a: TenantId,
    operator: String,
}

const COMPONENT_BYTES_MAX: u64 = 3 << 20;

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let catalog =
            Catalog::open(rollout_catalog::CatalogSettings::new(folder.path().join("catalog"))).unwrap();
        let fake = Arc::new(Fake::default());
        let admin = Admin::new(Settings {
            catalog: catalog.clone(),
            deployments: Arc::new(Shared(Arc::clone(&fake))),
            seal: Arc::new(Seal::of_secret(&Secret::new("host"))),
            budget: Budget::default(),
            component_bytes_max: COMPONENT_BYTES_MAX,
        });
        let router = identified(&catalog, admin.router());
        let [a, _] = ["a", "b"].map(|name| {
            let settings = TenantSettings { quotas: Quotas::default(), network: Default::default() };
            catalog.create_tenant(&name.parse().unwrap(), &settings).unwrap().id
        });
        let scene = Self { _folder: folder, catalog, fake, router, a, operator: String::new() };
        let operator = scene.key(None, Rights::Operator);
        Self { operator, ..scene }
    }

    fn key(&self, tenant: Option<&str>, rights: Rights) -> String {
        let tenant = tenant.map(|name| self.catalog.tenant_named(name).unwrap().id);
        let new = NewKey { name: "test".to_owned(), rights, tenant, expires_at: None };
        self.catalog.create_key(new).unwrap().key
    }

    async fn bytes(&self, key: &str, method: &str, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
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

    async fn ask(&self, key: &str, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.bytes(key, method, path, body).await
    }

    /// The same, which has to succeed.
    async fn done(&self, key: &str, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask(key, method, path, body).await;
        assert!(status.is_success(), "{method} {path}: {status} {answer}");
        answer
    }

    /// The same, which has to be refused in this way.
    async fn refused(&self, key: &str, method: &str, path: &str, body: Value, status: u16) -> String {
        let (found, answer) = self.ask(key, method, path, body).await;
        assert_eq!(found, status, "{method} {path}: {answer}");
        assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
        assert_eq!(answer["error"].as_object().unwrap().len(), 2, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    }

    async fn upload(&self, key: &str, bytes: &[u8]) -> String {
        let digest = Digest::of(bytes).to_string();
        let (status, answer) = self.bytes(key, "PUT", &format!("/components/{digest}"), bytes.to_vec()).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer, json!({"digest": digest, "bytes": bytes.len()}));
        digest
    }

    async fn push(&self, key: &str, plugin: &str, config: &str, activate: bool) -> Value {
        let component = self.upload(key, config.as_bytes()).await;
        let body = json!({"component": component, "config": config, "activate": activate});
        self.done(key, "POST", &format!("/plugins/{plugin}/deployments"), body).await
    }
}

/// Finds out by its key who sends each request, as the dispatcher does. One without a good key goes on without
/// an identity.
fn identified(catalog: &Catalog, router: Router) -> Router {
    async fn identify(State(catalog): State<Catalog>, mut request: Request, next: Next) -> Response {
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = given.and_then(|value| value.strip_prefix("Bearer "));
        if let Some(identity) = key.and_then(|key| catalog.authenticate(key)) {
            request.extensions_mut().insert(identity);
        }
        next.run(request).await
    }
    router.layer(middleware::from_fn_with_state(catalog.clone(), identify))
}

/// Methods and paths of the description, below the base.
fn described() -> BTreeSet<(String, String)> {
    let api = serde_json::to_value(description()).unwrap();
    let mut found = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            found.insert((method.to_uppercase(), path.strip_prefix(BASE).unwrap().to_owned()));
        }
    }
    found
}

/// Each operation, and the least rights that it takes.
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

/// A path with values for its parts, none of which is there.
fn filled(path: &str) -> String {
    path.replace("{tenant}", "nobody")
        .replace("{name}", "nothing")
        .replace("{version}", "7")
        .replace("{id}", "7777")
        .replace("{sha256}", &"0".repeat(64))
}

#[tokio::test]
async fn a_name_is_checked_before_the_body_is_read() {
    let scene = Scene::new();
    let author = scene.key(Some("a"), Rights::Author);
    for (method, path) in [("POST", "/plugins/My.Agent/deployments"), ("PUT", "/secrets/My.Key")] {
        let (status, answer) = scene.bytes(&author, method, path, b"no JSON".to_vec()).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(said.contains("invalid name"), "{path}: {said}");
    }
}

#[tokio::test]
async fn the_description_and_the_routes_are_the_same() {
    let scene = Scene::new();
    let (status, api) = scene.bytes("", "GET", "/openapi.json", Vec::new()).await;
    assert_eq!(status, 200);
    assert_eq!(api, serde_json::to_value(description()).unwrap());
    let mut expected: BTreeSet<(String, String)> =
        OPERATIONS.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    expected.remove(&("GET".to_owned(), "/openapi.json".to_owned()));
    assert_eq!(described(), expected);
    for (method, path) in described() {
        let (status, answer) = scene.ask("", &method, &filled(&path), Value::Null).await;
        assert_eq!(status, 401, "{method} {path} is a route that asks for a key: {answer}");
        let operation = &api["paths"][format!("{BASE}{path}")][method.to_lowercase()];
        assert!(operation["responses"]["default"].is_object(), "{method} {path}");
        assert!(operation["summary"].as_str().is_some_and(|said| said.ends_with('.')), "{method} {path}");
    }
    // What is not described is no route.
    let all = [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE];
    for (_, path) in described() {
        for method in &all {
            if !described().contains(&(method.to_string(), path.clone())) {
                let said =
                    scene.refused(&scene.operator, method.as_str(), &filled(&path), Value::Null, 405).await;
                assert!(said.contains("no such method"), "{said}");
            }
        }
    }
    for path in ["", "/", "/tenant", "/plugins/a/b/c"] {
        let said = scene.refused(&scene.operator, "GET", path, Value::Null, 404).await;
        assert!(said.contains("no such address"), "{said}");
    }
    // Every reference leads somewhere.
    let text = api.to_string();
    for name in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(api["components"]["schemas"][name].is_object(), "{name}");
    }
}

#[tokio::test]
async fn each_operation_takes_the_rights_that_it_needs_and_says_which() {
    let scene = Scene::new();
    let rights = [Rights::Viewer, Rights::Caller, Rights::Author, Rights::Operator];
    for (method, path, needed) in OPERATIONS {
        for has in rights {
            if path == "/openapi.json" {
                continue;
            }
            let key = scene.key((has != Rights::Operator).then_some("a"), has);
            let place = |of: &Rights| rights.iter().position(|one| one == of);
            let (status, answer) = scene.ask(&key, method, &filled(path), Value::Null).await;
            if place(&has) < place(&needed) {
                assert_eq!(status, 403, "{method} {path} as {has}: {answer}");
                let said = answer["error"]["message"].as_str().unwrap();
                assert!(said.contains(&format!("the rights of a {has}")), "{said}");
            } else {
                assert!(![401, 403].contains(&status.as_u16()), "{method} {path} as {has}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_is_wrong_or_revoked_opens_nothing() {
    let scene = Scene::new();
    let key = scene.key(Some("a"), Rights::Author);
    scene.done(&key, "GET", "/plugins", Value::Null).await;
    let id = scene.catalog.authenticate(&key).unwrap().key;
    scene.done(&scene.operator, "DELETE", &format!("/keys/{id}"), Value::Null).await;
    for wrong in [key.as_str(), "rh_", ""] {
        scene.refused(wrong, "GET", "/plugins", Value::Null, 401).await;
    }
}

#[tokio::test]
async fn what_is_another_tenant_s_is_answered_as_what_is_not_there() {
    let scene = Scene::new();
    let (a, b) = (scene.key(Some("a"), Rights::Author), scene.key(Some("b"), Rights::Author));
    scene.push(&a, "calc", "one", true).await;
    scene.done(&a, "PUT", "/secrets/calc", json!({"value": "s3cret"})).await;
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
    let (no_digest, there) = ("f".repeat(64), attempts("calc", &digest, "a"));
    let absent = attempts("none", &no_digest, "nobody");
    for ((method, path, body), (_, absent_path, absent_body)) in there.into_iter().zip(absent) {
        let (status, answer) = scene.ask(&b, method, &path, body).await;
        let (absent_status, absent_answer) = scene.ask(&b, method, &absent_path, absent_body).await;
        assert!(status.is_client_error(), "{method} {path}: {answer}");
        assert_eq!(status, absent_status, "{method} {path}");
        let said = absent_answer.to_string();
        let said = said.replace("none", "calc").replace(&no_digest, &digest).replace("nobody", "a");
        assert_eq!(answer.to_string(), said, "{method} {path}");
    }
    assert_eq!(scene.done(&b, "GET", "/plugins", Value::Null).await["items"], json!([]));
    assert_eq!(scene.done(&b, "GET", "/secrets", Value::Null).await["items"], json!([]));
    // The same bytes are taken from b as if nobody had them.
    scene.upload(&b, b"one").await;
    assert!(scene.fake.take().iter().all(|asked| !asked.contains(" mine")));
    let own = scene.done(&a, "GET", "/plugins?tenant=a", Value::Null).await;
    assert_eq!(own["items"][0]["name"], "calc");
}

#[tokio::test]
async fn a_push_is_checked_and_what_passed_is_activated_and_rolled_back() {
    let scene = Scene::new();
    let author = scene.key(Some("a"), Rights::Author);
    let a = scene.a;
    let pushed = scene.push(&author, "calc", "one", true).await;
    assert_eq!(
        (&pushed["version"], &pushed["passed"], &pushed["active"]),
        (&json!(1), &json!(true), &json!(true))
    );
    assert_eq!(pushed["report"]["valid"], true);
    assert_eq!(pushed["created_by"], json!(author[..11]));
    assert_eq!(scene.fake.take(), ["check calc".to_owned(), format!("activate {a} calc 1")]);
    let said = scene.refused(&author, "POST", "/plugins/calc/rollback", Value::Null, 404).await;
    assert!(said.contains("no earlier active version"), "{said}");
    let pushed = scene.push(&author, "calc", "bad", true).await;
    assert_eq!(
        (&pushed["version"], &pushed["passed"], &pushed["active"]),
        (&json!(2), &json!(false), &json!(false))
    );
    assert_eq!(scene.fake.take(), ["check calc"]);
    let said = scene.refused(&author, "POST", "/plugins/calc/activate", json!({"version": 2}), 409).await;
    assert!(said.contains("failed its checks"), "{said}");
    let pushed = scene.push(&author, "calc", "three", false).await;
    assert_eq!(pushed["active"], false);
    let active = scene.done(&author, "POST", "/plugins/calc/activate", json!({"version": 3})).await;
    assert_eq!((&active["version"], &active["before"]), (&json!(3), &json!(1)));
    let active = scene.done(&author, "POST", "/plugins/calc/rollback", Value::Null).await;
    assert_eq!((&active["version"], &active["before"]), (&json!(1), &json!(3)));
    let plugin = scene.done(&author, "GET", "/plugins/calc", Value::Null).await;
    assert_eq!((&plugin["active"], &plugin["newest"]), (&json!(1), &json!(3)));
    let list = scene.done(&author, "GET", "/plugins/calc/deployments?limit=2", Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let rest = format!("/plugins/calc/deployments?limit=2&after={}", list["next"].as_str().unwrap());
    let rest = scene.done(&author, "GET", &rest, Value::Null).await;
    assert_eq!((&rest["items"][0]["version"], &rest["next"]), (&json!(1), &Value::Null));
    let one = scene.done(&author, "GET", "/plugins/calc/deployments/2", Value::Null).await;
    assert_eq!((&one["config"], &one["report"]["valid"]), (&json!("bad"), &json!(false)));
    scene.fake.take();
    scene.done(&author, "PATCH", "/plugins/calc", json!({"default": true, "quotas": {"running": 2}})).await;
    assert_eq!(scene.fake.take(), [format!("changed {a}")]);
    let tenant = scene.done(&scene.operator, "GET", "/tenants/a", Value::Null).await;
    assert_eq!(tenant["default_plugin"], "calc");
    scene.done(&author, "DELETE", "/plugins/calc", Value::Null).await;
    assert_eq!(scene.fake.take(), [format!("removed {a} calc")]);
    scene.refused(&author, "GET", "/plugins/calc", Value::Null, 404).await;
}

#[tokio::test]
async fn what_cannot_be_loaded_is_not_active_and_says_why() {
    let scene = Scene::new();
    let author = scene.key(Some("a"), Rights::Author);
    let pushed = scene.push(&author, "unloadable", "one", true).await;
    assert_eq!((&pushed["passed"], &pushed["active"]), (&json!(true), &json!(false)));
    let why = pushed["activation_error"].as_str().unwrap();
    assert!(why.contains("it asks for too much memory"), "{why}");
    let plugin = scene.done(&author, "GET", "/plugins/unloadable", Value::Null).await;
    assert_eq!(plugin["active"], Value::Null);
    let said =
        scene.refused(&author, "POST", "/plugins/unloadable/activate", json!({"version": 1}), 409).await;
    assert!(said.contains("version 1 of plugin 'unloadable' cannot be loaded"), "{said}");
}

#[tokio::test]
async fn a_check_that_has_no_room_says_so_and_adds_nothing() {
    let scene = Scene::new();
    let author = scene.key(Some("a"), Rights::Author);
    let component = scene.upload(&author, b"c").await;
    let body = json!({"component": component, "config": "busy"});
    let said = scene.refused(&author, "POST", "/plugins/calc/deployments", body, 503).await;
    assert_eq!(said, "four are being checked; retry later");
    scene.refused(&author, "GET", "/plugins/calc", Value::Null, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_plugin_is_activated_by_one_at_a_time() {
    let scene = Arc::new(Scene::new());
    let author = scene.key(Some("a"), Rights::Author);
    for config in ["one", "two"] {
        scene.push(&author, "calc", config, false).await;
    }
    let all = (0..20).map(|n| {
        let (scene, author) = (Arc::clone(&scene), author.clone());
        tokio::spawn(async move {
            let body = json!({"version": 1 + n % 2});
            scene.done(&author, "POST", "/plugins/calc/activate", body).await
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert_eq!(scene.fake.activated_at_once.load(Ordering::SeqCst), 1);
    let last = scene.fake.take().pop().unwrap();
    let active = scene.catalog.plugin(scene.a, "calc").unwrap().active.unwrap();
    assert!(last.ends_with(&format!(" {active}")), "{last}, and {active} is active");
}

#[tokio::test]
async fn tenants_are_made_changed_and_deleted_with_all_that_they_have() {
    let scene = Scene::new();
    let operator = &scene.operator;
    let body = json!({"name": "c", "quotas": {"running": 4}, "network": {"allow": ["10.0.0.0/8"]}});
    let made = scene.done(operator, "POST", "/tenants", body).await;
    assert_eq!((&made["quotas"], &made["network"]["public"]), (&json!({"running": 4}), &json!("open")));
    scene.refused(operator, "POST", "/tenants", json!({"name": "c"}), 409).await;
    let change = json!({"quotas": {"running": null, "plugins": 1, "weight": 3}});
    let changed = scene.done(operator, "PATCH", "/tenants/c", change).await;
    assert_eq!(changed["quotas"], json!({"plugins": 1, "weight": 3}));
    assert_eq!(changed["network"], made["network"]);
    let change = json!({"network": {"public": "listed"}});
    let changed = scene.done(operator, "PATCH", "/tenants/c", change).await;
    assert_eq!(changed["network"], json!({"allow": ["10.0.0.0/8"], "public": "listed"}));
    let id = &made["id"];
    assert_eq!(scene.fake.take(), [format!("changed {id}"), format!("changed {id}")]);
    for (body, said) in [
        (json!({"name": "C"}), "lower-case letters"),
        (json!({"name": "d", "quotas": {"runing": 1}}), "unknown field `runing`"),
        (json!({"name": "d", "network": {"allow": ["http://h"]}}), "'http://h' is a URL"),
        (json!({"nam": "d"}), "unknown field `nam`"),
        (json!([]), "the body is not as it should be"),
    ] {
        let message = scene.refused(operator, "POST", "/tenants", body, 400).await;
        assert!(message.contains(said), "{message}");
    }
    let author = scene.key(Some("c"), Rights::Author);
    scene.push(&author, "one", "c", true).await;
    let body = json!({"component": Digest::of(b"c")});
    let said = scene.refused(&author, "POST", "/plugins/two/deployments", body, 403).await;
    assert_eq!(said, "quota plugins is 1: 1 in use, 1 more requested");
    let names: Vec<_> = scene.done(operator, "GET", "/tenants?limit=2", Value::Null).await["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tenant| tenant["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let usage = scene.done(operator, "GET", "/tenants/c/usage", Value::Null).await;
    assert_eq!(usage, json!({"component_bytes": 1, "days": []}));
    scene.fake.take();
    let folder = scene.catalog.tenant_folder(serde_json::from_value(id.clone()).unwrap());
    scene.done(operator, "DELETE", "/tenants/c", Value::Null).await;
    assert_eq!(scene.fake.take(), [format!("deleted {id}")]);
    assert!(!folder.exists());
    scene.refused(&author, "GET", "/plugins", Value::Null, 401).await;
    scene.refused(operator, "GET", "/tenants/c", Value::Null, 404).await;
}

#[tokio::test]
async fn an_operator_says_whose_plugins_are_meant() {
    let scene = Scene::new();
    let said = scene.refused(&scene.operator, "GET", "/plugins", Value::Null, 400).await;
    assert!(said.contains("?tenant=NAME"), "{said}");
    let listed = scene.done(&scene.operator, "GET", "/plugins?tenant=a", Value::Null).await;
    assert_eq!(listed["items"], json!([]));
    scene.refused(&scene.operator, "GET", "/plugins?tenant=nobody", Value::Null, 404).await;
}

#[tokio::test]
async fn a_key_is_shown_once_and_listed_by_its_beginning() {
    let scene = Scene::new();
    let body =
        json!({"name": "laptop", "rights": "caller", "tenant": "a", "expires_at": "2999-01-01T00:00:00Z"});
    let made = scene.done(&scene.operator, "POST", "/keys", body).await;
    let key = made["key"].as_str().unwrap();
    assert!(scene.catalog.authenticate(key).is_some());
    let list = scene.done(&scene.operator, "GET", "/keys?tenant=a", Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let mut shown = made.clone();
    shown.as_object_mut().unwrap().remove("key");
    assert_eq!(list["items"][0], shown);
    assert_eq!((&shown["tenant"], &shown["expires_at"]), (&json!("a"), &json!("2999-01-01T00:00:00Z")));
    assert!(!list.to_string().contains(&key[11..]));
    for body in [json!({"rights": "author"}), json!({"rights": "operator", "tenant": "a"})] {
        let said = scene.refused(&scene.operator, "POST", "/keys", body, 400).await;
        assert!(said.contains("a key for an operator must have no tenant"), "{said}");
    }
    let body = json!({"rights": "operator", "expires_at": "2020-01-01T00:00:00Z"});
    let said = scene.refused(&scene.operator, "POST", "/keys", body, 400).await;
    assert_eq!(said, "expires_at: that is over already");
    let (path, missing) = (format!("/keys/{}", made["id"]), "/keys/7777");
    scene.done(&scene.operator, "DELETE", &path, Value::Null).await;
    assert_eq!(scene.catalog.authenticate(key), None);
    scene.refused(&scene.operator, "DELETE", missing, Value::Null, 404).await;
    let first = scene.done(&scene.operator, "GET", "/keys?limit=1", Value::Null).await;
    let rest = format!("/keys?limit=1&after={}", first["next"].as_str().unwrap());
    assert_eq!(scene.done(&scene.operator, "GET", &rest, Value::Null).await["items"][0]["name"], "laptop");
}

#[tokio::test]
async fn a_secret_comes_in_sealed_and_is_given_back_to_nobody() {
    let scene = Scene::new();
    let author = scene.key(Some("a"), Rights::Author);
    scene.done(&author, "PUT", "/secrets/judge", json!({"value": "a very secret text"})).await;
    let list = scene.done(&author, "GET", "/secrets", Value::Null).await;
    assert_eq!(list, json!({"items": ["judge"]}));
    let seal = Seal::of_secret(&Secret::new("host"));
    let opened = opened_secrets(&scene.catalog, &seal, scene.a).unwrap();
    assert_eq!((&*opened[0].0, opened[0].1.expose()), ("judge", "a very secret text"));
    let other = Seal::of_secret(&Secret::new("another host"));
    assert!(opened_secrets(&scene.catalog, &other, scene.a).unwrap().is_empty());
    for file in ["catalog.db", "catalog.db-wal"] {
        let bytes = std::fs::read(scene.catalog.path().join(file)).unwrap();
        assert!(!bytes.windows(11).any(|part| part == b"very secret"), "{file}");
    }
    assert_eq!(scene.fake.take(), [format!("changed {}", scene.a)]);
    scene.refused(&author, "PUT", "/secrets/judge", json!({"value": ""}), 400).await;
    scene.done(&author, "DELETE", "/secrets/judge", Value::Null).await;
    scene.refused(&author, "DELETE", "/secrets/judge", Value::Null, 404).await;
}

#[tokio::test]
async fn bodies_are_bounded() {
    let scene = Scene::new();
    let author = scene.key(Some("a"), Rights::Author);
    let body = json!({"name": "x".repeat(1 << 20)});
    let said = scene.refused(&scene.operator, "POST", "/tenants", body, 413).await;
    assert_eq!(said, "the body is larger than 1048576 bytes");
    let large = vec![7; COMPONENT_BYTES_MAX as usize + 1];
    let path = format!("/components/{}", Digest::of(&large));
    let (status, answer) = scene.bytes(&author, "PUT", &path, large).await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (413, &json!("too-large")), "{answer}");
    let path = format!("/components/{}", Digest::of(b"other"));
    let (status, answer) = scene.bytes(&author, "PUT", &path, b"this".to_vec()).await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (400, &json!("invalid")), "{answer}");
    scene.refused(&author, "PUT", "/components/xyz", Value::Null, 400).await;
    scene.upload(&author, &vec![7; 2_500_000]).await;
    scene
        .done(&scene.operator, "PATCH", "/tenants/a", json!({"quotas": {"component-bytes": 2_600_000}}))
        .await;
    let more = vec![8; 200_000];
    let path = format!("/components/{}", Digest::of(&more));
    let (status, answer) = scene.bytes(&author, "PUT", &path, more).await;
    assert_eq!((status.as_u16(), &answer["error"]["kind"]), (403, &json!("forbidden")), "{answer}");
    let said = answer["error"]["message"].as_str().unwrap();
    assert!(said.contains("quota component-bytes is 2600000: 2500000 in use"), "{said}");
}
