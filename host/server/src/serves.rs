//! What a process serves: one plugin, or those of many tenants.

use axum::Router;

use crate::admin::Admin;
use crate::tenants::Tenants;
use crate::{Server, Stopping};
use rollout_rollout::Load;

/// See above.
pub enum Serves {
    /// One plugin.
    One(Server),
    /// Those of many tenants, with their administration.
    Many(Tenants, Admin),
}

impl Serves {
    /// All that it answers.
    pub fn router(&self) -> Router {
        match self {
            Self::One(server) => server.router(),
            Self::Many(tenants, admin) => tenants.router(admin.router()),
        }
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        match self {
            Self::One(server) => server.load(),
            Self::Many(tenants, _) => tenants.load(),
        }
    }

    /// Lets running rollouts end and be reported; see [`Server::drain`].
    pub async fn drain(&self, stopping: &Stopping) -> bool {
        match self {
            Self::One(server) => server.drain(stopping).await,
            Self::Many(tenants, _) => tenants.drain(stopping).await,
        }
    }

    /// Says which rollouts' callers have not heard what came of them. Gives their number.
    pub fn name_unreported(&self) -> usize {
        match self {
            Self::One(server) => server.name_unreported(),
            Self::Many(tenants, _) => tenants.name_unreported(),
        }
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        match self {
            Self::One(server) => server.idle().await,
            Self::Many(tenants, _) => tenants.idle().await,
        }
    }

    /// Whether what is left undone here goes on in the next process.
    pub fn is_kept(&self) -> bool {
        match self {
            Self::One(server) => server.is_kept(),
            Self::Many(tenants, _) => tenants.is_kept(),
        }
    }

    /// Answers everybody who waits for news that there are none yet. They come again.
    pub fn answer_waiting(&self) {
        match self {
            Self::One(server) => server.answer_waiting(),
            Self::Many(tenants, _) => tenants.answer_waiting(),
        }
    }
}
