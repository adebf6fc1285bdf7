//! Sessions of an environment, which protocols open for their callers.
//!
//! A session with a name outlives the connection of its caller. It ends when it is closed, when it has had no request for a
//! while, or when its host ends it. With a journal it outlives the process, too: a later process finds it there and opens it
//! again when its name is next used. Until then it holds no slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::random;
use crate::serving::Serving;
use crate::worker;
use rollout_core::limits::SessionLimits;
use rollout_rollout::{
    Continuation, DescribeError, EnvironmentFacts, Host, OpenSessionError, Session, StoredSession,
    UnfinishedRollout,
};
use rollout_wire::id::RolloutId;

/// The sessions of a protocol. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sessions(Arc<Inner>);

struct Inner {
    serving: Serving,
    limits: SessionLimits,
    /// The protocol's name in the journal.
    driver: &'static str,
    /// Name of the server's log if it is a worker. The ids of sessions name it.
    log: Option<String>,
    /// The protocol's tasks, among them one for each session with a name.
    tasks: TaskTracker,
    closing: CancellationToken,
    named: Mutex<HashMap<Arc<str>, Named>>,
}

/// A session with the description of its environment.
pub(super) struct OpenSession {
    pub session: Session,
    pub facts: Arc<EnvironmentFacts>,
}

/// Maximum number of calls of a session in progress: one runs and the others wait. A call continues without its caller's
/// connection, so the limits of connections do not bound them.
const CALLS_MAX: usize = 16;

/// A session that several requests may use, one after the other. Cheap to clone.
#[derive(Clone)]
pub(super) struct SharedSession {
    open: Arc<tokio::sync::Mutex<OpenSession>>,
    gate: Gate,
}

/// The limit on the calls of a session.
#[derive(Clone)]
struct Gate {
    /// Permits for calls that run or wait.
    calls: Arc<Semaphore>,
    /// Cancelled when the session is removed, which ends the wait of all calls.
    is_over: CancellationToken,
}

/// A request's permit to use a session.
pub(super) struct Turn {
    pub session: SharedSession,
    _permit: OwnedSemaphorePermit,
}

impl Gate {
    fn new() -> Self {
        Self { calls: Arc::new(Semaphore::new(CALLS_MAX)), is_over: CancellationToken::new() }
    }

    fn enter(&self) -> Result<OwnedSemaphorePermit, SessionsError> {
        self.calls.clone().try_acquire_owned().map_err(|_| SessionsError::Busy)
    }
}

impl SharedSession {
    /// Shares a session that has no name.
    pub(super) fn new(open: OpenSession) -> Self {
        Self { open: Arc::new(tokio::sync::Mutex::new(open)), gate: Gate::new() }
    }

    /// Returns a permit for a request, unless too many wait. Acquire it before the request's task is spawned.
    pub(super) fn enter(&self) -> Result<Turn, SessionsError> {
        Ok(Turn { _permit: self.gate.enter()?, session: self.clone() })
    }

    /// Waits until no request uses the session. Fails as soon as the session is removed.
    pub(super) async fn begin(&self) -> Result<tokio::sync::MutexGuard<'_, OpenSession>, SessionsError> {
        let is_over = &self.gate.is_over;
        let open = tokio::select! {
            biased;
            () = is_over.cancelled() => return Err(SessionsError::Over),
            open = self.open.lock() => open,
        };
        if is_over.is_cancelled() { Err(SessionsError::Over) } else { Ok(open) }
    }

    /// Waits until no request uses the session, to read from it.
    pub(super) async fn lock(&self) -> tokio::sync::MutexGuard<'_, OpenSession> {
        self.open.lock().await
    }
}

/// Error of a session that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionsError {
    /// The server stops.
    #[error("the server is shutting down")]
    Closing,
    /// The host does not open the session.
    #[error(transparent)]
    Open(#[from] OpenSessionError),
    /// The environment cannot be described.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// There is no such session.
    #[error("there is no session {0}; it was closed, had no request for a while, or never existed")]
    Unknown(String),
    /// The session has a connection already.
    #[error("session {0} has a connection already")]
    Attached(String),
    /// Too many calls of the session wait.
    #[error("{CALLS_MAX} calls of this session run or wait; wait for their answers before the next call")]
    Busy,
    /// The session was removed while the request waited.
    #[error("the session was closed before this call was made")]
    Over,
}

