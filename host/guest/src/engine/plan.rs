//! Configuration of the engine: features of WebAssembly, code generation and memory.
//!
//! The options that determine the generated code are separate from the others, because the process that compiles must
//! use the same ones as the process that runs.

use wasmparser::WasmFeatures;
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

use crate::instance::{ASYNC_STACK_BYTES, CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};

/// Linear memories that fit in the address space. Each takes 4 GiB of it, which saves bounds checks in the code, and a
/// process has about 80 TiB in one piece.
const POOLED_MEMORIES_MAX: u64 = 18_432;

/// Bytes of a slot's memory that are zeroed in place when it is released, instead of being returned to the kernel.
/// Returning pages interrupts every core that runs a thread of this process. At thousands of rollouts a second these
/// interruptions cost more than anything else. A Rust guest writes to less than a tenth of these bytes, and a Python
/// guest that takes one turn does not write to all of them. An idle slot keeps these bytes, so the number is smaller if
/// many slots share little memory.
const KEEP_RESIDENT_BYTES: usize = 512 << 10;

/// Bytes of each table of a slot that are zeroed in place.
const KEEP_RESIDENT_TABLE_BYTES: usize = 128 << 10;

/// Bytes of a slot's stack that are zeroed in place. A waiting guest uses 12 to 20 KiB.
const KEEP_RESIDENT_STACK_BYTES: usize = 32 << 10;

/// Number of slots whose remaining pages are returned to the kernel together. With 1, the pages of each slot are
/// returned before its store is dropped. Pages that wait for those of other slots would be resident without being
/// charged, and a slot may have hundreds of MiB. There is nothing to return if a guest wrote to no more pages than its
/// slot keeps.
const DECOMMIT_BATCH: usize = 1;

/// Size up to which a component's initial memory is mapped into its instances, even if little of it is non-zero. Larger
/// memory that is mostly zero is written into each instance. A Python component has some 30 MiB, of which half is
/// non-zero.
pub(super) const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Size of a guest's WebAssembly stack in bytes, a part of [`ASYNC_STACK_BYTES`].
const WASM_STACK_BYTES: usize = 512 << 10;

/// Features of WebAssembly that guests may use. Toolchains emit version 2, with extended constant expressions from
/// their linkers and tail calls from some compilers. The engine itself needs multiple memories, to join the parts of a
/// component. All other features are disabled, because no toolchain tests them: threads, garbage collection,
/// exceptions, typed function references, 64-bit memories, relaxed SIMD (with results that depend on the machine),
/// stack switching, and asynchronous components.
///
/// [`code`] makes the compiler check that this is the type of the engine's own parser.
pub(super) const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .difference(WasmFeatures::GC_TYPES)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::MULTI_MEMORY)
    .union(WasmFeatures::COMPONENT_MODEL);

/// Allocation of guests' memory. The code that is compiled for guests depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlan {
    /// Preallocated slots, into which a component's initial memory is mapped: all instances share the pages that they
    /// only read. This plan is for few guests and for large ones.
    Pooled,
    /// Preallocated slots, into which initial memory is copied. This saves two mappings per instance and is for
    /// thousands of guests.
    PooledEager,
    /// Allocated from the kernel as needed.
    OnDemand,
}

impl MemoryPlan {
    /// Returns the plan for this many instances at once, for the kernel's default limit on mappings.
    pub(super) fn for_instances(instances_max: u32) -> Self {
        const MAPPINGS_BY_DEFAULT: u64 = 60_000;
        Self::within(instances_max, MAPPINGS_BY_DEFAULT)
    }

    /// Returns the plan for this many instances at once, with at most `mappings_max` mappings together.
    pub fn within(instances_max: u32, mappings_max: u64) -> Self {
        let fits = |plan: &Self| u64::from(instances_max) * plan.mappings_per_instance() <= mappings_max;
        let addressable = |plan: &Self| {
            u64::from(slots(instances_max)) * u64::from(plan.memories_max()) <= POOLED_MEMORIES_MAX
        };
        let pooled = [Self::Pooled, Self::PooledEager].into_iter();
        pooled.filter(addressable).find(fits).unwrap_or(Self::OnDemand)
    }

    /// Returns the memory mappings of one instance: as measured with thousands of waiting instances (6, 4 and 3.5), and
    /// half as many again for the first because the kernel splits regions. A process may have 65,530 mappings by
    /// default and is killed if it has more.
    pub fn mappings_per_instance(self) -> u64 {
        match self {
            Self::Pooled => 9,
            Self::PooledEager => 5,
            Self::OnDemand => 4,
        }
    }

