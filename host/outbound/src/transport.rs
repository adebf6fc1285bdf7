//! How a request of the host gets to a model, a judge or a callback address, and its answer
//! back: over HTTP/1.1, with TLS or without.
//!
//! A connection is a call's own until it is answered. Then it rests for a moment, for the next
//! call to the same server. Connections that are in use and that rest are descriptors of one
//! budget: where it is used up, the one that has rested longest is closed for a new one, and
//! where all are in use, a call waits for its turn.
//!
//! This module knows addresses, connections and bytes. What an answer means, and whether to
//! try again, is the business of those who ask.

mod idle;
mod scope;
mod spare;
mod target;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::network::{Forbidden, NetworkRules};
use super::tls::Tls;
use crate::http1::{Broken, Connection};
use idle::Idle;
use rollout_core::budget::Charge;
use scope::{Access, Scope};
pub(super) use target::Target;

/// Time for finding the address, connecting and, where that is asked for, encrypting.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Connections that are never used for models, so that callbacks are delivered while every
/// model hangs; where there are few, one in eight. `capacity` has them counted in.
const FOR_CALLBACKS_MAX: usize = 16;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Calls of models and judges, of which guests decide how many there are.
    Model,
    /// Callbacks.
    Callback,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// The host lacks what a connection takes. The other side has no part in it.
    #[error("this host cannot open a connection: {0}")]
    Host(#[source] io::Error),
    /// It may not be asked. No connection was opened.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// What came, or did not come, over the connection.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// A [request](Target::request) with what it is charged to until it is sent, where it is.
pub(super) struct Outgoing {
    pub bytes: Vec<u8>,
    pub _charge: Option<Charge>,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        spare::give(std::mem::take(&mut self.bytes));
    }
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// The wait that it asks for before the next try.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// The connections of one host to models, judges and callback addresses. They have one budget, and
/// each scope of them, somebody whose requests have rules of their own, has connections that rest
/// for itself alone.
#[derive(Clone, Debug)]
pub struct Transport {
    shared: Arc<Shared>,
    scope: Arc<Scope>,
}

#[derive(Debug)]
struct Shared {
    tls: Tls,
    /// One permit for each connection that may be open.
    connections: Arc<Semaphore>,
    /// One permit for each that may be in use for models.
    for_models: Arc<Semaphore>,
    idle: Arc<Idle>,
}

/// An answer's status with its usual name.
pub(super) fn named(status: u16) -> String {
    reqwest::StatusCode::from_u16(status).map_or_else(|_| status.to_string(), |status| status.to_string())
}

/// Why there is no transport.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS")]
pub struct TransportError(#[source] rustls::Error);

/// An open connection, with its place in the budget. Both are given back when it is dropped.
#[derive(Debug)]
struct Open {
    connection: Connection,
    permit: OwnedSemaphorePermit,
}

/// A call's turn: a connection, or the right to open one.
#[derive(Debug)]
pub(super) struct Turn {
    transport: Transport,
    access: Arc<Access>,
    line: Line,
    _for_model: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Line {
    Resting(Open),
    New(OwnedSemaphorePermit),
}

impl Transport {
    /// A transport that has at most so many connections open, for requests that go anywhere but
    /// where none ever does.
    pub fn new(connections_max: usize) -> Result<Self, TransportError> {
        let connections_max = connections_max.clamp(2, Semaphore::MAX_PERMITS);
        let for_callbacks = (connections_max / 8).clamp(1, FOR_CALLBACKS_MAX);
        let shared = Shared {
            tls: Tls::new().map_err(TransportError)?,
            connections: Arc::new(Semaphore::new(connections_max)),
            for_models: Arc::new(Semaphore::new(connections_max - for_callbacks)),
            idle: Arc::default(),
        };
        Ok(Self { shared: Arc::new(shared), scope: Arc::new(Scope::new(NetworkRules::open())) })
    }

    /// A transport for requests that go only where these rules let them. It has its share of the same
    /// budget, and uses none of the connections that others opened, as they use none of its.
    #[must_use]
    pub fn for_tenant(&self, rules: NetworkRules) -> Self {
        Self { shared: self.shared.clone(), scope: Arc::new(Scope::new(rules)) }
    }

    /// Puts other rules in the place of this transport's, and of all its clones'. They hold from the next
    /// request on; connections that rest are closed, and those in use once they were answered.
    pub fn set_rules(&self, rules: NetworkRules) {
        let before = self.scope.set(rules);
        self.shared.idle.close_scope(before.id);
    }

    /// Where requests may go at present.
    pub fn rules(&self) -> Arc<NetworkRules> {
        self.scope.access().rules.clone()
    }

    /// Waits until a connection may be used. However long that takes, no server is to blame, so
    /// it is no part of a try's time.
    pub(super) async fn turn(&self, target: &Target, for_what: Use) -> Turn {
        // Nobody closes the semaphores.
        let _for_model = match for_what {
            Use::Model => self.shared.for_models.clone().acquire_owned().await.ok(),
            Use::Callback => None,
        };
        let access = self.scope.access();
        let line = match self.shared.idle.take(access.id, target.origin()) {
            Some(open) => Line::Resting(open),
            None => Line::New(self.permit().await),
        };
        Turn { transport: self.clone(), access, line, _for_model }
    }

    /// A place in the budget, that of the connection which has rested longest where there is no
    /// other.
    async fn permit(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = self.shared.connections.clone().try_acquire_owned() {
            return permit;
        }
        // From here on connections that come to rest are closed, so none is overlooked.
        let _waiting = self.shared.idle.wait();
        if let Some(open) = self.shared.idle.close_oldest() {
            return open;
        }
        match self.shared.connections.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(closed) => unreachable!("nobody closes the semaphore: {closed}"),
        }
    }

    async fn open(&self, target: &Target, rules: &NetworkRules) -> Result<Connection, Unanswered> {
        let opening = async {
            match self.connect(target, rules).await {
                // Others than this transport's connections may have the descriptors; these can
                // at least be given back.
                Err(Unanswered::Host(_)) if self.shared.idle.close_all() > 0 => {
                    self.connect(target, rules).await
                }
                connected => connected,
            }
        };
        match tokio::time::timeout(CONNECT_TIME_MAX, opening).await {
            Ok(opened) => opened,
            Err(late) => Err(Broken::Io(late.into()).into()),
        }
    }

    async fn connect(&self, target: &Target, rules: &NetworkRules) -> Result<Connection, Unanswered> {
        let stream = connect(target, rules).await?;
        let Some(name) = target.server_name() else { return Connection::over(stream).map_err(blame) };
        stream.set_nodelay(true).map_err(blame)?;
        let stream = self.shared.tls.over(stream, name.clone()).await.map_err(blame)?;
        Ok(Connection::over_tls(stream))
    }
}

impl Turn {
    /// Sends a request and reads the answer, up to so many bytes of it.
    pub(super) async fn post(
        self,
        target: &Target,
        request: Outgoing,
        answer_bytes_max: usize,
    ) -> Result<Answer, Unanswered> {
        let Self { transport, access, line, _for_model } = self;
        let Open { mut connection, permit } = match line {
            Line::Resting(open) => open,
            // In a box, because it is soon over and larger than the wait for an answer.
            Line::New(permit) => {
                Open { connection: Box::pin(transport.open(target, &access.rules)).await?, permit }
            }
        };
        connection.limit_bodies(answer_bytes_max);
        connection.send(&request.bytes).await.map_err(blame)?;
        // The answer may take minutes.
        drop(request);
        let message = connection.receive_response().await?;
        if !message.ends_connection() {
            transport.shared.idle.rest(access.id, target.origin(), Open { connection, permit });
        }
        let (status, retry_after) = (message.status()?, message.retry_after());
        Ok(Answer { status, retry_after, body: message.into_body() })
    }
}

/// Connects to the first of a name's addresses that may be connected to and takes the connection. It is
/// resolved once: what was checked is what is connected to.
#[expect(clippy::disallowed_methods, reason = "the room in which a rollout's connections are opened")]
async fn connect(target: &Target, rules: &NetworkRules) -> Result<TcpStream, Unanswered> {
    let found = match tokio::net::lookup_host(target.authority()).await {
        Ok(found) => found,
        // The resolver needs a descriptor of its own, and says of one that is lacking only that
        // the name cannot be found.
        Err(error) => match std::fs::File::open("/dev/null") {
            Err(shortage) if is_hosts(&shortage) => return Err(Unanswered::Host(shortage)),
            _ => return Err(blame(error)),
        },
    };
    let addresses = rules.allowed(target.place(), found)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            // That this host has no address of the one family says nothing while the server
            // has not answered on the other.
            Err(error) if is_hosts(&error) && last.raw_os_error().is_some() && !is_hosts(&last) => {}
            Err(error) => last = error,
        }
    }
    Err(blame(last))
}

fn blame(error: io::Error) -> Unanswered {
    if is_hosts(&error) { Unanswered::Host(error) } else { Broken::Io(error).into() }
}

/// Whether the error says that this machine or process has too little of something: open
/// files, memory, ports.
fn is_hosts(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| lacking.iter().any(|errno| errno.raw_os_error() == code))
}

#[cfg(test)]
mod tests;
