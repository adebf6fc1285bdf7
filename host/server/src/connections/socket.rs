//! The listening socket and its options.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::tls::ServerTls;

/// Maximum number of connections that wait to be accepted. A trainer opens thousands at once, and one that does not fit is
/// retried seconds later. The kernel caps the number.
const BACKLOG: u32 = 16_384;

/// A bound socket.
#[derive(Debug)]
pub enum Bound {
    /// A socket that this process bound; it does not listen yet.
    Here(TcpSocket),
    /// A listening socket that a supervisor passed to this process. Between this process and the next one, connections wait
    /// in its backlog.
    Passed(std::net::TcpListener),
}

impl Bound {
    /// Returns the address of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Here(socket) => socket.local_addr(),
            Self::Passed(listener) => listener.local_addr(),
        }
    }
}

/// A listener with its options.
pub struct Listening {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<ServerTls>,
    pub(super) leaving: CancellationToken,
}

/// Binds a socket to an address, without listening yet. Some ports need a privilege, which is dropped before listening.
pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server can bind its port although connections of the previous process are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(Bound::Here(socket))
}

/// Listens on a bound socket. Call it within the runtime.
pub fn listen(socket: Bound) -> io::Result<TcpListener> {
    match socket {
        Bound::Here(socket) => socket.listen(BACKLOG),
        Bound::Passed(listener) => {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        }
    }
}

impl Listening {
    /// Serves over TLS with this certificate, if there is one.
    pub fn with_tls(self, tls: Option<ServerTls>) -> Self {
        Self { tls, ..self }
    }

    /// Stops accepting connections when `leaving` is cancelled: another process that listens on the same socket accepts
    /// them. Open connections are closed after the response to their current or next request.
    pub fn until_left(self, leaving: CancellationToken) -> Self {
        Self { leaving, ..self }
    }
}

impl From<TcpListener> for Listening {
    fn from(listener: TcpListener) -> Self {
        Self { listener, tls: None, leaving: CancellationToken::new() }
    }
}
