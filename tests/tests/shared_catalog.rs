//! A catalog that several workers share, on its own and in real processes behind a gateway.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use reqwest::Method;
use rollout_catalog::{
    Catalog, CatalogError, CatalogSettings, Name, OpenError, ShareError, ShareSteps, SharedLog, StepError,
    TenantId, TenantSettings, lock_copy, share,
};
use rollout_cluster::{CatalogLog, Cluster, ClusterError, ClusterSettings, Severity};
use rollout_tests::{
    Admitted, CHANGES_MAX, Controller, Copies, CuttingStep, MemoryLog, RemovalStep, ServeCatalog, Start,
    TestCatalog, TestHost, TestNats, create, cut_log_contract, rollout_host, shared_catalog_contract, until,
    upload,
};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_catalog_with_a_log_in_memory_keeps_the_contract() {
    let log = Arc::new(MemoryLog::default());
    shared_catalog_contract([log.clone(), log.clone(), log]);
}

fn settings_on(nats: &TestNats) -> ClusterSettings {
    ClusterSettings { catalog_changes_max: CHANGES_MAX, ..nats.settings() }
}

async fn log_on(nats: &TestNats) -> Arc<dyn SharedLog> {
    let settings = settings_on(nats);
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

/// Returns a log in memory that is long from [`CHANGES_MAX`] changes on.
fn short_log() -> Arc<MemoryLog> {
    let log = MemoryLog::default();
    *log.changes_max.lock().unwrap() = usize::try_from(CHANGES_MAX).ok();
    Arc::new(log)
}

#[test]
fn copies_are_the_same_when_a_log_in_memory_is_cut() {
    let log = short_log();
    cut_log_contract(&[log.clone(), log.clone(), log]);
}

#[tokio::test]
async fn copies_are_the_same_when_a_log_on_nats_is_cut() {
    let nats = TestNats::start().await;
    let logs = [log_on(&nats).await, log_on(&nats).await, log_on(&nats).await];
    tokio::task::spawn_blocking(move || cut_log_contract(&logs)).await.unwrap();

    let log = log_on(&nats).await;
    let copies = Arc::new(Copies::new());
    let open = async |name: &'static str| {
        let (log, copies) = (log.clone(), copies.clone());
        tokio::task::spawn_blocking(move || copies.try_open(name, &log)).await.unwrap()
    };
    let whole = open("whole").await.unwrap();
    let (_, extent) = whole.log_position().unwrap();
    let finding = async || {
        let findings = rollout_cluster::check(&settings_on(&nats)).await;
        let of_snapshot = findings.into_iter().find(|finding| finding.check == "nats catalog snapshot");
        of_snapshot.expect("the log was cut").severity
    };
    assert_eq!(finding().await, Severity::Good);
    let cluster = Cluster::connect(settings_on(&nats)).await.unwrap();
    let objects = cluster.jetstream().get_object_store("rollout-components").await.unwrap();
    let names = objects.list().await.unwrap().map(|object| object.unwrap().name).collect::<Vec<_>>().await;
    let snapshots: Vec<_> = names.iter().filter(|name| name.starts_with("snapshot-")).collect();
    let expected = format!("snapshot-{}", extent.first);
    assert_eq!(snapshots, [&expected], "earlier ones were removed");
    let is_needed =
        |name: &str| name.split('-').nth(1).and_then(|text| text.parse::<u64>().ok()) >= Some(extent.first);
    assert!(names.iter().filter(|name| name.starts_with("change-")).all(|name| is_needed(name)), "{names:?}");

    // Without the snapshot, only a worker that does not need it starts, and stores another one.
    objects.delete(&expected).await.unwrap();
    assert_eq!(finding().await, Severity::Failure);
    let error = open("new").await.err().unwrap().to_string();
    assert!(error.contains("the snapshot of the change is missing"), "{error}");
    let is_cut = tokio::task::spawn_blocking(move || whole.catch_up().and_then(|()| whole.shorten_log()));
    assert!(is_cut.await.unwrap().unwrap());
    assert_eq!(open("new").await.unwrap().tenants(None, 1000).unwrap().len(), 26);
    assert_eq!(finding().await, Severity::Good);
}

