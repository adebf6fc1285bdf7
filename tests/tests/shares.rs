//! What tenants have of a server that they share, and what they are shown of it.

use reqwest::Method;
use rollout_tests::{Controller, ServeCatalog, TestCatalog, TestTenant};
use serde_json::{Value, json};

/// Open files of a server here.
const OPEN_FILES: u32 = 400;

/// A greedy tenant beside another one, each with a plugin `p`.
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
async fn what_a_tenant_used_is_shown_as_soon_as_its_rollout_is_over() {
    let controller = Controller::start().await;
    let (catalog, greedy, _) = neighbours(ServeCatalog::default()).await;
    let plugin = catalog.plugin(&greedy, "p");
    let mut before = 0.0;
    // What is used is written every few seconds, which one of these may meet.
    for _ in 0..4 {
        plugin.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        let usage = catalog.operate(Method::GET, "/tenants/greedy/usage", Value::Null).await;
        let now = usage["days"][0]["guest_cpu_seconds"].as_f64().unwrap_or_default();
        assert!(now > before, "{usage}");
        before = now;
    }
}
