//! How the engine is set up: what guests may be made of, how they are compiled and
//! where their memory comes from.
//!
//! What decides on the code that is made of a component is apart from the rest, because
//! the process that compiles has to make the same of it as the one that runs.

use wasmparser::WasmFeatures;
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

use crate::instance::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};

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

/// What a guest may be made of. The tool chains emit the second version of WebAssembly,
/// with constant expressions as their linkers write them and tail calls as a compiler
/// may. Several memories in one module are the engine's own need: it joins components
/// inside a component by modules of that kind. Everything else that the engine knows is
/// off, so that nobody can upload what no tool chain tests: threads, garbage-collected
/// types, exceptions, typed function references, 64-bit memories, relaxed SIMD (whose
/// results depend on the machine), stack switching, and asynchronous components.
///
/// That this is the type of the engine's own parser, the compiler checks in [`code`].
pub(super) const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .difference(WasmFeatures::GC_TYPES)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::MULTI_MEMORY)
    .union(WasmFeatures::COMPONENT_MODEL);

/// Where guests' memory comes from, which the code compiled for them relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlan {
    /// From slots that were set aside.
    Pooled,
    /// From the kernel, as needed.
    OnDemand,
}

impl MemoryPlan {
    /// The plan for this many instances at once.
    pub(super) fn for_instances(instances_max: u32) -> Self {
        if instances_max <= POOLED_INSTANCES_MAX { Self::Pooled } else { Self::OnDemand }
    }

    /// Its name, by which the process that compiles is told.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pooled => "pooled",
            Self::OnDemand => "on-demand",
        }
    }

    /// The plan of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pooled, Self::OnDemand].into_iter().find(|plan| plan.name() == name)
    }
}

/// All that decides on the code, and no memory set aside.
pub(super) fn code(plan: MemoryPlan) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(ASYNC_STACK_BYTES)
        // NaN bits are the one thing in core wasm that depends on the machine.
        .cranelift_nan_canonicalization(true)
        .wasm_features(WasmFeatures::all().difference(FEATURES), false)
        .wasm_features(FEATURES, true);
    match plan {
        MemoryPlan::Pooled => {}
        MemoryPlan::OnDemand => {
            config
                .memory_reservation(0)
                .memory_guard_size(0)
                .memory_reservation_for_growth(1 << 20)
                .memory_init_cow(false);
        }
    }
    config
}

/// The same code, with memory for this many instances.
pub(super) fn config(instances_max: u32, memory_bytes_max: usize) -> Config {
    let plan = MemoryPlan::for_instances(instances_max);
    let mut config = code(plan);
    config.allocation_strategy(match plan {
        MemoryPlan::Pooled => InstanceAllocationStrategy::Pooling(pool(instances_max, memory_bytes_max)),
        MemoryPlan::OnDemand => InstanceAllocationStrategy::OnDemand,
    });
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
        .max_memories_per_module(MEMORIES_MAX)
        .max_tables_per_module(TABLES_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_known_by_its_name() {
        for plan in [MemoryPlan::Pooled, MemoryPlan::OnDemand] {
            assert_eq!(MemoryPlan::from_name(plan.name()), Some(plan));
        }
        assert_eq!(MemoryPlan::from_name("other"), None);
    }
}
