//! Permits for instances.

use std::fmt::Debug;
use std::sync::Arc;

/// The permit to have one instance at a time. The engine's pool has room for as many instances as there are permits. A
/// run holds its permit until its store is dropped, which may be a moment after the caller stopped waiting, so no
/// instance starts before there is room. Cheap to clone; the permit is released with the last clone.
#[derive(Clone, Debug)]
pub struct Permit {
    _counted: Option<Arc<dyn Debug + Send + Sync>>,
}

impl Permit {
    /// Creates a permit for an instance that is created while there are no others: before a host accepts rollouts, or
    /// by a command that runs one instance after the other.
    pub fn alone() -> Self {
        Self { _counted: None }
    }

    /// Creates a permit that holds `by` until it is dropped.
    pub fn counted(by: impl Debug + Send + Sync + 'static) -> Self {
        Self { _counted: Some(Arc::new(by)) }
    }
}
