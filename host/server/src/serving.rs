//! The host that admits new rollouts. It is replaced when another deployment becomes active; rollouts end on the host
//! that admitted them.

use std::sync::{Arc, PoisonError, RwLock};

use rollout_rollout::Host;

/// A handle to the host that admits new rollouts. Clones share it.
#[derive(Clone)]
pub struct Serving(Arc<RwLock<Arc<Served>>>);

/// A host and the name of its agent.
pub(crate) struct Served {
    /// The host.
    pub host: Host,
    /// The agent's name in `/health`.
    pub agent_name: String,
}

impl Serving {
    /// Creates the handle with its first host.
    pub fn new(host: Host, agent_name: String) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Served { host, agent_name }))))
    }

    /// Returns the current host and the name of its agent.
    pub(crate) fn now(&self) -> Arc<Served> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the current host. Call it once per request: the next call may return another host.
    pub fn host(&self) -> Host {
        self.now().host.clone()
    }

    /// Replaces the host. The new one must use the same slots.
    pub fn set_host(&self, host: Host, agent_name: String) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Served { host, agent_name });
    }
}
