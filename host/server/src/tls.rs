//! TLS of callers' connections: a certificate with its key, out of files that may be replaced while the
//! server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The largest file of certificates or with a key, in bytes. A chain has a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The certificate that callers are shown, and the key to it. Cheap to clone; clones are
/// [read again](Self::reload) together.
#[derive(Clone)]
pub struct ServerTls(Arc<Inner>);

struct Inner {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

/// Why callers cannot be shown a certificate. No text of it has anything of the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A file is longer than one of its kind.
    #[error("{} is longer than {FILE_BYTES_MAX} bytes, and so no file of certificates or a key", .0.display())]
    TooLong(PathBuf),
    /// There is no certificate in the file, or something that is none.
    #[error("{} holds no certificates in PEM: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no key in the file, or something that is none.
    #[error("{} holds no private key in PEM: {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The two do not belong together, or are of a kind that is not known.
    #[error("the certificate in {} and the key in {} cannot be used together: {why}", certificate.display(), key.display())]
    Pair {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why.
        why: rustls::Error,
    },
}

impl ServerTls {
    /// Reads a certificate, with those that vouch for it behind it, and its key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(read(certificate, key)?);
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self(Arc::new(Inner { certificate, key, config })))
    }

    /// Reads both files again. Connections from here on are shown what is in them; where they are
    /// no pair, nothing changes.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.0.certificate, &self.0.key)?;
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Shakes hands with a caller.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.0.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let text = bytes_of(certificate)?;
    let none = |why: String| TlsError::Certificate { path: certificate.to_owned(), why };
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|why| none(why.to_string()))?;
    if chain.is_empty() {
        return Err(none("there is no section CERTIFICATE in it".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_slice(&bytes_of(key)?)
        .map_err(|why| TlsError::Key { path: key.to_owned(), why: why.to_string() })?;
    let pair = |why| TlsError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), why };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(pair)?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |why| TlsError::Unreadable { path: path.to_owned(), why };
    if std::fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(TlsError::TooLong(path.to_owned()));
    }
    std::fs::read(path).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pair_is_named_and_its_contents_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates");
        let (certificate, key) = (here.join("server.pem"), here.join("server.key"));
        let said = |certificate: &Path, key: &Path| {
            ServerTls::load(certificate, key).err().map(|why| why.to_string())
        };
        assert_eq!(said(&certificate, &key), None);

        let check = |certificate: &Path, key: &Path, expected: &str| {
            let said = said(certificate, key).unwrap_or_default();
            assert!(said.contains(expected), "{expected}: {said}");
            assert!(!said.contains("s3cret"), "{said}");
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
    fn a_pair_that_is_none_any_more_leaves_the_one_before() {
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
