//! Signatures of manifests, in the format of cosign's signatures with keys.
//!
//! A signature is made by ECDSA with P-256 and SHA-256. It signs a small JSON document, the payload, which contains the
//! digest of the manifest. All signatures of a manifest are layers of an artifact with the tag `sha256-HEX.sig` in the
//! same repository.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};

use crate::artifact::{self, Descriptor, Manifest};
use crate::client::Registry;
use crate::error::RegistryError;
use crate::reference::{Reference, prefixed};
use rollout_outbound::Secret;
use rollout_wire::digest::Digest;

/// Media type of a layer that contains a payload.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Media type of the configuration of an artifact that contains signatures.
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Name of the layer's annotation that contains the signature of its payload.
pub(crate) const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Value of `type` in a payload.
const PAYLOAD_TYPE: &str = "cosign container image signature";
/// Maximum size of a payload.
const PAYLOAD_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of signatures that are checked.
pub(crate) const SIGNATURES_MAX: usize = 100;

/// Beginning of a P-256 public key in SubjectPublicKeyInfo (DER). The point follows it.
const PUBLIC_KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Size of an uncompressed point.
const POINT_BYTES: usize = 65;

/// Error of a key file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has no PEM block of the expected kind.
    #[error("no PEM block '{0}'; a key has lines -----BEGIN {0}----- and -----END {0}-----")]
    NotPem(&'static str),
    /// The key is encrypted, as cosign writes private keys.
    #[error(
        "the private key is encrypted; give an unencrypted PKCS#8 key, such as one of `rollout-host sign --generate-key`"
    )]
    Encrypted,
    /// The key is of another kind.
    #[error("not a key of ECDSA with P-256, the only kind of key that is supported")]
    OtherKind,
    /// The operating system cannot generate random numbers.
    #[error("the operating system cannot generate random numbers")]
    Random,
}

/// Error of a verification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The artifact has no signature at all.
    #[error("{0} is not signed")]
    Unsigned(Reference),
    /// None of the signatures was made with a listed key.
    #[error(
        "{reference} has {count} signature{}, none of a listed key; sign it with a listed key, or list the key that signed it",
        if *count == 1 { "" } else { "s" }
    )]
    Foreign {
        /// The artifact.
        reference: Reference,
        /// Number of signatures that it has.
        count: usize,
    },
    /// The registry cannot be reached or refuses access.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// A public key of ECDSA with P-256.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey([u8; POINT_BYTES]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PublicKey").field(&self.id()).finish()
    }
}

impl PublicKey {
    /// Parses a public key in PEM, the format of `cosign.pub`.
    ///
    /// # Errors
    ///
    /// If it is not PEM, or is another kind of key.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let der = pem(text, "PUBLIC KEY")?;
        let point = der.strip_prefix(&PUBLIC_KEY_PREFIX).and_then(|point| point.try_into().ok());
        point.map(Self).ok_or(KeyError::OtherKind)
    }

    /// Returns the key in PEM.
    pub fn to_pem(&self) -> String {
        to_pem("PUBLIC KEY", &self.der())
    }

    /// Returns the first digits of the key's SHA-256, to tell keys apart.
    pub fn id(&self) -> String {
        Digest::of(&self.der()).to_string()[..16].to_owned()
    }

    fn der(&self) -> Vec<u8> {
        [&PUBLIC_KEY_PREFIX[..], &self.0].concat()
    }

    /// Returns whether a signature of a payload was made with the key's private key.
    pub fn verifies(&self, payload: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.0).verify(payload, signature).is_ok()
    }
}

/// A private key of ECDSA with P-256.
#[derive(Debug)]
pub struct PrivateKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl PrivateKey {
    /// Generates a key. Returns it in PEM (PKCS#8, not encrypted).
    ///
    /// # Errors
    ///
    /// If the operating system cannot generate random numbers.
    pub fn generate() -> Result<Secret, KeyError> {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| KeyError::Random)?;
        Ok(Secret::new(to_pem("PRIVATE KEY", key.as_ref())))
    }

    /// Parses a private key in PEM (PKCS#8, not encrypted).
    ///
    /// # Errors
    ///
    /// If it is not PEM, is encrypted, or is another kind of key.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        if text.contains("-----BEGIN ENCRYPTED") {
            return Err(KeyError::Encrypted);
        }
        let der = pem(text, "PRIVATE KEY")?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &random);
        Ok(Self { pair: pair.map_err(|_| KeyError::OtherKind)?, random })
    }

    /// Returns the public key.
    ///
    /// # Errors
    ///
    /// Never for a key of P-256.
    pub fn public(&self) -> Result<PublicKey, KeyError> {
        self.pair.public_key().as_ref().try_into().map(PublicKey).map_err(|_| KeyError::OtherKind)
    }

    /// Signs a payload.
    ///
    /// # Errors
    ///
    /// If the operating system cannot generate random numbers.
    pub fn sign(&self, payload: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self.pair.sign(&self.random, payload).map_err(|_| KeyError::Random)?;
        Ok(signature.as_ref().to_vec())
    }
}

