//! The server of a process: of one plugin, or of the plugins of many tenants.

use axum::Router;

use crate::admin::Admin;
use crate::tenants::Tenants;
use crate::{Server, ShutdownDeadlines};
use rollout_rollout::Load;

/// A server of one plugin or of many tenants.
pub enum AnyServer {
    /// A server of one plugin.
    One(Server),
    /// A server of the plugins of many tenants, with the admin API.
    Many(Tenants, Admin),
}

impl AnyServer {
    /// Returns all routes.
    pub fn router(&self) -> Router {
        match self {
            Self::One(server) => server.router(),
            Self::Many(tenants, admin) => tenants.router(admin),
        }
    }

    /// Returns the load of all plugins together.
    pub fn load(&self) -> Load {
        match self {
            Self::One(server) => server.load(),
            Self::Many(tenants, _) => tenants.load(),
        }
    }

    /// Waits for live rollouts and their reports, as [`Server::drain`] does.
    pub async fn drain(&self, deadlines: &ShutdownDeadlines) -> bool {
        match self {
            Self::One(server) => server.drain(deadlines).await,
            Self::Many(tenants, _) => tenants.drain(deadlines).await,
        }
    }

    /// Logs the rollouts whose callers have not received the result, and returns their number.
    pub fn log_unreported(&self) -> usize {
        match self {
            Self::One(server) => server.log_unreported(),
            Self::Many(tenants, _) => tenants.log_unreported(),
        }
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        match self {
            Self::One(server) => server.idle().await,
            Self::Many(tenants, _) => tenants.idle().await,
        }
    }

    /// Returns whether rollouts are in a journal, so that the next process continues them.
    pub fn has_journal(&self) -> bool {
        match self {
            Self::One(server) => server.has_journal(),
            Self::Many(tenants, _) => tenants.has_journal(),
        }
    }

    /// Answers all waiting polls at once; their callers poll again.
    pub fn answer_waiting(&self) {
        match self {
            Self::One(server) => server.answer_waiting(),
            Self::Many(tenants, _) => tenants.answer_waiting(),
        }
    }
}
