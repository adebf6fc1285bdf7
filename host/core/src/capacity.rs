//! Number of rollouts that the machine's resources allow at once.
//!
//! A process that exceeds the kernel's limits is killed (mappings, memory) or fails in the middle of a rollout
//! (descriptors). The limits are therefore read when a host starts and converted to a number of slots. A caller that
//! finds all slots taken has to retry later.

mod control_groups;

use std::fmt;
use std::fs;

use control_groups::GroupMemory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for the process itself: standard streams, its log, the cache, trajectories being written,
/// connections of host-provided tools, and the two constants below.
const DESCRIPTORS_KEPT: u64 = 128;

/// Part of the reserved descriptors: connections of callers without a rollout, which are requests for `/health` or
/// `/metrics`, and callers that are refused because the host is full.
const DESCRIPTORS_FOR_ANYBODY: u64 = 32;

/// Part of the reserved descriptors: connections to callback addresses. The last callback of a rollout is sent when
/// its slot may already be taken by another rollout.
const DESCRIPTORS_FOR_CALLBACKS: u64 = 16;

/// Part of the reserved descriptors: connections that are accepted in addition to those that are served, so that
/// `/health` and `/rollout/cancel` work on a full server.
pub const CALLERS_SPARE: usize = 16;

/// Memory mappings reserved for the process itself: its code, its threads, its allocator.
const MAPPINGS_KEPT: u64 = 4096;

/// Connections that one queued rollout has open: that of its caller.
const DESCRIPTORS_PER_QUEUED: u64 = 1;

/// Memory that a waiting rollout needs in addition to its guest's: its connections, tasks and stack. Measured with
/// 10,000 rollouts; see `docs/understand/performance.md`.
const BYTES_PER_ROLLOUT: u64 = 64 << 10;

/// Percentage of the memory that is free at the start of a host that may be held for others. The rest is for the
/// process itself, fragmentation of its allocator, and the kernel's socket buffers.
const MEMORY_BUDGET_PERCENT: u64 = 70;

/// Memory of this process outside its budget: this percentage of the budget, plus this number of bytes.
const OWN_MEMORY_PERCENT: u64 = 10;
const OWN_MEMORY_BYTES: u64 = 64 << 20;

/// Percentage of the budget that guests may use when they start; the rest is for their growth.
const START_PERCENT: u64 = 85;

/// Resources that the machine has for this process. A value that cannot be read is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Open files and connections, after the limit was raised as far as possible.
    pub descriptors_max: u64,
    /// Memory mappings, `vm.max_map_count`.
    pub mappings_max: u64,
    /// Bytes of memory available without swapping or killing.
    pub memory_bytes_free: u64,
    /// Limit of the control group that determines `memory_bytes_free`, in bytes. `None` if the machine determines it.
    pub memory_group_bytes_max: Option<u64>,
    /// Bytes that may be held for others, if the operator configured them.
    pub memory_budget_bytes: Option<u64>,
}

/// Number of rollouts that a host may run at once, and the resource that limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Rollouts that run at once.
    pub running_max: u32,
    /// Rollouts that may wait for a slot.
    pub queue_max: u32,
    /// The resource that limits the number of running rollouts.
    pub bound_by: Bound,
    /// Division of the process's descriptors among connections.
    pub connections: Connections,
}

/// Numbers of connections of each kind that may be open at once. Together with the reserve of the process they are all
/// its descriptors, so neither kind can use up the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Connections from callers, including idle ones.
    pub callers_max: usize,
    /// Connections to models, judges and callback addresses, including idle ones.
    pub outbound_max: usize,
}

