//! Addresses of models as data, and their secrets separately.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use rollout_outbound::{InvalidEndpoint, ModelEndpoint, Secret};

/// Address and name of a model, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAddress {
    /// Base URL of its server, up to and without `/chat/completions`. User, password and query are removed; the full
    /// URL is in [`RequestSecrets::model_url`].
    pub base_url: String,
    /// Name of the model at that server.
    pub name: String,
    /// The protocol's name for the request profile, if requests have special requirements.
    pub profile: Option<Cow<'static, str>>,
}

/// Secrets of a request. They cannot be serialized: a store of requests has to encrypt them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestSecrets {
    /// Key of the model's server.
    pub model_key: Option<Secret>,
    /// Full URL of the model's server, if a part of it may be a secret.
    pub model_url: Option<Secret>,
}

impl ModelAddress {
    /// Splits a caller's description of its model into public and secret parts.
    pub fn split(base_url: &str, name: impl Into<String>, key: Option<Secret>) -> (Self, RequestSecrets) {
        let shown = without_secrets(base_url);
        let model_url = shown.is_some().then(|| Secret::new(base_url));
        let base_url = shown.unwrap_or_else(|| base_url.to_owned());
        let address = Self { base_url, name: name.into(), profile: None };
        (address, RequestSecrets { model_key: key, model_url })
    }

    /// Returns the address with a request profile.
    pub fn with_profile(self, profile: &'static str) -> Self {
        Self { profile: Some(profile.into()), ..self }
    }

    /// Returns the size in memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.base_url.len() + self.name.len() + self.profile.as_ref().map_or(0, |profile| profile.len())
    }
}

impl RequestSecrets {
    /// Creates the endpoint of this address with these secrets, without a request profile.
    pub fn endpoint(&self, address: &ModelAddress) -> Result<ModelEndpoint, InvalidEndpoint> {
        let url = self.model_url.as_ref().map_or(address.base_url.as_str(), Secret::expose);
        ModelEndpoint::new(url, &address.name, self.model_key.clone())
    }

    /// Returns the size in memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        [&self.model_key, &self.model_url].into_iter().flatten().map(|secret| secret.expose().len()).sum()
    }
}

/// Returns a URL without the parts that may be secrets, if it has any. An invalid URL is unchanged; no endpoint can be
/// created from it.
fn without_secrets(base_url: &str) -> Option<String> {
    let mut url = reqwest::Url::parse(base_url).ok()?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !has_user && url.query().is_none() && url.fragment().is_none() {
        return None;
    }
    // A URL with a user or a password has a host, so neither call fails.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    Some(url.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_stored_without_its_secrets_and_restored_with_them() {
        fn check(url: &str, shown: &str) {
            let key = Some(Secret::new("s3cret"));
            let (address, secrets) = ModelAddress::split(url, "m", key.clone());
            let text = serde_json::to_string(&address).unwrap();
            assert!(!["s3cret", "pa55", "k3y"].iter().any(|secret| text.contains(secret)), "{text}");
            let read: ModelAddress = serde_json::from_str(&text).unwrap();
            assert_eq!((read.base_url.as_str(), &read), (shown, &address));
            let expected = ModelEndpoint::new(url, "m", key).unwrap();
            assert_eq!(
                format!("{:?}", secrets.endpoint(&read).unwrap()),
                format!("{expected:?}"),
                "the original endpoint"
            );
        }
        check("http://h:1/v1", "http://h:1/v1");
        check("http://user:pa55@h/v1", "http://h/v1");
        check("http://k3y@h/v1?api_key=k3y#x", "http://h/v1");
    }

    #[test]
    fn an_invalid_address_is_refused_when_it_is_used() {
        let (address, secrets) = ModelAddress::split("nowhere", "m", None);
        assert_eq!(secrets.endpoint(&address).unwrap_err(), InvalidEndpoint::Url("nowhere".to_owned()));
    }
}
