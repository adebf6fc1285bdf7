//! Manifests and configurations of components, in the CNCF's format for WebAssembly artifacts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::RegistryError;
use crate::reference::prefixed;
use rollout_wire::digest::Digest;

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of a component's configuration.
pub const CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// Media type of the layer that contains the component.
pub const COMPONENT: &str = "application/wasm";
/// Media types that older tools gave to the layer with the component.
const OLDER_COMPONENTS: [&str; 1] = ["application/vnd.wasm.content.layer.v1+wasm"];
/// Name of the annotation that contains the title of the artifact.
pub const TITLE: &str = "org.opencontainers.image.title";

/// Reference from a manifest to a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the blob.
    pub media_type: String,
    /// Digest of the blob.
    #[serde(with = "crate::reference::with_prefix")]
    pub digest: Digest,
    /// Size of the blob in bytes.
    pub size: u64,
    /// Annotations of the blob.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// Returns the descriptor of a blob with these bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        let annotations = BTreeMap::new();
        Self {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            annotations,
        }
    }
}

/// Manifest of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of the format, 2.
    pub schema_version: u32,
    /// Media type of the manifest.
    #[serde(default = "manifest_type")]
    pub media_type: String,
    /// Configuration of the artifact.
    pub config: Descriptor,
    /// Contents of the artifact.
    pub layers: Vec<Descriptor>,
    /// Annotations of the artifact.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn manifest_type() -> String {
    MANIFEST.to_owned()
}

/// Parses a manifest.
///
/// # Errors
///
/// If it is not an image manifest.
pub(crate) fn parse(text: &str) -> Result<Manifest, RegistryError> {
    serde_json::from_str(text).map_err(|error| {
        RegistryError::NotComponent(format!("its manifest is not an image manifest: {error}"))
    })
}

impl Manifest {
    /// Serializes a manifest with these parts. The same parts always result in the same bytes.
    pub fn bytes(
        config: Descriptor,
        layers: Vec<Descriptor>,
        annotations: BTreeMap<String, String>,
    ) -> Vec<u8> {
        let manifest = Self { schema_version: 2, media_type: manifest_type(), config, layers, annotations };
        // Strings and numbers cannot fail to serialize.
        serde_json::to_vec(&manifest).unwrap_or_default()
    }

    /// Returns the layer with the component.
    ///
    /// # Errors
    ///
    /// If the artifact has another type, or not exactly one layer with a component.
    pub fn component(&self) -> Result<&Descriptor, RegistryError> {
        let is_component = |layer: &&Descriptor| {
            layer.media_type == COMPONENT || OLDER_COMPONENTS.contains(&layer.media_type.as_str())
        };
        let mut found = self.layers.iter().filter(is_component);
        match (found.next(), found.next()) {
            (Some(layer), None) => Ok(layer),
            (None, _) => {
                let types: Vec<&str> = self.layers.iter().map(|layer| layer.media_type.as_str()).collect();
                let text = format!(
                    "the artifact has no layer of type {COMPONENT} (its configuration is {}, its layers are: {})",
                    self.config.media_type,
                    if types.is_empty() { "none".to_owned() } else { types.join(", ") }
                );
                Err(RegistryError::NotComponent(text))
            }
            (Some(_), Some(_)) => Err(RegistryError::NotComponent(format!(
                "the artifact has several layers of type {COMPONENT}"
            ))),
        }
    }
}

/// Configuration of a component's artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    created: &'static str,
    architecture: &'static str,
    os: &'static str,
    layer_digests: [String; 1],
    component: Interfaces<'a>,
}

/// Interfaces of a component: their names with versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Interfaces<'a> {
    /// Exported interfaces.
    pub exports: &'a [String],
    /// Imported interfaces.
    pub imports: &'a [String],
    /// World that the component was built for. It is unknown, and therefore always `None`.
    target: Option<&'a str>,
}

impl<'a> Interfaces<'a> {
    /// Returns the interfaces with these names.
    pub fn new(exports: &'a [String], imports: &'a [String]) -> Self {
        Self { exports, imports, target: None }
    }
}

/// Returns the configuration of a component. Its date is fixed, so that a component always has the same configuration
/// and the same manifest.
pub fn config(component: &[u8], interfaces: Interfaces<'_>) -> Vec<u8> {
    let config = Config {
        created: "1970-01-01T00:00:00Z",
        architecture: "wasm",
        os: "wasip2",
        layer_digests: [prefixed(Digest::of(component))],
        component: interfaces,
    };
    serde_json::to_vec(&config).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(media_type: &str) -> Descriptor {
        Descriptor::of(media_type, b"\0asm")
    }

    fn manifest(layers: Vec<Descriptor>) -> Manifest {
        let bytes = Manifest::bytes(layer(CONFIG), layers, BTreeMap::new());
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn a_component_has_one_manifest_in_the_format_of_other_tools() {
        let exports = ["rollout:plugin/workflow@0.1.0".to_owned()];
        let text = String::from_utf8(config(b"\0asm", Interfaces::new(&exports, &[]))).unwrap();
        let digest = prefixed(Digest::of(b"\0asm"));
        assert_eq!(
            text,
            format!(
                r#"{{"created":"1970-01-01T00:00:00Z","architecture":"wasm","os":"wasip2","layerDigests":["{digest}"],"component":{{"exports":["rollout:plugin/workflow@0.1.0"],"imports":[],"target":null}}}}"#
            )
        );
        let bytes = Manifest::bytes(
            Descriptor::of(CONFIG, text.as_bytes()),
            vec![layer(COMPONENT)],
            BTreeMap::from([(TITLE.to_owned(), "a".to_owned())]),
        );
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.starts_with(
                r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","#
            )
        );
        assert!(
            text.contains(&format!(r#"{{"mediaType":"application/wasm","digest":"{digest}","size":4}}"#))
        );
    }

    #[test]
    fn exactly_one_layer_is_the_component() {
        assert_eq!(manifest(vec![layer(COMPONENT)]).component().unwrap().digest, Digest::of(b"\0asm"));
        assert!(manifest(vec![layer("text/plain"), layer(OLDER_COMPONENTS[0])]).component().is_ok());
        for (layers, expected) in [
            (vec![], "its layers are: none"),
            (vec![layer("application/vnd.oci.image.layer.v1.tar+gzip")], "v1.tar+gzip"),
            (vec![layer(COMPONENT), layer(COMPONENT)], "several layers"),
        ] {
            let error = manifest(layers).component().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