/// Result of closing a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    Now,
    /// When its connection ends.
    Later,
    Unknown,
}

/// A session with a name.
struct Named {
    opening: Arc<Opening>,
    used_at: Instant,
    is_attached: bool,
    /// Whether it was closed while a connection was attached.
    is_closing: bool,
    /// Wakes the task that watches the session.
    _gone: DropGuard,
}

/// A session that is open, or will be opened by its next request.
struct Opening {
    open: OnceCell<SharedSession>,
    gate: Gate,
    /// The session of an earlier process.
    stored: Option<(Host, StoredSession)>,
    /// The token that is cancelled when the host ends the open session.
    cancelled: OnceLock<CancellationToken>,
    /// Cancelled when the session is open.
    is_open: CancellationToken,
}

/// The facts of a session in the journal.
#[derive(Serialize, Deserialize)]
struct SessionFacts {
    name: Arc<str>,
}

impl Opening {
    fn new(stored: Option<(Host, StoredSession)>) -> Arc<Self> {
        let (open, cancelled) = (OnceCell::new(), OnceLock::new());
        Arc::new(Self { open, gate: Gate::new(), stored, cancelled, is_open: CancellationToken::new() })
    }

    /// Waits until the host ends the session.
    async fn cancelled(&self) {
        self.is_open.cancelled().await;
        match self.cancelled.get() {
            Some(cancelled) => cancelled.cancelled().await,
            None => std::future::pending().await,
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.get().is_some_and(CancellationToken::is_cancelled)
    }

    /// Ends the session in the journal once its running call is over. Waiting calls end at once.
    async fn end(&self) {
        self.gate.is_over.cancel();
        match (self.open.get(), &self.stored) {
            (Some(open), _) => open.lock().await.session.end().await,
            (None, Some((_, stored))) => stored.end().await,
            (None, None) => {}
        }
    }
}

impl Sessions {
    pub(super) fn new(
        serving: Serving,
        limits: SessionLimits,
        driver: &'static str,
        log: Option<String>,
    ) -> Self {
        let (tasks, closing, named) = (TaskTracker::new(), CancellationToken::new(), Mutex::default());
        Self(Arc::new(Inner { serving, limits, driver, log, tasks, closing, named }))
    }

    pub(super) fn serving(&self) -> &Serving {
        &self.0.serving
    }

    pub(super) fn limits(&self) -> &SessionLimits {
        &self.0.limits
    }

    /// Returns the protocol's tasks, for which it waits when it stops.
    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Returns the token that is cancelled when the protocol is closed.
    pub(super) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Closes the protocol. Sessions without a connection end, or are continued by the next process.
    pub(super) fn close_all(&self) {
        self.0.closing.cancel();
        self.0.tasks.close();
    }

    fn named(&self) -> MutexGuard<'_, HashMap<Arc<str>, Named>> {
        self.0.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the description of the environment.
    pub(super) async fn facts(&self) -> Result<Arc<EnvironmentFacts>, SessionsError> {
        let host = self.0.serving.host();
        if !host.has_environment() {
            return Err(OpenSessionError::NoEnvironment.into());
        }
        Ok(host.environment().await?)
    }

    /// Opens a session on the current host that ends with its owner.
    pub(super) async fn open(&self) -> Result<OpenSession, SessionsError> {
        self.check_open()?;
        let host = self.0.serving.host();
        let session = host.open_session(new_id()?, self.0.limits).await?;
        let facts = host.environment().await?;
        Ok(OpenSession { session, facts })
    }

    fn check_open(&self) -> Result<(), SessionsError> {
        if self.0.closing.is_cancelled() { Err(SessionsError::Closing) } else { Ok(()) }
    }

    /// Returns a new name, by which gateways find this server.
    pub(super) fn new_name(&self) -> String {
        worker::new_session(self.0.log.as_deref())
    }