#[tokio::test]
async fn a_new_worker_starts_from_a_snapshot_of_another_one() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let section = format!("{}catalog-changes-max = 4\n", section(&nats));
    let one = ServeCatalog::worker("w1", &section).start().await;
    let gateway = ServeCatalog::gateway().config(&section).start().await;
    let one = one.behind(gateway.url());
    until("the first worker", async || one.get_open("/health").await.body["status"].as_str().map(drop)).await;
    let metric = async |name: &str, worker: &str| {
        let metrics = one.as_operator(Method::GET, "/metrics", Value::Null).await.text;
        let start = format!("rollout_host_catalog_{name}{{worker=\"{worker}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok())
    };
    until("metrics of the worker", async || metric("change", "w1").await).await;
    let tenant = one.tenant("t", json!({})).await;
    one.serve(&tenant, "p", "tunable", "[plugin]\ngreeting = 'v1'\n").await;
    for number in 0..6 {
        one.tenant(&format!("t{number}"), json!({})).await;
    }
    until("a short log", async || metric("log_changes", "w1").await.filter(|changes| *changes <= 4)).await;
    let change = metric("change", "w1").await.unwrap();
    assert!(change > 12, "{change}");

    let _other = ServeCatalog::worker("w2", &section).start().await;

    let plugin = one.plugin(&tenant, "p");
    until("both workers to serve", async || (served(&plugin, &controller).await == both("v1")).then_some(()))
        .await;
    assert!(metric("change", "w2").await.is_some_and(|at| at >= change));
    assert_eq!(metric("changes_behind", "w2").await, Some(0));
}

#[test]
fn a_process_may_die_after_each_step_of_cutting_the_log() {
    let steps = [CuttingStep::Checkpoint, CuttingStep::Snapshot, CuttingStep::Cut];
    for (step, is_done) in steps.into_iter().flat_map(|step| [(step, false), (step, true)]) {
        let (log, copies) = (short_log(), Copies::new());
        let shared: Arc<dyn SharedLog> = log.clone();
        let names = |catalog: &Catalog| {
            let tenants = catalog.tenants(None, 1000).unwrap();
            tenants.into_iter().map(|tenant| tenant.name.to_string()).collect::<BTreeSet<_>>()
        };
        let one = copies.open("one", &shared);
        create(&one, "a");
        let behind = copies.open("behind", &shared);
        let at_the_end = copies.open("at-the-end", &shared);
        let mut expected = BTreeSet::from(["a".to_owned()]);
        for number in 0..8 {
            create(&one, &format!("t{number}"));
            expected.insert(format!("t{number}"));
        }
        at_the_end.catch_up().unwrap();
        *log.failing.lock().unwrap() = Some((step, is_done));
        one.catch_up().unwrap();
        let error = one.shorten_log().unwrap_err();
        assert!(matches!(error, CatalogError::Unavailable(_)), "{error}");
        drop(one);
        *log.failing.lock().unwrap() = None;

        let one = copies.open("one", &shared);
        for catalog in [&one, &behind, &at_the_end, &copies.open("new", &shared)] {
            catalog.catch_up().unwrap();
            assert_eq!(names(catalog), expected, "{step:?} {is_done}");
        }
        create(&behind, "next");
        expected.insert("next".to_owned());
        let is_cut = (step, is_done) == (CuttingStep::Cut, true);
        let is_begun = (step, is_done) != (CuttingStep::Checkpoint, false);
        at_the_end.catch_up().unwrap();
        if is_begun {
            assert!(!at_the_end.shorten_log().unwrap(), "another process may be at it: {step:?} {is_done}");
            copies.clock.advance(60);
        }
        assert_eq!(at_the_end.shorten_log().unwrap(), !is_cut, "{step:?} {is_done}");
        for catalog in [&one, &behind, &at_the_end, &copies.open("newer", &shared)] {
            catalog.catch_up().unwrap();
            assert_eq!(names(catalog), expected, "{step:?} {is_done}");
        }
        assert!(*log.removed.lock().unwrap() >= 9, "{step:?} {is_done}");
    }
}

