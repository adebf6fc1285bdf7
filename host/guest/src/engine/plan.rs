//! How the engine is set up: what guests may be made of, how they are compiled and
//! where their memory comes from.
//!
//! What decides on the code that is made of a component is apart from the rest, because
//! the process that compiles has to make the same of it as the one that runs.

use wasmparser::WasmFeatures;
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

use crate::instance::{ASYNC_STACK_BYTES, CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};

/// Linear memories that the pool's slots have addresses for. Each takes 4 GiB of them, so
/// that code need not look where it reaches, and a process has room for about 80 TiB in one
/// piece.
const POOLED_MEMORIES_MAX: u64 = 18_432;

/// Bytes of a slot's memory that are wiped in place when it is given back, instead of
/// being returned to the kernel. Returning pages interrupts every core that runs one of
/// this process's threads, which at thousands of rollouts a second cost more than
/// anything else. A Rust guest writes to less than a tenth of this, and one in Python that makes
/// a turn to less than all of it. An idle slot has them, so that it is less where there are
/// many slots for little memory.
const KEEP_RESIDENT_BYTES: usize = 512 << 10;

/// The same for each of its tables, which are smaller.
const KEEP_RESIDENT_TABLE_BYTES: usize = 128 << 10;

/// The same for its stack. A guest that waits uses 12 to 20 KiB of it.
const KEEP_RESIDENT_STACK_BYTES: usize = 32 << 10;

/// Slots whose remaining pages are returned to the kernel together: each by itself, before its store
/// is gone. What waits for others would be resident and charged to nobody, and a slot may have hundreds
/// of MiB. A guest that wrote to no more than its slot keeps has nothing to return.
const DECOMMIT_BATCH: usize = 1;

/// Bytes up to which a component's initial memory is mapped into its instances however
/// little of it is set. Beyond, one that is mostly zero is written into each instance. A
/// Python component is some 30 MiB, of which half is set.
pub(super) const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// A guest's stack in bytes, a part of [`ASYNC_STACK_BYTES`].
const WASM_STACK_BYTES: usize = 512 << 10;

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
    /// From slots that were set aside, into which a component's initial memory is mapped:
    /// pages that a guest only reads are shared by all. For few and for large guests.
    Pooled,
    /// From slots that were set aside, into which initial memory is copied, which saves two
    /// mappings an instance. For thousands.
    PooledEager,
    /// From the kernel, as needed.
    OnDemand,
}

impl MemoryPlan {
    /// The plan for this many instances at once, where the process may have as many
    /// mappings as kernels give by default.
    pub(super) fn for_instances(instances_max: u32) -> Self {
        const MAPPINGS_BY_DEFAULT: u64 = 60_000;
        Self::within(instances_max, MAPPINGS_BY_DEFAULT)
    }

    /// The plan for this many instances at once, which may have so many mappings together.
    pub fn within(instances_max: u32, mappings_max: u64) -> Self {
        let fits = |plan: &Self| u64::from(instances_max) * plan.mappings_per_instance() <= mappings_max;
        let addressable = |plan: &Self| {
            u64::from(slots(instances_max)) * u64::from(plan.memories_max()) <= POOLED_MEMORIES_MAX
        };
        let pooled = [Self::Pooled, Self::PooledEager].into_iter();
        pooled.filter(addressable).find(fits).unwrap_or(Self::OnDemand)
    }

    /// Memory mappings that one instance costs: what was measured with thousands of them
    /// waiting (6, 4 and 3.5), and half of the first as much again for regions that the
    /// kernel splits. A process has 65,530 by default, and is ended past them.
    pub fn mappings_per_instance(self) -> u64 {
        match self {
            Self::Pooled => 9,
            Self::PooledEager => 5,
            Self::OnDemand => 4,
        }
    }

    /// Linear memories that one component may have. With thousands of instances there are
    /// addresses for one each, which is what every tool chain makes; more come from
    /// composing components.
    fn memories_max(self) -> u32 {
        match self {
            Self::Pooled | Self::OnDemand => MEMORIES_MAX,
            Self::PooledEager => 1,
        }
    }

