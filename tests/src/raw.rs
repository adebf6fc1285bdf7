//! A model server that sends arbitrary bytes, which no library would send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The server's reaction to every request.
#[derive(Clone, Debug)]
pub enum Sends {
    /// Sends these bytes, and waits for the next request.
    Once(Vec<u8>),
    /// Sends the first text, and then the second repeatedly while the client reads.
    Forever(String, String),
    /// Sends these bytes one by one, and the last one repeatedly, without a delay.
    ByteByByte(String),
}

impl Sends {
    /// Returns a response with this status and body.
    pub fn response(status: u16, body: &str) -> Self {
        let length = body.len();
        Self::Once(format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}").into())
    }

    /// Returns a chat completion with this text, which is inserted unescaped into a JSON string.
    pub fn completion(text: &str) -> Self {
        Self::response(
            200,
            &format!(
                r#"{{"choices":[{{"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}]}}"#
            ),
        )
    }
}

/// A server on loopback. It ends with the test.
pub struct RawServer {
    address: SocketAddr,
    scheme: &'static str,
    accepted: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl RawServer {
    /// Starts a server without TLS.
    pub async fn start(sends: Sends) -> Self {
        Self::over(sends, None).await
    }

    /// Starts a server with TLS.
    pub async fn start_with_tls(sends: Sends, acceptor: TlsAcceptor) -> Self {
        Self::over(sends, Some(acceptor)).await
    }

    async fn over(sends: Sends, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let accepted = Arc::<AtomicUsize>::default();
        let count = accepted.clone();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (sends, tls) = (sends.clone(), tls.clone());
                tokio::spawn(async move {
                    stream.set_nodelay(true).ok();
                    // An error ends only the connection.
                    let _ = match tls {
                        None => serve(stream, &sends).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &sends).await,
                            Err(error) => Err(error),
                        },
                    };
                });
            }
        });
        Self { address, scheme, accepted, server }
    }

    /// Returns the base URL of the model.
    pub fn model_url(&self) -> String {
        format!("{}://{}/v1", self.scheme, self.address)
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, sends: &Sends) -> std::io::Result<()> {
    while read_request(&mut stream).await? {
        match sends {
            Sends::Once(bytes) => stream.write_all(bytes).await?,
            Sends::Forever(first, piece) => {
                stream.write_all(first.as_bytes()).await?;
                let pieces = piece.repeat((64 << 10) / piece.len().max(1));
                loop {
                    stream.write_all(pieces.as_bytes()).await?;
                }
            }
            Sends::ByteByByte(bytes) => {
                let mut last = b' ';
                for byte in bytes.bytes() {
                    stream.write_all(&[byte]).await?;
                    last = byte;
                }
                loop {
                    stream.write_all(&[last]).await?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        stream.flush().await?;
    }
    Ok(())
}

/// Reads a request with its body; returns false if there is none.
async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<bool> {
    let mut request = Vec::new();
    let head = loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(false);
        }
        let end = request.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            break end + 4;
        }
    };
    let fields = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let length = fields.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    while request.len() < head + length {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
