//! TLS of callers' connections: a certificate and its key, from files that may be replaced while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum number of bytes of a file with certificates or a key. A certificate chain has a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The server's certificate and its private key. Cheap to clone; [`reload`](Self::reload) changes all clones.
#[derive(Clone)]
pub struct ServerTls(Arc<Inner>);

struct Inner {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

/// Error of loading a certificate and its key. The messages contain nothing of the files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        reason: io::Error,
    },
    /// A file is too long for certificates or a key.
    #[error("{} is longer than {FILE_BYTES_MAX} bytes; expected certificates or a private key in PEM", .0.display())]
    TooLong(PathBuf),
    /// The file has no certificate, or an invalid one.
    #[error("{} holds no certificates in PEM: {reason}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file has no private key, or an invalid one.
    #[error("{} holds no private key in PEM: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The key does not belong to the certificate, or one of them is of an unknown kind.
    #[error("the certificate in {} and the key in {} cannot be used together: {reason}", certificate.display(), key.display())]
    Pair {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// The error of the TLS library.
        reason: rustls::Error,
    },
}

impl ServerTls {
    /// Reads a certificate chain and its private key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(read(certificate, key)?);
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self(Arc::new(Inner { certificate, key, config })))
    }

    /// Reads both files again, for new connections. After an error the previous pair stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.0.certificate, &self.0.key)?;
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Performs the TLS handshake of a connection.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.0.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// Makes the TLS configuration of two files.
fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let text = read_file(certificate)?;
    let invalid_chain = |reason: String| TlsError::Certificate { path: certificate.to_owned(), reason };
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| invalid_chain(error.to_string()))?;
    if chain.is_empty() {
        return Err(invalid_chain("there is no section CERTIFICATE in it".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_slice(&read_file(key)?)
        .map_err(|error| TlsError::Key { path: key.to_owned(), reason: error.to_string() })?;
    let invalid_pair =
        |reason| TlsError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid_pair)?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, private).map_err(invalid_pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Reads a file of limited length.
fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |reason| TlsError::Unreadable { path: path.to_owned(), reason };
    if std::fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(TlsError::TooLong(path.to_owned()));
    }
    std::fs::read(path).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_never_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates");
        let (certificate, key) = (here.join("server.pem"), here.join("server.key"));
        let error_of = |certificate: &Path, key: &Path| {
            ServerTls::load(certificate, key).err().map(|error| error.to_string())
        };
        assert_eq!(error_of(&certificate, &key), None);

        let check = |certificate: &Path, key: &Path, expected: &str| {
            let error = error_of(certificate, key).unwrap_or_default();
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        };
        let empty = file("empty.pem", "s3cret");
        check(&dir.path().join("none.pem"), &key, "none.pem cannot be read");
        check(&empty, &key, "empty.pem holds no certificates in PEM: there is no section CERTIFICATE");
        check(&certificate, &empty, "empty.pem holds no private key in PEM");
        check(&key, &key, "no section CERTIFICATE");
        check(&here.join("ca.pem"), &key, "cannot be used together");
        check(&file("long.pem", &"x".repeat((1 << 20) + 1)), &key, "long.pem is longer than");
    }

    #[test]
    fn a_failed_reload_keeps_the_previous_pair() {
        let dir = tempfile::tempdir().unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates");
        let at = |name: &str| dir.path().join(name);
        for name in ["server.pem", "server.key"] {
            std::fs::copy(here.join(name), at(name)).unwrap();
        }
        let tls = ServerTls::load(&at("server.pem"), &at("server.key")).unwrap();
        let before = tls.0.config.read().unwrap().clone();

        std::fs::copy(here.join("ca.pem"), at("server.pem")).unwrap();
        tls.reload().unwrap_err();
        assert!(Arc::ptr_eq(&before, &tls.0.config.read().unwrap()));

        std::fs::copy(here.join("server.pem"), at("server.pem")).unwrap();
        tls.reload().unwrap();
        assert!(!Arc::ptr_eq(&before, &tls.0.config.read().unwrap()));
    }
}
