//! A component that was checked, compiled and linked and can be instantiated any number of times.
//!
//! The exports of a component determine its kind: an agent in one of two forms, a grader, an environment,
//! or tools for others. There is no registration. This module knows no rollouts.

mod contract;
mod settings;

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};

use crate::instance::{BusyThreads, Forms, InstanceState, LinkedPlugin};
pub use contract::{CONTRACT_VERSION, CONTRACT_VERSIONS, Grant, Item, Problem};
use rollout_wire::digest::hex;
pub use settings::{Declaration, DeclareError, Field, InvalidSettings, PluginSettings, resolve};

/// A component that can be run. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    about: std::sync::Arc<Description>,
    linked: LinkedPlugin,
}

/// Properties of a component, derived from its bytes and its type.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Description {
    /// SHA-256 of the file, in hex.
    pub digest: String,
    /// Size of the file in bytes.
    pub size_bytes: usize,
    /// Version of the contract that it was built against, if it uses the contract.
    pub contract_version: Option<String>,
    /// Whether it exports a workflow.
    pub workflow: bool,
    /// Whether it exports an agent loop, the other form of agent.
    pub agent_loop: bool,
    /// Whether it exports a reward function.
    pub grader: bool,
    /// Whether it exports a reward function of groups.
    pub group_grader: bool,
    /// Whether it exports an environment.
    pub environment: bool,
    /// Whether it exports tools for others.
    pub tool: bool,
    /// Whether it declares its configuration.
    pub settings: bool,
    /// Its exports.
    pub exports: Vec<Item>,
    /// Its imports.
    pub imports: Vec<Item>,
    /// Reasons why it cannot be served.
    pub problems: Vec<Problem>,
}

impl Description {
    /// Returns the component's parts in words, for messages.
    pub fn parts(&self) -> Vec<&'static str> {
        [
            (self.workflow, "a workflow"),
            (self.agent_loop, "an agent loop"),
            (self.grader, "a grader"),
            (self.group_grader, "a group grader"),
            (self.environment, "an environment"),
            (self.tool, "tools for others"),
        ]
        .into_iter()
        .filter_map(|(has, part)| has.then_some(part))
        .collect()
    }
}

