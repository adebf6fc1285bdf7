//! TLS with verification by the system's certificates.

use std::io;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme};
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
    pub(super) fn new() -> Result<Self, Error> {
        let verified = builder()?.with_platform_verifier();
        // A system without certificates is usual in containers, and may need no encrypted connection.
        let config = verified.or_else(|_| without_authorities())?;
        let mut config = config.with_no_client_auth();
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

fn builder() -> Result<ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// Returns the settings of a system without certificates of authorities: each encrypted connection fails with the reason.
pub(super) fn without_authorities() -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let builder = builder()?;
    let provider = builder.crypto_provider().clone();
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(NoAuthorities(provider))))
}

/// Refuses every server.
#[derive(Debug)]
struct NoAuthorities(Arc<CryptoProvider>);

impl ServerCertVerifier for NoAuthorities {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Err(refusal())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(refusal())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(refusal())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn refusal() -> Error {
    let text = "this system has no certificates of authorities, without which no server can be trusted; install its package \
                ca-certificates, or name a file by SSL_CERT_FILE";
    Error::General(text.to_owned())
}
