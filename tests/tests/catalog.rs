//! Tests of many tenants and plugins in one process, for operators, authors and callers.

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::Method;
use rollout_tests::{
    Answer, Controller, InitRequest, ServeCatalog, TestCatalog, TestTenant, guest, until, waiting_component,
};
use serde_json::{Value, json};

/// Returns the greeting in the configuration of the version that ran a rollout of `tunable`.
fn greeting(result: &Value) -> String {
    let last = result["sample"]["messages"].as_array().and_then(|all| all.last());
    let text = last.and_then(|message| message["content"].as_str()).unwrap_or_else(|| panic!("{result:#}"));
    let config: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    config["greeting"].as_str().unwrap_or_else(|| panic!("{config}")).to_owned()
}

fn greets(version: u32) -> String {
    format!("[plugin]\ngreeting = 'v{version}'\n")
}

#[tokio::test]
async fn two_tenants_may_use_the_same_names_and_see_nothing_of_each_other() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let (one, two) = (catalog.tenant("one", json!({})).await, catalog.tenant("two", json!({})).await);
    catalog.serve(&one, "calc", "tunable", &greets(1)).await;
    catalog.serve(&two, "calc", "tunable", &greets(2)).await;
    let (of_one, of_two) = (catalog.plugin(&one, "calc"), catalog.plugin(&two, "calc"));
    let request = |text: &str| controller.rollout(text).id("the-same").label("5");

    let (first, second) =
        (of_one.admit(&request("Calculate 2 + 3.")).await, of_two.admit(&request("Calculate 2 + 3.")).await);
    let (of_first, of_second) = (of_one.result(&first).await, of_two.result(&second).await);

    assert_eq!((greeting(&of_first), greeting(&of_second)), ("v1".to_owned(), "v2".to_owned()));
    // Another tenant's lease is as invalid as an invented one.
    let guessed = rollout_tests::Admitted { lease: first.lease.clone(), ..second.clone() };
    assert_eq!(of_two.poll(&guessed).await.status, 403);
    catalog.serve(&one, "own", "conform", "").await;
    let (there, not_there) = (
        catalog.plugin(&two, "own").get("/health").await,
        catalog.plugin(&two, "never").get("/health").await,
    );
    assert_eq!((there.status, &there.text), (404, &not_there.text), "another tenant's plugin does not exist");
}

#[tokio::test]
async fn activation_is_atomic_and_fails_no_rollout() {
    const SWAPS: u32 = 50;
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    for version in 1..=2 {
        catalog.serve(&tenant, "p", "tunable", &greets(version)).await;
    }
    let plugin = catalog.plugin(&tenant, "p");
    let over = std::sync::atomic::AtomicBool::new(false);
    let load = async || {
        let mut seen = Vec::new();
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            let result = plugin.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
            assert_eq!(result["status"], "success", "{result:#}");
            seen.push(greeting(&result));
        }
        seen
    };
    let swaps = async {
        for swap in 0..SWAPS {
            let path = "/admin/v1/plugins/p/activate";
            let reply =
                catalog.ask(&tenant.author, Method::POST, path, json!({"version": 1 + swap % 2})).await;
            assert!(reply.status < 300, "{reply:?}");
            // New rollouts use the new version.
            let result = plugin.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
            assert_eq!(greeting(&result), format!("v{}", 1 + swap % 2));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    };

    let loads = futures_util::future::join_all((0..8).map(|_| load()));
    let (loads, ()) = tokio::join!(loads, swaps);

    let all: Vec<String> = loads.into_iter().flatten().collect();
    assert!(["v1", "v2"].iter().all(|version| all.iter().any(|seen| seen == version)), "{}", all.len());
    let back = catalog.ask(&tenant.author, Method::POST, "/admin/v1/plugins/p/rollback", Value::Null).await;
    assert!(back.status < 300, "{back:?}");
    let result = plugin.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(greeting(&result), "v1", "the version before the last");
}