    /// Opens a session with a new name.
    pub(super) async fn create(&self) -> Result<Arc<str>, SessionsError> {
        let name: Arc<str> = self.new_name().into();
        self.find_or_open(&name).await?;
        Ok(name)
    }

    /// Returns a permit for the session with this name. Opens the session if there is none. Fails at once if too many
    /// requests wait for it.
    pub(super) async fn find_or_open(&self, name: &str) -> Result<Turn, SessionsError> {
        self.check_open()?;
        let (name, opening) = {
            let mut all = self.named();
            match all.get_mut(name) {
                Some(named) => {
                    named.used_at = Instant::now();
                    (name.into(), named.opening.clone())
                }
                None => {
                    let name: Arc<str> = name.into();
                    (name.clone(), self.add(&mut all, name, None))
                }
            }
        };
        let permit = opening.gate.enter()?;
        let opened = self.get_or_open(&name, &opening).await;
        if opened.is_err() && opening.stored.is_none() {
            // Dropped after the lock is released.
            let _gone = {
                let mut all = self.named();
                let is_it = all.get(&name).is_some_and(|named| Arc::ptr_eq(&named.opening, &opening));
                is_it.then(|| all.remove(&name))
            };
        }
        Ok(Turn { session: opened?, _permit: permit })
    }

    /// Returns whether there is a session with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.named().contains_key(name)
    }

    /// Returns a permit for an existing session, unless too many requests wait for it.
    pub(super) async fn find(&self, name: &str) -> Result<Turn, SessionsError> {
        let opening = {
            let mut all = self.named();
            let named = all.get_mut(name).ok_or_else(|| SessionsError::Unknown(name.to_owned()))?;
            named.used_at = Instant::now();
            named.opening.clone()
        };
        let permit = opening.gate.enter()?;
        let session = self.get_or_open(&name.into(), &opening).await?;
        Ok(Turn { session, _permit: permit })
    }

    /// Records a use of a session. Returns whether the session exists.
    pub(super) fn touch(&self, name: &str) -> bool {
        self.named().get_mut(name).map(|named| named.used_at = Instant::now()).is_some()
    }

    /// Attaches a connection to a session. The connection must [release](Self::release) it.
    pub(super) async fn attach(&self, name: &str) -> Result<SharedSession, SessionsError> {
        let opening = {
            let mut all = self.named();
            let named = all.get_mut(name).filter(|named| !named.is_closing);
            let named = named.ok_or_else(|| SessionsError::Unknown(name.to_owned()))?;
            if named.is_attached {
                return Err(SessionsError::Attached(name.to_owned()));
            }
            named.is_attached = true;
            named.opening.clone()
        };
        let opened = self.get_or_open(&name.into(), &opening).await;
        if opened.is_err() {
            self.release(name).await;
        }
        opened
    }

    /// Records that the connection of a session is gone.
    pub(super) async fn release(&self, name: &str) {
        let is_over = {
            let mut all = self.named();
            let Some(named) = all.get_mut(name) else { return };
            named.is_attached = false;
            named.used_at = Instant::now();
            named.is_closing || self.0.closing.is_cancelled()
        };
        if is_over {
            self.remove(name).await;
        }
    }

    /// Closes a session.
    pub(super) async fn close(&self, name: &str) -> Closed {
        {
            let mut all = self.named();
            match all.get_mut(name) {
                Some(named) if named.is_attached && !named.is_closing => {
                    named.is_closing = true;
                    return Closed::Later;
                }
                Some(named) if !named.is_attached => {}
                _ => return Closed::Unknown,
            }
        }
        self.remove(name).await;
        Closed::Now
    }

    /// Removes a session. It ends unless the server stops and another process continues it.
    async fn remove(&self, name: &str) {
        let gone = self.named().remove(name);
        if let Some(Named { opening, .. }) = gone
            && !self.0.closing.is_cancelled()
        {
            opening.end().await;
        }
    }

