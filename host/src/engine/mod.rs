//! One engine for the process: how guests are compiled, where their memory comes
//! from, and what stops them.
//!
//! This module knows no rollout and no plugin's content.

mod ticker;

use std::sync::Arc;

use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

use crate::instance::{CORE_INSTANCES_MAX, InstanceState, MEMORIES_MAX, TABLES_MAX};
use crate::plugin::{self, Description, LoadError, Plugin};

/// Up to this many instances at once, their memory comes from a pool; beyond it, from
/// the kernel as needed. A pooled instance starts in half the time and costs up to
/// 24 memory mappings, of which a process has 65,530 by default; see `ARCHITECTURE.md`.
const POOLED_INSTANCES_MAX: u32 = 2048;

/// Bytes of a slot's memory that are wiped in place when it is given back, instead of
/// being returned to the kernel. Returning pages interrupts every core that runs one of
/// this process's threads, which at thousands of rollouts a second cost more than
/// anything else; a Rust guest touches less than this.
const KEEP_RESIDENT_BYTES: usize = 128 << 10;

/// Slots whose remaining pages are returned to the kernel together.
const DECOMMIT_BATCH: usize = 16;

/// A guest's stack in bytes, and that of its fiber with room for host calls on top.
const WASM_STACK_BYTES: usize = 512 << 10;
const ASYNC_STACK_BYTES: usize = 1 << 20;

/// The process's engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Arc<Linker<InstanceState>>,
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
        let fail = |source| EngineError { instances_max, source };
        let engine = wasmtime::Engine::new(&config(instances_max, memory_bytes_max)).map_err(fail)?;
        let linker = crate::instance::linker(&engine).map_err(fail)?;
        ticker::start(&engine).map_err(|error| fail(error.into()))?;
        Ok(Self { engine, linker: Arc::new(linker) })
    }

    /// Checks and compiles a component. This takes as long as the component is large;
    /// call it where a thread may be blocked.
    pub fn load(&self, bytes: &[u8]) -> Result<Plugin, LoadError> {
        Plugin::load(&self.engine, &self.linker, bytes)
    }

    /// Says what a file is, whether or not it can be served. It compiles, too.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Description, LoadError> {
        plugin::inspect(&self.engine, &self.linker, bytes)
    }
}

fn config(instances_max: u32, memory_bytes_max: usize) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(ASYNC_STACK_BYTES)
        // NaN bits are the one thing in core wasm that depends on the machine.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .wasm_memory64(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false);
    if instances_max <= POOLED_INSTANCES_MAX {
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool(instances_max, memory_bytes_max)));
    } else {
        config
            .allocation_strategy(InstanceAllocationStrategy::OnDemand)
            .memory_reservation(0)
            .memory_guard_size(0)
            .memory_reservation_for_growth(1 << 20)
            .memory_init_cow(false);
    }
    config
}

fn pool(instances_max: u32, memory_bytes_max: usize) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    // A rollout's grader may start before the pool has its workflow's slot back.
    let slots = instances_max + instances_max / 8 + 8;
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(CORE_INSTANCES_MAX))
        .total_memories(slots.saturating_mul(MEMORIES_MAX))
        .total_tables(slots.saturating_mul(TABLES_MAX))
        .total_stacks(slots)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_component_instance_size(1 << 20)
        .max_core_instance_size(1 << 20)
        .max_memory_size(memory_bytes_max)
        .table_elements(100_000)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES)
        .pagemap_scan(Enabled::Auto)
        .decommit_batch_size(DECOMMIT_BATCH);
    pool
}
