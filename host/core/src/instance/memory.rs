//! The memory of one store: all its linear memories and tables together.

use std::sync::Arc;

use wasmtime::ResourceLimiter;

use crate::budget::{Charge, Use};
use crate::imports::Record;
use crate::telemetry::Limit;

/// Bytes that one table element takes. Where tables come from no pool, one that grows is copied
/// to a place that has room for twice as many, so that for a moment there are three of it, and
/// what the allocator has back it keeps for a while.
const TABLE_ELEMENT_BYTES: usize = 3 * size_of::<usize>();

/// Core instances of one store: a Rust guest has 4, a Python guest about 30.
pub(crate) const CORE_INSTANCES_MAX: u32 = 64;

/// Linear memories of one store. Composed components have more than one. Each is
/// several mappings of the process, however small it is.
pub(crate) const MEMORIES_MAX: u32 = 2;

/// Tables of one store.
pub(crate) const TABLES_MAX: u32 = 8;

/// Counts what a store's guests grow and refuses what is over the limit.
pub(super) struct MemoryLimit {
    bytes_max: usize,
    bytes: usize,
    /// What the host holds for it, where that is charged.
    charge: Option<Charge>,
    refused: bool,
    record: Arc<Record>,
}

impl MemoryLimit {
    pub(super) fn new(bytes_max: usize, record: Arc<Record>) -> Self {
        let charge = record.holder().map(|holder| holder.nothing(Use::Guest));
        Self { bytes_max, bytes: 0, charge, refused: false, record }
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether a growth was refused. A guest that traps after that ran out of memory.
    pub(super) fn refused(&self) -> bool {
        self.refused
    }

    /// Counts what an instance has from its start and does not give back.
    pub(super) fn charge(&mut self, bytes: usize) -> bool {
        self.grow(0, bytes)
    }

    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let total = self.bytes.saturating_add(desired.saturating_sub(current));
        if total > self.bytes_max {
            self.refused = true;
            self.record.note_asked(Limit::Memory, total);
            return false;
        }
        if let Some(charge) = &mut self.charge
            && let Err(over) = charge.grow(total - self.bytes)
        {
            // Its rollout was ended with that, whatever the guest makes of the refusal.
            self.record.note_asked(Limit::MemoryBudget, over.used.saturating_add(over.asked));
            return false;
        }
        self.bytes = total;
        self.record.meter().note_memory(total);
        true
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self
            .grow(current.saturating_mul(TABLE_ELEMENT_BYTES), desired.saturating_mul(TABLE_ELEMENT_BYTES)))
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }
}