    /// Returns the maximum number of linear memories of one component. With thousands of instances there is address
    /// space for one each. Toolchains emit one; composed components have more.
    fn memories_max(self) -> u32 {
        match self {
            Self::Pooled | Self::OnDemand => MEMORIES_MAX,
            Self::PooledEager => 1,
        }
    }

    /// Returns the name for the compiler process.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pooled => "pooled",
            Self::PooledEager => "pooled-eager",
            Self::OnDemand => "on-demand",
        }
    }

    /// Returns the plan with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pooled, Self::PooledEager, Self::OnDemand].into_iter().find(|plan| plan.name() == name)
    }
}

/// Returns the options that determine the generated code, without preallocated memory.
pub(super) fn code(plan: MemoryPlan) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(ASYNC_STACK_BYTES)
        .memory_guaranteed_dense_image_size(IMAGE_BYTES_MAX)
        // Function names are reported, addresses are not, and no debugger unwinds guests. The tables for addresses and
        // unwinding would take 3 of the 54 MiB of a compiled Python component.
        .generate_address_map(false)
        .native_unwind_info(false)
        // NaN bits are the only machine-dependent results of core wasm.
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

/// Returns the options for the code of [`MemoryPlan::Pooled`], whose memory is allocated from the kernel as needed: for
/// components of any number of parts.
pub(super) fn unpooled() -> Config {
    let mut config = code(MemoryPlan::Pooled);
    config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    config
}

/// Returns the options for the same code, with memory for `instances_max` instances. Idle ones keep at most
/// `idle_bytes_max` bytes together.
pub(super) fn config(
    plan: MemoryPlan,
    instances_max: u32,
    memory_bytes_max: usize,
    idle_bytes_max: usize,
) -> Config {
    let mut config = code(plan);
    // A stack is zeroed to release its pages; no guest could read its contents.
    config.async_stack_zeroing(true);
    config.allocation_strategy(match plan {
        MemoryPlan::Pooled | MemoryPlan::PooledEager => {
            let mut pool = pool(plan, instances_max, memory_bytes_max);
            let kept = ResidentBytes::by_each(instances_max, idle_bytes_max);
            pool.linear_memory_keep_resident(kept.memory)
                .table_keep_resident(kept.table)
                .async_stack_keep_resident(kept.stack);
            InstanceAllocationStrategy::Pooling(pool)
        }
        MemoryPlan::OnDemand => InstanceAllocationStrategy::OnDemand,
    });
    config
}

/// Returns the number of slots, which exceeds that of instances: a rollout's grader may start before its workflow's
/// slot is released.
fn slots(instances_max: u32) -> u32 {
    instances_max.saturating_add(instances_max / 32).saturating_add(16)
}

/// Bytes that an idle slot keeps resident, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResidentBytes {
    memory: usize,
    /// The bytes of each table of the slot.
    table: usize,
    stack: usize,
}

impl ResidentBytes {
    /// Divides the bytes that all slots may keep: half for memory, a third for tables, an eighth for stacks.
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
    fn idle_slots_keep_less_if_many_share_little_memory() {
        let all = ResidentBytes {
            memory: KEEP_RESIDENT_BYTES,
            table: KEEP_RESIDENT_TABLE_BYTES,
            stack: KEEP_RESIDENT_STACK_BYTES,
        };
        assert_eq!(ResidentBytes::by_each(64, usize::MAX), all);
        for (instances, idle) in [(1000, 256 << 20), (64, 8 << 20), (10_000, 1 << 30), (10_000, 1 << 20)] {
            let ResidentBytes { memory, table, stack } = ResidentBytes::by_each(instances, idle);
            let each = memory + table * TABLES_MAX as usize + stack;
            assert!(each * slots(instances) as usize <= idle, "{instances} in {idle}: {each}");
            assert!([memory, table, stack].iter().all(|bytes| bytes.is_multiple_of(4096)));
        }
        // With a gibibyte for ten thousand Rust guests, the pages that one of them writes to in a turn stay resident.
        assert_eq!(
            ResidentBytes::by_each(10_000, 1 << 30),
            ResidentBytes { memory: 48 << 10, table: 4 << 10, stack: 12 << 10 }
        );
    }

    #[test]
    fn a_plan_is_found_by_its_name() {
        for plan in [MemoryPlan::Pooled, MemoryPlan::PooledEager, MemoryPlan::OnDemand] {
            assert_eq!(MemoryPlan::from_name(plan.name()), Some(plan));
        }
        assert_eq!(MemoryPlan::from_name("other"), None);
    }

    #[test]
    fn a_plan_fits_into_the_allowed_mappings() {
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
