//! Evidence of where a component comes from and who signed it, which is checked without the registry.
//!
//! A client that pulls a component collects its [`Evidence`]: the manifest, which contains the component's digest, and
//! the signatures of the manifest. A server that receives both needs neither the network nor trust in the client:
//! [`Evidence::check`] follows the digests from the component to a signature of a trusted key.

use serde::{Deserialize, Serialize};

use crate::artifact::Manifest;
use crate::client::{Pulled, Registry};
use crate::error::RegistryError;
use crate::reference::{InvalidReference, Reference};
use crate::signature::{self, PublicKey, SIGNATURES_MAX, SignedPayload};
use rollout_wire::digest::Digest;

/// The manifest of a component and its signatures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Reference to the component, with the digest of its manifest.
    pub reference: String,
    /// The manifest, verbatim.
    pub manifest: String,
    /// Signatures of the manifest.
    #[serde(default)]
    pub signatures: Vec<SignedPayload>,
}

/// A component whose evidence was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Reference to the component, with the digest of its manifest. The host and the repository are not verified.
    pub reference: Reference,
    /// Ids of the trusted keys that signed the manifest.
    pub signers: Vec<String>,
    /// Number of signatures, including those of other keys.
    pub signature_count: usize,
}

/// Error of evidence that does not prove the origin of its component.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvidenceError {
    /// The reference is not valid.
    #[error(transparent)]
    Reference(#[from] InvalidReference),
    /// The reference has a tag instead of a digest.
    #[error("{0} has no digest; a deployment is of a digest, because a tag may change")]
    NoDigest(Reference),
    /// The manifest is not the one that the reference names.
    #[error("the manifest has digest sha256:{found}, and {reference} names another")]
    OtherManifest {
        /// The reference.
        reference: Box<Reference>,
        /// Digest of the manifest.
        found: Digest,
    },
    /// The manifest is not valid.
    #[error("the manifest of {reference} is not valid: {reason}")]
    Manifest {
        /// The reference.
        reference: Box<Reference>,
        /// Reason.
        reason: String,
    },
    /// The manifest names another component.
    #[error("{reference} is the component {found}, not {component}")]
    OtherComponent {
        /// The reference.
        reference: Box<Reference>,
        /// The component of the manifest.
        found: Digest,
        /// The component that the evidence was checked for.
        component: Digest,
    },
    /// There are more signatures than the check accepts.
    #[error("{0} signatures, more than the {SIGNATURES_MAX} that are checked")]
    TooMany(usize),
}

impl Evidence {
    /// Collects the evidence of a pulled component.
    ///
    /// # Errors
    ///
    /// If the registry cannot be reached, or refuses to return signatures.
    pub async fn collect(registry: &Registry, pulled: &Pulled) -> Result<Self, RegistryError> {
        let signatures = signature::signatures(registry, pulled.digest).await?;
        Ok(Self {
            reference: pulled.reference.to_string(),
            manifest: pulled.manifest_text.clone(),
            signatures,
        })
    }

    /// Checks that the manifest names this component, and finds the keys that signed it.
    ///
    /// # Errors
    ///
    /// If the reference, the manifest and the component do not match, or there are too many signatures. A missing
    /// signature is not an error.
    pub fn check(&self, component: Digest, keys: &[PublicKey]) -> Result<Checked, EvidenceError> {
        let reference: Reference = self.reference.parse()?;
        let digest = reference.digest.ok_or_else(|| EvidenceError::NoDigest(reference.clone()))?;
        let found = Digest::of(self.manifest.as_bytes());
        if found != digest {
            return Err(EvidenceError::OtherManifest { reference: reference.into(), found });
        }
        let wrong = |reason: String| EvidenceError::Manifest { reference: reference.clone().into(), reason };
        let manifest: Manifest =
            serde_json::from_str(&self.manifest).map_err(|error| wrong(error.to_string()))?;
        let found = manifest.component().map_err(|error| wrong(error.to_string()))?.digest;
        if found != component {
            return Err(EvidenceError::OtherComponent { reference: reference.into(), found, component });
        }
        let count = self.signatures.len();
        if count > SIGNATURES_MAX {
            return Err(EvidenceError::TooMany(count));
        }
        let is_signer = |key: &&PublicKey| self.signatures.iter().any(|signed| signed.is_valid(digest, key));
        let signers = keys.iter().filter(is_signer).map(PublicKey::id).collect();
        Ok(Checked { reference: reference.at(digest), signers, signature_count: count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{COMPONENT, CONFIG, Descriptor};
    use crate::signature::PrivateKey;

    fn key() -> PrivateKey {
        PrivateKey::from_pem(PrivateKey::generate().unwrap().expose()).unwrap()
    }

    fn evidence(component: &[u8], signers: &[&PrivateKey]) -> Evidence {
        let layer = Descriptor::of(COMPONENT, component);
        let manifest = Manifest::bytes(Descriptor::of(CONFIG, b"{}"), vec![layer], Default::default());
        let digest = Digest::of(&manifest);
        let reference = "oci://registry.example/a:1".parse::<Reference>().unwrap().at(digest);
        let sign = |key: &&PrivateKey| SignedPayload::new(&reference, digest, key).unwrap();
        Evidence {
            reference: reference.to_string(),
            manifest: String::from_utf8(manifest).unwrap(),
            signatures: signers.iter().map(sign).collect(),
        }
    }

    #[test]
    fn a_signature_counts_if_a_trusted_key_made_it_for_this_component() {
        let (mine, other) = (key(), key());
        let keys = [mine.public().unwrap()];
        let component = Digest::of(b"\0asm");
        let check = |evidence: &Evidence, expected: usize| {
            let checked = evidence.check(component, &keys).unwrap();
            assert_eq!(checked.signers.len(), expected, "{evidence:?}");
        };
        check(&evidence(b"\0asm", &[]), 0);
        check(&evidence(b"\0asm", &[&other]), 0);
        check(&evidence(b"\0asm", &[&other, &mine]), 1);
        // A signature of another component proves nothing about this one.
        let mut moved = evidence(b"\0asm", &[]);
        moved.signatures = evidence(b"else", &[&mine]).signatures;
        check(&moved, 0);
        let mut altered = evidence(b"\0asm", &[&mine]);
        altered.signatures[0].payload.push(' ');
        check(&altered, 0);
    }

    #[test]
    fn parts_that_do_not_match_are_refused() {
        let component = Digest::of(b"\0asm");
        let good = evidence(b"\0asm", &[]);
        let check = |evidence: Evidence, expected: &str| {
            let error = evidence.check(component, &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(evidence(b"else", &[]), "is the component");
        check(
            Evidence { reference: "oci://registry.example/a:1".to_owned(), ..good.clone() },
            "has no digest",
        );
        check(Evidence { reference: "a".to_owned(), ..good.clone() }, "does not begin with oci://");
        check(Evidence { manifest: format!("{} ", good.manifest), ..good.clone() }, "names another");
        let digest = Digest::of(b"{}");
        let reference = format!("oci://registry.example/a@sha256:{digest}");
        check(Evidence { reference, manifest: "{}".to_owned(), ..good.clone() }, "is not valid");
        let signatures = evidence(b"\0asm", &[&key()]).signatures;
        let signatures = signatures.into_iter().cycle().take(SIGNATURES_MAX + 1).collect();
        check(Evidence { signatures, ..good }, "more than the 100");
    }
}
