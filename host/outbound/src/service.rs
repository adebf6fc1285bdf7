//! Client of a service that the operator configured and that speaks JSON, such as a queue of rollouts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use tokio::sync::Semaphore;

use super::endpoint::bearer;
use super::network::NetworkRules;
use super::secrets::{Secret, Secrets};
use super::{CheckedClientError, checked_client, describe};
use rollout_wire::text;

/// Timeout of a request, from connecting to the last byte of the response.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// A client of one service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServiceClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    base: Url,
    key: Option<HeaderValue>,
    secrets: Secrets,
    requests: Semaphore,
}

/// A response of a service.
#[derive(Clone, Debug)]
pub struct ServiceReply {
    /// The status.
    pub status: u16,
    /// The body, without the key.
    pub body: Bytes,
}

/// Error of a service that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidService {
    /// The address is not an HTTP URL.
    #[error("'{0}' is not an http or https URL")]
    Url(String),
    /// The key contains characters that a header cannot have.
    #[error("the key contains characters that an HTTP header cannot have")]
    Key,
    /// No client can be created for the service.
    #[error(transparent)]
    Client(#[from] CheckedClientError),
}

/// Error of a request without a response.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The connection failed, or there was no response in time.
    #[error("{0}")]
    Unanswered(String),
    /// The response is longer than the caller accepts.
    #[error("its response is longer than {0} bytes")]
    TooLong(usize),
}

impl ServiceClient {
    /// Creates a client of the service at this base URL, with at most `requests_max` requests in progress. The rules
    /// apply to its address.
    pub fn new(
        rules: &Arc<NetworkRules>,
        base_url: &str,
        key: Option<&Secret>,
        requests_max: usize,
    ) -> Result<Self, InvalidService> {
        let invalid = || InvalidService::Url(base_url.to_owned());
        let base = Url::parse(base_url).map_err(|_| invalid())?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(invalid());
        }
        let mut secrets = Secrets::from_url(&base);
        if let Some(key) = key {
            secrets.add(key.expose());
        }
        let key = key.map(bearer).transpose().map_err(|_| InvalidService::Key)?;
        let http = checked_client(rules, &base)?;
        Ok(Self(Arc::new(Inner { http, base, key, secrets, requests: Semaphore::new(requests_max) })))
    }

    /// Returns the URL of these path segments below the base URL, which are escaped.
    pub fn url(&self, path: &[&str]) -> Url {
        let mut url = self.0.base.clone();
        // A URL with a host can have a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Sends a request once, with a JSON body if there is one, and reads at most `reply_bytes_max` bytes of the
    /// response.
    pub async fn send(
        &self,
        method: Method,
        url: Url,
        body: Option<Bytes>,
        reply_bytes_max: usize,
    ) -> Result<ServiceReply, ServiceError> {
        // The semaphore is never closed.
        let _turn = self.0.requests.acquire().await.ok();
        let mut request = self.0.http.request(method, url);
        if let Some(key) = &self.0.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let unanswered = |error| ServiceError::Unanswered(self.0.secrets.cut_from(describe(error)));
        let exchange = async {
            let mut response = request.send().await.map_err(unanswered)?;
            let status = response.status().as_u16();
            let mut body = Vec::new();
            while let Some(part) = response.chunk().await.map_err(unanswered)? {
                if body.len() + part.len() > reply_bytes_max {
                    return Err(ServiceError::TooLong(reply_bytes_max));
                }
                body.extend_from_slice(&part);
            }
            Ok(ServiceReply { status, body: self.0.secrets.cut_from_reply(body.into()) })
        };
        match tokio::time::timeout(REQUEST_TIME_MAX, exchange).await {
            Ok(reply) => reply,
            Err(_) => {
                let within = text::time(REQUEST_TIME_MAX);
                Err(ServiceError::Unanswered(format!("no answer within {within}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<ServiceClient, InvalidService> {
        ServiceClient::new(&Arc::new(NetworkRules::open()), url, None, 1)
    }

    #[test]
    fn path_segments_are_escaped_below_the_base_url() {
        fn check(base: &str, path: &[&str], expected: &str) {
            assert_eq!(client(base).unwrap().url(path).as_str(), expected, "{base} {path:?}");
        }
        check("http://h:1", &["api", "rollouts"], "http://h:1/api/rollouts");
        check("http://h:1/agl/", &["api", "a/b c?"], "http://h:1/agl/api/a%2Fb%20c%3F");
    }

    #[test]
    fn an_address_without_http_or_host_is_refused() {
        for url in ["ftp://h", "nowhere", "unix:/x"] {
            assert!(client(url).is_err(), "{url}");
        }
    }
}
