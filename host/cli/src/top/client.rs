//! Requests for the data of a server's pages.

use anyhow::{Context, Result, bail};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{StatusCode, Url};
use serde::de::DeserializeOwned;

use rollout_outbound::{Secret, http_client};
use rollout_page::{HostData, RolloutData};
use rollout_wire::text::{beginning, printable};

/// Timeout of a request.
const REQUEST_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// Maximum number of bytes of a response. Pages are much smaller.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of bytes shown of an error response.
const SHOWN_BYTES_MAX: usize = 300;

/// Data that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The rollouts of a tenant, or of the server.
    Host { tenant: Option<String> },
    /// A page of a rollout's conversation; 0 is the last one.
    Rollout { tenant: Option<String>, id: String, page: usize },
}

/// Data that was received.
#[derive(Clone, Debug)]
pub(super) enum Received {
    Host(Box<HostData>),
    Rollout(Box<RolloutData>),
}

/// A client of a server's pages, with a key if it needs one.
pub(super) struct PageClient {
    http: reqwest::Client,
    base: Url,
    key: Option<HeaderValue>,
}

impl PageClient {
    pub(super) fn new(url: &str, key: Option<&Secret>) -> Result<Self> {
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            bail!("the URL '{url}' must begin with http:// or https://");
        }
        let base: Url = url.parse().with_context(|| format!("invalid URL '{url}'"))?;
        let key = key.map(|key| {
            let header = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            let mut header =
                header.ok().context("the key contains characters that are not allowed in a key")?;
            header.set_sensitive(true);
            anyhow::Ok(header)
        });
        Ok(Self { http: http_client()?, base, key: key.transpose()? })
    }

    /// Requests data.
    pub(super) async fn get(&self, wanted: &Wanted) -> Result<Received> {
        match wanted {
            Wanted::Host { tenant } => {
                Ok(Received::Host(self.read(self.url(&["data"], tenant.as_deref(), 0)?).await?))
            }
            Wanted::Rollout { tenant, id, page } => {
                let url = self.url(&["rollouts", id, "data"], tenant.as_deref(), *page)?;
                Ok(Received::Rollout(self.read(url).await?))
            }
        }
    }

    /// Returns the URL of a page with these path segments, which are escaped.
    fn url(&self, path: &[&str], tenant: Option<&str>, page: usize) -> Result<Url> {
        let mut url = self.base.clone();
        let segments = url.path_segments_mut().ok().map(|mut segments| {
            segments.pop_if_empty().push("ui").extend(path);
        });
        segments.with_context(|| format!("the URL '{}' cannot have a path", self.base))?;
        url.set_query(None);
        if let Some(tenant) = tenant {
            url.query_pairs_mut().append_pair("tenant", tenant);
        }
        if page > 0 {
            url.query_pairs_mut().append_pair("page", &page.to_string());
        }
        Ok(url)
    }

    async fn read<T: DeserializeOwned>(&self, url: Url) -> Result<T> {
        let unreachable = || format!("{} does not answer", self.base);
        let mut request = self.http.get(url).timeout(REQUEST_TIME_MAX);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        let mut response =
            request.send().await.map_err(reqwest::Error::without_url).with_context(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(part) =
            response.chunk().await.map_err(reqwest::Error::without_url).with_context(unreachable)?
        {
            if body.len() + part.len() > RESPONSE_BYTES_MAX {
                bail!("{} sent more than {RESPONSE_BYTES_MAX} bytes; is it a rollout-host?", self.base);
            }
            body.extend_from_slice(&part);
        }
        if status.is_success() {
            return serde_json::from_slice(&body).with_context(|| {
                format!("{} sent no data of pages; is it a rollout-host of this version?", self.base)
            });
        }
        let parsed = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let detail = parsed.and_then(|body| Some(body["detail"].as_str()?.to_owned()));
        let detail = detail.unwrap_or_else(|| beginning(&String::from_utf8_lossy(&body), SHOWN_BYTES_MAX));
        let hint = match status {
            StatusCode::UNAUTHORIZED if self.key.is_none() => {
                "; name the environment variable with a key of the server by --server-key-env VAR"
            }
            StatusCode::NOT_FOUND if detail == "Not Found" => "; is it a rollout-host with pages below /ui?",
            _ => "",
        };
        bail!("{} responded {status}: {}{hint}", self.base, printable(detail.trim()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_tenants_are_escaped() {
        let url = |base: &str, path: &[&str], tenant: Option<&str>, page| {
            PageClient::new(base, None).unwrap().url(path, tenant, page).unwrap().to_string()
        };
        assert_eq!(url("http://h:1", &["data"], None, 0), "http://h:1/ui/data");
        assert_eq!(
            url("https://h/base/", &["rollouts", "a/b?", "data"], Some("x&y"), 2),
            "https://h/base/ui/rollouts/a%2Fb%3F/data?tenant=x%26y&page=2"
        );
        for wrong in ["h:1", "127.0.0.1:9000", "", "ftp://h", "http://"] {
            assert!(PageClient::new(wrong, None).is_err(), "{wrong}");
        }
        assert!(PageClient::new("http://h", Some(&Secret::new("a\nb"))).is_err());
    }
}