/// The signed document: the digest of a manifest and its repository.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Payload {
    critical: Critical,
    #[serde(default)]
    optional: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Critical {
    identity: Identity,
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Identity {
    docker_reference: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    #[serde(with = "crate::reference::with_prefix")]
    docker_manifest_digest: Digest,
}

/// Returns the document that a signature of an artifact signs.
pub fn payload(reference: &Reference, digest: Digest) -> String {
    let payload = Payload {
        critical: Critical {
            identity: Identity { docker_reference: format!("{}/{}", reference.host, reference.repository) },
            image: Image { docker_manifest_digest: digest },
            kind: PAYLOAD_TYPE.to_owned(),
        },
        optional: None,
    };
    serde_json::to_string(&payload).unwrap_or_default()
}

/// Returns whether a payload is about the manifest with this digest.
fn is_of(payload: &[u8], digest: Digest) -> bool {
    let parsed = serde_json::from_slice::<Payload>(payload);
    parsed.is_ok_and(|Payload { critical, .. }| {
        critical.kind == PAYLOAD_TYPE && critical.image.docker_manifest_digest == digest
    })
}

/// A payload and its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedPayload {
    /// The payload, verbatim.
    pub payload: String,
    /// The signature in base64.
    pub signature: String,
}

impl SignedPayload {
    /// Signs an artifact.
    ///
    /// # Errors
    ///
    /// If the operating system cannot generate random numbers.
    pub fn new(reference: &Reference, digest: Digest, key: &PrivateKey) -> Result<Self, KeyError> {
        let payload = payload(reference, digest);
        let signature = BASE64_STANDARD.encode(key.sign(payload.as_bytes())?);
        Ok(Self { payload, signature })
    }

    /// Returns whether this is a valid signature of a manifest by a key.
    pub fn is_valid(&self, digest: Digest, key: &PublicKey) -> bool {
        let signature = BASE64_STANDARD.decode(&self.signature);
        is_of(self.payload.as_bytes(), digest)
            && signature.is_ok_and(|signature| key.verifies(self.payload.as_bytes(), &signature))
    }
}

/// Kind of an artifact that is stored for another one, under a tag that contains its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Signatures.
    Signature,
    /// Signed statements.
    Attestation,
}

impl Kind {
    /// Returns the tag of the artifact that is stored for the one with this digest.
    fn tag(self, digest: Digest) -> String {
        match self {
            Self::Signature => format!("sha256-{digest}.sig"),
            Self::Attestation => format!("sha256-{digest}.att"),
        }
    }
}

/// Returns the layers that are stored for a manifest. If there are none, the list is empty.
pub(crate) async fn layers(
    registry: &Registry,
    digest: Digest,
    kind: Kind,
) -> Result<Vec<Descriptor>, RegistryError> {
    match registry.manifest(&kind.tag(digest)).await {
        Ok((_, text)) => Ok(artifact::parse(&text)?.layers),
        Err(RegistryError::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Stores a layer for a manifest, in addition to those that the registry has.
pub(crate) async fn attach(
    registry: &Registry,
    digest: Digest,
    kind: Kind,
    layer: Descriptor,
    bytes: Vec<u8>,
) -> Result<(), SignError> {
    let mut layers = layers(registry, digest, kind).await?;
    registry.push_blob(&layer, bytes.into(), &|_| {}).await?;
    layers.push(layer);
    let config = config(&layers);
    let config_descriptor = Descriptor::of(CONFIG, &config);
    registry.push_blob(&config_descriptor, config.into(), &|_| {}).await?;
    let manifest = Manifest::bytes(config_descriptor, layers, Default::default());
    registry.push_manifest(&kind.tag(digest), manifest).await?;
    Ok(())
}

/// Returns at most [`SIGNATURES_MAX`] signatures of a manifest. Layers that are not signatures are ignored.
///
/// # Errors
///
/// If the registry cannot be reached or refuses access.
pub(crate) async fn signatures(
    registry: &Registry,
    digest: Digest,
) -> Result<Vec<SignedPayload>, RegistryError> {
    let mut found = Vec::new();
    for layer in layers(registry, digest, Kind::Signature).await?.into_iter().take(SIGNATURES_MAX) {
        let signature = layer.annotations.get(SIGNATURE).filter(|_| layer.size <= PAYLOAD_BYTES_MAX);
        let Some(signature) = signature.cloned() else { continue };
        let Ok(payload) = String::from_utf8(registry.blob(&layer, |_| {}).await?) else { continue };
        found.push(SignedPayload { payload, signature });
    }
    Ok(found)
}

/// Signs an artifact, and adds the signature to those in its registry.
///
/// # Errors
///
/// If the registry refuses the signature or cannot be reached.
pub async fn sign(
    registry: &Registry,
    reference: &Reference,
    digest: Digest,
    key: &PrivateKey,
) -> Result<(), SignError> {
    let SignedPayload { payload, signature } = SignedPayload::new(reference, digest, key)?;
    let mut layer = Descriptor::of(PAYLOAD, payload.as_bytes());
    layer.annotations.insert(SIGNATURE.to_owned(), signature);
    attach(registry, digest, Kind::Signature, layer, payload.into()).await
}

/// Error of signing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The key cannot sign.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The registry refuses the signature or cannot be reached.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Returns an image configuration for an artifact with these layers.
fn config(layers: &[Descriptor]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Config {
        architecture: &'static str,
        created: &'static str,
        history: [(); 0],
        os: &'static str,
        rootfs: RootFs,
        config: Empty,
    }
    #[derive(Serialize)]
    struct RootFs {
        r#type: &'static str,
        diff_ids: Vec<String>,
    }
    #[derive(Serialize)]
    struct Empty {}
    let config = Config {
        architecture: "",
        created: "0001-01-01T00:00:00Z",
        history: [],
        os: "",
        rootfs: RootFs {
            r#type: "layers",
            diff_ids: layers.iter().map(|layer| prefixed(layer.digest)).collect(),
        },
        config: Empty {},
    };
    serde_json::to_vec(&config).unwrap_or_default()
}

/// Verifies that one of the keys signed an artifact. Returns that key.
///
/// # Errors
///
/// If no listed key signed it, or the registry cannot be reached or refuses access.
pub async fn verify<'a>(
    registry: &Registry,
    reference: &Reference,
    digest: Digest,
    keys: &'a [PublicKey],
) -> Result<&'a PublicKey, SignatureError> {
    let signatures = signatures(registry, digest).await?;
    let is_signer = |key: &&PublicKey| signatures.iter().any(|signature| signature.is_valid(digest, key));
    keys.iter().find(is_signer).ok_or_else(|| SignatureError::of(reference.at(digest), signatures.len()))
}

impl SignatureError {
    /// Returns the error of an artifact with this number of signatures, none of them by a listed key.
    pub fn of(reference: Reference, count: usize) -> Self {
        match count {
            0 => Self::Unsigned(reference),
            count => Self::Foreign { reference, count },
        }
    }
}

/// Decodes a PEM block.
fn pem(text: &str, kind: &'static str) -> Result<Vec<u8>, KeyError> {
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let body = text.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end)).map(|(body, _)| body);
    let body: String = body.ok_or(KeyError::NotPem(kind))?.split_whitespace().collect();
    BASE64_STANDARD.decode(body).map_err(|_| KeyError::NotPem(kind))
}