    /// Its name, which the process that compiles is given.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pooled => "pooled",
            Self::PooledEager => "pooled-eager",
            Self::OnDemand => "on-demand",
        }
    }

    /// The plan of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pooled, Self::PooledEager, Self::OnDemand].into_iter().find(|plan| plan.name() == name)
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
        .memory_guaranteed_dense_image_size(IMAGE_BYTES_MAX)
        // Names of functions are reported, addresses are not, and no debugger unwinds guests. The tables for both
        // have 3 of the 54 MiB of a compiled Python component.
        .generate_address_map(false)
        .native_unwind_info(false)
        // NaN bits are the one thing in core wasm that depends on the machine.
        .cranelift_nan_canonicalization(true)
        .wasm_features(WasmFeatures::all().difference(FEATURES), false)
        .wasm_features(FEATURES, true);
    match plan {
        MemoryPlan::Pooled => {}
        MemoryPlan::PooledEager => {
            config.memory_init_cow(false);
        }
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

/// The same code, with memory for this many instances, which keep so much of it together while they are idle.
pub(super) fn config(
    plan: MemoryPlan,
    instances_max: u32,
    memory_bytes_max: usize,
    idle_bytes_max: usize,
) -> Config {
    let mut config = code(plan);
    // A stack is not wiped for what is on it, which no guest can read, but for its pages.
    config.async_stack_zeroing(true);
    config.allocation_strategy(match plan {
        MemoryPlan::Pooled | MemoryPlan::PooledEager => {
            let mut pool = pool(plan, instances_max, memory_bytes_max);
            let kept = Kept::by_each(instances_max, idle_bytes_max);
            pool.linear_memory_keep_resident(kept.memory)
                .table_keep_resident(kept.table)
                .async_stack_keep_resident(kept.stack);
            InstanceAllocationStrategy::Pooling(pool)
        }
        MemoryPlan::OnDemand => InstanceAllocationStrategy::OnDemand,
    });
    config
}

/// A rollout's grader may start before the pool has its workflow's slot back.
fn slots(instances_max: u32) -> u32 {
    instances_max.saturating_add(instances_max / 32).saturating_add(16)
}

/// Bytes that a slot keeps resident while it is idle, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    memory: usize,
    /// Of each of its tables.
    table: usize,
    stack: usize,
}

impl Kept {
    /// Shares out what all slots may keep together: half of it is memory's, a third the tables', an eighth
    /// the stacks'.
    fn by_each(instances_max: u32, idle_bytes_max: usize) -> Self {
        const PAGE_BYTES: usize = 4096;
        let each = idle_bytes_max / slots(instances_max) as usize;
        let pages = |bytes: usize, max: usize| bytes.min(max) / PAGE_BYTES * PAGE_BYTES;
        Self {
            memory: pages(each / 2, KEEP_RESIDENT_BYTES),
            table: pages(each / 3 / TABLES_MAX as usize, KEEP_RESIDENT_TABLE_BYTES),
            stack: pages(each / 8, KEEP_RESIDENT_STACK_BYTES),
        }
    }
}

fn pool(plan: MemoryPlan, instances_max: u32, memory_bytes_max: usize) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    let (slots, memories_max) = (slots(instances_max), plan.memories_max());
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(CORE_INSTANCES_MAX))
        .total_memories(slots.saturating_mul(memories_max))
        .total_tables(slots.saturating_mul(TABLES_MAX))
        .total_stacks(slots)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(memories_max)
        .max_tables_per_component(TABLES_MAX)
        .max_memories_per_module(memories_max)
        .max_tables_per_module(TABLES_MAX)
        .max_component_instance_size(1 << 20)
        .max_core_instance_size(1 << 20)
        .max_memory_size(memory_bytes_max)
        .table_elements(100_000)
        .pagemap_scan(Enabled::Auto)
        .decommit_batch_size(DECOMMIT_BATCH);
    pool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_slots_keep_less_where_there_are_many_for_little_memory() {
        let all = Kept {
            memory: KEEP_RESIDENT_BYTES,
            table: KEEP_RESIDENT_TABLE_BYTES,
            stack: KEEP_RESIDENT_STACK_BYTES,
        };
        assert_eq!(Kept::by_each(64, usize::MAX), all);
        for (instances, idle) in [(1000, 256 << 20), (64, 8 << 20), (10_000, 1 << 30), (10_000, 1 << 20)] {
            let Kept { memory, table, stack } = Kept::by_each(instances, idle);
            let each = memory + table * TABLES_MAX as usize + stack;
            assert!(each * slots(instances) as usize <= idle, "{instances} in {idle}: {each}");
            assert!([memory, table, stack].iter().all(|bytes| bytes.is_multiple_of(4096)));
        }
        // What a Rust guest that makes a turn writes to is kept, where ten thousand of them have a gibibyte.
        assert_eq!(
            Kept::by_each(10_000, 1 << 30),
            Kept { memory: 48 << 10, table: 4 << 10, stack: 12 << 10 }
        );
    }

    #[test]
    fn a_plan_is_known_by_its_name() {
        for plan in [MemoryPlan::Pooled, MemoryPlan::PooledEager, MemoryPlan::OnDemand] {
            assert_eq!(MemoryPlan::from_name(plan.name()), Some(plan));
        }
        assert_eq!(MemoryPlan::from_name("other"), None);
    }

    #[test]
    fn a_plan_fits_into_the_mappings_that_there_are() {
        fn check(instances: u32, mappings: u64, expected: MemoryPlan) {
            assert_eq!(MemoryPlan::within(instances, mappings), expected, "{instances} in {mappings}");
        }
        check(1024, 61_434, MemoryPlan::Pooled);
        check(10_000, 61_434, MemoryPlan::PooledEager);
        check(13_000, 61_434, MemoryPlan::OnDemand);
        check(20_000, 1 << 20, MemoryPlan::OnDemand);
        check(8_000, 1 << 20, MemoryPlan::Pooled);
        check(10_000, 1 << 20, MemoryPlan::PooledEager);
        check(1024, 6_000, MemoryPlan::PooledEager);
    }
}
