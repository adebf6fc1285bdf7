//! The parts of an open tenant that its deployments use.

use std::sync::Arc;

use rollout_catalog::{Name, TenantId};
use rollout_core::budget::Budget;
use rollout_outbound::Transport;
use rollout_rollout::{AdmissionQuotas, ArtifactRoot, Journal, Share, TenantSlots};
use rollout_wire::quota::{Quota, Quotas};

/// The parts of a tenant that its deployments use.
pub(super) struct TenantParts {
    pub(super) id: TenantId,
    pub(super) name: Name,
    pub(super) slots: TenantSlots,
    pub(super) quotas: Arc<AdmissionQuotas>,
    pub(super) transport: Transport,
    pub(super) budget: Budget,
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) artifact_root: Option<Arc<ArtifactRoot>>,
    /// Held while a deployment is loaded, so that the tenant uses one of the process's permits at a time.
    pub(super) deploying: tokio::sync::Mutex<()>,
    /// The same for versions that are staged, for which rollouts do not wait.
    pub(super) staging: tokio::sync::Mutex<()>,
}

/// Returns the share of slots that quotas permit.
pub(super) fn share(quotas: &Quotas) -> Share {
    Share {
        weight: quotas.weight(),
        running_max: quotas.get_u32(Quota::Running).unwrap_or(u32::MAX),
        queue_max: quotas.get_u32(Quota::Queued).unwrap_or(u32::MAX),
    }
}
