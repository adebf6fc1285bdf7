//! Attestations: signed statements of how a component was built.
//!
//! A statement has the in-toto format: its subject is the digest of a manifest, and its predicate is SLSA provenance.
//! It is signed in a DSSE envelope and stored as a layer of an artifact with the tag `sha256-HEX.att`, where cosign
//! looks for it.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{Deserialize, Serialize};

use crate::artifact::Descriptor;
use crate::client::Registry;
use crate::error::RegistryError;
use crate::reference::Reference;
use crate::signature::{self, Kind, PrivateKey, PublicKey, SIGNATURE, SignError};
use rollout_wire::digest::Digest;

/// Media type of a layer that contains an envelope.
const ENVELOPE: &str = "application/vnd.dsse.envelope.v1+json";
/// Media type of the statement in an envelope.
const STATEMENT: &str = "application/vnd.in-toto+json";
/// Value of `_type` in a statement: the version of its format.
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// Name of the layer's annotation that contains the type of the statement's predicate.
const PREDICATE_TYPE: &str = "predicateType";
/// Type of a predicate about a build.
const PROVENANCE: &str = "https://slsa.dev/provenance/v1";
/// Type of builds by this program.
const BUILD_TYPE: &str = "urn:rollout-host:build:1";
/// Maximum size of an envelope.
const ENVELOPE_BYTES_MAX: u64 = 1 << 20;

/// How a component was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// Language of the project, in lower case.
    pub language: String,
    /// Options of the build.
    pub options: Vec<String>,
    /// Version of the SDK, which is part of the program that built the component.
    pub sdk: String,
    /// Version of the program that built the component.
    pub program: String,
    /// Digest of the project's files.
    pub source: Digest,
}

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: Predicate,
}

#[derive(Serialize, Deserialize)]
struct Subject {
    name: String,
    digest: Sha256Of,
}

