//! Memory limit of one store, for all its linear memories and tables together.

use std::sync::{Arc, Mutex, PoisonError};

use wasmtime::ResourceLimiter;

use crate::imports::Record;
use crate::stack;
use rollout_core::budget::{Charge, OverBudget, Use};
use rollout_core::telemetry::Limit;

/// Bytes of one table element. Without a pool, a table that grows is copied to a buffer of twice the size, so for a
/// moment there are three times as many bytes, and the allocator keeps the freed ones for a while.
const TABLE_ELEMENT_BYTES: usize = 3 * size_of::<usize>();

/// Size of a guest's stack in bytes, including room for host calls on top.
pub(crate) const ASYNC_STACK_BYTES: usize = 1 << 20;

/// Maximum number of core instances of one store: a Rust guest has 4, a Python guest about 30.
pub(crate) const CORE_INSTANCES_MAX: u32 = 64;

/// Maximum number of linear memories of one store. Composed components have more than one. Each is several mappings of
/// the process, whatever its size.
pub(crate) const MEMORIES_MAX: u32 = 2;

/// Maximum number of tables of one store.
pub(crate) const TABLES_MAX: u32 = 8;

/// The charge for the memory of one store, released with the last clone.
///
/// A store drops its data before it returns its pages to the kernel, which takes some 30 ms for 256 MiB. So a run keeps
/// a clone until its store is gone, and released bytes are no longer resident.
#[derive(Clone)]
pub(super) struct MemoryCharge(Option<Arc<Mutex<Charge>>>);

impl MemoryCharge {
    /// Creates an empty charge to the record's holder, if it has one.
    pub(super) fn new(record: &Record) -> Self {
        Self(record.holder().map(|holder| Arc::new(Mutex::new(holder.nothing(Use::Guest)))))
    }

    fn grow(&self, bytes: usize) -> Result<(), OverBudget> {
        let Some(charge) = &self.0 else { return Ok(()) };
        charge.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes)
    }
}

/// The charge for the stack of a store's guest, a part of the store's [`MemoryCharge`].
///
/// The stack's pages stay with the guest until its call is over, so the charge only grows.
pub(super) struct StackCharge {
    charge: MemoryCharge,
    bytes: usize,
}

impl StackCharge {
    pub(super) fn new(charge: MemoryCharge) -> Self {
        Self { charge, bytes: 0 }
    }

    /// Charges the resident bytes of the stack that was just left, if there are more than before.
    pub(super) fn charge_growth(&mut self, record: &Record) {
        let Some(bytes) = stack::resident_bytes(ASYNC_STACK_BYTES).filter(|bytes| *bytes > self.bytes) else {
            return;
        };
        match self.charge.grow(bytes - self.bytes) {
            Ok(()) => self.bytes = bytes,
            // The rollout is evicted with this.
            Err(over) => record.note_requested(Limit::MemoryBudget, over.used.saturating_add(over.asked)),
        }
    }
}

/// Counts the memory growth of a store's guests and refuses it above the limit.
pub(super) struct MemoryLimit {
    bytes_max: usize,
    bytes: usize,
    charge: MemoryCharge,
    refused: bool,
    record: Arc<Record>,
}

impl MemoryLimit {
    pub(super) fn new(bytes_max: usize, record: Arc<Record>, charge: MemoryCharge) -> Self {
        Self { bytes_max, bytes: 0, charge, refused: false, record }
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns whether growth was refused. A guest that traps afterwards ran out of memory.
    pub(super) fn refused(&self) -> bool {
        self.refused
    }

    /// Charges memory that an instance has from its start and never releases. Returns whether it is within the limit.
    pub(super) fn charge(&mut self, bytes: usize) -> bool {
        self.grow(0, bytes)
    }

    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let total = self.bytes.saturating_add(desired.saturating_sub(current));
        if total > self.bytes_max {
            self.refused = true;
            self.record.note_requested(Limit::Memory, total);
            return false;
        }
        if let Err(over) = self.charge.grow(total - self.bytes) {
            // The rollout is evicted with this, even if the guest handles the refusal.
            self.record.note_requested(Limit::MemoryBudget, over.used.saturating_add(over.asked));
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
