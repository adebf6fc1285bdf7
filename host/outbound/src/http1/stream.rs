//! What bytes travel over: a socket, or TLS on top of one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// What is read at once. A buffer may have more room, and copying all of what a fast sender
/// has ready would hold up a thread of the runtime.
const READ_BYTES_MAX: usize = 16 << 10;

/// What a connection makes room for before it reads: one head and a body of the usual size.
const READ_BYTES: usize = 4 << 10;

/// One stream of bytes in each direction.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    // In a box, because it is twenty times as large and most connections are plain.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Sends all of it.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Reads what there is, once there is something; nothing at the end of the stream. While
    /// this waits, perhaps for minutes, there is no memory to read into.
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

    /// Whether the other side has neither closed it nor said anything.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        match self {
            Self::Plain(stream) => {
                let quiet = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                stream.try_read(&mut byte).as_ref().is_err_and(quiet)
            }
            // Whoever reads next registers to be woken.
            Self::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(&mut **stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }
}
