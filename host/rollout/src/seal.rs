//! Encryption of secrets on disk, with a key that only the host's user can read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use rollout_outbound::Secret;
use rollout_wire::digest::sha256_parts;

/// Length of the key in bytes.
const KEY_BYTES: usize = 32;

/// Encrypts and decrypts texts with one key.
pub struct Seal(LessSafeKey);

impl Seal {
    /// Reads the key from a file. If the file does not exist, creates it with a random key, readable by this user only.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        match File::open(path) {
            Ok(mut file) => {
                if file.metadata()?.mode() & 0o077 != 0 {
                    let error = format!("{}: others can read this key; chmod 600 it", path.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
                }
                let mut key = [0; KEY_BYTES];
                file.read_exact(&mut key)?;
                Ok(Self::new(&key))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key: [u8; KEY_BYTES] = random()?;
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                file.write_all(&key)?;
                file.sync_all()?;
                Ok(Self::new(&key))
            }
            Err(error) => Err(error),
        }
    }

    /// Derives the key from a secret of the operator, of any length.
    pub fn from_secret(secret: &Secret) -> Self {
        Self::new(&sha256_parts(&[b"rollout-host seal 1", secret.expose().as_bytes()]))
    }

    fn new(key: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key);
        Self(LessSafeKey::new(key.unwrap_or_else(|_| unreachable!("the key has the algorithm's length"))))
    }

    /// Encrypts a text. It can be decrypted for the same purpose only.
    pub fn seal(&self, purpose: &[u8], text: &[u8]) -> io::Result<Vec<u8>> {
        // Random nonces of 96 bits are unlikely to repeat before some four billion texts are encrypted.
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut sealed = text.to_vec();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        let done = self.0.seal_in_place_append_tag(nonce_used, Aad::from(purpose), &mut sealed);
        done.map_err(|_| io::Error::other("a text is too long to be sealed"))?;
        sealed.extend_from_slice(&nonce);
        Ok(sealed)
    }

    /// Decrypts a text. Returns `None` if it was not encrypted with this key for this purpose.
    pub fn open(&self, purpose: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (sealed, nonce) = sealed.split_last_chunk::<NONCE_LEN>()?;
        let mut text = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::from(purpose), &mut text).ok()?.len();
        text.truncate(opened);
        Some(text)
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_sealed_text_opens_with_the_same_key_and_purpose_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let sealed = Seal::from_file(&path).unwrap().seal(b"r1", b"s3cret").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"s3cret"));
        let again = Seal::from_file(&path).unwrap();
        assert_eq!(again.open(b"r1", &sealed).as_deref(), Some(&b"s3cret"[..]));
        assert_eq!(again.open(b"r2", &sealed), None);
        assert_eq!(Seal::from_secret(&Secret::new("other")).open(b"r1", &sealed), None);
        let mut changed = sealed;
        changed[0] ^= 1;
        assert_eq!(again.open(b"r1", &changed), None);
        assert_eq!(again.open(b"r1", b"short"), None);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let created = Seal::from_file(&path);
        assert!(created.is_ok());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Seal::from_file(&path).err().unwrap();
        assert!(error.to_string().contains("others can read this key"), "{error}");
    }
}
