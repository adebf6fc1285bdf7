//! The socket that callers connect to, before and while it is listened on.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::tls::ServerTls;

/// Connections that may wait to be accepted. A trainer opens thousands at once, and one
/// that finds no place is tried again seconds later. The kernel caps it.
const BACKLOG: u32 = 16_384;

/// An address that was taken, and on which may be listened later.
#[derive(Debug)]
pub enum Bound {
    /// By this process.
    Here(TcpSocket),
    /// By whoever started it and listens on it already. Connections wait there for the next process
    /// when this one has left it.
    Passed(std::net::TcpListener),
}

/// What is listened on, and how.
pub struct Listening {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<ServerTls>,
    pub(super) leaving: CancellationToken,
}

/// Takes an address, for which a privilege may be needed, without listening yet.
pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server takes its port over from connections that are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(Bound::Here(socket))
}

/// Listens on the address that was taken; within the runtime.
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
    /// Callers are shown this certificate, where there is one.
    pub fn with_tls(self, tls: Option<ServerTls>) -> Self {
        Self { tls, ..self }
    }

    /// When this is cancelled, who comes from then on is left to another process that listens on the
    /// same. Who is connected is served, and asked to connect anew.
    pub fn until_left(self, leaving: CancellationToken) -> Self {
        Self { leaving, ..self }
    }
}

impl From<TcpListener> for Listening {
    fn from(listener: TcpListener) -> Self {
        Self { listener, tls: None, leaving: CancellationToken::new() }
    }
}
