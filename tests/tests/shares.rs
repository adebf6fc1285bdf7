//! Tests of tenants' shares of a server, and of their usage reports.

use reqwest::Method;
use rollout_tests::{Controller, ServeCatalog, TestCatalog, TestTenant, guest, until};
use serde_json::{Value, json};

/// Limit of a server's open files.
const OPEN_FILES: u32 = 400;

/// Creates a greedy tenant and another one, each with a plugin `p`.
async fn neighbours(serve: ServeCatalog) -> (TestCatalog, TestTenant, TestTenant) {
    let catalog = serve.open_files_max(OPEN_FILES).start().await;
    let greedy = catalog.tenant("greedy", json!({})).await;
    let other = catalog.tenant("other", json!({})).await;
    for tenant in [&greedy, &other] {
        catalog.serve(tenant, "p", "conform", "").await;
    }
    (catalog, greedy, other)
}

#[tokio::test]
async fn plugins_of_one_tenant_leave_open_files_to_the_plugins_of_others() {
    // More than the open files for the plugins of all tenants.
    const PLUGINS: usize = 60;
    let controller = Controller::start().await;
    controller.hold();
    let serve =
        ServeCatalog::default().config("[osmosis]\nresult-ttl-secs = 1.0\n[catalog]\nchecks-max = 4\n");
    let (catalog, greedy, other) = neighbours(serve).await;
    let digest = catalog.upload(&greedy, &guest("conform")).await;
    let request = || controller.rollout("2 + 3").label("5");
    // Each plugin is in use while its rollout runs.
    let mut busy = Vec::new();
    let mut refused = None;
    for n in 0..PLUGINS {
        let path = format!("/admin/v1/plugins/p{n}/deployments");
        let deployment = json!({"component": digest, "activate": true});
        let pushed = catalog.ask(&greedy.author, Method::POST, &path, deployment).await;
        assert_eq!(pushed.status, 201, "a push needs no file of those: {pushed:?}");
        let plugin = catalog.plugin(&greedy, &format!("p{n}"));
        if pushed.body["active"] != true {
            let why = pushed.body["activation_error"].as_str().unwrap_or_default();
            assert!(why.contains("open files"), "{pushed:?}");
            refused = Some(format!("p{n}"));
            break;
        }
        busy.push((plugin.admit(&request()).await, plugin));
    }

    let refused = refused.expect("not all of them have room");
    assert!(busy.len() >= 16, "a tenant that others need nothing of has many: {}", busy.len());
    // The other tenant has room for some plugins, which are not unloaded for the greedy one.
    let neighbour = catalog.plugin(&other, "p");
    let held = neighbour.admit(&request()).await;
    for n in 0..3 {
        catalog.serve(&other, &format!("q{n}"), "conform", "").await;
    }
    // Idle plugins are unloaded first, as far as the other tenant needs room.
    for (admitted, plugin) in busy.drain(..8) {
        plugin.cancel(&admitted.id).await;
    }
    let path = format!("/admin/v1/plugins/{refused}/activate");
    let activated = async || {
        let reply = catalog.ask(&greedy.author, Method::POST, &path, json!({"version": 1})).await;
        (reply.status == 200).then_some(())
    };
    until("the idle one to make room", activated).await;
    controller.release();
    assert_eq!(neighbour.result(&held).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn the_usage_of_a_rollout_is_shown_as_soon_as_it_has_ended() {
    let controller = Controller::start().await;
    let (catalog, greedy, _) = neighbours(ServeCatalog::default()).await;
    let plugin = catalog.plugin(&greedy, "p");
    let mut before = 0.0;
    // Usage is written every few seconds, perhaps during one of these rollouts.
    for _ in 0..4 {
        plugin.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        let usage = catalog.operate(Method::GET, "/tenants/greedy/usage", Value::Null).await;
        let now = usage["days"][0]["guest_cpu_seconds"].as_f64().unwrap_or_default();
        assert!(now > before, "{usage}");
        before = now;
    }
}
