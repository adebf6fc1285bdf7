//! The byte stream of a connection: a socket, or TLS over one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Maximum number of bytes in one read. A buffer may have more room, but copying everything that a fast sender has sent
/// would hold up a thread of the runtime.
const READ_BYTES_MAX: usize = 16 << 10;

/// Number of bytes that a connection reserves before it reads: a head and a body of the usual size.
const READ_BYTES: usize = 4 << 10;

/// A bidirectional stream of bytes.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    // Boxed, because it is twenty times as large and most connections are plain.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Writes all bytes.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Waits for bytes and reads those available. Returns 0 at the end of the stream. While this waits, perhaps for
    /// minutes, no buffer is allocated.
    pub(super) async fn read_into(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => loop {
                stream.readable().await?;
                buffer.reserve(READ_BYTES);
                match stream.try_read_buf(&mut (&mut *buffer).limit(READ_BYTES_MAX)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
            },
            Self::Tls(stream) => {
                std::future::poll_fn(|context| {
                    let mut bytes = [std::mem::MaybeUninit::uninit(); READ_BYTES];
                    let mut read = ReadBuf::uninit(&mut bytes);
                    ready!(Pin::new(&mut **stream).poll_read(context, &mut read))?;
                    buffer.extend_from_slice(read.filled());
                    Poll::Ready(Ok(read.filled().len()))
                })
                .await
            }
        }
    }

    /// Returns whether the peer has neither closed the stream nor sent anything.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        match self {
            Self::Plain(stream) => {
                let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                stream.try_read(&mut byte).as_ref().is_err_and(would_block)
            }
            // The no-op waker is fine: the next reader registers its own.
            Self::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(&mut **stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }
}