    /// Adds a session of an earlier process.
    pub(super) fn resume(&self, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
        let stored = StoredSession::new(host, unfinished);
        let SessionFacts { name } =
            serde_json::from_str(stored.facts().get()).map_err(|error| format!("its facts are {error}"))?;
        let mut all = self.named();
        if let Some(other) = all.get(&name).and_then(|named| named.opening.stored.as_ref()) {
            // The process was stopped during a reset, which leaves two.
            if !stored.is_later_than(&other.1) {
                stored.discard();
                return Ok(());
            }
            other.1.discard();
            let gone = all.remove(&name);
            drop(gone);
        }
        self.add(&mut all, name, Some((host.clone(), stored)));
        Ok(())
    }

    /// Adds a session to the table, and watches it.
    fn add(
        &self,
        all: &mut HashMap<Arc<str>, Named>,
        name: Arc<str>,
        stored: Option<(Host, StoredSession)>,
    ) -> Arc<Opening> {
        let opening = Opening::new(stored);
        let gone = CancellationToken::new();
        let named = Named {
            _gone: gone.clone().drop_guard(),
            opening: opening.clone(),
            used_at: Instant::now(),
            is_attached: false,
            is_closing: false,
        };
        all.insert(name.clone(), named);
        let (sessions, watched) = (self.clone(), opening.clone());
        self.0.tasks.spawn(async move { sessions.watch(&name, &watched, gone).await });
        opening
    }

    /// Ends a session when it has had no request for a while, when the host ended it, or when the server stops. The
    /// connection of an attached session notices the last two itself.
    async fn watch(&self, name: &str, opening: &Arc<Opening>, gone: CancellationToken) {
        let inner = &self.0;
        loop {
            let used_at = {
                let all = self.named();
                let own = all.get(name).filter(|named| Arc::ptr_eq(&named.opening, opening));
                let Some(named) = own else { return };
                if named.is_attached { Instant::now() } else { named.used_at }
            };
            let ends_at = used_at + inner.limits.idle_time_max;
            let is_stopped = opening.is_cancelled() || inner.closing.is_cancelled();
            if is_stopped || Instant::now() >= ends_at {
                self.close(name).await;
                return;
            }
            tokio::select! {
                () = sleep_until(ends_at) => {}
                () = gone.cancelled() => {}
                () = opening.cancelled() => {}
                () = inner.closing.cancelled() => {}
            }
        }
    }

    /// Returns the open session. Opens it if no request has done so.
    async fn get_or_open(&self, name: &Arc<str>, opening: &Opening) -> Result<SharedSession, SessionsError> {
        let open = opening.open.get_or_try_init(async || {
            self.check_open()?;
            let limits = self.0.limits;
            let (host, mut session) = match &opening.stored {
                Some((host, stored)) => (host.clone(), host.open_stored_session(stored, limits).await?),
                None => {
                    let host = self.0.serving.host();
                    // A name is text, which always serializes.
                    let facts = to_raw_value(&SessionFacts { name: name.clone() }).unwrap_or_default();
                    let driver = self.0.driver.into();
                    let continuation = Continuation { driver, facts, secret: None };
                    let session = host.open_kept_session(new_id()?, limits, continuation).await?;
                    (host, session)
                }
            };
            let _ = opening.cancelled.set(session.cancelled());
            opening.is_open.cancel();
            let facts = match host.environment().await {
                Ok(facts) => facts,
                Err(error) => {
                    if opening.stored.is_none() {
                        session.end().await;
                    }
                    return Err(error.into());
                }
            };
            if opening.gate.is_over.is_cancelled() {
                // The session was removed while it was opened. For a stored one, that was its end.
                if opening.stored.is_none() {
                    session.end().await;
                }
                return Err(SessionsError::Over);
            }
            let open = Arc::new(tokio::sync::Mutex::new(OpenSession { session, facts }));
            Ok::<_, SessionsError>(SharedSession { open, gate: opening.gate.clone() })
        });
        open.await.cloned()
    }
}

/// Returns a random id.
fn new_id() -> Result<RolloutId, SessionsError> {
    // A UUID is a valid id.
    RolloutId::parse(random::uuid4()).map_err(|_| SessionsError::Closing)
}
