//! Transport of requests to models, judges and callback addresses: HTTP/1.1, with or without TLS.
//!
//! A connection belongs to one call until the response arrives. Then it stays idle for a while, for the next call to
//! the same server. Connections in use and idle ones share one budget of descriptors: if it is used up, a new
//! connection replaces the longest idle one, and if all are in use, a call waits.
//!
//! This module knows addresses, connections and bytes. Its callers interpret responses and decide about retries.

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

/// Timeout for resolving a name, connecting and, if required, the TLS handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of connections reserved for callbacks, so that callbacks are delivered while all models hang. If
/// there are few connections, one in eight is reserved. The transport's total number of connections includes them.
const FOR_CALLBACKS_MAX: usize = 16;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Calls of models and judges. Guests decide how many there are.
    Model,
    /// Callbacks.
    Callback,
}

/// Error of a request without a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// The host lacks a resource for a connection. The server is not at fault.
    #[error("this host cannot open a connection: {0}")]
    Host(#[source] io::Error),
    /// The network rules forbid the address. No connection was opened.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// The connection failed, or the response was invalid.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// A [request](Target::request) with the charge for its memory until it is sent.
pub(super) struct Outgoing {
    pub bytes: Vec<u8>,
    pub _charge: Option<Charge>,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        spare::give(std::mem::take(&mut self.bytes));
    }
}

/// Response of a server.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// The delay before a retry that the server requested.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// The connections of one host to models, judges and callback addresses. All scopes share one budget. Each scope, such
/// as a tenant with its own network rules, reuses its own idle connections only.
#[derive(Clone, Debug)]
pub struct Transport {
    shared: Arc<Shared>,
    scope: Arc<Scope>,
}

#[derive(Debug)]
struct Shared {
    tls: Tls,
    /// One permit for each open connection.
    connections: Arc<Semaphore>,
    /// One permit for each connection in use for models.
    for_models: Arc<Semaphore>,
    idle: Arc<Idle>,
}

/// Formats a status with its usual name.
pub(super) fn named(status: u16) -> String {
    reqwest::StatusCode::from_u16(status).map_or_else(|_| status.to_string(), |status| status.to_string())
}

/// Error of creating a transport.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS")]
pub struct TransportError(#[source] rustls::Error);

/// An open connection with its permit. Both are released when it is dropped.
#[derive(Debug)]
struct Open {
    connection: Connection,
    permit: OwnedSemaphorePermit,
}

/// A connection for a call, or the permit to open one.
#[derive(Debug)]
pub(super) struct Turn {
    transport: Transport,
    access: Arc<Access>,
    connection: TurnConnection,
    _for_model: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum TurnConnection {
    Idle(Open),
    New(OwnedSemaphorePermit),
}

impl Transport {
    /// Creates a transport with at most `connections_max` open connections, for requests to any address that is not
    /// always forbidden.
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

    /// Creates a transport with its own network rules. It shares the budget, but not the idle connections.
    #[must_use]
    pub fn for_tenant(&self, rules: NetworkRules) -> Self {
        Self { shared: self.shared.clone(), scope: Arc::new(Scope::new(rules)) }
    }

    /// Replaces the rules of this transport and its clones. They apply from the next request on. Idle connections are
    /// closed, and those in use are closed after their response.
    pub fn set_rules(&self, rules: NetworkRules) {
        let before = self.scope.set(rules);
        self.shared.idle.close_scope(before.id);
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Arc<NetworkRules> {
        self.scope.access().rules.clone()
    }

    /// Waits until a connection may be used. The wait does not count towards an attempt's timeout, because no server
    /// causes it.
    pub(super) async fn turn(&self, target: &Target, for_what: Use) -> Turn {
        // The semaphores are never closed.
        let _for_model = match for_what {
            Use::Model => self.shared.for_models.clone().acquire_owned().await.ok(),
            Use::Callback => None,
        };
        let access = self.scope.access();
        let connection = match self.shared.idle.take(access.id, target.origin()) {
            Some(open) => TurnConnection::Idle(open),
            None => TurnConnection::New(self.permit().await),
        };
        Turn { transport: self.clone(), access, connection, _for_model }
    }

    /// Returns a permit of the budget, that of the longest idle connection if no other is free.
    async fn permit(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = self.shared.connections.clone().try_acquire_owned() {
            return permit;
        }
        // From here on connections that become idle are closed, so none is overlooked.
        let _waiting = self.shared.idle.wait();
        if let Some(open) = self.shared.idle.close_oldest() {
            return open;
        }
        match self.shared.connections.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(closed) => unreachable!("the semaphore is never closed: {closed}"),
        }
    }

    async fn open(&self, target: &Target, rules: &NetworkRules) -> Result<Connection, Unanswered> {
        let opening = async {
            match self.connect(target, rules).await {
                // Other parts of the process may hold the descriptors; closing idle connections frees some.
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
        let Some(name) = target.server_name() else { return Connection::over(stream).map_err(classify) };
        stream.set_nodelay(true).map_err(classify)?;
        let stream = self.shared.tls.over(stream, name.clone()).await.map_err(classify)?;
        Ok(Connection::over_tls(stream))
    }
}

impl Turn {
    /// Sends a request and reads at most `answer_bytes_max` bytes of the response.
    pub(super) async fn post(
        self,
        target: &Target,
        request: Outgoing,
        answer_bytes_max: usize,
    ) -> Result<Answer, Unanswered> {
        let Self { transport, access, connection, _for_model } = self;
        let Open { mut connection, permit } = match connection {
            TurnConnection::Idle(open) => open,
            // Boxed, because it is short-lived and larger than the wait for a response.
            TurnConnection::New(permit) => {
                Open { connection: Box::pin(transport.open(target, &access.rules)).await?, permit }
            }
        };
        connection.limit_bodies(answer_bytes_max);
        connection.send(&request.bytes).await.map_err(classify)?;
        // The response may take minutes.
        drop(request);
        let message = connection.receive_response().await?;
        if !message.ends_connection() {
            transport.shared.idle.rest(access.id, target.origin(), Open { connection, permit });
        }
        let (status, retry_after) = (message.status()?, message.retry_after());
        Ok(Answer { status, retry_after, body: message.into_body() })
    }
}

/// Connects to the first allowed address of a name that accepts the connection. The name is resolved once, so that the
/// checked addresses are the ones that the connection uses.
#[expect(clippy::disallowed_methods, reason = "the only place that opens connections for rollouts")]
async fn connect(target: &Target, rules: &NetworkRules) -> Result<TcpStream, Unanswered> {
    let found = match tokio::net::lookup_host(target.authority()).await {
        Ok(found) => found,
        // The resolver needs a descriptor. Without one, it only reports that the name cannot be found.
        Err(error) => match std::fs::File::open("/dev/null") {
            Err(shortage) if is_host_fault(&shortage) => return Err(Unanswered::Host(shortage)),
            _ => return Err(classify(error)),
        },
    };
    let addresses = rules.allowed(target.host_and_port(), found)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            // If the server failed on one address family, the lack of a local address of the other is not the cause.
            Err(error) if is_host_fault(&error) && last.raw_os_error().is_some() && !is_host_fault(&last) => {
            }
            Err(error) => last = error,
        }
    }
    Err(classify(last))
}

fn classify(error: io::Error) -> Unanswered {
    if is_host_fault(&error) { Unanswered::Host(error) } else { Broken::Io(error).into() }
}

/// Returns whether the error means that this machine or process lacks a resource: open files, memory, ports.
fn is_host_fault(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| lacking.iter().any(|errno| errno.raw_os_error() == code))
}

#[cfg(test)]
mod tests;
