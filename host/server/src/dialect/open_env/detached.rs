//! Sessions that were made over HTTP and have a name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::frame::Refusal;
use super::{OpenEnv, OpenSession, SharedSession};

/// The sessions of a server. Each holds a slot, which limits their number.
#[derive(Default)]
pub(super) struct Detached(Mutex<HashMap<String, Named>>);

struct Named {
    session: SharedSession,
    used_at: Instant,
    is_attached: bool,
    /// Whether it was closed while a socket is attached.
    is_closing: bool,
    /// Wakes the task that watches the session.
    _gone: DropGuard,
}

/// Result of closing a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Now,
    WithItsSocket,
    Unknown,
}

impl Detached {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a session for one request.
    pub(super) fn find(&self, id: &str) -> Option<SharedSession> {
        let mut all = self.lock();
        let named = all.get_mut(id)?;
        named.used_at = Instant::now();
        Some(named.session.clone())
    }

    /// Returns a session for a socket.
    pub(super) fn attach(&self, id: &str) -> Result<SharedSession, Refusal> {
        let mut all = self.lock();
        let unknown = || Refusal::session(format!("Unknown session_id: {id}"));
        let named = all.get_mut(id).filter(|named| !named.is_closing).ok_or_else(unknown)?;
        if named.is_attached {
            return Err(Refusal::session(format!("session_id {id} has a WebSocket already")));
        }
        named.is_attached = true;
        Ok(named.session.clone())
    }

    /// Records that the socket of a session is gone.
    pub(super) fn release(&self, id: &str) {
        let mut all = self.lock();
        if let Some(named) = all.get_mut(id) {
            named.is_attached = false;
            named.used_at = Instant::now();
            if named.is_closing {
                let gone = all.remove(id);
                // Outside the lock, because the instance is dropped with it.
                drop(all);
                drop(gone);
            }
        }
    }

    /// Closes a session.
    pub(super) fn close(&self, id: &str) -> Closed {
        let mut all = self.lock();
        match all.get_mut(id) {
            Some(named) if named.is_attached && !named.is_closing => {
                named.is_closing = true;
                Closed::WithItsSocket
            }
            Some(named) if !named.is_attached => {
                let gone = all.remove(id);
                drop(all);
                drop(gone);
                Closed::Now
            }
            _ => Closed::Unknown,
        }
    }

    /// Returns the time at which a session without a socket was used last; `None` if it is gone.
    fn used_at(&self, id: &str) -> Option<Instant> {
        let all = self.lock();
        let named = all.get(id)?;
        Some(if named.is_attached { Instant::now() } else { named.used_at })
    }
}

impl OpenEnv {
    /// Makes a session and returns its id. It ends when it is closed, has no request for a while, or the server stops.
    pub(super) async fn open_detached(&self) -> Result<String, Refusal> {
        let open: OpenSession = self.open().await?;
        let id = open.session.id().as_str().to_owned();
        let cancelled = open.session.cancelled();
        let gone = CancellationToken::new();
        let named = Named {
            _gone: gone.clone().drop_guard(),
            session: Arc::new(tokio::sync::Mutex::new(open)),
            used_at: Instant::now(),
            is_attached: false,
            is_closing: false,
        };
        self.0.detached.lock().insert(id.clone(), named);
        let (server, watched) = (self.clone(), id.clone());
        self.0.tasks.spawn(async move {
            let server = &server.0;
            while let Some(used_at) = server.detached.used_at(&watched) {
                let ends_at = used_at + server.limits.idle_time_max;
                let is_over = Instant::now() >= ends_at;
                let is_stopped = cancelled.is_cancelled() || server.closing.is_cancelled();
                if is_over || is_stopped {
                    server.detached.close(&watched);
                    return;
                }
                tokio::select! {
                    () = sleep_until(ends_at) => {}
                    () = gone.cancelled() => {}
                    () = cancelled.cancelled() => {}
                    () = server.closing.cancelled() => {}
                }
            }
        });
        Ok(id)
    }
}
