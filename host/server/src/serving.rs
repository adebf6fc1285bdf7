//! The host that new rollouts are admitted by. It can become another one, of another deployment, while
//! those that run end on what they began with.

use std::sync::{Arc, PoisonError, RwLock};

use rollout_rollout::Host;

/// See above. Clones are the same one.
#[derive(Clone)]
pub struct Serving(Arc<RwLock<Arc<Served>>>);

/// A host, and what answers its callers.
pub(crate) struct Served {
    /// The host.
    pub host: Host,
    /// The agent's name, which callers of some protocols are told.
    pub agent_name: String,
}

impl Serving {
    /// This host, whose agent has this name.
    pub fn new(host: Host, agent_name: String) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Served { host, agent_name }))))
    }

    pub(crate) fn now(&self) -> Arc<Served> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The host, for one request: what is asked twice may have changed meanwhile.
    pub fn host(&self) -> Host {
        self.now().host.clone()
    }

    /// From here on rollouts are admitted by this one, on the same runtime's slots.
    pub fn become_host(&self, host: Host, agent_name: String) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Served { host, agent_name });
    }
}
