//! References to artifacts: `oci://HOST[:PORT]/REPOSITORY[:TAG][@sha256:HEX]`.

use std::fmt;
use std::str::FromStr;

use rollout_wire::digest::Digest;

/// Scheme of references on command lines and in requests.
const SCHEME: &str = "oci://";

/// Prefix of digests in registries.
const ALGORITHM: &str = "sha256:";

/// Returns a digest as registries write it: `sha256:` and 64 hex digits.
pub(crate) fn prefixed(digest: Digest) -> String {
    format!("{ALGORITHM}{digest}")
}

/// Parses a digest with its prefix.
pub(crate) fn parse_prefixed(text: &str) -> Result<Digest, InvalidReference> {
    let digits = text.strip_prefix(ALGORITHM).and_then(|digits| digits.parse().ok());
    digits.ok_or_else(|| InvalidReference::Digest(text.to_owned()))
}

/// Digests with their prefix in JSON, for `#[serde(with = …)]`.
pub(crate) mod with_prefix {
    use rollout_wire::digest::Digest;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::prefixed(*digest))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        super::parse_prefixed(&String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// Error of parsing a text that is not a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidReference {
    /// The text does not begin with `oci://`.
    #[error(
        "'{0}' does not begin with oci://; a reference is oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:…"
    )]
    Scheme(String),
    /// The host or its port is missing or invalid.
    #[error("'{0}' names no valid host; a reference is oci://HOST[:PORT]/REPOSITORY:TAG")]
    Host(String),
    /// The port is not between 1 and 65535.
    #[error("the port of '{0}' is not a number from 1 to 65535")]
    Port(String),
    /// The repository is missing or has characters that registries do not accept.
    #[error(
        "invalid repository '{0}': its parts have lower-case letters, digits, '.', '_' and '-', and are separated by '/'"
    )]
    Repository(String),
    /// The tag has characters that registries do not accept.
    #[error(
        "invalid tag '{0}': a tag has up to 128 letters, digits, '.', '_' and '-', and begins with none of '.-'"
    )]
    Tag(String),
    /// The digest is not a SHA-256.
    #[error("invalid digest '{0}': a digest is sha256: and 64 lower-case hex digits")]
    Digest(String),
}

/// A reference to an artifact in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Host of the registry, with its port if it has one.
    pub host: String,
    /// Repository within the registry.
    pub repository: String,
    /// Tag, if the reference has one.
    pub tag: Option<String>,
    /// Digest of the manifest, if the reference has one. It takes precedence over the tag.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Returns whether a text begins with `oci://`, and so is meant to be a reference.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Returns the version to request from the registry: the digest, or else the tag, or else `latest`.
    pub(crate) fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => prefixed(*digest),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }

    /// Returns the same reference with a digest instead of its tag.
    #[must_use]
    pub fn at(&self, digest: Digest) -> Self {
        Self { tag: None, digest: Some(digest), ..self.clone() }
    }

    /// Returns whether the host is a loopback address or `localhost`, so that the registry is on this machine.
    pub fn is_loopback(&self) -> bool {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &self.host,
        };
        let address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        name == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| InvalidReference::Scheme(text.to_owned()))?;
        let (host, rest) = rest.split_once('/').ok_or_else(|| InvalidReference::Host(text.to_owned()))?;
        let of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']' | '_');
        if host.is_empty() || !host.chars().all(of_host) {
            return Err(InvalidReference::Host(text.to_owned()));
        }
        let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(InvalidReference::Port(host.to_owned()));
        }
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(parse_prefixed(digest)?)),
            None => (rest, None),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        if !is_repository(repository) {
            return Err(InvalidReference::Repository(repository.to_owned()));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(InvalidReference::Tag(tag.to_owned()));
        }
        Ok(Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, repository, tag, digest } = self;
        write!(f, "{SCHEME}{host}/{repository}")?;
        if let Some(tag) = tag {
            write!(f, ":{tag}")?;
        }
        digest.iter().try_for_each(|digest| write!(f, "@{ALGORITHM}{digest}"))
    }
}

fn is_repository(text: &str) -> bool {
    let is_part = |part: &str| {
        let of_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let separates = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
        let bytes = part.as_bytes();
        bytes.first().copied().is_some_and(of_part)
            && bytes.last().copied().is_some_and(of_part)
            && bytes.iter().all(|byte| of_part(*byte) || separates(*byte))
    };
    text.len() <= 255 && text.split('/').all(is_part)
}

fn is_tag(text: &str) -> bool {
    let of_tag = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&text.len()) && text.bytes().all(of_tag) && !text.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed_and_shown_in_one_form() {
        let digest = Digest::of(b"x");
        for text in [
            "oci://registry.example/a".to_owned(),
            "oci://registry.example:5000/team/my-agent:1.0.0".to_owned(),
            format!("oci://[::1]:5000/a_b/c.d@sha256:{digest}"),
            format!("oci://localhost/a:v1@sha256:{digest}"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), text);
        }
        let reference: Reference = "oci://h:1/a/b:t".parse().unwrap();
        assert_eq!((&*reference.host, &*reference.repository, &*reference.version()), ("h:1", "a/b", "t"));
        assert_eq!(reference.at(digest).to_string(), format!("oci://h:1/a/b@sha256:{digest}"));
        assert_eq!("oci://h/a".parse::<Reference>().unwrap().version(), "latest");
    }

    #[test]
    fn a_wrong_reference_names_the_wrong_part() {
        for (text, expected) in [
            ("https://h/a", "does not begin with oci://"),
            ("oci://h", "names no valid host"),
            ("oci:///a", "names no valid host"),
            ("oci://u@h/a", "names no valid host"),
            ("oci://h:70000/a", "the port of 'h:70000' is not a number from 1 to 65535"),
            ("oci://h:/a", "the port of 'h:' is not"),
            ("oci://[::1]:0/a", "the port of '[::1]:0' is not"),
            ("oci://h/", "invalid repository ''"),
            ("oci://h/A", "invalid repository 'A'"),
            ("oci://h/a//b", "invalid repository 'a//b'"),
            ("oci://h/../b", "invalid repository '../b'"),
            ("oci://h/a:", "invalid tag ''"),
            ("oci://h/a:x y", "invalid tag 'x y'"),
            ("oci://h/a@sha256:12", "invalid digest 'sha256:12'"),
            ("oci://h/a@md5:12", "invalid digest 'md5:12'"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn loopback_is_recognised_by_name_and_address() {
        for (host, expected) in [
            ("localhost:5000", true),
            ("127.0.0.1", true),
            ("127.0.0.2:1", true),
            ("[::1]:5000", true),
            ("registry.example", false),
            ("localhost.example:80", false),
            ("10.0.0.1:5000", false),
        ] {
            let reference: Reference = format!("oci://{host}/a").parse().unwrap();
            assert_eq!(reference.is_loopback(), expected, "{host}");
        }
    }
}