/// The resource that limits the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The operator's configuration.
    Asked,
    /// Open files.
    Descriptors {
        /// The limit of this process.
        max: u64,
    },
    /// Memory mappings.
    Mappings {
        /// The kernel's limit for every process.
        max: u64,
    },
    /// Memory that may be held for all rollouts, as the operator configured it.
    MemoryBudget {
        /// The budget in bytes.
        bytes: u64,
    },
    /// Free memory.
    Memory {
        /// Free memory when the host started, in bytes.
        free_bytes: u64,
        /// Limit of the control group that determines it, in bytes.
        group_bytes_max: Option<u64>,
    },
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => write!(f, "max-concurrent, which the operator may raise"),
            Self::Descriptors { max } => {
                write!(f, "{max} open files; 'ulimit -n', or LimitNOFILE of the service, raises it")
            }
            Self::Mappings { max } => {
                write!(f, "{max} memory mappings; 'sysctl -w vm.max_map_count={}' raises it", max * 4)
            }
            Self::MemoryBudget { bytes } => {
                write!(f, "{} MiB of memory-budget-bytes; raise it for more", bytes >> 20)
            }
            Self::Memory { free_bytes, group_bytes_max: Some(max) } => write!(
                f,
                "{} MiB that a control group's memory limit of {} MiB leaves; a larger limit gives more",
                free_bytes >> 20,
                max >> 20
            ),
            Self::Memory { free_bytes, group_bytes_max: None } => {
                write!(f, "{} MiB of free memory; a larger machine gives more", free_bytes >> 20)
            }
        }
    }
}

/// Resources that the host needs for one rollout.
#[derive(Clone, Copy, Debug)]
pub struct GuestCost {
    /// Connections that one running rollout has open: that of its model, and that of its caller if callers wait for
    /// results instead of being called back.
    pub descriptors: u64,
    /// Memory mappings of one instance.
    pub mappings: u64,
    /// Memory of one instance when it starts, in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// Reads the machine's limits, and raises the limit of open files to the most that this process may have.
    pub fn read() -> Self {
        let (free_bytes, group) = memory();
        if let Some(group) = &group {
            tracing::info!(
                limit = %group.limit_file.display(),
                limit_bytes = group.limit_bytes,
                free_bytes = group.free_bytes,
                "a control group limits this process's memory"
            );
        }
        Self::with_memory(free_bytes, group)
    }

    /// Reads the same limits without logging the control group that limits the memory.
    pub fn read_again() -> Self {
        let (free_bytes, group) = memory();
        Self::with_memory(free_bytes, group)
    }

    fn with_memory(free_bytes: u64, group: Option<GroupMemory>) -> Self {
        Self {
            descriptors_max: raise_descriptors(),
            mappings_max: number_in("/proc/sys/vm/max_map_count").unwrap_or(u64::MAX),
            memory_bytes_free: free_bytes,
            memory_group_bytes_max: group.map(|group| group.limit_bytes),
            memory_budget_bytes: None,
        }
    }

    /// Returns the number of mappings that guests may have.
    pub fn guest_mappings_max(&self) -> u64 {
        self.mappings_max.saturating_sub(MAPPINGS_KEPT)
    }

    /// Returns the bytes that may be held for others.
    pub fn memory_budget(&self) -> u64 {
        self.memory_budget_bytes.unwrap_or(self.memory_bytes_free / 100 * MEMORY_BUDGET_PERCENT)
    }

    /// Returns the bytes that the memory budget and this process leave to child processes.
    pub fn memory_outside_budget(&self) -> u64 {
        let budget = self.memory_budget();
        let own = (budget / 100 * OWN_MEMORY_PERCENT).saturating_add(OWN_MEMORY_BYTES);
        self.memory_bytes_free.saturating_sub(budget).saturating_sub(own)
    }