#[tokio::test]
async fn after_a_kill_rollouts_continue_with_their_version() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenants = [catalog.tenant("a", json!({})).await, catalog.tenant("b", json!({})).await];
    controller.hold();
    let mut admitted = Vec::new();
    for tenant in &tenants {
        catalog.serve(tenant, "p", "tunable", &greets(1)).await;
        admitted
            .push(catalog.plugin(tenant, "p").admit(&controller.rollout("2 + 3").id("r").label("5")).await);
    }
    controller.chats_arrived(2).await;
    for tenant in &tenants {
        catalog.serve(tenant, "p", "tunable", &greets(2)).await;
    }

    let catalog = catalog.killed().await;
    controller.release();

    for (tenant, admitted) in tenants.iter().zip(&admitted) {
        let plugin = catalog.plugin(tenant, "p");
        assert_eq!(greeting(&plugin.result(admitted).await), "v1");
        assert_eq!(greeting(&plugin.run(&controller.rollout("2 + 3").label("5")).await), "v2");
        let trajectory = plugin.served_trajectory("r").await;
        assert!(trajectory["session_id"].is_string(), "{trajectory:#}");
    }
}

/// Returns the tokens and the guests' CPU seconds that a tenant used today, from the admin API.
async fn usage(catalog: &TestCatalog, tenant: &str) -> (u64, f64) {
    let usage = catalog.operate(Method::GET, &format!("/tenants/{tenant}/usage"), Value::Null).await;
    let today = &usage["days"][0];
    (
        today["model_tokens"].as_u64().unwrap_or_default(),
        today["guest_cpu_seconds"].as_f64().unwrap_or_default(),
    )
}

#[tokio::test]
async fn a_kill_loses_no_usage_of_rollouts_that_ended_a_moment_before() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "tunable", &greets(1)).await;
    let plugin = catalog.plugin(&tenant, "p");
    plugin.run(&controller.rollout("2 + 3").label("5")).await;
    let (tokens, cpu) = usage(&catalog, "t").await;
    assert!(tokens > 0 && cpu > 0.0, "{tokens} tokens, {cpu} s");
    let seen = tokio::time::Instant::now();
    while seen.elapsed() < std::time::Duration::from_millis(300) {
        plugin.run(&controller.rollout("2 + 3").label("5")).await;
    }

    let catalog = catalog.killed().await;

    let (tokens_after, cpu_after) = usage(&catalog, "t").await;
    assert!(
        tokens_after >= tokens && cpu_after >= cpu,
        "{tokens_after} of {tokens} tokens, {cpu_after} of {cpu} s"
    );
}

#[tokio::test]
async fn a_version_that_fails_its_checks_cannot_be_activated_and_has_a_reason() {
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;

    let broken = catalog.push(&tenant, "p", &guest("wrong_settings"), "", true).await;
    let unconfigured =
        catalog.push(&tenant, "p", &guest("conform"), "[network]\nprivate = 'open'\n", true).await;
    let too_much =
        catalog.push(&tenant, "p", &guest("conform"), "[limits]\nsamples-max = 100000\n", true).await;

    for (reply, part) in [
        (&broken, "setting"),
        (&unconfigured, "network: only the operator may set this"),
        (&too_much, "samples-max"),
    ] {
        assert!(
            reply.status < 300 && reply.body["passed"] == false && reply.body["active"] == false,
            "{}",
            reply.text
        );
        assert!(reply.text.contains(part), "{}", reply.text);
        let folder = catalog.folder();
        assert!(
            !reply.text.contains(&*folder.to_string_lossy()),
            "the host's path is not shown: {}",
            reply.text
        );
    }
    let reply = catalog
        .ask(&tenant.author, Method::POST, "/admin/v1/plugins/p/activate", json!({"version": 1}))
        .await;
    assert_eq!(reply.status, 409, "{reply:?}");
    assert_eq!(catalog.plugin(&tenant, "p").get("/health").await.status, 404);
}

