//! Address, key and headers of a model's server.

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;

use super::retry::RetryPolicy;
use super::secrets::{Secret, Secrets};
use super::transport::Target;
use rollout_wire::closed::ClosedBody;
use rollout_wire::id::{RolloutId, SampleId};

/// The address of a rollout's model, with its name and key. Guests see none of it.
#[derive(Clone, Debug)]
pub struct ModelEndpoint {
    pub(super) target: Target,
    model: String,
    api_key: Option<HeaderValue>,
    /// Secrets to remove from the server's responses.
    pub(super) secrets: Secrets,
    profile: Option<Arc<RequestProfile>>,
    /// Responses that mean that the server pauses.
    pub(super) pauses: &'static [PauseSign],
}

/// A response that means that the model's server pauses. The call is repeated for as long as the pause lasts, and does
/// not count as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseSign {
    /// The status of the response.
    pub status: u16,
    /// A text that the body contains.
    pub part_of_body: &'static str,
}

impl PauseSign {
    /// Returns whether a response has the sign. The beginning of the body is searched.
    pub(super) fn is_in(&self, status: u16, body: &[u8]) -> bool {
        const BYTES_SEARCHED: usize = 4 << 10;
        let beginning = &body[..body.len().min(BYTES_SEARCHED)];
        self.status == status && memchr::memmem::find(beginning, self.part_of_body.as_bytes()).is_some()
    }
}

/// A caller's special requirements for requests to its model's server.
#[derive(Debug)]
pub struct RequestProfile {
    /// The fields of each request.
    pub body: ClosedBody,
    /// The retry policy of calls.
    pub policy: RetryPolicy,
    /// Permits for calls in progress at once.
    pub connections: Semaphore,
}

/// Error of an unusable address or key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// The address is not an HTTP URL.
    #[error("'{0}' is not an http or https URL")]
    Url(String),
    /// The key contains characters that a header cannot have.
    #[error("the key contains characters that an HTTP header cannot have")]
    Key,
}

impl ModelEndpoint {
    /// Creates an endpoint from a base URL, to which `/chat/completions` is appended.
    pub fn new(
        base_url: &str,
        model: impl Into<String>,
        api_key: Option<Secret>,
    ) -> Result<Self, InvalidEndpoint> {
        let invalid = || InvalidEndpoint::Url(base_url.to_owned());
        let mut url = Url::parse(base_url).map_err(|_| invalid())?;
        url.path_segments_mut().map_err(|()| invalid())?.pop_if_empty().extend(["chat", "completions"]);
        let target = Target::of(&url).ok_or_else(invalid)?;
        let mut secrets = Secrets::from_url(&url);
        if let Some(key) = &api_key {
            secrets.add(key.expose());
        }
        let api_key = api_key.as_ref().map(bearer).transpose()?;
        Ok(Self { target, model: model.into(), api_key, secrets, profile: None, pauses: &[] })
    }

    /// Returns the endpoint with a profile for its requests.
    pub fn with_profile(self, profile: RequestProfile) -> Self {
        Self { profile: Some(Arc::new(profile)), ..self }
    }

    /// Returns the endpoint of a server that pauses with these signs.
    pub fn pausing(self, pauses: &'static [PauseSign]) -> Self {
        Self { pauses, ..self }
    }

    /// Returns the profile, if there is one.
    pub fn profile(&self) -> Option<&RequestProfile> {
        self.profile.as_deref()
    }

    /// Returns the name of the model in every request.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the headers of a request.
    pub(super) fn headers(&self, routing: &RoutingHeaders) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(HeaderName::from_static("x-rollout-id"), routing.rollout_id.clone());
        if let Some(sample_id) = &routing.sample_id {
            headers.insert(HeaderName::from_static("x-sample-id"), sample_id.clone());
        }
        if let Some(key) = &self.api_key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        headers
    }
}

/// Creates the header that carries a key.
pub(super) fn bearer(key: &Secret) -> Result<HeaderValue, InvalidEndpoint> {
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
    let mut value = value.map_err(|_| InvalidEndpoint::Key)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Headers that identify a call to a server of many rollouts.
#[derive(Clone, Debug)]
pub struct RoutingHeaders {
    rollout_id: HeaderValue,
    sample_id: Option<HeaderValue>,
}

impl RoutingHeaders {
    /// Creates headers for two ids, which [`rollout_wire::id`] has validated.
    pub fn new(rollout_id: &RolloutId, sample_id: &SampleId) -> Self {
        Self { sample_id: Some(header_value(sample_id.as_str())), ..Self::for_rollout(rollout_id) }
    }

    /// Creates the header of a call that belongs to no sample.
    pub fn for_rollout(rollout_id: &RolloutId) -> Self {
        Self { rollout_id: header_value(&rollout_id.header_value()), sample_id: None }
    }

    /// Returns the sample that a call belongs to, or an empty text for a judge.
    pub(super) fn sample_id(&self) -> &str {
        self.sample_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default()
    }
}

/// Converts an id, which is always valid in a header. Were that to change, an empty header would reveal it with less
/// damage than a panic in a rollout.
fn header_value(id: &str) -> HeaderValue {
    HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_appended_to_its_base_url() {
        fn check(base: &str, expected: &str) {
            let endpoint = ModelEndpoint::new(base, "m", None).unwrap();
            let request = endpoint.target.request(&HeaderMap::new(), b"");
            let line = String::from_utf8(request).unwrap().lines().next().unwrap().to_owned();
            assert_eq!(line, format!("POST {expected} HTTP/1.1"), "{base}");
        }
        check("http://h:1/v1", "/v1/chat/completions");
        check("http://h:1/v1/", "/v1/chat/completions");
        check("http://h:1", "/chat/completions");
        check("https://h/v1/rollouts/a%20b", "/v1/rollouts/a%20b/chat/completions");
        check("http://h/v1?x=1", "/v1/chat/completions?x=1");
        assert!(ModelEndpoint::new("ftp://h/", "m", None).is_err());
        assert!(ModelEndpoint::new("h:80/v1", "m", None).is_err());
        assert_eq!(
            ModelEndpoint::new("http://h", "m", Some(Secret::new("a\nb"))).unwrap_err(),
            InvalidEndpoint::Key
        );
    }

    #[test]
    fn debug_output_contains_no_secrets() {
        let endpoint = ModelEndpoint::new("http://u:pa55word@h?key=k3y", "m", Some(Secret::new("s3cret")));
        let shown = format!("{:?}", endpoint.unwrap());
        assert!(!["s3cret", "pa55word", "k3y"].iter().any(|secret| shown.contains(secret)), "{shown}");
    }
}
