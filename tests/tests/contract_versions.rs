//! Plugins of each published version of the contract, served by this host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rollout_guest::plugin::CONTRACT_VERSIONS;
use rollout_tests::{Controller, Start, TestHost, rollout_host};
use tempfile::TempDir;
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

/// Time for a command that may compile a component.
const COMMAND: Duration = Duration::from_secs(300);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the component of a published version, with `becomes` in place of its version. Its core module and its
/// contract are files that never change.
fn component(version: &str, becomes: &str) -> Result<Vec<u8>> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        anyhow::Ok(text.replace(&format!("@{version}"), &format!("@{becomes}")))
    };
    let core = read(root().join("tests/contract").join(format!("{version}.wat")))?;
    let mut core = wat::parse_str(core)?;
    let mut resolve = Resolve::default();
    let contract = read(root().join("wit").join(version).join("plugin.wit"))?;
    let package = resolve.push_source("plugin.wit", &contract)?;
    let world = resolve.select_world(&[package], Some("rollout-plugin"))?;
    wit_component::embed_component_metadata(&mut core, &resolve, world, StringEncoding::UTF8)?;
    ComponentEncoder::default().validate(true).module(&core)?.encode()
}

fn file(folder: &TempDir, version: &str, becomes: &str) -> PathBuf {
    let path = folder.path().join(format!("{becomes}.wasm"));
    std::fs::write(&path, component(version, becomes).unwrap()).unwrap();
    path
}

#[tokio::test]
async fn a_plugin_of_each_published_version_is_served() {
    for version in CONTRACT_VERSIONS {
        let folder = tempfile::tempdir().unwrap();
        let plugin = file(&folder, version, version);
        let controller = Controller::start().await;
        let host = TestHost::of_component(plugin).start().await;

        let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

        assert_eq!(result["status"], "success", "{version}: {result:#}");
        assert!(result.to_string().contains(r#""reward":1.0"#), "{version}: {result:#}");
    }
}

#[tokio::test]
async fn a_plugin_of_a_later_version_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = file(&folder, "0.1.0", "0.9.0");

    let ran = rollout_host(["serve", plugin.to_str().unwrap(), "--listen", "127.0.0.1:0"])
        .start()
        .ended_within(COMMAND)
        .await;

    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let expected = "is of a version of the contract that this host does not know; it knows 0.1.0";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    assert!(ran.stderr.contains("serve the plugin with a newer rollout-host"), "{}", ran.stderr);
}