fn to_pem(kind: &str, der: &[u8]) -> String {
    let encoded = BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {kind}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {kind}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key pair and a signature by OpenSSL: `openssl ecparam -genkey`, `openssl dgst -sha256 -sign`.
    const OPENSSL_PUBLIC: &str = include_str!("../testdata/openssl.pub");
    const OPENSSL_PRIVATE: &str = include_str!("../testdata/openssl.key");
    const OPENSSL_SIGNATURE: &str = include_str!("../testdata/openssl.sig.base64");

    #[test]
    fn signatures_of_openssl_are_valid_here() {
        let key = PublicKey::from_pem(OPENSSL_PUBLIC).unwrap();
        let signature: String = OPENSSL_SIGNATURE.split_whitespace().collect();
        let signature = BASE64_STANDARD.decode(signature).unwrap();
        assert!(key.verifies(b"payload\n", &signature));
        assert!(!key.verifies(b"Payload\n", &signature));
        let private = PrivateKey::from_pem(OPENSSL_PRIVATE).unwrap();
        assert_eq!(private.public().unwrap(), key);
        assert_eq!(key.to_pem(), OPENSSL_PUBLIC);
    }

    #[test]
    fn only_its_public_key_verifies_signatures_of_a_generated_key() {
        let key = PrivateKey::from_pem(PrivateKey::generate().unwrap().expose()).unwrap();
        let other = PrivateKey::from_pem(PrivateKey::generate().unwrap().expose()).unwrap();
        let signature = key.sign(b"x").unwrap();
        assert!(key.public().unwrap().verifies(b"x", &signature));
        assert!(!key.public().unwrap().verifies(b"y", &signature));
        assert!(!other.public().unwrap().verifies(b"x", &signature));
    }

    #[test]
    fn a_payload_is_about_one_manifest() {
        let reference: Reference = "oci://h:1/a/b".parse().unwrap();
        let digest = Digest::of(b"x");
        let payload = payload(&reference, digest);
        assert_eq!(
            payload,
            format!(
                r#"{{"critical":{{"identity":{{"docker-reference":"h:1/a/b"}},"image":{{"docker-manifest-digest":"sha256:{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#
            )
        );
        assert!(is_of(payload.as_bytes(), digest));
        assert!(!is_of(payload.as_bytes(), Digest::of(b"y")));
        assert!(!is_of(b"{}", digest));
    }

    #[test]
    fn keys_of_other_kinds_are_refused() {
        assert_eq!(PublicKey::from_pem("x"), Err(KeyError::NotPem("PUBLIC KEY")));
        let rsa = to_pem("PUBLIC KEY", &[0x30, 0x82, 1, 2]);
        assert_eq!(PublicKey::from_pem(&rsa), Err(KeyError::OtherKind));
        let encrypted = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n";
        assert_eq!(PrivateKey::from_pem(encrypted).err(), Some(KeyError::Encrypted));
    }
}
