//! The WebAssembly engine of the process: compilation of guests, their memory, and their interruption.
//!
//! An [`Engine`] compiles in this process, which is for components that are trusted not to exploit their compiler. A
//! [`Loader`] compiles the others in a separate process and caches the code for the next start. This module knows no
//! rollouts and no contents of plugins.

mod cache;
mod compile;
mod loader;
mod parts;
mod plan;
mod template;

use std::sync::Arc;

use wasmtime::Config;
use wasmtime::component::{Component, Linker};

use crate::instance::{BusyThreads, InstanceState, Rester, Ticker};
use crate::plugin::{self, Description, LoadError, Plugin, Source};
pub use cache::{CACHE_BYTES_MAX, CacheError, CodeCache};
pub use compile::{CompileError, Compiler, INVALID_EXIT_CODE, compile};
pub use loader::{Loader, LoaderError};
pub use plan::MemoryPlan;
use rollout_wire::digest::sha256;

/// The engine of the process. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Arc<Linker<InstanceState>>,
    busy: BusyThreads,
    plan: MemoryPlan,
}

/// Error of creating an engine.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the WebAssembly engine for {instances_max} instances at once")]
pub struct EngineError {
    instances_max: u32,
    #[source]
    source: wasmtime::Error,
}

impl Engine {
    /// Creates an engine for `instances_max` instances at once, each with at most `memory_bytes_max` bytes of memory.
    pub fn new(instances_max: u32, memory_bytes_max: usize) -> Result<Self, EngineError> {
        Self::planned(MemoryPlan::for_instances(instances_max), instances_max, memory_bytes_max, usize::MAX)
    }

    /// Creates an engine with a given memory plan. Idle slots keep at most `idle_bytes_max` bytes resident together,
    /// which are not charged to any rollout.
    pub fn planned(
        plan: MemoryPlan,
        instances_max: u32,
        memory_bytes_max: usize,
        idle_bytes_max: usize,
    ) -> Result<Self, EngineError> {
        Self::configured(
            &plan::config(plan, instances_max, memory_bytes_max, idle_bytes_max),
            plan,
            instances_max,
        )
    }

    /// Creates an engine for an instance that a build needs. Its component may have more parts than that of a rollout, and
    /// its memory is limited by its store only.
    pub fn for_build() -> Result<Self, EngineError> {
        Self::configured(&plan::unpooled(), MemoryPlan::Pooled, 1)
    }

    fn configured(config: &Config, plan: MemoryPlan, instances_max: u32) -> Result<Self, EngineError> {
        let fail = |source| EngineError { instances_max, source };
        let engine = wasmtime::Engine::new(config).map_err(fail)?;
        let linker = crate::instance::linker(&engine).map_err(fail)?;
        let ticker = Ticker::start(&engine).map_err(|error| fail(error.into()))?;
        let rester = match plan {
            MemoryPlan::Pooled => Rester::start().map_err(|error| fail(error.into()))?,
            // Initial memory is not mapped, or memory may move.
            MemoryPlan::PooledEager | MemoryPlan::OnDemand => Rester::off(),
        };
        let busy = BusyThreads::start(ticker, rester).map_err(|error| fail(error.into()))?;
        Ok(Self { engine, linker: Arc::new(linker), busy, plan })
    }

    /// Checks and compiles a trusted component in this process, without limits. Takes time in proportion to its size;
    /// call it where blocking is allowed.
    pub fn load(&self, bytes: &[u8]) -> Result<Plugin, LoadError> {
        plugin::check_kind(bytes)?;
        let component =
            Component::from_binary(&self.engine, bytes).map_err(|error| LoadError::Invalid(error.into()))?;
        self.link(&component, &source(bytes), bytes)
    }

    /// Prepares a compiled component for running.
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
