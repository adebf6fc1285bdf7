//! Where a rollout's model is, as data, and apart from that what nobody may read there.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use rollout_outbound::{InvalidEndpoint, ModelEndpoint, Secret};

/// Where a model is and how it is asked. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAddress {
    /// Its server, up to and without `/chat/completions`; without what the address had of
    /// names, passwords and queries, which is in [`RequestSecrets::model_url`].
    pub base_url: String,
    /// Its name at that server.
    pub name: String,
    /// The request profile, where requests are not the usual ones: what its protocol calls it.
    pub profile: Option<Cow<'static, str>>,
}

/// What of a request must not be written down as it is. It cannot be serialized: whoever keeps
/// requests has to seal this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestSecrets {
    /// The key of the model's server.
    pub model_key: Option<Secret>,
    /// The whole address of the model's server, where a part of it may be a secret.
    pub model_url: Option<Secret>,
}

impl ModelAddress {
    /// Takes apart what a caller says of its model: what may be shown, and what may not.
    pub fn split(base_url: &str, name: impl Into<String>, key: Option<Secret>) -> (Self, RequestSecrets) {
        let shown = without_secrets(base_url);
        let model_url = shown.is_some().then(|| Secret::new(base_url));
        let base_url = shown.unwrap_or_else(|| base_url.to_owned());
        let address = Self { base_url, name: name.into(), profile: None };
        (address, RequestSecrets { model_key: key, model_url })
    }

    /// Asked by requests of this profile.
    pub fn with_profile(self, profile: &'static str) -> Self {
        Self { profile: Some(profile.into()), ..self }
    }

    /// The bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.base_url.len() + self.name.len() + self.profile.as_ref().map_or(0, |profile| profile.len())
    }
}

impl RequestSecrets {
    /// The endpoint at this address, whose secrets these are; of the usual request profile.
    pub fn endpoint(&self, address: &ModelAddress) -> Result<ModelEndpoint, InvalidEndpoint> {
        let url = self.model_url.as_ref().map_or(address.base_url.as_str(), Secret::expose);
        ModelEndpoint::new(url, &address.name, self.model_key.clone())
    }

    /// The bytes of memory that they take.
    pub fn memory_bytes(&self) -> usize {
        [&self.model_key, &self.model_url].into_iter().flatten().map(|secret| secret.expose().len()).sum()
    }
}

/// An address without the parts that may be secrets, if it has any. What is no address stays
/// as it is; there will be no endpoint of it.
fn without_secrets(base_url: &str) -> Option<String> {
    let mut url = reqwest::Url::parse(base_url).ok()?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !has_user && url.query().is_none() && url.fragment().is_none() {
        return None;
    }
    // An address with a name or a password has a host, so that neither can fail.
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
    fn an_address_is_written_without_its_secrets_and_reaches_the_same_server_with_them() {
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
                "the endpoint that was asked for"
            );
        }
        check("http://h:1/v1", "http://h:1/v1");
        check("http://user:pa55@h/v1", "http://h/v1");
        check("http://k3y@h/v1?api_key=k3y#x", "http://h/v1");
    }

    #[test]
    fn what_is_no_address_is_refused_when_it_is_used() {
        let (address, secrets) = ModelAddress::split("nowhere", "m", None);
        assert_eq!(secrets.endpoint(&address).unwrap_err(), InvalidEndpoint::Url("nowhere".to_owned()));
    }
}