#[tokio::test]
async fn a_key_has_its_rights_and_none_after_it_was_revoked() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");

    let viewer = catalog.plugin_with(&tenant.viewer, "p");
    assert_eq!(viewer.get("/health").await.status, 200);
    assert_eq!(viewer.ask(&request).await.status, 403);
    let by_caller = catalog.ask(&tenant.caller, Method::GET, "/admin/v1/tenants", Value::Null).await;
    assert_eq!(by_caller.status, 403, "{by_caller:?}");
    for invalid in ["", "rh_made-up", &"rh_".repeat(40)] {
        assert_eq!(catalog.plugin_with(invalid, "p").ask(&request).await.status, 401, "{invalid}");
    }
    let caller = catalog.plugin(&tenant, "p");
    assert_eq!(caller.run(&request).await["sample"]["reward"], 1.0);
    let keys = catalog.operate(Method::GET, "/keys?tenant=t", Value::Null).await;
    let all = keys["items"].as_array().unwrap_or_else(|| panic!("{keys:#}"));
    let of_caller = all.iter().find(|key| key["rights"] == "caller").unwrap_or_else(|| panic!("{keys:#}"));
    catalog.operate(Method::DELETE, &format!("/keys/{}", of_caller["id"]), Value::Null).await;
    assert_eq!(caller.ask(&controller.rollout("Calculate 2 + 3.")).await.status, 401);
    let catalog = catalog.killed().await;
    assert_eq!(catalog.plugin(&tenant, "p").get("/health").await.status, 401, "that outlives the process");
    assert_eq!(catalog.plugin_with(&tenant.author, "p").get("/health").await.status, 200);
}

#[tokio::test]
async fn an_exhausted_quota_is_named_with_its_usage_and_a_retry_time() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({"running": 1, "queued": 1})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");
    let rollout = || controller.rollout("Calculate 2 + 3.").label("5");
    controller.hold();
    let admitted = [plugin.admit(&rollout()).await, plugin.admit(&rollout()).await];

    let over = plugin.ask(&rollout()).await;
    assert_eq!(over.status, 429);
    assert_eq!(over.body["detail"], "the quota queued of this tenant is used up: 2 of 2; try again in 5 s");
    assert_eq!(over.headers["retry-after"], "5");
    let load = plugin.health().await["concurrency"].clone();
    assert_eq!(
        (&load["running"], &load["queued"], &load["max_concurrent"]),
        (&json!(1), &json!(1), &json!(1))
    );

    let change = async |quotas: Value| {
        catalog.operate(Method::PATCH, "/tenants/t", json!({"quotas": quotas})).await;
    };
    change(json!({"model-tokens-per-day": 0})).await;
    let over = until("the quota that was changed", async || {
        Some(plugin.ask(&rollout()).await).filter(|r| r.status == 403)
    })
    .await;
    assert_eq!(
        over.body["detail"],
        "the quota model-tokens-per-day of this tenant is used up: 0 of 0; waiting does not help, the operator can raise it"
    );
    change(json!({"model-tokens-per-day": null, "requests-per-second": 1})).await;
    let mut statuses = Vec::new();
    let limited = until("a rate", async || {
        let reply = plugin.ask(&rollout()).await;
        statuses.push(reply.status);
        Some(reply).filter(|reply| reply.status == 429)
    });
    let limited = limited.await;
    assert!(limited.text.contains("requests-per-second"), "{}", limited.text);
    controller.release();
    for admitted in &admitted {
        assert_eq!(
            plugin.result(admitted).await["sample"]["reward"],
            1.0,
            "polls are never refused for a quota"
        );
    }
    let series = "rollout_host_rollouts_refused_total{plugin=\"p\",reason=\"quota\",tenant=\"t\"}";
    let counted = plugin.metrics().await;
    assert!(counted.get(series).is_some_and(|count| count >= 3.0), "{series}");
}