/// Error of a file that is not a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is not WebAssembly.
    #[error(
        "not a WebAssembly file: it begins with {begins}, not with '\\0asm'; give the .wasm file that `rollout-host build` wrote",
        begins = bytes(.0)
    )]
    NotWasm(Vec<u8>),
    /// The file is a module, not a component.
    #[error(
        "a core WebAssembly module, not a component; build it for wasm32-wasip2, which `rollout-host build` does"
    )]
    CoreModule,
    /// The component does not validate or compile.
    #[error("not a valid component")]
    Invalid(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The component has more memories, tables or instances than allowed.
    #[error("has more parts than this host gives one component")]
    TooManyParts(#[source] wasmtime::Error),
    /// The component is valid, but this host cannot serve it.
    #[error("cannot be served:{}", list(.0))]
    Unservable(Vec<Problem>),
    /// The imports could not be linked.
    #[error("cannot be linked")]
    Link(#[source] wasmtime::Error),
}

fn bytes(bytes: &[u8]) -> String {
    let shown: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if shown.is_empty() { "nothing".to_owned() } else { format!("the bytes {}", shown.join(" ")) }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  - {problem}")).collect()
}

impl Plugin {
    pub(crate) fn load(
        engine: &wasmtime::Engine,
        linker: &Linker<InstanceState>,
        component: &Component,
        file: &Source,
        kept_bytes: u64,
        busy: &BusyThreads,
    ) -> Result<Self, LoadError> {
        let about = describe(engine, linker, component, file);
        if !about.problems.is_empty() {
            return Err(LoadError::Unservable(about.problems));
        }
        let forms = Forms {
            workflow: about.workflow,
            agent_loop: about.agent_loop,
            grader: about.grader,
            group_grader: about.group_grader,
            environment: about.environment,
            tool: about.tool,
            settings: about.settings,
        };
        let linked =
            LinkedPlugin::new(linker, component, forms, kept_bytes, busy.clone()).map_err(LoadError::Link)?;
        Ok(Self { about: about.into(), linked })
    }

    /// Returns a copy whose instances read `input` from standard input.
    pub fn with_input(&self, input: Bytes) -> Self {
        Self { about: self.about.clone(), linked: self.linked.with_input(input) }
    }

    /// Returns the component's description.
    pub fn about(&self) -> &Description {
        &self.about
    }

    /// Returns the size of its compiled code in bytes.
    pub fn code_bytes(&self) -> u64 {
        self.linked.code_bytes()
    }

    /// Returns the number of files that the component may hold open: one with its code and initial memory, or one for
    /// each memory if such a file could not be created.
    pub fn open_files(&self) -> u64 {
        self.linked.open_files()
    }

    /// Returns a copy that keeps a value until it is dropped.
    pub fn holding(&self, held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { about: self.about.clone(), linked: self.linked.holding(held) }
    }

    /// Returns the linked component.
    pub fn linked(&self) -> &LinkedPlugin {
        &self.linked
    }
}

/// Digest and size of a component's file.
pub(crate) struct Source {
    pub digest: [u8; 32],
    pub size_bytes: usize,
}

/// Checks that the bytes start like a component. Text and code that is already compiled are refused before they reach
/// the engine.
pub(crate) fn check_kind(bytes: &[u8]) -> Result<(), LoadError> {
    match bytes {
        [b'\0', b'a', b's', b'm', _, _, 1, 0, ..] => Ok(()),
        [b'\0', b'a', b's', b'm', _, _, 0, 0, ..] => Err(LoadError::CoreModule),
        other => Err(LoadError::NotWasm(other[..other.len().min(8)].to_vec())),
    }
}

/// Describes a component, even one that cannot be served.
pub(crate) fn describe(
    engine: &wasmtime::Engine,
    linker: &Linker<InstanceState>,
    component: &Component,
    file: &Source,
) -> Description {
    let ty = component.component_type();
    let items = |items: &mut dyn Iterator<Item = (String, ComponentItem)>| -> Vec<Item> {
        items.map(|(name, item)| contract::item(engine, name, &item)).collect()
    };
    let exports = items(&mut ty.exports(engine).map(|(name, item)| (name.to_owned(), item.ty)));
    let imports: Vec<Item> =
        ty.imports(engine).map(|(name, item)| contract::import(engine, name.to_owned(), &item.ty)).collect();
    let link_error = linker.instantiate_pre(component).err();
    let problems = contract::problems(&exports, &imports, link_error.as_ref());
    Description {
        digest: hex(&file.digest),
        size_bytes: file.size_bytes,
        contract_version: contract::version(exports.iter().chain(&imports)),
        workflow: contract::exports(&exports, "workflow"),
        agent_loop: contract::exports(&exports, "agent-loop"),
        grader: contract::exports(&exports, "grader"),
        group_grader: contract::exports(&exports, "group-grader"),
        environment: contract::exports(&exports, "environment"),
        tool: contract::exports(&exports, "tool"),
        settings: contract::exports(&exports, "settings"),
        exports,
        imports,
        problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_binary_components_reach_the_engine() {
        fn check(bytes: &[u8], expected: &str) {
            let kind = check_kind(bytes).map_or_else(|error| error.to_string(), |()| "component".to_owned());
            assert!(kind.contains(expected), "{bytes:?}: {kind}");
        }
        check(b"\0asm\x0d\0\x01\0", "component");
        check(b"\0asm\x01\0\0\0", "a core WebAssembly module");
        check(b"\x7fELF\x02\x01\x01\0", "not a WebAssembly file");
        check(b"(component)", "not a WebAssembly file");
        check(b"\0asm", "not a WebAssembly file");
    }
}
