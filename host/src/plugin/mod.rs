//! A checked, compiled and linked component, ready to be instantiated any number of
//! times.
//!
//! What a component is, a workflow, a grader or both, is read from its type; nothing
//! is registered. This module knows no rollout.

mod contract;

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};

use crate::digest::sha256_hex;
use crate::instance::{InstanceState, LinkedPlugin};
pub use contract::{CONTRACT_VERSION, Item, Problem};

/// A component that can be run. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    about: std::sync::Arc<Description>,
    linked: LinkedPlugin,
}

/// What is known of a component from its bytes and its type.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Description {
    /// SHA-256 of the file, hex.
    pub digest: String,
    /// The file's size in bytes.
    pub size_bytes: usize,
    /// The contract's version that it was built against, where it uses the contract.
    pub contract_version: Option<String>,
    /// Whether it has an agent loop.
    pub workflow: bool,
    /// Whether it has a reward function.
    pub grader: bool,
    /// What it exports.
    pub exports: Vec<Item>,
    /// What it imports.
    pub imports: Vec<Item>,
    /// Why it cannot be served; empty where it can.
    pub problems: Vec<Problem>,
}

/// Why a file is no plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is no WebAssembly at all.
    #[error(
        "not a WebAssembly file: it begins with {0:02x?}, not with '\\0asm'; give the .wasm file that `rollout-host build` wrote"
    )]
    NotWasm(Vec<u8>),
    /// It is a module, not a component.
    #[error(
        "a core WebAssembly module, not a component; build it for wasm32-wasip2, which `rollout-host build` does"
    )]
    CoreModule,
    /// It does not validate or compile.
    #[error("not a valid component")]
    Invalid(#[source] wasmtime::Error),
    /// It is a component that this host cannot serve.
    #[error("cannot be served:{}", list(.0))]
    Unservable(Vec<Problem>),
    /// Its imports could not be connected.
    #[error("cannot be linked")]
    Link(#[source] wasmtime::Error),
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  - {problem}")).collect()
}

impl Plugin {
    pub(crate) fn load(
        engine: &wasmtime::Engine,
        linker: &Linker<InstanceState>,
        bytes: &[u8],
    ) -> Result<Self, LoadError> {
        let component = compile(engine, bytes)?;
        let about = describe(engine, linker, &component, bytes);
        if !about.problems.is_empty() {
            return Err(LoadError::Unservable(about.problems));
        }
        let linked =
            LinkedPlugin::new(linker, &component, about.workflow, about.grader).map_err(LoadError::Link)?;
        Ok(Self { about: about.into(), linked })
    }

    /// What it is.
    pub fn about(&self) -> &Description {
        &self.about
    }

    pub(crate) fn linked(&self) -> &LinkedPlugin {
        &self.linked
    }
}

/// Says what a file is, whether or not it can be served.
pub(crate) fn inspect(
    engine: &wasmtime::Engine,
    linker: &Linker<InstanceState>,
    bytes: &[u8],
) -> Result<Description, LoadError> {
    let component = compile(engine, bytes)?;
    Ok(describe(engine, linker, &component, bytes))
}

fn compile(engine: &wasmtime::Engine, bytes: &[u8]) -> Result<Component, LoadError> {
    match bytes {
        [b'\0', b'a', b's', b'm', _, _, 1, 0, ..] => {}
        [b'\0', b'a', b's', b'm', _, _, 0, 0, ..] => return Err(LoadError::CoreModule),
        other => return Err(LoadError::NotWasm(other[..other.len().min(8)].to_vec())),
    }
    // `new` would also take the text form; a plugin is binary.
    Component::from_binary(engine, bytes).map_err(LoadError::Invalid)
}

fn describe(
    engine: &wasmtime::Engine,
    linker: &Linker<InstanceState>,
    component: &Component,
    bytes: &[u8],
) -> Description {
    let ty = component.component_type();
    let items = |items: &mut dyn Iterator<Item = (String, ComponentItem)>| -> Vec<Item> {
        items.map(|(name, item)| contract::item(engine, name, &item)).collect()
    };
    let exports = items(&mut ty.exports(engine).map(|(name, item)| (name.to_owned(), item.ty)));
    let imports = items(&mut ty.imports(engine).map(|(name, item)| (name.to_owned(), item.ty)));
    let link_error = linker.instantiate_pre(component).err();
    let problems = contract::problems(&exports, &imports, link_error.as_ref());
    Description {
        digest: sha256_hex(bytes),
        size_bytes: bytes.len(),
        contract_version: contract::version(exports.iter().chain(&imports)),
        workflow: contract::exports(&exports, "workflow"),
        grader: contract::exports(&exports, "grader"),
        exports,
        imports,
        problems,
    }
}
