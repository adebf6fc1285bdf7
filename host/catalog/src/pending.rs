//! Updates that are not written yet: last uses of keys and usage of tenants.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use crate::model::{KeyId, TenantId};

/// Usage of a tenant in a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TenantUsage {
    /// Number of model tokens, prompts and completions together.
    pub model_tokens: u64,
    /// CPU time of guests.
    pub guest_cpu_nanos: u64,
}

impl TenantUsage {
    /// Adds more usage of the same day.
    pub fn add(&mut self, more: Self) {
        self.model_tokens = self.model_tokens.saturating_add(more.model_tokens);
        self.guest_cpu_nanos = self.guest_cpu_nanos.saturating_add(more.guest_cpu_nanos);
    }
}

/// Updates in memory.
#[derive(Default)]
pub(crate) struct PendingUpdates {
    /// Last uses of keys that are not written yet.
    pub touched: HashMap<KeyId, i64>,
    pub touches_written: Option<Instant>,
    /// Totals of today and of days that are not written yet.
    pub usage: BTreeMap<(i64, TenantId), Used>,
    /// Whether usage was added since the last write began.
    pub has_new_usage: bool,
    /// Whether the catalog is being closed.
    pub is_closing: bool,
}

/// Usage of a tenant in a day, and whether it is written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Used {
    pub total: TenantUsage,
    pub written: bool,
}