/// Returns the size of the files in a folder, in bytes.
fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        // It was deleted in the meantime.
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[tokio::test]
async fn a_quota_of_stored_bytes_that_is_set_later_bounds_the_files_of_a_tenant_with_a_waiting_rollout() {
    const QUOTA_BYTES: u64 = 64 << 20;
    const PROMPT_BYTES: usize = 1 << 20;
    /// Maximum bytes of the last admitted rollout, which may exceed the quota: its prompt twice, and its outcome.
    const ADMITTED_BYTES: u64 = 3 * PROMPT_BYTES as u64;
    const ROLLOUTS: usize = 40;
    let (controller, held) = (Controller::start().await, Controller::start().await);
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");
    let journal = catalog.folder().join("tenants");
    let prompt = |number: usize| format!("{} 2 + {number}", "x".repeat(PROMPT_BYTES));
    let run = async |number: usize| {
        let request = controller.rollout(&prompt(number)).label("5");
        // Sealed segments are deleted in the background.
        let admitted = until("the rollout to be admitted", async || {
            let reply = plugin.ask(&request).await;
            assert!(matches!(reply.status, 202 | 403), "{}", reply.text);
            (reply.status == 202).then_some(reply)
        });
        let result = plugin.result(&admitted.await.admitted()).await;
        assert_eq!(result["status"], "success", "{result:#}");
        size_of(&journal)
    };
    held.hold();
    let waiting = plugin.admit(&held.rollout("2 + 3").label("5")).await;
    held.chats_arrived(1).await;
    let mut number = 0;
    while run(number).await < 2 * QUOTA_BYTES {
        number += 1;
        assert!(number < 200, "{} bytes are stored", size_of(&journal));
    }

    let quotas = json!({"quotas": {"stored-bytes": QUOTA_BYTES}});
    catalog.operate(Method::PATCH, "/tenants/t", quotas).await;

    until("the files to be within the quota", async || (size_of(&journal) <= QUOTA_BYTES).then_some(()))
        .await;
    let mut most = 0;
    for number in 0..ROLLOUTS {
        most = most.max(run(number).await);
    }
    assert!(most <= QUOTA_BYTES + ADMITTED_BYTES, "{most} bytes were stored");
    held.release();
    assert_eq!(plugin.result(&waiting).await["sample"]["reward"], 1.0, "the waiting rollout is retained");
}

#[tokio::test]
async fn running_rollouts_that_write_past_the_quota_of_stored_bytes_are_ended_with_a_stored_outcome() {
    const QUOTA_BYTES: u64 = 64 << 20;
    const REPLY_BYTES: usize = 512 << 10;
    const TURNS: usize = 500;
    const ROLLOUTS: usize = 6;
    /// The part of an outcome that was not charged: the metadata of the rollout.
    const OVERSHOOT_BYTES: u64 = 1 << 20;
    let (large, controller) = (Controller::start().await, Controller::start().await);
    let reply: &'static str = "x".repeat(REPLY_BYTES).leak();
    large.answer_chats(std::iter::repeat_n(Answer::Say(reply), ROLLOUTS * TURNS));
    let catalog = TestCatalog::start().await;
    let greedy = catalog.tenant("greedy", json!({"stored-bytes": QUOTA_BYTES})).await;
    let neighbour = catalog.tenant("neighbour", json!({"stored-bytes": QUOTA_BYTES})).await;
    catalog.serve(&greedy, "asks", "ask_again", "").await;
    catalog.serve(&neighbour, "p", "conform", "").await;
    let asks = catalog.plugin(&greedy, "asks");
    let other = catalog.plugin(&neighbour, "p");
    let files = catalog.folder().join("tenants");
    // The largest of the tenants' folders.
    let stored = || {
        let folders = std::fs::read_dir(&files).into_iter().flatten().flatten();
        folders.map(|folder| size_of(&folder.path())).max().unwrap_or_default()
    };

    let mut admitted = Vec::new();
    large.hold();
    for _ in 0..ROLLOUTS {
        admitted.push(asks.admit(&large.rollout(&TURNS.to_string()).label("5")).await);
    }
    large.release();
    // This result is read after a restart.
    let unread = admitted.pop().expect("there are several");
    let all = futures_util::future::join_all(admitted.iter().map(|one| asks.result(one)));
    let over = std::sync::atomic::AtomicBool::new(false);
    let ended = async {
        let results = all.await;
        asks.idle().await;
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        results
    };
    let watched = async {
        let mut most = 0;
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            let result = other.run(&controller.rollout("2 + 3").label("5")).await;
            assert_eq!(result["status"], "success", "the neighbour's rollouts go on: {result:#}");
            most = most.max(stored());
        }
        most
    };
    let (mut results, most) = tokio::join!(ended, watched);

    let catalog = catalog.killed().await;
    let asks = catalog.plugin(&greedy, "asks");
    results.push(asks.result(&unread).await);
    for result in &results {
        let reason = result["err_message"].as_str().unwrap_or_default();
        assert!(reason.contains("the quota stored-bytes of this tenant is used up"), "{result:#}");
    }
    assert!(most <= QUOTA_BYTES + OVERSHOOT_BYTES, "the tenant stored {most} bytes");
    // The ended rollouts' records make room for others.
    for plugin in [&asks, &catalog.plugin(&neighbour, "p")] {
        let result = plugin.run(&controller.rollout("2 + 3").label("5")).await;
        assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    }
}