#[test]
fn a_full_log_gets_one_checkpoint_while_its_snapshot_cannot_be_stored() {
    let (log, copies) = (short_log(), Copies::new());
    let shared: Arc<dyn SharedLog> = log.clone();
    let (one, other) = (copies.open("one", &shared), copies.open("other", &shared));
    for number in 0..8 {
        create(&one, &format!("t{number}"));
    }
    *log.is_full.lock().unwrap() = true;
    *log.failing.lock().unwrap() = Some((CuttingStep::Snapshot, false));
    let try_to_cut = |catalog: &Catalog| {
        catalog.catch_up().unwrap();
        let error = catalog.shorten_log().unwrap_err();
        assert!(matches!(error, CatalogError::Unavailable(_)), "{error}");
        assert_eq!(log.changes.lock().unwrap().len(), 9, "there is one checkpoint");
    };

    try_to_cut(&one);
    assert!(!one.shorten_log().unwrap(), "the next try waits");
    for _ in 0..3 {
        copies.clock.advance(60);
        try_to_cut(&one);
    }
    // A process that has not seen the checkpoint's time, and one that has.
    drop(one);
    let one = copies.open("one", &shared);
    copies.clock.advance(60);
    try_to_cut(&one);
    other.catch_up().unwrap();
    assert!(!other.shorten_log().unwrap(), "another process may be at it");
    copies.clock.advance(60);
    try_to_cut(&other);
    let refused = one.create_tenant(&"refused".parse().unwrap(), &TenantSettings::default()).unwrap_err();
    assert!(refused.to_string().contains("the log is full"), "{refused}");

    // The store is back: the snapshot is that of the same checkpoint.
    *log.failing.lock().unwrap() = None;
    copies.clock.advance(60);
    one.catch_up().unwrap();
    assert!(one.shorten_log().unwrap());
    *log.is_full.lock().unwrap() = false;
    let (_, extent) = one.log_position().unwrap();
    assert_eq!((extent.first, extent.last), (9, 9));
    for catalog in [&one, &other, &copies.open("new", &shared)] {
        catalog.catch_up().unwrap();
        assert_eq!(catalog.tenants(None, 1000).unwrap().len(), 8);
    }
}

#[test]
fn a_catalog_is_used_by_others_while_a_writer_downloads_a_snapshot() {
    let (log, copies) = (short_log(), Copies::new());
    let shared: Arc<dyn SharedLog> = log.clone();
    let (one, behind) = (copies.open("one", &shared), copies.open("behind", &shared));
    for number in 0..8 {
        create(&one, &format!("t{number}"));
    }
    one.catch_up().unwrap();
    assert!(one.shorten_log().unwrap());
    let reading = behind.clone();
    let (read, is_read) = std::sync::mpsc::channel();
    let work = move || {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // It applies the snapshot itself, so the writer's download is not needed any more.
            reading.catch_up().unwrap();
            let _ = done.send(reading.tenants(None, 1000).unwrap().len());
        });
        let _ = read.send(is_done.recv_timeout(rollout_tests::TIMEOUT));
    };
    *log.at_download.lock().unwrap() = Some(Box::new(work));

    create(&behind, "next");

    assert_eq!(is_read.recv().unwrap(), Ok(8), "the catalog can be used during the download");
    one.catch_up().unwrap();
    for catalog in [&one, &behind, &copies.open("new", &shared)] {
        assert_eq!(catalog.tenants(None, 1000).unwrap().len(), 9);
    }
}

#[test]
fn a_component_that_another_process_is_given_while_it_is_removed_stays() {
    for step in [RemovalStep::BeforeVersion, RemovalStep::AfterVersion, RemovalStep::BeforeRemoval] {
        let (log, copies) = (short_log(), Copies::new());
        let shared: Arc<dyn SharedLog> = log.clone();
        let (one, other) = (copies.open("one", &shared), copies.open("other", &shared));
        let (a, b) = (create(&one, "a"), create(&one, "b"));
        other.catch_up().unwrap();
        let component = upload(&one, a, b"a component");
        let given = other.clone();
        let work = Box::new(move || {
            upload(&given, b, b"a component");
        });
        *log.at_removal.lock().unwrap() = Some((step, work));
        let deleted = one.delete_tenant("a").unwrap();
        one.finish_deleting(deleted).unwrap();

        assert!(log.at_removal.lock().unwrap().is_none(), "{step:?}");
        let third = copies.open("third", &shared);
        for catalog in [&one, &third] {
            catalog.catch_up().unwrap();
            assert!(catalog.component(b, component).unwrap().is_some(), "{step:?}");
            let path = catalog.component_path(component).unwrap_or_else(|error| panic!("{step:?}: {error}"));
            assert_eq!(std::fs::read(path).unwrap(), b"a component", "{step:?}");
        }
        // The last owner's removal is not prevented.
        drop(third);
        let deleted = one.delete_tenant("b").unwrap();
        one.finish_deleting(deleted).unwrap();
        let gone = copies.folder("gone");
        assert!(shared.fetch_component(component, &gone).is_err(), "{step:?}");
    }
}

