//! Merges the core modules of a component that share a memory and a table into one.
//!
//! A component of dynamically linked libraries, such as componentize-py builds, has a dozen core modules. At
//! each instantiation the engine links their imports and exports and writes each function of a shared table
//! into it, because the table belongs to another module. In a single module calls between libraries are
//! direct, addresses that the linker left open are constants, and the engine fills table entries lazily
//! because it knows their contents at compile time.
//!
//! [`fuse`] takes a component whose initialisation has already run: its memory is in data segments at
//! constant addresses, and no module has a start function. The component's own imports, exports and
//! conversions do not change. Any other component is rejected with a reason. The result is deterministic.
//!
//! [`python::settle`] prepares the initial memory of a component with a Python interpreter, before [`fuse`].
//!
//! This crate knows WebAssembly's binary format, but not the host. Only [`python`] knows an interpreter.

mod bodies;
mod component;
mod emit;
mod group;
mod link;
mod module;
mod names;
mod output;
pub mod python;
mod survey;

use wasmparser::{BinaryReaderError, Validator, WasmFeatures};

/// WebAssembly features that a component may use. `bodies.rs` rewrites every instruction of these features
/// that refers to an index of its module; a further proposal must be added there first.
const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .difference(WasmFeatures::GC_TYPES)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::COMPONENT_MODEL);

/// A component whose modules were merged.
#[derive(Debug)]
pub struct Fused {
    /// The component, encoded.
    pub bytes: Vec<u8>,
    /// Number of modules that were merged.
    pub modules: usize,
    /// Number of functions; unreachable ones are removed.
    pub functions: Change,
    /// Number of imports.
    pub imports: Change,
}

/// A number before and after the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Number in the original component.
    pub before: usize,
    /// Number in the merged component.
    pub after: usize,
}

/// Reason why a component cannot be merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// The bytes are not a component, or use other features of WebAssembly.
    #[error("the component uses features that cannot be merged")]
    InvalidInput(#[source] BinaryReaderError),
    /// A single module could not preserve the component's order of effects or its structure.
    #[error("{0}")]
    Unsupported(String),
    /// The merged component is invalid, which is a bug in this crate.
    #[error("the merged component is invalid")]
    InvalidOutput(#[source] BinaryReaderError),
}

impl From<BinaryReaderError> for FuseError {
    fn from(error: BinaryReaderError) -> Self {
        Self::InvalidInput(error)
    }
}

type Result<T, E = FuseError> = std::result::Result<T, E>;

/// Returns from the function with the reason why the component cannot be merged.
macro_rules! unsupported {
    ($($reason:tt)*) => {
        return Err(crate::FuseError::Unsupported(format!($($reason)*)))
    };
}
use unsupported;

/// Merges the core modules of a component that share a memory.
///
/// # Errors
///
/// Fails with the reason if the component cannot be merged; the caller then uses the component as it is.
pub fn fuse(component: &[u8]) -> Result<Fused> {
    validate(component).map_err(FuseError::InvalidInput)?;
    let component = component::Component::read(component)?;
    let modules =
        component.modules.iter().map(|bytes| module::Module::read(bytes)).collect::<Result<Vec<_>>>()?;
    let group = group::Group::find(&component, &modules)?;
    let linked = link::link(&component, &modules, &group)?;
    let merged = output::module(&linked)?;
    let bytes = emit::component(&component, &group, &linked, &merged);
    validate(&bytes).map_err(FuseError::InvalidOutput)?;
    let members = || group.members.iter().map(|member| &modules[member.module]);
    Ok(Fused {
        bytes,
        modules: group.members.len(),
        functions: Change {
            before: members().map(|module| module.functions.len()).sum(),
            after: linked.defined_count(),
        },
        imports: Change {
            before: members().map(|module| module.imports.len()).sum(),
            after: linked.import_count(),
        },
    })
}

fn validate(component: &[u8]) -> Result<(), BinaryReaderError> {
    Validator::new_with_features(FEATURES).validate_all(component).map(|_| ())
}
