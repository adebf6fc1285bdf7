//! TLS with verification by the system's certificates.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Encrypts connections.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Creates a connector, and reads the system's certificates.
    pub(super) fn new() -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_platform_verifier()?.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection to the server with this name.
    pub(super) async fn over(
        &self,
        stream: TcpStream,
        name: ServerName<'static>,
    ) -> io::Result<TlsStream<TcpStream>> {
        self.0.connect(name, stream).await
    }
}