    /// Returns the requested number of slots, or as many as there is room for.
    pub fn slots(&self, requested: u32, queue_requested: u32, cost: GuestCost) -> Slots {
        let descriptors = self.descriptors();
        let memory = self.memory_budget() / 100 * START_PERCENT;
        let bounds = [
            (u64::from(requested), Bound::Asked),
            (descriptors / cost.descriptors.max(1), Bound::Descriptors { max: self.descriptors_max }),
            (self.guest_mappings_max() / cost.mappings.max(1), Bound::Mappings { max: self.mappings_max }),
            (
                memory / cost.memory_bytes.saturating_add(BYTES_PER_ROLLOUT),
                match self.memory_budget_bytes {
                    Some(bytes) => Bound::MemoryBudget { bytes },
                    None => Bound::Memory {
                        free_bytes: self.memory_bytes_free,
                        group_bytes_max: self.memory_group_bytes_max,
                    },
                },
            ),
        ];
        let mut least = bounds[0];
        for bound in bounds {
            if bound.0 < least.0 {
                least = bound;
            }
        }
        // Never 0: such a host would be useless, and one slot may work.
        let running = least.0.max(1);
        let outbound = self.outbound(requested, queue_requested, cost.descriptors);
        let callers = descriptors.saturating_sub(outbound);
        let left = callers.saturating_sub(running * callers_per_rollout(cost.descriptors));
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let connections = Connections {
            callers_max: bounded(callers + DESCRIPTORS_FOR_ANYBODY),
            outbound_max: bounded(outbound + DESCRIPTORS_FOR_CALLBACKS),
        };
        Slots {
            running_max: count(running),
            queue_max: queue_requested.min(count(left / DESCRIPTORS_PER_QUEUED)),
            bound_by: least.1,
            connections,
        }
    }

    /// Returns the descriptors for connections.
    fn descriptors(&self) -> u64 {
        self.descriptors_max.saturating_sub(DESCRIPTORS_KEPT)
    }

    /// Returns the number of outbound connections: one for each rollout that the descriptors allow, and half of what
    /// callers of running and queued rollouts leave. Memory and mappings do not count here, so that a host knows the
    /// number before it knows its plugin.
    fn outbound(&self, requested: u32, queue_requested: u32, per_rollout: u64) -> u64 {
        let descriptors = self.descriptors();
        let running = u64::from(requested).min(descriptors / per_rollout.max(1));
        let left = descriptors - running * per_rollout.max(1);
        let queued = (u64::from(queue_requested) * DESCRIPTORS_PER_QUEUED).min(left);
        running + (left - queued) / 2
    }
}

/// Returns the free memory in bytes, and the control group that limits it, if one does.
fn memory() -> (u64, Option<GroupMemory>) {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(available_in);
    let machine = machine.unwrap_or(u64::MAX);
    let group = control_groups::tightest().filter(|group| group.free_bytes < machine);
    (group.as_ref().map_or(machine, |group| group.free_bytes), group)
}

/// Returns the number of a running rollout's connections that belong to its caller.
fn callers_per_rollout(descriptors: u64) -> u64 {
    descriptors.saturating_sub(1)
}

/// Converts a count to a number of permits, which tokio's semaphores limit.
fn bounded(count: u64) -> usize {
    const PERMITS_MAX: usize = usize::MAX >> 4;
    usize::try_from(count).unwrap_or(PERMITS_MAX).min(PERMITS_MAX)
}

