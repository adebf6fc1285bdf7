//! A catalog that several workers share, on its own and in real processes behind a gateway.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use reqwest::Method;
use rollout_catalog::{Catalog, CatalogError, CatalogSettings, OpenError, SharedLog, TenantSettings};
use rollout_cluster::{CatalogLog, Cluster, ClusterError, ClusterSettings};
use rollout_tests::{
    Admitted, Controller, MemoryLog, ServeCatalog, TestCatalog, TestHost, TestNats, shared_catalog_contract,
    until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_catalog_with_a_log_in_memory_keeps_the_contract() {
    let log = Arc::new(MemoryLog::default());
    shared_catalog_contract([log.clone(), log.clone(), log]);
}

async fn log_on(nats: &TestNats) -> Arc<dyn SharedLog> {
    let settings = ClusterSettings {
        urls: nats.urls(),
        replicas: nats.urls().len(),
        accept_weak_durability: true,
        log_bytes_max: 256 << 20,
        ..ClusterSettings::default()
    };
    let log: CatalogLog = until("the catalog's log", async || {
        let cluster = match Cluster::connect(settings.clone()).await {
            Ok(cluster) => cluster,
            Err(ClusterError::Unavailable(_)) => return None,
            Err(error) => panic!("{error}"),
        };
        cluster.catalog().await.ok()
    })
    .await;
    Arc::new(log)
}

#[tokio::test]
async fn a_catalog_on_nats_keeps_the_contract() {
    let nats = TestNats::start().await;
    let logs = [log_on(&nats).await, log_on(&nats).await, log_on(&nats).await];
    tokio::task::spawn_blocking(move || shared_catalog_contract(logs)).await.unwrap();
}

#[test]
fn damage_of_the_log_is_found_and_an_own_catalog_is_not_mixed_with_a_shared_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(MemoryLog::default());
    let settings = |name: &str| CatalogSettings::new(dir.path().join(name));
    let open = |settings: CatalogSettings| loop {
        match Catalog::open(settings.clone()) {
            // A process that another test starts has the lock until it runs its program.
            Err(OpenError::Locked(_)) => std::thread::yield_now(),
            opened => return opened,
        }
    };
    let shared = |name: &str, log: &Arc<MemoryLog>| {
        open(CatalogSettings { shared: Some(log.clone()), ..settings(name) })
    };
    let create = |catalog: &Catalog, name: &str| {
        catalog.create_tenant(&name.parse().unwrap(), &TenantSettings::default()).map(|tenant| tenant.id)
    };
    let copy = shared("copy", &log).unwrap();
    let behind = shared("behind", &log).unwrap();
    create(&copy, "a").unwrap();
    create(&copy, "b").unwrap();

    // A flipped bit.
    log.changes.lock().unwrap()[1][100] ^= 1;
    let error = behind.catch_up().unwrap_err();
    assert_eq!(error.to_string(), "the shared catalog is damaged: change 2: its digest is wrong");
    assert!(behind.tenant_named("a").is_ok() && behind.tenant_named("b").is_err());
    log.changes.lock().unwrap()[1][100] ^= 1;
    behind.catch_up().unwrap();
    assert!(behind.tenant_named("b").is_ok());

    // A log that has lost its end takes no change, and one with other changes is another one.
    let last = log.changes.lock().unwrap().pop().unwrap();
    assert!(matches!(create(&behind, "c"), Err(CatalogError::Damaged(_))));
    log.changes.lock().unwrap().push(last);
    let another = Arc::new(MemoryLog::default());
    let elsewhere = shared("elsewhere", &another).unwrap();
    for name in ["x", "y", "z"] {
        create(&elsewhere, name).unwrap();
    }
    drop(behind);
    let error = shared("behind", &another).err().unwrap().to_string();
    assert!(error.contains("change 3: it does not follow the last change of this copy"), "{error}");

    let own = open(settings("own")).unwrap();
    create(&own, "a").unwrap();
    drop((own, copy));
    let lock = |name: &str| loop {
        match rollout_catalog::lock_copy(&dir.path().join(name)) {
            Err(OpenError::Locked(_)) => std::thread::yield_now(),
            locked => return locked,
        }
    };
    assert!(matches!(lock("own"), Err(OpenError::NotShared(_))));
    let locked = lock("copy").unwrap();
    let copy = CatalogSettings { shared: Some(log.clone()), ..settings("copy") };
    assert!(matches!(Catalog::open(copy), Err(OpenError::Locked(_))));
    drop(locked);
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    drop(lock("empty").unwrap());
    let error = shared("own", &log).err().unwrap().to_string();
    assert!(
        error.contains("has a catalog of its own; give a process that shares one an empty folder"),
        "{error}"
    );
    let error = open(settings("copy")).err().unwrap().to_string();
    assert!(error.contains("has a copy of a catalog that several processes share"), "{error}");
}

