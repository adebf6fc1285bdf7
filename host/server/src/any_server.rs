//! The server of a process: of one plugin, of the plugins of many tenants, or a gateway to workers.

use axum::Router;

use crate::admin::Admin;
use crate::gateway::Gateway;
use crate::tenants::Tenants;
use crate::{Server, ShutdownDeadlines};
use rollout_rollout::Load;

/// A server of one plugin or of many tenants, or a gateway.
pub enum AnyServer {
    /// A server of one plugin.
    One(Server),
    /// A server of the plugins of many tenants, with the admin API.
    Many(Tenants, Admin),
    /// A gateway, which runs no rollouts.
    Gateway(Gateway),
}

impl AnyServer {
    /// Returns all routes.
    pub fn router(&self) -> Router {
        match self {
            Self::One(server) => server.router(),
            Self::Many(tenants, admin) => tenants.router(admin),
            Self::Gateway(gateway) => gateway.router(),
        }
    }

    /// Returns the load of all plugins together.
    pub fn load(&self) -> Load {
        match self {
            Self::One(server) => server.load(),
            Self::Many(tenants, _) => tenants.load(),
            Self::Gateway(_) => Load { max_concurrent: 0, queued: 0, running: 0, accepting: true },
        }
    }

    /// Waits for live rollouts and their reports, as [`Server::drain`] does.
    pub async fn drain(&self, deadlines: &ShutdownDeadlines) -> bool {
        match self {
            Self::One(server) => server.drain(deadlines).await,
            Self::Many(tenants, _) => tenants.drain(deadlines).await,
            // Callers continue at another gateway.
            Self::Gateway(gateway) => {
                gateway.close();
                true
            }
        }
    }

    /// Logs the rollouts whose callers have not received the result, and returns their number.
    pub fn log_unreported(&self) -> usize {
        match self {
            Self::One(server) => server.log_unreported(),
            Self::Many(tenants, _) => tenants.log_unreported(),
            Self::Gateway(_) => 0,
        }
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        match self {
            Self::One(server) => server.idle().await,
            Self::Many(tenants, _) => tenants.idle().await,
            Self::Gateway(_) => {}
        }
    }

    /// Returns whether rollouts are in a journal, so that the next process continues them.
    pub fn has_journal(&self) -> bool {
        match self {
            Self::One(server) => server.has_journal(),
            Self::Many(tenants, _) => tenants.has_journal(),
            Self::Gateway(_) => false,
        }
    }

    /// Answers all waiting polls at once; their callers poll again.
    pub fn answer_waiting(&self) {
        match self {
            Self::One(server) => server.answer_waiting(),
            Self::Many(tenants, _) => tenants.answer_waiting(),
            Self::Gateway(gateway) => gateway.close(),
        }
    }
}
