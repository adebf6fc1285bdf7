//! Comparison of a component's type with the contract.

use std::fmt;

use wasmtime::component::types::ComponentItem;

/// Published versions of the package `rollout:plugin`, from the oldest. This host serves plugins of all of them. Each has
/// a frozen folder in `wit/`.
///
/// A version that only adds to the previous one (0.1.1 after 0.1.0) needs no code: the linker serves an import of 0.1.0
/// from 0.1.1. A version that changes something (0.2.0) needs the imports and exports of the previous version as an
/// adapter over its own, as `docs/adr/0124` describes.
pub const CONTRACT_VERSIONS: [&str; 1] = [CONTRACT_VERSION];

/// Newest version of the package `rollout:plugin`.
pub const CONTRACT_VERSION: &str = "0.1.0";

const PACKAGE: &str = "rollout:plugin/";

/// The contract's interfaces that a plugin may import.
const OFFERED: [&str; 9] =
    ["types", "context", "samples", "calls", "models", "tools", "artifacts", "log", "observations"];

/// An import or export of a component.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Item {
    /// Its full name, including the version.
    pub name: String,
    /// Its kind: an interface, a function or something else.
    pub kind: &'static str,
    /// The functions of an interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
    /// For an import, the access that it grants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
}

/// Access that this host grants through an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The import works.
    Granted,
    /// The import exists because standard libraries need it, but is empty: no files, arguments, variables, input or
    /// terminal.
    Empty,
    /// Every call fails with an access error.
    Refused,
    /// The import does not exist; a component that needs it cannot be served.
    Missing,
}

impl Grant {
    /// Returns the word for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Empty => "empty",
            Self::Refused => "refused",
            Self::Missing => "missing",
        }
    }

    /// Returns the grant for an import's name. The instance's WASI context is built to match (`Imports::wasi`).
    fn of(name: &str) -> Self {
        if let Some((interface, version)) = split_contract_name(name) {
            let is_offered = CONTRACT_VERSIONS.contains(&version) && OFFERED.contains(&interface);
            return if is_offered { Self::Granted } else { Self::Missing };
        }
        if !is_offered_wasi(name) {
            return Self::Missing;
        }
        let interface = name.split_once('@').map_or(name, |(interface, _)| interface);
        match interface {
            // Standard output and error go to the rollout's log.
            "wasi:cli/stdout" | "wasi:cli/stderr" | "wasi:cli/exit" => Self::Granted,
            _ if interface.starts_with("wasi:cli/") || interface.starts_with("wasi:filesystem/") => {
                Self::Empty
            }
            _ if interface.starts_with("wasi:sockets/") => Self::Refused,
            // Streams, clocks, and random numbers derived from the rollout.
            _ => Self::Granted,
        }
    }
}

/// Reason why a component cannot be served, with the name of the import or export.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    /// It exports nothing that a host runs.
    NothingToRun,
    /// It exports both forms of agent, which is ambiguous.
    TwoAgentForms,
    /// It was built for a version of the contract that this host does not know.
    OtherVersion {
        /// The import or export.
        name: String,
    },
    /// It imports an interface that this host does not have.
    UnknownImport {
        /// The import.
        name: String,
    },
    /// The names match, but the types do not.
    DoesNotLink {
        /// The engine's error, which names the item.
        reason: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToRun => write!(
                f,
                "it exports none of {PACKAGE}workflow@{CONTRACT_VERSION}, {PACKAGE}agent-loop@{CONTRACT_VERSION}, \
                 {PACKAGE}grader@{CONTRACT_VERSION}, {PACKAGE}environment@{CONTRACT_VERSION} and \
                 {PACKAGE}tool@{CONTRACT_VERSION}; in Rust, \
                 `rollout_sdk::export!` does"
            ),
            Self::TwoAgentForms => write!(
                f,
                "it exports both {PACKAGE}workflow@{CONTRACT_VERSION} and {PACKAGE}agent-loop@{CONTRACT_VERSION}; \
                 export one of them"
            ),
            Self::OtherVersion { name } => {
                let versions = CONTRACT_VERSIONS.join(", ");
                write!(
                    f,
                    "'{name}' is of a version of the contract that this host does not know; it knows {versions}"
                )?;
                match split_contract_name(name) {
                    Some((_, version)) if is_newer(version) => write!(
                        f,
                        "; serve the plugin with a newer rollout-host, or rebuild it with the SDK of this one"
                    )?,
                    _ => write!(f, "; rebuild the plugin with the SDK of this host")?,
                }
                write!(f, " (in a Rust project, `rollout-host update-sdk` brings that SDK)")
            }
            Self::UnknownImport { name } => {
                write!(f, "it imports '{name}', which this host does not provide")?;
                if name.starts_with("wasi:http") || name.starts_with("wasi:sockets") {
                    write!(f, "; a plugin has no network, and reaches its model through {PACKAGE}models")?;
                }
                Ok(())
            }
            Self::DoesNotLink { reason } => write!(f, "{reason}"),
        }
    }
}