fn section(nats: &TestNats) -> String {
    format!(
        "[cluster.nats]\nurls = {:?}\nreplicas = 1\naccept-weak-durability = true\nlog-bytes-max = 268435456\n\
         heartbeat-secs = 0.5\nlease-secs = 2.5\n",
        nats.urls()
    )
}

/// Starts two workers and a gateway, and returns the workers as they are behind it.
async fn cluster(nats: &TestNats) -> (TestCatalog, TestCatalog, TestHost) {
    let section = section(nats);
    let (one, other) = tokio::join!(
        ServeCatalog::worker("w1", &section).start(),
        ServeCatalog::worker("w2", &section).start()
    );
    let gateway = ServeCatalog::gateway().config(&section).start().await;
    let (one, other) = (one.behind(gateway.url()), other.behind(gateway.url()));
    until("both workers", async || {
        let metrics = one.as_operator(Method::GET, "/metrics", Value::Null).await.text;
        let is_up =
            |name: &str| metrics.contains(&format!("rollout_host_gateway_worker_up{{worker=\"{name}\"}} 1"));
        (is_up("w1") && is_up("w2")).then_some(())
    })
    .await;
    (one, other, gateway)
}

/// Returns the greeting in the configuration of the version that ran a rollout of `tunable`.
fn greeting(result: &Value) -> String {
    let last = result["sample"]["messages"].as_array().and_then(|all| all.last());
    let text = last.and_then(|message| message["content"].as_str()).unwrap_or_else(|| panic!("{result:#}"));
    let config: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    config["greeting"].as_str().unwrap_or_else(|| panic!("{config}")).to_owned()
}

/// Runs some rollouts, and returns which worker ran which version.
async fn served(plugin: &TestHost, controller: &Controller) -> BTreeSet<(String, String)> {
    let requests: Vec<_> = (0..8).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    let admitted = join_all(requests.iter().map(|request| plugin.admit(request))).await;
    let results = join_all(admitted.iter().map(|admitted| plugin.result(admitted))).await;
    let worker = |lease: &str| lease.split('.').next().unwrap_or_default().to_owned();
    admitted
        .iter()
        .zip(&results)
        .map(|(admitted, result)| (worker(&admitted.lease), greeting(result)))
        .collect()
}

fn both(version: &str) -> BTreeSet<(String, String)> {
    ["w1", "w2"].map(|worker| (worker.to_owned(), version.to_owned())).into()
}

#[tokio::test]
async fn a_dead_workers_rollouts_of_tenants_are_continued_by_another_worker() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let (catalog, other, _gateway) = cluster(&nats).await;
    let (one, two) = (catalog.tenant("one", json!({})).await, catalog.tenant("two", json!({})).await);
    for tenant in [&one, &two] {
        catalog.serve(tenant, "p", "conform", "").await;
    }
    let plugins = [catalog.plugin(&one, "p"), catalog.plugin(&two, "p")];
    controller.hold();
    let mut admitted = Vec::new();
    for number in 0..16 {
        let plugin = &plugins[number % 2];
        admitted.push((plugin, plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await));
    }
    controller.chats_arrived(16).await;
    let of_other = admitted.iter().filter(|(_, admitted)| admitted.lease.starts_with("w2.")).count();
    assert!((1..16).contains(&of_other), "both workers have rollouts");

    other.stop_at_once().await;
    controller.chats_arrived(16 + of_other).await;
    controller.release();
    let results = join_all(admitted.iter().map(|(plugin, admitted)| plugin.result(admitted))).await;

    assert!(results.iter().all(|result| result["sample"]["reward"] == 1.0), "{results:#?}");
    assert_eq!(controller.chats().len(), 16 + of_other, "only calls without an answer were repeated");
}

