//! What a component's type says, held against the contract.

use std::fmt;

use wasmtime::component::types::ComponentItem;

/// The version of the package `rollout:plugin` that this host speaks.
pub const CONTRACT_VERSION: &str = "0.1.0";

const PACKAGE: &str = "rollout:plugin/";

/// The contract's interfaces that a plugin may import.
const OFFERED: [&str; 10] =
    ["types", "context", "samples", "calls", "chat", "tools", "artifacts", "log", "observations", "judge"];

/// Something that a component imports or exports.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Item {
    /// Its full name, version included.
    pub name: String,
    /// What it is: an interface, a function or something else.
    pub kind: &'static str,
    /// The functions of an interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

/// Why a component cannot be served, naming the import or export.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Problem {
    /// It has nothing that a host runs.
    NothingToRun,
    /// It has both agent forms, and nobody can tell which is meant.
    TwoAgentForms,
    /// It was built for another version of the contract.
    OtherVersion {
        /// The import or export.
        name: String,
    },
    /// It imports what no host of this contract gives.
    UnknownImport {
        /// The import.
        name: String,
    },
    /// Names fit, types do not.
    DoesNotLink {
        /// What the engine says, which names the item.
        reason: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToRun => write!(
                f,
                "it exports none of {PACKAGE}workflow@{CONTRACT_VERSION}, {PACKAGE}agent-loop@{CONTRACT_VERSION}, \
                 {PACKAGE}grader@{CONTRACT_VERSION} and {PACKAGE}tool@{CONTRACT_VERSION}; in Rust, \
                 `rollout_sdk::export!` does"
            ),
            Self::TwoAgentForms => write!(
                f,
                "it exports both {PACKAGE}workflow@{CONTRACT_VERSION} and {PACKAGE}agent-loop@{CONTRACT_VERSION}; \
                 export one of them"
            ),
            Self::OtherVersion { name } => write!(
                f,
                "'{name}' is of another version of the contract; this host speaks {CONTRACT_VERSION}, so rebuild \
                 the plugin with an SDK of that version"
            ),
            Self::UnknownImport { name } => {
                write!(f, "it imports '{name}', which this host does not give")?;
                if name.starts_with("wasi:http") || name.starts_with("wasi:sockets") {
                    write!(f, "; a plugin has no network, and reaches its model through {PACKAGE}chat")?;
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
    Item { name, kind, functions }
}

/// The interface and version of a name of the contract's package.
fn of_contract(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix(PACKAGE)?;
    Some(rest.split_once('@').unwrap_or((rest, "")))
}

pub(super) fn version<'a>(mut items: impl Iterator<Item = &'a Item>) -> Option<String> {
    items.find_map(|item| of_contract(&item.name)).map(|(_, version)| version.to_owned())
}

pub(super) fn exports(exports: &[Item], interface: &str) -> bool {
    exports.iter().any(|item| of_contract(&item.name) == Some((interface, CONTRACT_VERSION)))
}

pub(super) fn problems(
    exported: &[Item],
    imported: &[Item],
    link_error: Option<&wasmtime::Error>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for item in exported.iter().chain(imported) {
        if of_contract(&item.name).is_some_and(|(_, version)| version != CONTRACT_VERSION) {
            problems.push(Problem::OtherVersion { name: item.name.clone() });
        }
    }
    for item in imported {
        let known = match of_contract(&item.name) {
            Some((interface, version)) => version != CONTRACT_VERSION || OFFERED.contains(&interface),
            None => is_offered_wasi(&item.name),
        };
        if !known {
            problems.push(Problem::UnknownImport { name: item.name.clone() });
        }
    }
    if problems.is_empty() {
        if let Some(error) = link_error {
            problems.push(Problem::DoesNotLink { reason: format!("{error:#}") });
        }
        if !["workflow", "agent-loop", "grader", "tool"].iter().any(|form| exports(exported, form)) {
            problems.push(Problem::NothingToRun);
        }
        if exports(exported, "workflow") && exports(exported, "agent-loop") {
            problems.push(Problem::TwoAgentForms);
        }
    }
    problems
}

/// The packages of WASI 0.2 that a language's standard library links, with nothing
/// granted behind them.
fn is_offered_wasi(name: &str) -> bool {
    ["wasi:io/", "wasi:clocks/", "wasi:random/", "wasi:cli/", "wasi:filesystem/", "wasi:sockets/"]
        .iter()
        .any(|package| name.starts_with(package))
        && name.split_once('@').is_some_and(|(_, version)| version.starts_with("0.2."))
}