pub(super) fn item(engine: &wasmtime::Engine, name: String, item: &ComponentItem) -> Item {
    let (kind, functions) = match item {
        ComponentItem::ComponentInstance(instance) => {
            let functions = instance
                .exports(engine)
                .filter(|(_, item)| matches!(item.ty, ComponentItem::ComponentFunc(_)))
                .map(|(name, _)| name.to_owned())
                .collect();
            ("interface", functions)
        }
        ComponentItem::ComponentFunc(_) => ("function", Vec::new()),
        ComponentItem::Component(_) => ("component", Vec::new()),
        ComponentItem::Module(_) | ComponentItem::CoreFunc(_) => ("core item", Vec::new()),
        ComponentItem::Type(_) | ComponentItem::Resource(_) => ("type", Vec::new()),
    };
    Item { name, kind, functions, grant: None }
}

/// Describes an import, including its grant.
pub(super) fn import(engine: &wasmtime::Engine, name: String, import: &ComponentItem) -> Item {
    let grant = Some(Grant::of(&name));
    Item { grant, ..item(engine, name, import) }
}

/// Returns the interface and version of a name in the contract's package.
fn split_contract_name(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix(PACKAGE)?;
    Some(rest.split_once('@').unwrap_or((rest, "")))
}

/// Returns whether a version is newer than all versions that this host knows.
fn is_newer(version: &str) -> bool {
    let numbers = |version: &str| {
        let parts: Result<Vec<u64>, _> = version.split('.').map(str::parse).collect();
        parts.ok().filter(|parts| parts.len() == 3)
    };
    numbers(version).is_some_and(|numbers_of| Some(numbers_of) > numbers(CONTRACT_VERSION))
}

pub(super) fn version<'a>(mut items: impl Iterator<Item = &'a Item>) -> Option<String> {
    items.find_map(|item| split_contract_name(&item.name)).map(|(_, version)| version.to_owned())
}

pub(super) fn exports(exports: &[Item], interface: &str) -> bool {
    let is_it = |(name, version): (&str, &str)| name == interface && CONTRACT_VERSIONS.contains(&version);
    exports.iter().any(|item| split_contract_name(&item.name).is_some_and(is_it))
}

pub(super) fn problems(
    exported: &[Item],
    imported: &[Item],
    link_error: Option<&wasmtime::Error>,
) -> Vec<Problem> {
    let is_unknown = |item: &Item| {
        split_contract_name(&item.name).is_some_and(|(_, version)| !CONTRACT_VERSIONS.contains(&version))
    };
    let mut problems = Vec::new();
    for item in exported.iter().chain(imported) {
        if is_unknown(item) {
            problems.push(Problem::OtherVersion { name: item.name.clone() });
        }
    }
    for item in imported {
        if !is_unknown(item) && Grant::of(&item.name) == Grant::Missing {
            problems.push(Problem::UnknownImport { name: item.name.clone() });
        }
    }
    if problems.is_empty() {
        if let Some(error) = link_error {
            problems.push(Problem::DoesNotLink { reason: format!("{error:#}") });
        }
        if !["workflow", "agent-loop", "grader", "environment", "tool"]
            .iter()
            .any(|form| exports(exported, form))
        {
            problems.push(Problem::NothingToRun);
        }
        if exports(exported, "workflow") && exports(exported, "agent-loop") {
            problems.push(Problem::TwoAgentForms);
        }
    }
    problems
}

