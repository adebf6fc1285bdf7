//! Challenges of registries, and the tokens that answer them.

use std::collections::HashMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::header::HeaderValue;

use crate::credentials::Credentials;

/// A challenge in a `WWW-Authenticate` header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// The registry requires user and password in every request.
    Basic,
    /// The registry requires a token, which a token server issues.
    Bearer {
        /// Address of the token server.
        realm: String,
        /// Name of the registry at the token server.
        service: Option<String>,
        /// Rights that the request needs.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Parses a header. Returns `None` if the scheme is unknown or a bearer challenge has no realm.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest);
        Some(Self::Bearer {
            realm: parameters.remove("realm")?,
            service: parameters.remove("service"),
            scope: parameters.remove("scope"),
        })
    }
}

/// Parses `name="value", name=value`.
fn parameters(text: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([',', ' ']).to_ascii_lowercase();
        let after = after.trim_start();
        let value;
        (value, rest) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.insert(name, value.trim().to_owned());
    }
    found
}

/// Returns the header value with user and password.
pub(crate) fn basic(credentials: &Credentials) -> Option<HeaderValue> {
    let Credentials::Basic { user, password } = credentials else { return None };
    let pair = BASE64_STANDARD.encode(format!("{user}:{}", password.expose()));
    sensitive(&format!("Basic {pair}"))
}

/// Returns a header value that logs do not show.
pub(crate) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed_in_the_forms_that_registries_use() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        for (header, expected) in [
            (r#"Basic realm="x""#, Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://a/token",service="r",scope="repository:a/b:pull,push""#,
                bearer("https://a/token", Some("r"), Some("repository:a/b:pull,push")),
            ),
            (
                r#"Bearer realm="https://a/token?x=1", service=r"#,
                bearer("https://a/token?x=1", Some("r"), None),
            ),
            (r#"Bearer service="r""#, None),
            ("Negotiate", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
