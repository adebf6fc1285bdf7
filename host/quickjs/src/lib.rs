//! Builds a component from a JavaScript program and the QuickJS engine.
//!
//! The engine is the prebuilt library of the crate `componentize-qjs`, see [`EngineLibrary`]. [`componentize`] links it
//! with conversions for the interfaces of a world ([`wit_dylib`]), evaluates the program in an instance, and stores
//! that instance's memory in the component. A rollout therefore starts with the program evaluated.
//!
//! The clocks and random numbers of that instance are constant, and it has no files, arguments or environment
//! variables. The same program therefore results in the same bytes on any machine.
//!
//! This crate knows neither the SDK nor the host.

mod engine;
mod link;
mod snapshot;
mod world;

pub use engine::{ENGINE_VERSION, EngineLibrary};
pub use world::{RANDOM, STDIN, World};

/// Error of building a component.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program cannot be parsed, or threw an error while its modules were evaluated.
    #[error("{0}")]
    Program(String),
    /// The engine's library has another SHA-256.
    #[error("the library of the JavaScript engine is not that of componentize-qjs {ENGINE_VERSION}")]
    OtherEngine,
    /// The component could not be built, which is a bug in this crate or in the engine.
    #[error("the JavaScript engine cannot be linked")]
    Link(#[source] anyhow::Error),
    /// The instance that evaluates the program failed.
    #[error("the JavaScript engine failed while it evaluated the program")]
    Evaluate(#[source] anyhow::Error),
}

/// Returns a component that exports and imports the world's interfaces and has evaluated `program`, the source text of
/// an ES module. `contract` is the WIT package of the interfaces.
///
/// # Errors
///
/// See [`Error`].
pub fn componentize(
    engine: &EngineLibrary,
    contract: &str,
    world: &World,
    program: &str,
) -> Result<Vec<u8>, Error> {
    let linked = link::link(engine.bytes(), contract, world).map_err(Error::Link)?;
    snapshot::snapshot(&linked, program)
}