/// Returns whether the name is in a package of WASI 0.2 that standard libraries link, whether or not it grants
/// anything.
fn is_offered_wasi(name: &str) -> bool {
    ["wasi:io/", "wasi:clocks/", "wasi:random/", "wasi:cli/", "wasi:filesystem/", "wasi:sockets/"]
        .iter()
        .any(|package| name.starts_with(package))
        && name.split_once('@').is_some_and(|(_, version)| version.starts_with("0.2."))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// SHA-256 of each published version's `wit/VERSION/plugin.wit` without comments.
    const FROZEN: [(&str, &str); CONTRACT_VERSIONS.len()] =
        [("0.1.0", "fb7b92e5298db29e7f71a5c891fe400a52ce8eb35b4ff6d3550d488da53c048c")];

    fn wit() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit")
    }

    /// Returns a contract without comments and line breaks, which may change.
    fn contract(file: &Path) -> String {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
        code.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_published_version_of_the_contract_never_changes() {
        let entries = std::fs::read_dir(wit()).unwrap().map(|entry| entry.unwrap());
        let folders = entries.filter(|entry| entry.path().is_dir());
        let mut folders: Vec<String> =
            folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
        folders.sort();
        assert_eq!(
            folders, CONTRACT_VERSIONS,
            "each published version has a folder in wit/, and no other has"
        );
        for (version, expected) in FROZEN {
            let contract = contract(&wit().join(version).join("plugin.wit"));
            assert!(contract.starts_with(&format!("package rollout:plugin@{version};")), "{version}");
            let found = rollout_wire::digest::sha256_hex(contract.as_bytes());
            assert_eq!(
                found, expected,
                "wit/{version} has changed, and plugins of that version exist; put it back, and give the change a new version"
            );
        }
    }

    #[test]
    fn the_current_contract_is_its_newest_published_version() {
        let frozen = contract(&wit().join(CONTRACT_VERSION).join("plugin.wit"));
        assert!(
            contract(&wit().join("plugin.wit")) == frozen,
            "wit/plugin.wit differs from wit/{CONTRACT_VERSION}; give it a new version in its first line, copy it to \
             wit/VERSION/plugin.wit, and add the version to CONTRACT_VERSIONS and FROZEN"
        );
    }

    #[test]
    fn a_version_that_this_host_does_not_know_is_refused_with_advice() {
        let check = |version: &str, expected: &str| {
            let name = format!("rollout:plugin/workflow@{version}");
            let item = Item { name, kind: "interface", functions: Vec::new(), grant: None };
            let [problem, ..] = &problems(&[item], &[], None)[..] else { panic!("{version} is accepted") };
            assert!(problem.to_string().contains(expected), "{problem}");
        };
        check("0.9.0", "it knows 0.1.0; serve the plugin with a newer rollout-host, or rebuild it");
        check("0.1.1", "serve the plugin with a newer rollout-host");
        check("1.0.0", "serve the plugin with a newer rollout-host");
        check("0.0.9", "it knows 0.1.0; rebuild the plugin with the SDK of this host");
        check("next", "rebuild the plugin with the SDK of this host");
    }

    #[test]
    fn the_grant_of_an_import_follows_from_its_name() {
        fn check(name: &str, expected: Grant) {
            assert_eq!(Grant::of(name), expected, "{name}");
        }
        check("rollout:plugin/models@0.1.0", Grant::Granted);
        check("rollout:plugin/models@0.9.0", Grant::Missing);
        check("rollout:plugin/other@0.1.0", Grant::Missing);
        check("wasi:io/streams@0.2.6", Grant::Granted);
        check("wasi:clocks/wall-clock@0.2.0", Grant::Granted);
        check("wasi:random/random@0.2.0", Grant::Granted);
        check("wasi:cli/stderr@0.2.0", Grant::Granted);
        check("wasi:cli/environment@0.2.0", Grant::Empty);
        check("wasi:cli/stdin@0.2.0", Grant::Empty);
        check("wasi:cli/terminal-stdout@0.2.0", Grant::Empty);
        check("wasi:filesystem/preopens@0.2.0", Grant::Empty);
        check("wasi:sockets/tcp@0.2.0", Grant::Refused);
        check("wasi:http/outgoing-handler@0.2.0", Grant::Missing);
        check("wasi:io/streams@0.3.0", Grant::Missing);
        check("vendor:gpu/kernels", Grant::Missing);
    }
}
