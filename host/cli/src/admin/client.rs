//! Asks the admin API of a server.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::stream;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};

use rollout_outbound::{Secret, http_client};
use rollout_wire::text::{beginning, printable};

/// What is sent of a component at once: fine enough for a bar.
const PIECE_BYTES: usize = 64 << 10;

/// How much of an answer is shown that is no error of the API, in bytes.
const SHOWN_BYTES_MAX: usize = 300;

/// How many elements of a list are asked for at once.
const PAGE: u32 = 1000;

/// How long a server may take for an answer. A push is answered when the component is compiled and checked.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// A server's admin API, as the holder of a key sees it.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    key: HeaderValue,
    tenant: Option<String>,
}

/// The server refused.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refused {
    pub status: StatusCode,
    message: String,
}

impl Client {
    pub(super) fn new(url: &str, key: Secret, tenant: Option<&str>) -> Result<Self> {
        let base: Url = url.parse().with_context(|| format!("--to: '{url}' is no URL"))?;
        if !matches!(base.scheme(), "http" | "https") {
            bail!("--to: '{url}' is neither http:// nor https://");
        }
        let key = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
        let mut key = key.ok().context("the key has characters that no key has")?;
        key.set_sensitive(true);
        Ok(Self { http: http_client()?, base, key, tenant: tenant.map(str::to_owned) })
    }

    /// The URL below the API's base with these segments: each is one, whatever is in it.
    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Url> {
        let mut url = self.base.clone();
        let segments = url.path_segments_mut().ok().map(|mut segments| {
            segments.pop_if_empty().extend(["admin", "v1"]).extend(path);
        });
        segments.with_context(|| format!("--to: '{}' can have no path", self.base))?;
        url.set_query(None);
        if self.tenant.is_some() || !query.is_empty() {
            let tenant = self.tenant.as_deref().map(|tenant| ("tenant", tenant));
            url.query_pairs_mut().extend_pairs(tenant.into_iter().chain(query.iter().copied()));
        }
        Ok(url)
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> Result<RequestBuilder> {
        let request = self.http.request(method, self.url(path, query)?);
        Ok(request.header(AUTHORIZATION, self.key.clone()).timeout(ANSWER_TIME_MAX))
    }

    /// Asks, and gives the answer; `null` where it has no body.
    pub(super) async fn ask(&self, method: Method, path: &[&str], body: Option<Value>) -> Result<Value> {
        let mut request = self.request(method, path, &[])?;
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        self.send(request).await
    }

    pub(super) async fn get(&self, path: &[&str]) -> Result<Value> {
        self.ask(Method::GET, path, None).await
    }

    /// All elements of a list, part by part.
    pub(super) async fn list(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Vec<Value>> {
        let limit = PAGE.to_string();
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut query: Vec<(&str, &str)> = query.to_vec();
            query.push(("limit", &limit));
            query.extend(after.as_deref().map(|after| ("after", after)));
            let mut part = self.send(self.request(Method::GET, path, &query)?).await?;
            if let Value::Array(items) = part["items"].take() {
                all.extend(items);
            }
            match part["next"].as_str() {
                Some(next) => after = Some(next.to_owned()),
                None => return Ok(all),
            }
        }
    }

    /// Puts bytes, and says how many went out so far.
    pub(super) async fn put(
        &self,
        path: &[&str],
        bytes: Bytes,
        sent: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Value> {
        let length = bytes.len();
        let pieces = stream::unfold(0, move |at| {
            let piece = bytes.slice(at..(at + PIECE_BYTES).min(bytes.len()));
            let next = at + piece.len();
            sent(next as u64);
            async move { (!piece.is_empty()).then_some((Ok::<_, std::io::Error>(piece), next)) }
        });
        let request = self.request(Method::PUT, path, &[])?;
        let request = request.header(CONTENT_TYPE, "application/wasm").header(CONTENT_LENGTH, length);
        self.send(request.body(Body::wrap_stream(pieces))).await
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value> {
        let unreachable = || format!("{} does not answer", self.base);
        let answer = request.send().await.map_err(reqwest::Error::without_url).with_context(unreachable)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(reqwest::Error::without_url).with_context(unreachable)?;
        let parsed = serde_json::from_slice::<Value>(&body);
        if status.is_success() {
            return match parsed {
                _ if body.is_empty() => Ok(Value::Null),
                Ok(answer) => Ok(answer),
                Err(_) => bail!("{} is no rollout-host: its answer is no JSON", self.base),
            };
        }
        let said = parsed.ok().and_then(|answer| Some(answer["error"]["message"].as_str()?.to_owned()));
        let message = match said {
            Some(said) => printable(&said),
            None => {
                let body = String::from_utf8_lossy(&body);
                let shown = printable(beginning(body.trim(), SHOWN_BYTES_MAX).trim());
                let hint = "; is it a server with a catalog (serve --catalog)?";
                format!("{} answered {status}: {shown}{}", self.base, if status == 404 { hint } else { "" })
            }
        };
        Err(Refused { status, message }.into())
    }
}

/// The body that activates a version.
pub(super) fn version(version: u32) -> Value {
    json!({ "version": version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_made_of_segments_whatever_is_in_them() {
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
