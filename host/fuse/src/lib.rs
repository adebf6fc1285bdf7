//! Makes one core module of those in a component that share a memory and a table.
//!
//! A component of libraries that are linked dynamically, which is what componentize-py
//! makes, has a dozen core modules. At each instantiation the engine hands each module what
//! the others export, and writes each function that a table refers to into that table,
//! because the table belongs to another module. When they are one module, calls between
//! libraries are direct, addresses that the linker had left open are constants, and the
//! engine fills a table entry when it is first used, because it knows at compile time what
//! belongs there.
//!
//! [`fuse`] takes a component whose initialisation is over: its memory is in data segments
//! at constant addresses and no module has a start function. The component's own imports,
//! exports and conversions stay what they were. Of anything else it gives back the reason
//! why it was left alone; nothing is guessed. The same component gives the same bytes.
//!
//! This crate knows WebAssembly's binary format, and neither Python nor the host.

mod bodies;
mod component;
mod emit;
mod group;
mod link;
mod module;
mod names;
mod output;

use wasmparser::{BinaryReaderError, Validator, WasmFeatures};

/// What components may be made of: what is here read and written. Each instruction of these
/// that names something of its module is in `bodies.rs`; a proposal that adds another has
/// to be added there first.
const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .difference(WasmFeatures::GC_TYPES)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::COMPONENT_MODEL);

/// A component with one module in place of several.
#[derive(Debug)]
pub struct Fused {
    /// The component.
    pub bytes: Vec<u8>,
    /// How many modules became one.
    pub modules: usize,
    /// Functions that the modules had, and that the one has: some could not be reached.
    pub functions: Change,
    /// What the modules imported, and what the one imports.
    pub imports: Change,
}

/// A number before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// In the component that was given.
    pub before: usize,
    /// In the one that was made.
    pub after: usize,
}

/// Why a component is left as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotFused {
    /// It is no component, or made of more than is known here.
    #[error("it is no component of the kind that can be fused")]
    Unknown(#[source] BinaryReaderError),
    /// It can do something whose order or place one module could not keep.
    #[error("{0}")]
    Shape(String),
    /// What was made of it does not hold together, which is a mistake in this crate.
    #[error("what was made of it is not valid")]
    Broken(#[source] BinaryReaderError),
}

impl From<BinaryReaderError> for NotFused {
    fn from(error: BinaryReaderError) -> Self {
        Self::Unknown(error)
    }
}

type Result<T, E = NotFused> = std::result::Result<T, E>;

/// Ends with the reason why a component is left as it is.
macro_rules! left_alone {
    ($($reason:tt)*) => {
        return Err(crate::NotFused::Shape(format!($($reason)*)))
    };
}
use left_alone;

/// Makes one core module of those in this component that share a memory.
///
/// # Errors
///
/// The component is to be used as it is, for the reason given.
pub fn fuse(component: &[u8]) -> Result<Fused> {
    validate(component).map_err(NotFused::Unknown)?;
    let component = component::Component::read(component)?;
    let modules =
        component.modules.iter().map(|bytes| module::Module::read(bytes)).collect::<Result<Vec<_>>>()?;
    let group = group::Group::find(&component, &modules)?;
    let linked = link::link(&component, &modules, &group)?;
    let made = output::module(&linked)?;
    let bytes = emit::component(&component, &group, &linked, &made);
    validate(&bytes).map_err(NotFused::Broken)?;
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