/// Raises the limit of open files as far as possible and returns it.
pub fn raise_descriptors() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        return maximum.unwrap_or(u64::MAX);
    }
    current.unwrap_or(u64::MAX)
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: Machine = Machine {
        descriptors_max: 1 << 20,
        mappings_max: 1 << 20,
        memory_bytes_free: 1 << 40,
        memory_group_bytes_max: None,
        memory_budget_bytes: None,
    };
    const COST: GuestCost = GuestCost { descriptors: 2, mappings: 4, memory_bytes: 64 << 10 };

    #[test]
    fn slots_are_the_requested_number_or_as_many_as_there_is_room_for() {
        fn check(machine: Machine, requested: u32, queue: u32, running: u32, queued: u32, by: &str) {
            let slots = machine.slots(requested, queue, COST);
            assert_eq!((slots.running_max, slots.queue_max), (running, queued), "{slots:?}");
            assert!(slots.bound_by.to_string().contains(by), "{}", slots.bound_by);
        }
        check(ROOMY, 1024, 4096, 1024, 4096, "max-concurrent");
        let few_files = Machine { descriptors_max: 1128, ..ROOMY };
        check(few_files, 1024, 4096, 500, 0, "ulimit -n");
        check(few_files, 1024, 0, 500, 0, "1128 open files");
        check(few_files, 100, 4096, 100, 800, "max-concurrent");
        let few_mappings = Machine { mappings_max: 65_530, ..ROOMY };
        check(few_mappings, 20_000, 0, 15_358, 0, "vm.max_map_count=262120");
        let little_memory = Machine { memory_bytes_free: 200 << 20, ..ROOMY };
        check(little_memory, 20_000, 0, 951, 0, "200 MiB of free memory");
        let small_group = Machine { memory_group_bytes_max: Some(300 << 20), ..little_memory };
        check(
            small_group,
            20_000,
            0,
            951,
            0,
            "200 MiB that a control group's memory limit of 300 MiB leaves",
        );
        let little_budget = Machine { memory_budget_bytes: Some(140 << 20), ..ROOMY };
        check(little_budget, 20_000, 0, 951, 0, "140 MiB of memory-budget-bytes");
        check(Machine { descriptors_max: 10, ..ROOMY }, 5, 5, 1, 0, "open files");
    }

    #[test]
    fn callers_and_models_share_the_descriptors_and_leave_the_reserve() {
        fn check(descriptors: u64, requested: u32, queue: u32, per_rollout: u64, expected: (usize, usize)) {
            let machine = Machine { descriptors_max: descriptors, ..ROOMY };
            let slots = machine.slots(requested, queue, GuestCost { descriptors: per_rollout, ..COST });
            let Connections { callers_max, outbound_max } = slots.connections;
            assert_eq!((callers_max, outbound_max), expected, "{slots:?}");
            let all = (callers_max + outbound_max) as u64;
            assert!(all + 80 <= descriptors.max(DESCRIPTORS_KEPT), "{all} {slots:?}");
            let waiting = u64::from(slots.running_max) * (per_rollout - 1) + u64::from(slots.queue_max);
            assert!(waiting + DESCRIPTORS_FOR_ANYBODY <= callers_max as u64 || slots.running_max == 1);
        }
        check(400, 1024, 4096, 2, (136 + 32, 136 + 16));
        check(1128, 100, 400, 2, (700 + 32, 300 + 16));
        check(1128, 100, 4096, 1, (900 + 32, 100 + 16));
        check(1128, 4096, 4096, 1, (32, 1000 + 16));
        check(100, 10, 10, 2, (32, 16));
        // A plugin that needs much memory runs fewer rollouts at once and leaves descriptors unused.
        let little = Machine { descriptors_max: 1128, memory_bytes_free: 2 << 20, ..ROOMY };
        let slots = little.slots(400, 4096, COST);
        assert_eq!((slots.running_max, slots.queue_max), (9, 591));
    }

    #[test]
    fn this_machine_has_room_for_four_rollouts() {
        let slots = Machine::read().slots(4, 4, COST);
        assert_eq!((slots.running_max, slots.queue_max), (4, 4), "{slots:?}");
    }

    #[test]
    fn memory_outside_the_budget_and_the_process_is_left_to_child_processes() {
        let group = Machine { memory_bytes_free: 2000 << 20, ..ROOMY };
        assert_eq!(group.memory_outside_budget() >> 20, 2000 - 1400 - 140 - 64);
        let little_budget = Machine { memory_budget_bytes: Some(1000 << 20), ..group };
        assert_eq!(little_budget.memory_outside_budget() >> 20, 2000 - 1000 - 100 - 64);
        let large_budget = Machine { memory_budget_bytes: Some(1 << 40), ..group };
        assert_eq!(large_budget.memory_outside_budget(), 0);
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(available_in(text), expected, "{text:?}");
        }
        check("MemTotal: 10 kB\nMemAvailable:    1234 kB\n", Some(1234 * 1024));
        check("MemTotal: 10 kB\n", None);
        check("MemAvailable: many\n", None);
    }
}