#[tokio::test]
async fn a_tenants_rollout_goes_to_the_worker_that_has_room_for_it() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let (catalog, _other, _gateway) = cluster(&nats).await;
    // One running rollout at each worker.
    let tenant = catalog.tenant("t", json!({"running": 2, "queued": 20})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");
    for _ in 0..4 {
        // Both workers know that they are two, and their reports are new.
        until("a tenant without rollouts", async || {
            let requests: Vec<_> =
                (0..2).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
            controller.hold();
            let before = controller.chats().len();
            let mut admitted = Vec::new();
            for request in &requests {
                admitted.push(plugin.admit(request).await);
            }
            let workers: BTreeSet<_> =
                admitted.iter().filter_map(|one| one.lease.split('.').next()).collect();
            let is_spread = workers.len() == 2;
            if is_spread {
                controller.chats_arrived(before + 2).await;
            }
            controller.release();
            for admitted in &admitted {
                assert_eq!(plugin.result(admitted).await["sample"]["reward"], 1.0);
            }
            is_spread.then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn tenants_keys_and_plugins_are_those_of_all_workers() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let (catalog, other, _gateway) = cluster(&nats).await;
    // Each request of the administration API goes to any worker.
    let tenant = catalog.tenant("t", json!({})).await;
    for version in 1..=2 {
        catalog.serve(&tenant, "p", "tunable", &format!("[plugin]\ngreeting = 'v{version}'\n")).await;
    }
    let plugin = catalog.plugin(&tenant, "p");
    let on_both = async |version: &str| {
        let seen = async || {
            let seen = served(&plugin, &controller).await;
            (seen == both(version)).then_some(())
        };
        until("both workers to serve the version", seen).await;
    };
    on_both("v2").await;
    let path = "/admin/v1/plugins/p/activate";
    let reply = catalog.ask(&tenant.author, Method::POST, path, json!({"version": 1})).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    on_both("v1").await;

    // A worker that starts again has everything, and its rollouts are found.
    controller.hold();
    let requests: Vec<_> = (0..8).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    let admitted = join_all(requests.iter().map(|request| plugin.admit(request))).await;
    let other = other.killed().await;
    controller.release();
    let results = join_all(admitted.iter().map(|admitted| plugin.result(admitted))).await;
    assert!(results.iter().all(|result| greeting(result) == "v1"), "{results:#?}");

    // A revoked key is refused by all workers.
    let keys = catalog.operate(Method::GET, "/keys?tenant=t", Value::Null).await;
    let of_callers = keys["items"].as_array().unwrap().iter().find(|key| key["rights"] == "caller").unwrap();
    catalog.operate(Method::DELETE, &format!("/keys/{}", of_callers["id"]), Value::Null).await;
    until("the key to be refused", async || {
        let replies = join_all((0..8).map(|_| plugin.get("/health"))).await;
        replies.iter().all(|reply| reply.status == 401).then_some(())
    })
    .await;

    // Only gateways reach a worker.
    let direct = reqwest::get(format!("{}/p/p/health", other.own_url())).await.unwrap();
    assert_eq!(direct.status(), 403);
    catalog.operate(Method::DELETE, "/tenants/t", Value::Null).await;
    for folder in [catalog.folder(), other.folder()] {
        until("the tenant's files to be removed", async || {
            let left = std::fs::read_dir(folder.join("tenants")).ok()?.count();
            (left == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_plugin_that_is_deleted_and_pushed_again_has_its_new_code_on_a_worker_that_learns_of_both_at_once()
{
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    // The worker that is stopped must not lose its log.
    let section = section(&nats).replace("lease-secs = 2.5", "lease-secs = 300.0");
    let (one, other) = tokio::join!(
        ServeCatalog::worker("w1", &section).start(),
        ServeCatalog::worker("w2", &section).start()
    );
    let gateway_to = async |worker: &TestCatalog| {
        ServeCatalog::gateway().option("--worker", worker.own_url()).start().await
    };
    let (to_one, to_other) = tokio::join!(gateway_to(&one), gateway_to(&other));
    let (one, other) = (one.behind(to_one.url()), other.behind(to_other.url()));
    let up = async |catalog: &TestCatalog| {
        let metrics = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
        let is_up = |line: &str| line.starts_with("rollout_host_gateway_worker_up{") && line.ends_with(" 1");
        metrics.lines().any(is_up).then_some(())
    };
    until("the first worker", async || up(&one).await).await;
    until("the second worker", async || up(&other).await).await;
    let tenant = one.tenant("t", json!({})).await;
    one.serve(&tenant, "p", "tunable", "[plugin]\ngreeting = 'before'\n").await;
    let there = other.plugin(&tenant, "p");
    let runs = async |greeting_of: &str| {
        let reply = there.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        let text = |name: &str| Some(reply.body[name].as_str()?.to_owned());
        let admitted = Admitted { id: text("rollout_id")?, lease: text("polling_lease_token")? };
        let result = there.result(&admitted).await;
        // The rollouts of the deleted plugin are cancelled.
        (result["status"] == "success" && greeting(&result) == greeting_of).then_some(())
    };
    until("the second worker to serve the plugin", async || runs("before").await).await;

    other.process().signal(Signal::STOP);
    let reply = one.ask(&tenant.author, Method::DELETE, "/admin/v1/plugins/p", Value::Null).await;
    assert!(reply.status < 300, "{}", reply.text);
    one.serve(&tenant, "p", "tunable", "[plugin]\ngreeting = 'after'\n").await;
    other.process().signal(Signal::CONT);

    until("the second worker to serve the new code", async || runs("after").await).await;
}

#[tokio::test]
async fn a_gateway_shows_operators_its_workers_and_tenants_their_own() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let (catalog, _other, gateway) = cluster(&nats).await;
    let (one, two) = (catalog.tenant("one", json!({})).await, catalog.tenant("two", json!({})).await);
    catalog.serve(&one, "p", "conform", "").await;
    let plugin = catalog.plugin(&one, "p");
    let requests: Vec<_> = (0..8).map(|_| controller.rollout("Calculate 2 + 3.").label("5")).collect();
    let admitted = join_all(requests.iter().map(|request| plugin.admit(request))).await;
    join_all(admitted.iter().map(|admitted| plugin.result(admitted))).await;
    let workers: BTreeSet<_> = admitted.iter().filter_map(|one| one.lease.split('.').next()).collect();
    assert_eq!(workers.len(), 2);

    let metrics = async |key: &str| catalog.ask(key, Method::GET, "/metrics", Value::Null).await.text;
    let ended = |text: &str| {
        let ended = text.lines().filter(|line| line.starts_with("rollout_host_rollouts_ended_total{"));
        ended.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).sum::<u32>()
    };
    let of_operator = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
    assert!(
        of_operator.contains("rollout_host_gateway_worker_up") && ended(&of_operator) == 8,
        "{of_operator}"
    );
    let own = metrics(&one.author).await;
    assert!(!own.contains("rollout_host_gateway") && ended(&own) == 8, "{own}");
    let of_other = metrics(&two.author).await;
    assert!(!of_other.contains("rollout_host_gateway") && ended(&of_other) == 0, "{of_other}");
    assert_eq!(catalog.ask("rh_wrong", Method::GET, "/metrics", Value::Null).await.status, 401);

    let health = async |key: &str, path: &str| catalog.ask(key, Method::GET, path, Value::Null).await;
    assert_eq!(catalog.get_open("/health").await.body, json!({"status": "ok"}));
    let of_operator = catalog.as_operator(Method::GET, "/health", Value::Null).await.body;
    assert_eq!(of_operator["workers"].as_array().map(Vec::len), Some(2), "{of_operator:#}");
    let own = health(&one.author, "/p/p/health").await.body;
    assert_eq!((&own["completed_rollouts"], &own["workers"]), (&json!(8), &Value::Null), "{own:#}");
    assert_eq!(health(&two.author, "/p/p/health").await.status, 404);

    // The pages.
    let client =
        reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let url = |path: &str| format!("{}{path}", gateway.url());
    let closed = client.get(url("/ui/")).send().await.unwrap();
    assert_eq!(
        (closed.status().as_u16(), closed.headers()["location"].to_str().unwrap()),
        (303, "/ui/sign-in?next=%2Fui%2F")
    );
    let sign_in = async |key: &str| {
        let form = format!("key={key}&next=%2Fui%2F").replace('+', "%2B");
        let request = client.post(url("/ui/sign-in")).body(form);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request.send().await.unwrap()
    };
    assert_eq!(sign_in("rh_wrong").await.status(), 401);
    let page = async |cookie: &str, path: &str| {
        let answer = client.get(url(path)).header("cookie", cookie).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let session = async |key: &str| {
        let answer = sign_in(key).await;
        assert_eq!(answer.status(), 303, "{}", answer.text().await.unwrap());
        let cookie = answer.headers()["set-cookie"].to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    };
    let [of_one, of_two] = [session(&one.author).await, session(&two.author).await];
    let (status, text) = page(&of_one, "/ui/").await;
    assert_eq!(status, 200, "{text}");
    for admitted in &admitted {
        let path = format!("/ui/rollouts/{}", admitted.id);
        assert!(text.contains(&path), "{text}");
        let (status, shown) = page(&of_one, &path).await;
        assert!(status == 200 && shown.contains("Calculate 2 + 3."), "{shown}");
        assert_eq!(page(&of_two, &path).await.0, 404);
    }
    assert!(!text.contains("id=\"workers\""), "tenants do not see workers: {text}");
    let (_, text) = page(&of_two, "/ui/").await;
    assert!(!text.contains(&admitted[0].id), "{text}");
    assert_eq!(page(&of_one, "/ui/plugins/p").await.0, 200);
    let style = page("", "/ui/assets/style.css").await;
    assert_eq!(style.0, 200);
    let of_operator = session(catalog.operator_key()).await;
    let (_, text) = page(&of_operator, "/ui/").await;
    assert!(text.contains("id=\"workers\"") && text.contains("?tenant=one"), "{text}");
    let (_, text) = page(&of_operator, "/ui/?tenant=one").await;
    assert!(text.contains(&admitted[0].id), "{text}");
    let data = catalog.ask(&one.author, Method::GET, "/ui/data", Value::Null).await;
    assert_eq!(data.body["counts"]["scored"], 8, "{}", data.text);

    // A session ends with its key.
    let keys = catalog.operate(Method::GET, "/keys?tenant=two", Value::Null).await;
    for key in keys["items"].as_array().unwrap() {
        catalog.operate(Method::DELETE, &format!("/keys/{}", key["id"]), Value::Null).await;
    }
    until("the session to end", async || (page(&of_two, "/ui/").await.0 == 303).then_some(())).await;
}

#[tokio::test]
async fn a_component_passes_through_a_gateway_without_being_held_there() {
    const BYTES: usize = 80 << 20;
    let nats = TestNats::start().await;
    let (catalog, _other, gateway) = cluster(&nats).await;
    let tenant = catalog.tenant("t", json!({})).await;
    let component = vec![7_u8; BYTES];
    let digest = rollout_wire::digest::sha256_hex(&component);
    let upload = async |body: Vec<u8>| {
        let url = format!("{}/admin/v1/components/{digest}", gateway.url());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.put(url).bearer_auth(&tenant.author).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let before = peak_kib(&gateway);

    let (status, text) = upload(component).await;

    assert!(status == 200 || status == 201, "{status}: {text}");
    let grown = peak_kib(&gateway).saturating_sub(before);
    assert!(grown < 40 << 10, "{grown} KiB for a component of {} KiB", BYTES >> 10);
    // Any worker has it now.
    for _ in 0..4 {
        let path = format!("/admin/v1/components/{digest}");
        assert_eq!(catalog.ask(&tenant.author, Method::GET, &path, Value::Null).await.status, 200);
    }
    let (status, text) = upload(vec![8; 1 << 20]).await;
    assert!((400..500).contains(&status), "another component has another digest: {status} {text}");
}

/// Returns the peak memory of a gateway, in KiB.
fn peak_kib(host: &TestHost) -> u64 {
    let id = host.process().id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("this is a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).expect("it has one")
}