#[tokio::test]
async fn a_tenants_requests_go_only_to_addresses_on_its_list() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant_within("t", json!({}), json!({"allow": []})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");

    let refused = plugin.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(refused.text.contains("has no entry for it"), "{}", refused.text);
    let allowed = json!({"network": {"allow": ["127.0.0.1"]}});
    catalog.operate(Method::PATCH, "/tenants/t", allowed).await;
    let admitted = until("the list that was changed", async || {
        let reply = plugin.ask(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        (reply.status == 202).then_some(reply)
    });
    admitted.await;
    controller.chats_arrived(1).await;
}

#[tokio::test]
async fn a_tenant_that_is_deleted_leaves_nothing_behind() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let (one, two) = (catalog.tenant("one", json!({})).await, catalog.tenant("two", json!({})).await);
    for tenant in [&one, &two] {
        catalog.serve(tenant, "p", "conform", "").await;
    }
    controller.hold();
    let of_one = catalog.plugin(&one, "p");
    of_one.admit(&controller.rollout("2 + 3").id("r").label("5")).await;
    let kept = catalog.plugin(&two, "p").admit(&controller.rollout("2 + 3").id("r").label("5")).await;
    controller.chats_arrived(2).await;
    let folders = || std::fs::read_dir(catalog.folder().join("tenants")).unwrap().count();
    assert_eq!(folders(), 2);

    catalog.operate(Method::DELETE, "/tenants/one", Value::Null).await;

    assert_eq!(of_one.get("/health").await.status, 401);
    until("its directory to be deleted", async || (folders() == 1).then_some(())).await;
    controller.release();
    assert_eq!(catalog.plugin(&two, "p").result(&kept).await["status"], "success");
    let made_again = catalog.tenant("one", json!({})).await;
    assert_eq!(catalog.plugin(&made_again, "p").get("/health").await.status, 404);
}

#[tokio::test]
async fn the_root_is_the_default_plugin_that_the_operator_sets() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let health = async || catalog.ask(&tenant.caller, Method::GET, "/health", Value::Null).await.status;
    assert_eq!(health().await, 404);
    catalog.ask(&tenant.author, Method::PATCH, "/admin/v1/plugins/p", json!({"default": true})).await;
    until("a default plugin", async || (health().await == 200).then_some(())).await;
    let rollout = controller.rollout("2 + 3").body();
    let reply = catalog.ask(&tenant.caller, Method::POST, "/rollout", rollout).await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let without = catalog.as_operator(Method::GET, "/p/p/health", Value::Null).await;
    assert_eq!(without.status, 403, "{}", without.text);
    let open = catalog.get_open("/health").await;
    assert_eq!((open.status, &*open.text), (200, "{\"status\":\"ok\"}"));
    let ready = catalog.get_open("/ready").await;
    assert_eq!((ready.status, ready.body), (200, json!({"ready": true})));
    let all = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
    assert!(all.contains("rollout_host_held_bytes_max") && all.contains("plugin=\"p\""), "{all}");
    let own = catalog.ask(&tenant.viewer, Method::GET, "/metrics", Value::Null).await.text;
    assert!(!own.contains("rollout_host_held_bytes") && own.contains("plugin=\"p\""), "{own}");
}

