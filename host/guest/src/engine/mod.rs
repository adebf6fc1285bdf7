//! One engine for the process: how guests are compiled, where their memory comes
//! from, and what stops them.
//!
//! An [`Engine`] compiles in this process, which is for components that are trusted not
//! to harm their compiler. A [`Loader`] has the others compiled in a process apart, and
//! keeps the code for the next start. This module knows no rollout and no plugin's
//! content.

mod cache;
mod compile;
mod loader;
mod parts;
mod plan;

use std::sync::Arc;

use wasmtime::component::{Component, Linker};

use crate::instance::{BusyThreads, InstanceState, Ticker};
use crate::plugin::{self, Description, LoadError, Plugin, Source};
pub use cache::{CACHE_BYTES_MAX, CacheError, CodeCache};
pub use compile::{CompileError, Compiler, INVALID_EXIT_CODE, compile};
pub use loader::{Loader, LoaderError};
pub use plan::MemoryPlan;
use rollout_wire::digest::sha256;

/// The process's engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Arc<Linker<InstanceState>>,
    busy: BusyThreads,
    plan: MemoryPlan,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the WebAssembly engine for {instances_max} instances at once")]
pub struct EngineError {
    instances_max: u32,
    #[source]
    source: wasmtime::Error,
}

impl Engine {
    /// An engine for this many instances at once, each of at most this much memory.
    pub fn new(instances_max: u32, memory_bytes_max: usize) -> Result<Self, EngineError> {
        Self::planned(MemoryPlan::for_instances(instances_max), instances_max, memory_bytes_max, usize::MAX)
    }

    /// The same, where it is settled where the memory comes from, and how much of it idle instances may keep together,
    /// which is charged to nobody.
    pub fn planned(
        plan: MemoryPlan,
        instances_max: u32,
        memory_bytes_max: usize,
        idle_bytes_max: usize,
    ) -> Result<Self, EngineError> {
        let fail = |source| EngineError { instances_max, source };
        let config = plan::config(plan, instances_max, memory_bytes_max, idle_bytes_max);
        let engine = wasmtime::Engine::new(&config).map_err(fail)?;
        let linker = crate::instance::linker(&engine).map_err(fail)?;
        let ticker = Ticker::start(&engine).map_err(|error| fail(error.into()))?;
        let busy = BusyThreads::start(ticker).map_err(|error| fail(error.into()))?;
        Ok(Self { engine, linker: Arc::new(linker), busy, plan })
    }

    /// Checks and compiles a component, here and without limits: for one that is trusted.
    /// This takes as long as the component is large; call it where a thread may be
    /// blocked.
    pub fn load(&self, bytes: &[u8]) -> Result<Plugin, LoadError> {
        plugin::check_kind(bytes)?;
        let component =
            Component::from_binary(&self.engine, bytes).map_err(|error| LoadError::Invalid(error.into()))?;
        self.link(&component, &source(bytes), bytes)
    }

    /// Makes a component that was compiled ready to run.
    fn link(&self, component: &Component, file: &Source, bytes: &[u8]) -> Result<Plugin, LoadError> {
        let kept = parts::bytes_kept(bytes).map_err(|error| LoadError::Invalid(error.into()))?;
        Plugin::load(&self.engine, &self.linker, component, file, kept, &self.busy)
    }

    fn describe(&self, component: &Component, file: &Source) -> Description {
        plugin::describe(&self.engine, &self.linker, component, file)
    }
}

fn source(bytes: &[u8]) -> Source {
    Source { digest: sha256(bytes), size_bytes: bytes.len() }
}
