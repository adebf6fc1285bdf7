//! A client of a server's admin API.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::stream;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};

use rollout_outbound::{Secret, http_client};
use rollout_wire::text::{beginning, printable};

/// Number of bytes of a component that are sent at once: few enough for a smooth progress bar.
const CHUNK_BYTES: usize = 64 << 10;

/// Maximum number of bytes shown of a response that is not an error of the API.
const SHOWN_BYTES_MAX: usize = 300;

/// Number of elements per page of a list.
const PAGE_SIZE: u32 = 1000;

/// Timeout of a request. A push is answered after the component is compiled and checked.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// Client of a server's admin API, with a key.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    key: HeaderValue,
    tenant: Option<String>,
}

/// An error response of the server.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct RequestRefused {
    pub status: StatusCode,
    message: String,
}

impl Client {
    pub(super) fn new(url: &str, key: Secret, tenant: Option<&str>) -> Result<Self> {
        let base: Url = url.parse().with_context(|| format!("--to: invalid URL '{url}'"))?;
        if !matches!(base.scheme(), "http" | "https") {
            bail!("--to: the URL '{url}' must begin with http:// or https://");
        }
        let key = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
        let mut key = key.ok().context("the key contains characters that are not allowed in a key")?;
        key.set_sensitive(true);
        Ok(Self { http: http_client()?, base, key, tenant: tenant.map(str::to_owned) })
    }

    /// Returns the URL of the API with these path segments, which are escaped.
    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Url> {
        let mut url = self.base.clone();
        let segments = url.path_segments_mut().ok().map(|mut segments| {
            segments.pop_if_empty().extend(["admin", "v1"]).extend(path);
        });
        segments.with_context(|| format!("--to: the URL '{}' cannot have a path", self.base))?;
        url.set_query(None);
        if self.tenant.is_some() || !query.is_empty() {
            let tenant = self.tenant.as_deref().map(|tenant| ("tenant", tenant));
            url.query_pairs_mut().extend_pairs(tenant.into_iter().chain(query.iter().copied()));
        }
        Ok(url)
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> Result<RequestBuilder> {
        let request = self.http.request(method, self.url(path, query)?);
        Ok(request.header(AUTHORIZATION, self.key.clone()).timeout(REQUEST_TIME_MAX))
    }

    /// Sends a request and returns the response, `null` if it has no body.
    pub(super) async fn call(&self, method: Method, path: &[&str], body: Option<Value>) -> Result<Value> {
        self.call_with(method, path, &[], body).await
    }

    /// Sends a request with these query parameters, and returns the response, `null` if it has no body.
    pub(super) async fn call_with(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<Value>,
    ) -> Result<Value> {
        let mut request = self.request(method, path, query)?;
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        self.send(request).await
    }

    pub(super) async fn get(&self, path: &[&str]) -> Result<Value> {
        self.call(Method::GET, path, None).await
    }

    /// Returns all elements of a list, page by page.
    pub(super) async fn list(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Vec<Value>> {
        let limit = PAGE_SIZE.to_string();
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut query: Vec<(&str, &str)> = query.to_vec();
            query.push(("limit", &limit));
            query.extend(after.as_deref().map(|after| ("after", after)));
            let mut page = self.send(self.request(Method::GET, path, &query)?).await?;
            if let Value::Array(items) = page["items"].take() {
                all.extend(items);
            }
            match page["next"].as_str() {
                Some(next) => after = Some(next.to_owned()),
                None => return Ok(all),
            }
        }
    }

    /// Uploads bytes and reports the number of bytes sent so far.
    pub(super) async fn put(
        &self,
        path: &[&str],
        bytes: Bytes,
        sent: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Value> {
        let length = bytes.len();
        let chunks = stream::unfold(0, move |at| {
            let chunk = bytes.slice(at..(at + CHUNK_BYTES).min(bytes.len()));
            let next = at + chunk.len();
            sent(next as u64);
            async move { (!chunk.is_empty()).then_some((Ok::<_, std::io::Error>(chunk), next)) }
        });
        let request = self.request(Method::PUT, path, &[])?;
        let request = request.header(CONTENT_TYPE, "application/wasm").header(CONTENT_LENGTH, length);
        self.send(request.body(Body::wrap_stream(chunks))).await
    }

    /// Sends a request and returns the JSON of the response. An error response becomes [`RequestRefused`].
    async fn send(&self, request: RequestBuilder) -> Result<Value> {
        let unreachable = || format!("{} does not answer", self.base);
        let response = request.send().await.map_err(reqwest::Error::without_url).with_context(unreachable)?;
        let status = response.status();
        let body = response.bytes().await.map_err(reqwest::Error::without_url).with_context(unreachable)?;
        let parsed = serde_json::from_slice::<Value>(&body);
        if status.is_success() {
            return match parsed {
                _ if body.is_empty() => Ok(Value::Null),
                Ok(response) => Ok(response),
                Err(_) => bail!("{} is not a rollout-host: its response is not JSON", self.base),
            };
        }
        let error_message =
            parsed.ok().and_then(|response| Some(response["error"]["message"].as_str()?.to_owned()));
        let message = match error_message {
            Some(error_message) => printable(&error_message),
            None => {
                let body = String::from_utf8_lossy(&body);
                let shown = printable(beginning(body.trim(), SHOWN_BYTES_MAX).trim());
                let hint = "; is it a server with a catalog (serve --catalog)?";
                format!("{} responded {status}: {shown}{}", self.base, if status == 404 { hint } else { "" })
            }
        };
        Err(RequestRefused { status, message }.into())
    }
}

/// Returns the request body that activates a version.
pub(super) fn version(version: u32) -> Value {
    json!({ "version": version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_are_escaped() {
        let url = |base: &str, tenant: Option<&str>, path: &[&str]| {
            let client = Client::new(base, Secret::new("k"), tenant).unwrap();
            client.url(path, &[]).unwrap().to_string()
        };
        assert_eq!(url("http://h:1", None, &["plugins"]), "http://h:1/admin/v1/plugins");
        assert_eq!(url("http://h:1/", None, &["plugins"]), "http://h:1/admin/v1/plugins");
        assert_eq!(url("https://h/base/?x=y", None, &["keys"]), "https://h/base/admin/v1/keys");
        assert_eq!(
            url("http://h", Some("a&b"), &["plugins", "a/../b?c"]),
            "http://h/admin/v1/plugins/a%2F..%2Fb%3Fc?tenant=a%26b"
        );
        for wrong in ["h:1", "", "ftp://h"] {
            assert!(Client::new(wrong, Secret::new("k"), None).is_err(), "{wrong}");
        }
        assert!(Client::new("http://h", Secret::new("a\nb"), None).is_err());
    }
}