#[tokio::test]
async fn an_idle_plugin_is_unloaded_and_loaded_again_on_request() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default()
        .config("[catalog]\ncode-bytes-max = 1\n[osmosis]\nresult-ttl-secs = 1.0\n")
        .start()
        .await;
    let tenant: TestTenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    let plugin = catalog.plugin(&tenant, "p");
    controller.hold();
    let held = plugin.admit(&controller.rollout("2 + 3").label("5")).await;
    controller.chats_arrived(1).await;
    catalog.serve(&tenant, "q", "conform", "").await;
    let in_use = async || {
        let text = catalog.as_operator(Method::GET, "/metrics", Value::Null).await.text;
        ["p", "q"].map(|plugin| text.contains(&format!("plugin=\"{plugin}\"")))
    };
    until("the idle plugin to be unloaded", async || (in_use().await == [true, false]).then_some(())).await;
    controller.release();
    assert_eq!(plugin.result(&held).await["sample"]["reward"], 1.0, "a plugin in use stays loaded");
    assert_eq!(catalog.plugin(&tenant, "q").get("/health").await.status, 200, "it is loaded again");
    until("the other to go", async || (!in_use().await[0]).then_some(())).await;
    assert_eq!(plugin.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_plugin_without_open_files_because_others_are_busy_is_refused_with_503_and_the_reason() {
    /// Number of open files of the server, of which an eighth is for plugins.
    const OPEN_FILES: u32 = 256;
    /// Number of plugins that the tenant may have in use: it leaves as many to others, of which one is in use.
    const PLUGINS: usize = OPEN_FILES as usize / 8 / 2 - 1;
    let controller = Controller::start().await;
    // A plugin is in use until its results expire.
    let config = "[osmosis]\nresult-ttl-secs = 1.0\n";
    let catalog = ServeCatalog::default().open_files_max(OPEN_FILES).config(config).start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    let other = catalog.tenant("other", json!({})).await;
    let digest = catalog.upload(&tenant, &guest("conform")).await;
    // More plugins than can be loaded at once, so idle ones are unloaded until only busy ones are loaded.
    for number in 0..=PLUGINS + 1 {
        let deployment = json!({"component": digest, "activate": true});
        let path = format!("/admin/v1/plugins/p{number}/deployments");
        let reply = catalog.ask(&tenant.author, Method::POST, &path, deployment).await;
        assert_eq!(reply.body["active"], true, "{}", reply.text);
    }
    catalog.serve(&other, "p", "conform", "").await;
    let plugin = |number: usize| catalog.plugin(&tenant, &format!("p{number}"));
    controller.hold();
    let mut held = Vec::new();
    for number in 0..PLUGINS {
        held.push(plugin(number).admit(&controller.rollout("2 + 3").label("5")).await);
    }
    controller.chats_arrived(PLUGINS).await;

    let refused = plugin(PLUGINS).ask(&controller.rollout("2 + 3").label("5")).await;

    assert_eq!(refused.status, 503, "{}", refused.text);
    let reason = "too few open files are left for another plugin";
    assert!(refused.text.contains(reason), "{}", refused.text);
    assert!(refused.text.contains("those of this tenant 15"), "{}", refused.text);
    assert!(refused.text.contains("ulimit -n"), "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"), "{:?}", refused.headers);
    assert_eq!(
        catalog.plugin(&other, "p").get("/health").await.status,
        200,
        "another tenant has open files of its own"
    );
    controller.release();
    for (number, admitted) in held.iter().enumerate() {
        assert_eq!(plugin(number).result(admitted).await["sample"]["reward"], 1.0);
    }
    until("an idle plugin to be unloaded", async || {
        let reply = plugin(PLUGINS).get("/health").await;
        (reply.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn slow_starts_of_a_tenants_plugins_delay_no_callback_of_another_tenant_after_a_kill() {
    /// Number of plugins that start slowly: one after the other, they would take 8 s.
    const PLUGINS: usize = 4;
    const START_SECS: u32 = 2;
    const DELIVERY_TIME_MAX: Duration = Duration::from_secs(5);
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    // Tenants are opened in this order.
    let slow = catalog.tenant("a-slow", json!({})).await;
    let neighbour = catalog.tenant("neighbour", json!({})).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), waiting_component(START_SECS)).unwrap();
    for number in 0..PLUGINS {
        let reply = catalog.push(&slow, &format!("p{number}"), file.path(), "", true).await;
        assert_eq!(reply.body["active"], true, "{}", reply.text);
    }
    catalog.serve(&neighbour, "p", "conform", "").await;
    controller.hold_callbacks();
    let request = controller.rollout("2 + 3").label("5").with_callbacks("key-of-the-caller");
    let reply = catalog.plugin(&neighbour, "p").ask(&request).await;
    assert!(reply.status < 300, "{}", reply.text);
    let before = controller.callbacks_arrived(1).await.len();
    for number in 0..PLUGINS {
        let request = controller.rollout("2 + 3").with("grade", false);
        catalog.plugin(&slow, &format!("p{number}")).admit(&request).await;
    }

    let killed = Instant::now();
    let _catalog = catalog.killed().await;
    let arrived = controller.callbacks_arrived(before + 1).await;

    let time = killed.elapsed();
    assert_eq!(arrived[before].body["rollout_id"], request.rollout_id());
    assert!(time <= DELIVERY_TIME_MAX, "the callback arrived {time:?} after the kill");
}

#[tokio::test]
async fn a_plugin_has_its_own_quotas_and_generation_a_its_own_answer_to_a_wrong_key() {
    let controller = Controller::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("t", json!({})).await;
    catalog.serve(&tenant, "p", "conform", "").await;
    catalog.serve(&tenant, "free", "conform", "").await;
    let quotas = json!({"quotas": {"running": 1, "queued": 0}});
    let set = catalog.ask(&tenant.author, Method::PATCH, "/admin/v1/plugins/p", quotas).await;
    assert!(set.status < 300, "{set:?}");
    let plugin = catalog.plugin(&tenant, "p");
    until("the quota of the plugin", async || {
        (plugin.health().await["concurrency"]["max_concurrent"] == 1).then_some(())
    })
    .await;
    controller.hold();
    let init = InitRequest::new(&controller, "Calculate 2 + 3.");
    let admitted = plugin.post("/v1/rollout/init", &init.body()).await;
    assert_eq!(admitted.status, 202, "{}", admitted.text);
    let over =
        plugin.post("/v1/rollout/init", &InitRequest::new(&controller, "Calculate 2 + 3.").body()).await;
    assert_eq!(over.status, 429, "{}", over.text);
    assert!(over.text.contains("of this plugin is used up: 1 of 1"), "{}", over.text);
    let free = catalog.plugin(&tenant, "free").ask(&controller.rollout("2 + 3").label("5")).await;
    assert_eq!(free.status, 202, "another plugin of the tenant has its own: {}", free.text);
    let without = catalog.plugin_with("nothing", "p").post("/v1/rollout/init", &init.body()).await;
    assert_eq!((without.status, &without.body["detail"]), (401, &json!("Invalid or missing API key")));
    for open in ["/health", "/p/p/health", "/p/nobody-has-it/health"] {
        let health = catalog.get_open(open).await;
        assert_eq!((health.status, health.body), (200, json!({"status": "ok"})), "{open}");
    }
    assert_eq!(
        catalog.plugin_with("nothing", "p").get("/health").await.status,
        401,
        "a wrong key is rejected"
    );
    assert_eq!(catalog.get_open("/p/p/platform/health").await.status, 401);
    controller.release();
}
