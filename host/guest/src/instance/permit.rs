//! The right to have an instance.

use std::fmt::Debug;
use std::sync::Arc;

/// The right to have one instance at a time. The engine's pool has room for as many instances
/// as there are permits. A run holds its permit until its store is gone, which may be a
/// moment after whoever waited for the run has left, so nobody is let in before there is
/// room. Cheap to clone; the permit is free again with the last of it.
#[derive(Clone, Debug)]
pub struct Permit {
    _counted: Option<Arc<dyn Debug + Send + Sync>>,
}

impl Permit {
    /// For an instance that is made while there are no others: before a host accepts
    /// rollouts, or by a command that runs one after the other.
    pub fn alone() -> Self {
        Self { _counted: None }
    }

    /// For an instance that whoever gave this counts, until it is dropped.
    pub fn counted(by: impl Debug + Send + Sync + 'static) -> Self {
        Self { _counted: Some(Arc::new(by)) }
    }
}
