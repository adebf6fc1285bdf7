//! Tests that one tenant's requests for another's objects, by each route, get the same answers as for objects that do
//! not exist.

use reqwest::Method;
use rollout_tests::{Admitted, Controller, TestCatalog, TestTenant, guest};
use serde_json::{Value, json};

/// The victim's rollouts, and unused names of the same length.
const OVER: [&str; 2] = ["victim-over", "nobody-over"];
const LIVE: [&str; 2] = ["victim-live", "nobody-live"];
const PLUGIN: [&str; 2] = ["private", "nothing"];
const SECRET: [&str; 2] = ["judge-key", "other-key"];

/// A catalog with a victim and an attacker.
struct Scene {
    catalog: TestCatalog,
    controller: Controller,
    victim: TestTenant,
    attacker: TestTenant,
    held: Admitted,
    over: Admitted,
}

impl Scene {
    async fn start() -> Self {
        let controller = Controller::start().await;
        let catalog = TestCatalog::start().await;
        let (victim, attacker) =
            (catalog.tenant("victim", json!({})).await, catalog.tenant("attacker", json!({})).await);
        for tenant in [&victim, &attacker] {
            catalog.serve(tenant, "p", "conform", "").await;
        }
        catalog.serve(&victim, PLUGIN[0], "conform", "").await;
        let secret = format!("/admin/v1/secrets/{}", SECRET[0]);
        let set = catalog.ask(&victim.author, Method::PUT, &secret, json!({"value": "s3cret"})).await;
        assert!(set.status < 300, "{set:?}");
        let plugin = catalog.plugin(&victim, "p");
        let over = plugin.admit(&controller.rollout("Calculate 2 + 3.").id(OVER[0]).label("5")).await;
        assert_eq!(plugin.result(&over).await["sample"]["reward"], 1.0);
        controller.hold();
        let held = plugin.admit(&controller.rollout("Calculate 2 + 3.").id(LIVE[0]).label("5")).await;
        controller.chats_open(1).await;
        Self { catalog, controller, victim, attacker, held, over }
    }

    /// Sends requests of the attacker for the victim's object and for one that does not exist, and checks that the answers
    /// are the same.
    async fn alike(&self, method: &Method, path: impl Fn(usize) -> String, body: impl Fn(usize) -> Value) {
        let mut answers = Vec::new();
        for which in [0, 1] {
            let key = &self.attacker.author;
            let reply = self.catalog.ask(key, method.clone(), &path(which), body(which)).await;
            let mut text = reply.text;
            for names in [OVER, LIVE, PLUGIN, SECRET] {
                text = text.replace(names[which], "NAME");
            }
            answers.push((reply.status, text));
        }
        assert_eq!(answers[0], answers[1], "{method} {}", path(0));
        assert!(!answers[0].1.contains("s3cret"), "{}", answers[0].1);
    }
}

fn nothing(_: usize) -> Value {
    Value::Null
}