#[derive(Serialize, Deserialize)]
struct Sha256Of {
    sha256: Digest,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Predicate {
    build_definition: BuildDefinition,
    run_details: RunDetails,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BuildDefinition {
    build_type: String,
    external_parameters: Parameters,
    resolved_dependencies: Vec<Dependency>,
}

#[derive(Serialize, Deserialize)]
struct Parameters {
    language: String,
    options: Vec<String>,
    sdk: String,
}

#[derive(Serialize, Deserialize)]
struct Dependency {
    name: String,
    digest: Sha256Of,
}

#[derive(Serialize, Deserialize)]
struct RunDetails {
    builder: Builder,
}

#[derive(Serialize, Deserialize)]
struct Builder {
    id: String,
    version: std::collections::BTreeMap<String, String>,
}

/// A signed statement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EnvelopeSignature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

/// Name of the source among the dependencies of a build.
const SOURCE: &str = "source";
/// Name of the program among the versions of a builder.
const PROGRAM: &str = "rollout-host";

impl Statement {
    fn new(reference: &Reference, digest: Digest, build: &Build) -> Self {
        let Build { language, options, sdk, program, source } = build.clone();
        Self {
            kind: STATEMENT_TYPE.to_owned(),
            subject: vec![Subject {
                name: format!("{}/{}", reference.host, reference.repository),
                digest: Sha256Of { sha256: digest },
            }],
            predicate_type: PROVENANCE.to_owned(),
            predicate: Predicate {
                build_definition: BuildDefinition {
                    build_type: BUILD_TYPE.to_owned(),
                    external_parameters: Parameters { language, options, sdk },
                    resolved_dependencies: vec![Dependency {
                        name: SOURCE.to_owned(),
                        digest: Sha256Of { sha256: source },
                    }],
                },
                run_details: RunDetails {
                    builder: Builder {
                        id: "urn:rollout-host".to_owned(),
                        version: [(PROGRAM.to_owned(), program)].into(),
                    },
                },
            },
        }
    }

    /// Returns the build if the statement says that this program built the component of the manifest.
    fn build_of(self, digest: Digest) -> Option<Build> {
        let Predicate { build_definition, run_details } = self.predicate;
        let is_about = self.subject.iter().any(|subject| subject.digest.sha256 == digest);
        if !is_about || self.kind != STATEMENT_TYPE || build_definition.build_type != BUILD_TYPE {
            return None;
        }
        let Parameters { language, options, sdk } = build_definition.external_parameters;
        let source = build_definition.resolved_dependencies.iter().find(|each| each.name == SOURCE)?;
        let program = run_details.builder.version.get(PROGRAM)?.clone();
        Some(Build { language, options, sdk, program, source: source.digest.sha256 })
    }
}

impl Envelope {
    fn sign(statement: &Statement, key: &PrivateKey) -> Result<Self, SignError> {
        let payload = serde_json::to_vec(statement).unwrap_or_default();
        let sig = BASE64_STANDARD.encode(key.sign(&signed_bytes(STATEMENT, &payload))?);
        let keyid = key.public()?.id();
        Ok(Self {
            payload_type: STATEMENT.to_owned(),
            payload: BASE64_STANDARD.encode(payload),
            signatures: vec![EnvelopeSignature { keyid, sig }],
        })
    }

    /// Returns the build that the envelope states about a manifest, and the key that signed it.
    fn verify<'a>(&self, digest: Digest, keys: &'a [PublicKey]) -> Option<(Build, &'a PublicKey)> {
        let payload = BASE64_STANDARD.decode(&self.payload).ok()?;
        let signed = signed_bytes(&self.payload_type, &payload);
        let is_by = |key: &&PublicKey| {
            let mut signatures = self.signatures.iter().take(signature::SIGNATURES_MAX);
            signatures.any(|each| {
                BASE64_STANDARD.decode(&each.sig).is_ok_and(|signature| key.verifies(&signed, &signature))
            })
        };
        let key = keys.iter().find(is_by)?;
        if self.payload_type != STATEMENT {
            return None;
        }
        let statement: Statement = serde_json::from_slice(&payload).ok()?;
        Some((statement.build_of(digest)?, key))
    }
}

/// Returns the bytes that an envelope's signature covers.
fn signed_bytes(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Signs a statement about the build of an artifact, and adds it to those that the registry has for the artifact.
///
/// # Errors
///
/// If the registry refuses the statement or cannot be reached.
pub async fn attest(
    registry: &Registry,
    reference: &Reference,
    digest: Digest,
    build: &Build,
    key: &PrivateKey,
) -> Result<(), SignError> {
    let envelope = Envelope::sign(&Statement::new(reference, digest, build), key)?;
    let envelope = serde_json::to_vec(&envelope).unwrap_or_default();
    let mut layer = Descriptor::of(ENVELOPE, &envelope);
    layer.annotations.insert(SIGNATURE.to_owned(), String::new());
    layer.annotations.insert(PREDICATE_TYPE.to_owned(), PROVENANCE.to_owned());
    signature::attach(registry, digest, Kind::Attestation, layer, envelope).await
}

/// Returns the builds of an artifact according to statements that one of the keys signed, each with that key.
///
/// # Errors
///
/// If the registry cannot be reached or refuses access.
pub async fn builds<'a>(
    registry: &Registry,
    digest: Digest,
    keys: &'a [PublicKey],
) -> Result<Vec<(Build, &'a PublicKey)>, RegistryError> {
    let mut found = Vec::new();
    let layers = signature::layers(registry, digest, Kind::Attestation).await?;
    for layer in layers.into_iter().take(signature::SIGNATURES_MAX) {
        if layer.media_type != ENVELOPE || layer.size > ENVELOPE_BYTES_MAX {
            continue;
        }
        let bytes = registry.blob(&layer, |_| {}).await?;
        let envelope = serde_json::from_slice::<Envelope>(&bytes).ok();
        found.extend(envelope.and_then(|envelope| envelope.verify(digest, keys)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_is_accepted_if_a_listed_key_signed_it_for_this_manifest() {
        let key = || PrivateKey::from_pem(PrivateKey::generate().unwrap().expose()).unwrap();
        let (mine, other) = (key(), key());
        let build = Build {
            language: "rust".to_owned(),
            options: vec!["--a".to_owned()],
            sdk: "0.1.0".to_owned(),
            program: "0.1.0".to_owned(),
            source: Digest::of(b"source"),
        };
        let reference = "oci://h/a".parse().unwrap();
        let digest = Digest::of(b"manifest");
        let sign = |key| Envelope::sign(&Statement::new(&reference, digest, &build), key).unwrap();
        let keys = [mine.public().unwrap()];
        assert_eq!(sign(&mine).verify(digest, &keys).map(|(build, _)| build), Some(build.clone()));
        assert!(sign(&other).verify(digest, &keys).is_none());
        assert!(sign(&mine).verify(Digest::of(b"else"), &keys).is_none());
        let mut altered = sign(&mine);
        let changed = Build { source: Digest::of(b"else"), ..build.clone() };
        let payload = serde_json::to_vec(&Statement::new(&reference, digest, &changed)).unwrap();
        altered.payload = BASE64_STANDARD.encode(payload);
        assert!(altered.verify(digest, &keys).is_none());
        let mut other_type = sign(&mine);
        other_type.payload_type = "text/plain".to_owned();
        assert!(other_type.verify(digest, &keys).is_none());
    }

    #[test]
    fn the_signed_bytes_are_those_of_the_published_example() {
        // From the specification of the envelope.
        let bytes = signed_bytes("http://example.com/HelloWorld", b"hello world");
        assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }
}
