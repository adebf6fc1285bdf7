//! The Rust SDK, embedded in this program and copied into projects.
//!
//! A project contains its SDK (`vendor/rollout-sdk`), because the SDK is in no registry. A path on the
//! machine that created the project would be wrong on others, and `cargo check` and editors would not find a
//! dependency that only `rollout-host build` adds.

use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

/// Directory of the SDK in a project.
pub(crate) const DIR: &str = "vendor/rollout-sdk";

/// Embeds files of `guest-sdk/rust`, each with its path.
macro_rules! sdk {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../guest-sdk/rust/", $path)))),+]
    };
}

const FILES: &[(&str, &str)] = sdk![
    "README.md",
    "src/agent.rs",
    "src/agent_loop.rs",
    "src/answer.rs",
    "src/artifact.rs",
    "src/bindings.rs",
    "src/calls.rs",
    "src/chat.rs",
    "src/context.rs",
    "src/environment.rs",
    "src/error.rs",
    "src/export.rs",
    "src/grading.rs",
    "src/group.rs",
    "src/judge.rs",
    "src/host_tools.rs",
    "src/lib.rs",
    "src/log.rs",
    "src/message.rs",
    "src/reward.rs",
    "src/rubric.rs",
    "src/sample.rs",
    "src/settings.rs",
    "src/tool.rs",
    "src/tool_call.rs",
    "src/toolbox.rs",
    "wit/plugin.wit",
];

const MANIFEST: &str = include_str!("../../../../guest-sdk/rust/Cargo.toml");
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// Writes the SDK into a project. An existing one is removed first.
pub(crate) fn vendor(project: &Path) -> Result<()> {
    let dir = project.join(DIR);
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", dir.display()));
        }
        _ => {}
    }
    for (path, text) in FILES {
        super::write(&dir.join(path), text)?;
    }
    super::write(&dir.join("Cargo.toml"), &manifest()?)
}

/// Returns the SDK's manifest with the values that it inherits from its workspace.
fn manifest() -> Result<String> {
    let mut manifest: Table = MANIFEST.parse().context("the SDK's manifest is invalid")?;
    let workspace: Table = WORKSPACE.parse().context("the workspace's manifest is invalid")?;
    let inherited = |section: &str| workspace.get("workspace").and_then(|table| table.get(section)).cloned();
    for (section, from) in [("package", "package"), ("dependencies", "dependencies")] {
        let from = inherited(from).unwrap_or(Value::Table(Table::new()));
        for (name, value) in manifest.get_mut(section).and_then(Value::as_table_mut).into_iter().flatten() {
            inherit(value, from.get(name.as_str()));
        }
    }
    // A project's copy is not the crate.
    if let Some(package) = manifest.get_mut("package").and_then(Value::as_table_mut) {
        package.remove("exclude");
        package.insert("publish".to_owned(), Value::Boolean(false));
    }
    // Only the SDK's own workspace uses these.
    manifest.remove("dev-dependencies");
    manifest.remove("lints");
    let text = toml::to_string(&manifest).context("the SDK's manifest is invalid")?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("# Written by rollout-host {version}; `rollout-host update-sdk` replaces it.\n\n{text}"))
}

/// Replaces `{ workspace = true, … }` with the value of the workspace.
fn inherit(value: &mut Value, from: Option<&Value>) {
    let Some(table) = value.as_table_mut().filter(|table| table.contains_key("workspace")) else { return };
    let Some(from) = from else { return };
    table.remove("workspace");
    let own = std::mem::take(table);
    *value = match from {
        from if own.is_empty() => from.clone(),
        Value::Table(shared) => Value::Table(shared.clone().into_iter().chain(own).collect()),
        version => {
            let version = ("version".to_owned(), version.clone());
            Value::Table(std::iter::once(version).chain(own).collect())
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_file_of_the_sdk_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-sdk/rust");
        let mut found = BTreeSet::new();
        let mut dirs = vec![root.join("src"), root.join("wit")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    // The published versions, which only the host needs.
                    true if path.parent() == Some(&root.join("wit")) => {}
                    true => dirs.push(path),
                    false => drop(found.insert(path.strip_prefix(&root).unwrap().to_owned())),
                }
            }
        }
        found.insert("README.md".into());

        let embedded: BTreeSet<PathBuf> = FILES.iter().map(|(path, _)| PathBuf::from(path)).collect();

        assert_eq!(found, embedded);
    }

    #[test]
    fn the_manifest_has_versions_and_no_workspace() {
        let text = manifest().unwrap();
        let manifest: Table = text.parse().unwrap();
        assert!(!text.contains("workspace"), "{text}");
        assert_eq!(manifest["package"]["name"].as_str(), Some("rollout-sdk"));
        assert_eq!(manifest["dependencies"]["serde"]["features"][0].as_str(), Some("derive"), "{text}");
        assert!(manifest["dependencies"]["wit-bindgen"]["version"].is_str(), "{text}");
    }
}