#[tokio::test]
async fn rollouts_of_another_tenant_cannot_be_found_by_any_route() {
    let scene = Scene::start().await;
    let (get, post) = (Method::GET, Method::POST);
    for ids in [OVER, LIVE] {
        for route in ["status", "result", "trajectory", "trajectory?sample=0"] {
            scene.alike(&get, |which| format!("/p/p/rollout/{}/{route}", ids[which]), nothing).await;
            scene
                .alike(&get, |which| format!("/p/{}/rollout/{}/{route}", PLUGIN[which], ids[which]), nothing)
                .await;
        }
        scene.alike(&post, |_| "/p/p/rollout/cancel".into(), |which| json!({"ids": [ids[which]]})).await;
        let fork = |which: usize| {
            let request = scene.controller.rollout("2 + 3").id(&format!("fork-{}", ids[which]));
            request.with("fork_of", json!({"rollout_id": ids[which], "turn": 1})).body()
        };
        scene.alike(&post, |_| "/p/p/rollout".into(), fork).await;
    }
    let all = scene
        .catalog
        .ask(&scene.attacker.caller, post.clone(), "/p/p/rollout/cancel", json!({"all": true}))
        .await;
    let of_prefix = scene
        .catalog
        .ask(&scene.attacker.caller, post, "/p/p/rollout/cancel", json!({"prefix": "victim"}))
        .await;
    for reply in [all, of_prefix] {
        assert!(reply.status == 200 && !reply.text.contains("victim"), "{}", reply.text);
    }
    // The victim's leases do not work for the attacker.
    let attacker = scene.catalog.plugin(&scene.attacker, "p");
    for stolen in [&scene.over, &scene.held] {
        let guessed = Admitted { id: stolen.id.replace("victim", "nobody"), lease: stolen.lease.clone() };
        let (theirs, nobodys) = (attacker.poll(stolen).await, attacker.poll(&guessed).await);
        assert_eq!((theirs.status, theirs.text), (404, nobodys.text));
    }
    // The victim's id is free for the attacker's own rollouts.
    let own = scene.controller.rollout("Calculate 2 + 3.").id(LIVE[0]).label("5");
    let own = attacker.admit(&own).await;

    scene.controller.release();

    let victim = scene.catalog.plugin(&scene.victim, "p");
    assert_eq!(
        victim.result(&scene.held).await["sample"]["reward"],
        1.0,
        "nothing that was tried did anything"
    );
    assert_eq!(victim.result(&scene.over).await["sample"]["reward"], 1.0);
    assert_eq!(attacker.result(&own).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn plugins_components_and_secrets_of_another_tenant_cannot_be_found_by_any_route() {
    let scene = Scene::start().await;
    let component = std::fs::read(guest("conform")).unwrap();
    let digest = rollout_wire::digest::sha256_hex(&component);
    let plugin =
        |rest: &'static str| move |which: usize| format!("/admin/v1/plugins/{}{rest}", PLUGIN[which]);
    for method in [Method::GET, Method::DELETE] {
        scene.alike(&method, plugin(""), nothing).await;
    }
    scene.alike(&Method::PATCH, plugin(""), |_| json!({"default": true})).await;
    scene.alike(&Method::GET, plugin("/deployments"), nothing).await;
    scene.alike(&Method::GET, plugin("/deployments/1"), nothing).await;
    scene.alike(&Method::POST, plugin("/activate"), |_| json!({"version": 1})).await;
    scene.alike(&Method::POST, plugin("/rollback"), nothing).await;
    for route in ["health", "ready", "metrics", "rollout/x/status"] {
        scene.alike(&Method::GET, |which| format!("/p/{}/{route}", PLUGIN[which]), nothing).await;
    }
    let request = scene.controller.rollout("2 + 3").id("x").body();
    scene.alike(&Method::POST, |which| format!("/p/{}/rollout", PLUGIN[which]), |_| request.clone()).await;
    scene.alike(&Method::POST, |which| format!("/p/{}/v1/rollout/init", PLUGIN[which]), |_| json!({})).await;
    scene.alike(&Method::DELETE, |which| format!("/admin/v1/secrets/{}", SECRET[which]), nothing).await;
    // A tenant without the component of this digest, which another tenant has.
    let newcomer = scene.catalog.tenant("newcomer", json!({})).await;
    let made_up = "0".repeat(64);
    let mut answers = Vec::new();
    for digest in [&digest, &made_up] {
        let path = format!("/admin/v1/components/{digest}");
        let there = scene.catalog.ask(&newcomer.author, Method::GET, &path, Value::Null).await;
        let push = json!({"component": digest, "activate": true});
        let pushed =
            scene.catalog.ask(&newcomer.author, Method::POST, "/admin/v1/plugins/x/deployments", push).await;
        answers
            .push([there, pushed].map(|reply| (reply.status, reply.text.replace(digest.as_str(), "DIGEST"))));
    }
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0][0].0 == 404 && answers[0][1].0 >= 400, "{answers:?}");
    // Routes of the operator, and the name of another tenant.
    for path in ["/tenants", "/tenants/victim", "/tenants/victim/usage", "/keys?tenant=victim"] {
        let reply = scene
            .catalog
            .ask(&scene.attacker.author, Method::GET, &format!("/admin/v1{path}"), Value::Null)
            .await;
        assert_eq!(reply.status, 403, "{path}: {}", reply.text);
    }
    let (theirs, nobodys) = (
        scene
            .catalog
            .ask(&scene.attacker.author, Method::GET, "/admin/v1/plugins?tenant=victim", Value::Null)
            .await,
        scene
            .catalog
            .ask(&scene.attacker.author, Method::GET, "/admin/v1/plugins?tenant=nobody", Value::Null)
            .await,
    );
    assert_eq!(
        (theirs.status, theirs.text.replace("victim", "nobody")),
        (nobodys.status, nobodys.text.clone())
    );
    assert!(!nobodys.text.contains(PLUGIN[0]), "{}", nobodys.text);

    // Nothing has changed for the victim.
    let still = scene.catalog.plugin(&scene.victim, PLUGIN[0]).get("/health").await;
    assert_eq!(still.status, 200, "{}", still.text);
    let own = scene.catalog.ask(&scene.victim.author, Method::GET, "/admin/v1/secrets", Value::Null).await;
    assert!(own.text.contains(SECRET[0]), "{}", own.text);
}

#[tokio::test]
async fn counters_of_one_tenant_are_hidden_from_another_and_files_are_separate() {
    let scene = Scene::start().await;
    let theirs = scene.catalog.ask(&scene.attacker.viewer, Method::GET, "/metrics", Value::Null).await.text;
    assert!(theirs.contains("tenant=\"attacker\"") && !theirs.contains("victim"), "{theirs}");
    let health = scene.catalog.plugin(&scene.attacker, "p").health().await;
    assert_eq!(health["concurrency"]["running"], 0, "that another's rollout runs is not seen: {health}");
    scene.controller.release();
    let plugin = scene.catalog.plugin(&scene.victim, "p");
    plugin.result(&scene.held).await;
    scene.catalog.plugin(&scene.attacker, "p").run(&scene.controller.rollout("2 + 3").label("5")).await;

    let mut with_victims = Vec::new();
    for folder in std::fs::read_dir(scene.catalog.folder().join("tenants")).unwrap() {
        let folder = folder.unwrap().path();
        let mut files = vec![folder.clone()];
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if std::fs::read(&path)
                .unwrap()
                .windows(OVER[0].len())
                .any(|part| part == OVER[0].as_bytes())
            {
                with_victims.push(folder.clone());
            }
        }
    }
    with_victims.dedup();
    assert_eq!(with_victims.len(), 1, "{with_victims:?}");
}