#[test]
fn damage_of_a_snapshot_is_found_and_repaired_by_a_copy_that_does_not_need_it() {
    let (log, copies) = (short_log(), Copies::new());
    let shared: Arc<dyn SharedLog> = log.clone();
    let whole = copies.open("whole", &shared);
    let behind = copies.open("behind", &shared);
    for number in 0..8 {
        create(&whole, &format!("t{number}"));
    }
    whole.catch_up().unwrap();
    assert!(whole.shorten_log().unwrap());
    let snapshot = log.snapshots.lock().unwrap()[&9].clone();
    let set = |contents: Option<Vec<u8>>| {
        let mut snapshots = log.snapshots.lock().unwrap();
        snapshots.clear();
        snapshots.extend(contents.map(|contents| (9, contents)));
    };
    let refused = |expected: &str| {
        let error = behind.catch_up().unwrap_err().to_string();
        let advice = "start a worker whose copy has change 8 or a later one";
        assert!(error.contains(expected) && error.contains(advice), "{error}");
        assert!(behind.tenants(None, 10).unwrap().is_empty(), "nothing was applied");
        let error = copies.try_open("new", &shared).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };

    set(None);
    refused("the snapshot of the change is missing");
    for at in [0, 8, 39, 40, 60, snapshot.len() - 1] {
        let mut wrong = snapshot.clone();
        wrong[at] ^= 1;
        set(Some(wrong));
        refused("the snapshot of the change is damaged");
    }
    for length in [0, 7, 39, 40, snapshot.len() - 1] {
        set(Some(snapshot[..length].to_vec()));
        refused("the snapshot of the change is damaged");
    }
    // Changes that were removed without a snapshot.
    create(&whole, "t8");
    *log.removed.lock().unwrap() = 9;
    let error = behind.catch_up().unwrap_err().to_string();
    assert!(
        error.contains("begins with change 10") && error.contains("changes between are missing"),
        "{error}"
    );
    *log.removed.lock().unwrap() = 8;
    set(Some(snapshot[..40].to_vec()));

    // A process that starts with a whole copy replaces the snapshot.
    drop(whole);
    let whole = copies.open("whole", &shared);
    whole.catch_up().unwrap();
    assert!(whole.shorten_log().unwrap());
    for catalog in [&behind, &copies.open("new", &shared)] {
        catalog.catch_up().unwrap();
        assert_eq!(catalog.tenants(None, 10).unwrap().len(), 9);
    }

    // A log with the same name that begins with other changes.
    let another = short_log();
    let elsewhere: Arc<dyn SharedLog> = another.clone();
    let catalog = copies.open("elsewhere", &elsewhere);
    for number in 0..20 {
        create(&catalog, &format!("x{number}"));
    }
    catalog.catch_up().unwrap();
    assert!(catalog.shorten_log().unwrap());
    drop(behind);
    let error = copies.try_open("behind", &elsewhere).err().unwrap().to_string();
    assert!(error.contains("another log has its name"), "{error}");
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

pub(crate) fn section(nats: &TestNats) -> String {
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
pub(crate) fn greeting(result: &Value) -> String {
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
async fn the_catalog_of_a_single_server_becomes_that_of_a_cluster() {
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let single = ServeCatalog::default().config("drain-secs = 0.2\n").start().await;
    let tenant = single.tenant("acme", json!({"model-tokens-per-day": 1_000_000})).await;
    let deleted = single.tenant("deleted", json!({})).await;
    single.operate(Method::DELETE, &format!("/tenants/{}", deleted.name), Value::Null).await;
    let secret = json!({"value": "key-of-the-model"});
    let reply = single.ask(&tenant.author, Method::PUT, "/admin/v1/secrets/policy", secret).await;
    assert!(reply.status < 300, "{reply:?}");
    single.serve(&tenant, "p", "tunable", "[plugin]\ngreeting = 'v1'\n").await;
    let gym = format!(
        "[nemo-gym]\nmodel-url = '{}'\nmodel = 'mine'\nmodel-key-env = 'policy'\n",
        controller.model_url()
    );
    single.serve(&tenant, "calc", "conform", &gym).await;
    let plugin = single.plugin(&tenant, "p");
    let read = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(greeting(&plugin.result(&read).await), "v1");
    let unread = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    until("the second rollout to end", async || {
        (plugin.health().await["completed_rollouts"] == 2).then_some(())
    })
    .await;

    let section = section(&nats);
    let worker = tempfile::tempdir().unwrap();
    let worker_file = worker.path().join("worker.toml");
    let text = format!(
        "[journal]\nkey-env = 'JOURNAL_KEY'\n[cluster]\nrole = 'worker'\nkey-env = 'CLUSTER_KEY'\n{section}"
    );
    std::fs::write(&worker_file, text).unwrap();
    let share_by_command = async |folder: &std::path::Path, options: &[&str]| {
        let mut command = rollout_host(["cluster", "share-catalog"]);
        command.arg(folder).arg("--config").arg(&worker_file).args(options);
        command.env("JOURNAL_KEY", "the-key-of-all-journals").start().ended().await
    };
    let refused = share_by_command(&single.folder(), &[]).await;
    assert!(
        refused.code == Some(2) && refused.stderr.contains("is locked by another process"),
        "{refused:?}"
    );
    let left = single.left().await;
    let refused = share_by_command(&left.folder(), &[]).await;
    let expected = "rollouts that callers wait for (0 unfinished, 1 with unread results)";
    assert!(refused.code == Some(2) && refused.stderr.contains(expected), "{refused:?}");
    // The folder is as before.
    let single = left.start(ServeCatalog::default().config("drain-secs = 5.0\n")).await;
    assert_eq!(greeting(&single.plugin(&tenant, "p").result(&unread).await), "v1");
    single.plugin(&tenant, "calc").run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    let tokens = async |catalog: &TestCatalog| {
        let reply = catalog.as_operator(Method::GET, "/admin/v1/tenants/acme/usage", Value::Null).await;
        reply.body["days"][0]["model_tokens"].as_u64()
    };
    let used = tokens(&single).await;
    assert!(used > Some(0));
    let left = single.left().await;

    let shared = share_by_command(&left.folder(), &[]).await;

    assert_eq!(shared.code, Some(0), "{}", shared.stderr);
    assert!(shared.stdout.contains("shared: 1 tenant, 4 keys, 2 plugins and 2 components"), "{shared:?}");
    let again = share_by_command(&left.folder(), &[]).await;
    assert!(again.code == Some(2) && again.stderr.contains("is shared already"), "{again:?}");
    let one = left.start(ServeCatalog::worker("w1", &section)).await;
    let other = ServeCatalog::worker("w2", &section).start().await;
    let gateway = ServeCatalog::gateway().config(&section).start().await;
    let one = one.behind(gateway.url());
    until("the usage before", async || (tokens(&one).await == used).then_some(())).await;
    let plugin = one.plugin(&tenant, "p");
    until("both workers to serve", async || (served(&plugin, &controller).await == both("v1")).then_some(()))
        .await;
    // Both workers open the secret.
    let row = json!({"responses_create_params": {"input": "Calculate 2 + 3."}, "label": "5"});
    for worker in [&one, &other] {
        let reply = reqwest::Client::new()
            .post(format!("{}/p/calc/run", worker.own_url()))
            .header("authorization", format!("Bearer {}", tenant.caller))
            .header("x-rollout-host-cluster-key", "the-key-of-the-cluster")
            .json(&row)
            .send()
            .await
            .unwrap();
        assert_eq!(reply.status(), 200);
        let chat = controller.chats().pop().unwrap();
        assert_eq!(chat.header("authorization"), Some("Bearer key-of-the-model"));
    }
    // The number of a deleted tenant is not used again.
    let numbers = |folder: std::path::PathBuf| {
        let names = std::fs::read_dir(folder.join("tenants")).unwrap();
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    one.tenant("next", json!({})).await;
    until("the copies", async || {
        let both = [numbers(one.folder()), numbers(other.folder())];
        both.iter().all(|numbers| *numbers == ["1", "3"].map(str::to_owned).into()).then_some(())
    })
    .await;
    assert!(one.folder().join("journals-before-sharing/1").is_dir());
}

/// Steps of sharing a catalog without secrets and journals.
#[derive(Default)]
struct Steps {
    /// Whether the folder cannot be made ready.
    is_interrupted: bool,
}

impl ShareSteps for Steps {
    fn check(&self) -> Result<(), StepError> {
        Ok(())
    }

    fn seal_again(&self, _: TenantId, _: &Name, sealed: &[u8]) -> Option<Vec<u8>> {
        sealed.strip_prefix(b"known ").map(<[u8]>::to_vec)
    }

    fn prepare(&self) -> Result<(), StepError> {
        if self.is_interrupted { Err("the disk is full".into()) } else { Ok(()) }
    }
}

/// Returns the folder of a catalog of one process with a tenant.
fn own_catalog() -> (tempfile::TempDir, TenantId) {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(CatalogSettings::new(folder.path())).unwrap();
    let tenant = create(&catalog, "mine");
    (folder, tenant)
}

#[test]
fn a_catalog_is_not_shared_with_a_cluster_that_has_one() {
    let log: Arc<dyn SharedLog> = Arc::new(MemoryLog::default());
    let (own, _) = own_catalog();
    create(&Copies::new().try_open("one", &log).unwrap(), "theirs");
    let error = share(own.path(), &log, &Steps::default()).unwrap_err();
    assert!(matches!(error, ShareError::NotEmpty), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = share(empty.path(), &log, &Steps::default()).unwrap_err();
    assert!(matches!(error, ShareError::Empty), "{error}");
    let own = Catalog::open(CatalogSettings::new(own.path())).unwrap();
    assert_eq!(own.tenants(None, 9).unwrap().len(), 1, "it is as before");
}

#[test]
fn all_secrets_of_another_key_are_named_and_nothing_is_shared() {
    let log: Arc<dyn SharedLog> = Arc::new(MemoryLog::default());
    let (folder, tenant) = own_catalog();
    let set = |name: &str, sealed: &[u8]| {
        let catalog = Catalog::open(CatalogSettings::new(folder.path())).unwrap();
        catalog.set_secret(tenant, &name.parse().unwrap(), sealed).unwrap();
    };
    set("a", b"known a");
    set("b", b"foreign");
    set("c", b"foreign");
    let error = share(folder.path(), &log, &Steps::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("these secrets were sealed with another key: 'b' of tenant {tenant}, 'c' of tenant {tenant}")
    );
    assert!(log.read(0).unwrap().is_empty());
    set("b", b"known b");
    set("c", b"known c");
    share(folder.path(), &log, &Steps::default()).unwrap();
    let copy = Copies::new().try_open("one", &log).unwrap();
    let sealed: Vec<_> = copy.secrets(tenant).unwrap().into_iter().map(|(_, sealed)| sealed).collect();
    assert_eq!(sealed, [b"a", b"b", b"c"]);
}

#[test]
fn a_catalog_whose_sharing_was_interrupted_is_no_workers_until_it_is_completed() {
    let log: Arc<dyn SharedLog> = Arc::new(MemoryLog::default());
    let (folder, _) = own_catalog();
    let error = share(folder.path(), &log, &Steps { is_interrupted: true }).unwrap_err();
    assert!(
        matches!(error, ShareError::NotReady(_)) && error.to_string().contains("the disk is full"),
        "{error}"
    );
    let error = lock_copy(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Interrupted(_)), "{error}");
    let contents = share(folder.path(), &log, &Steps::default()).unwrap();
    assert_eq!((contents.tenants, contents.keys), (1, 0));
    drop(lock_copy(folder.path()).unwrap());
    let error = share(folder.path(), &log, &Steps::default()).unwrap_err();
    assert!(matches!(error, ShareError::Already), "{error}");
    assert_eq!(log.extent().first, 2, "the log was cut");
    assert_eq!(Copies::new().try_open("one", &log).unwrap().tenants(None, 9).unwrap().len(), 1);
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
    const MORE: usize = 8;
    let nats = TestNats::start().await;
    let controller = Controller::start().await;
    let section = section(&nats);
    let (one, _other) = tokio::join!(
        ServeCatalog::worker("w1", &section).option("--max-concurrent", 2).start(),
        ServeCatalog::worker("w2", &section).option("--max-concurrent", 2 * MORE).start()
    );
    // One gateway reaches only the first worker.
    let to_one = ServeCatalog::gateway().option("--worker", one.own_url()).start().await;
    let gateway = ServeCatalog::gateway().config(&section).start().await;
    let one = one.behind(gateway.url());
    let has_room = async |catalog: &TestCatalog, worker: &str, room: usize| {
        let metrics = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
        let line = format!("rollout_host_gateway_worker_room{{worker=\"{worker}\"}} {room}");
        metrics.lines().any(|found| found == line)
    };
    until("both workers", async || {
        (has_room(&one, "w1", 2).await && has_room(&one, "w2", 2 * MORE).await).then_some(())
    })
    .await;
    let tenant = one.tenant("t", json!({"running": 2 + MORE, "queued": 40})).await;
    one.serve(&tenant, "p", "conform", "").await;
    let one = one.behind(to_one.url());
    let at_one = one.plugin(&tenant, "p");
    until("the first worker to serve the plugin", async || {
        (at_one.get("/health").await.status == 200).then_some(())
    })
    .await;
    controller.hold();
    let mut admitted = Vec::new();
    for _ in 0..2 {
        admitted.push(at_one.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await);
    }
    controller.chats_open(2).await;
    let one = one.behind(gateway.url());
    until("the gateway to know that the first worker is full", async || {
        has_room(&one, "w1", 0).await.then_some(())
    })
    .await;

    // Half of the ids prefer the first worker.
    let plugin = one.plugin(&tenant, "p");
    for _ in 0..MORE {
        let more = plugin.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert!(more.lease.starts_with("w2."), "{}", more.lease);
        admitted.push(more);
    }

    // The other worker leases what is left of the quota, so that none waits.
    controller.chats_open(2 + MORE).await;
    controller.release();
    for admitted in &admitted {
        assert_eq!(plugin.result(admitted).await["sample"]["reward"], 1.0);
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
    let learns = async {
        // The first worker has loaded the new code, and waits for the second one.
        let staged = || one.process().stderr().matches("a version is staged").count();
        until("the push to be staged", async || (staged() == 2).then_some(())).await;
        other.process().signal(Signal::CONT);
    };
    let pushing = one.serve(&tenant, "p", "tunable", "[plugin]\ngreeting = 'after'\n");
    futures_util::future::join(pushing, learns).await;

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
async fn a_gateway_without_workers_answers_with_its_own_facts() {
    let nats = TestNats::start().await;
    let section = section(&nats);
    let gateway = ServeCatalog::gateway().config(&section).start().await;
    let keyed = ServeCatalog::gateway()
        .config(&section)
        .option("--server-key-env", "SERVER_KEY")
        .variable("SERVER_KEY", "the-key-of-the-server")
        .start()
        .await;
    let health = gateway.get("/health").await;
    let lifecycle = json!({"accepting_rollouts": false, "active_rollouts": 0});
    assert_eq!(
        (health.status, health.body),
        (200, json!({"status": "no_workers", "lifecycle": lifecycle, "workers": []}))
    );
    const NONE: &str = "rollout_host_gateway_workers 0\n";
    let metrics = gateway.get("/metrics").await;
    assert!(metrics.status == 200 && metrics.text.ends_with(NONE), "{}", metrics.text);
    assert_eq!(gateway.get("/ready").await.status, 503);
    // With a key of its own, a gateway checks it with and without workers.
    for path in ["/health", "/metrics"] {
        assert_eq!(keyed.get(path).await.status, 401);
    }
    let keyed = keyed.with_key("the-key-of-the-server");
    assert_eq!(keyed.health().await["status"], "no_workers");
    assert!(keyed.get("/metrics").await.text.contains(NONE));

    let worker = ServeCatalog::worker("w1", &section).start().await.behind(gateway.url());
    let as_operator = async |path: &str| worker.as_operator(Method::GET, path, Value::Null).await;
    until("the worker", async || {
        let health = as_operator("/health").await.body;
        (health["status"] == "ok" && health["workers"][0]["is_up"] == true).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/metrics").await.status, 401);
    assert!(as_operator("/metrics").await.text.contains("rollout_host_gateway_workers 1\n"));

    let operator = worker.operator_key();
    worker.stop().await;
    until("no worker", async || (gateway.health().await["status"] == "no_workers").then_some(())).await;
    assert_eq!(gateway.get("/metrics").await.status, 401, "the next worker checks keys again");
    let metrics = gateway.with_key(operator).get("/metrics").await;
    assert!(metrics.text.ends_with(NONE) && !metrics.text.contains("worker_up"), "{}", metrics.text);
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
