//! Requests to one repository of a registry.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION, RANGE, WWW_AUTHENTICATE,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use crate::artifact::{self, Descriptor, Interfaces, Manifest};
use crate::auth::{self, Challenge};
use crate::credentials::Credentials;
use crate::error::RegistryError;
use crate::reference::{Reference, parse_prefixed, prefixed};
use rollout_outbound::{NetworkRules, Secret, checked_client};
use rollout_wire::digest::Digest;
use rollout_wire::text::{beginning, printable};

/// Maximum size of a manifest and of a configuration.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Maximum size of a response with a token or an error.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of an error's text that is shown.
const SHOWN_BYTES_MAX: usize = 300;
/// Maximum number of redirects of a download.
const REDIRECTS_MAX: u32 = 3;
/// Size of a part of an upload. A smaller blob is uploaded in one request.
const PART_BYTES: usize = 8 << 20;
/// Maximum time until a request is answered.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum time between two chunks of a response.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of attempts of a request, and of successive failures while a blob is transferred.
const ATTEMPTS_MAX: u32 = 4;
/// Base of the delay before another attempt, which doubles with each attempt.
const DELAY_BASE: Duration = Duration::from_millis(250);

/// Options of the connections to a registry.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Credentials. Without them access is anonymous.
    pub credentials: Option<Credentials>,
    /// Whether to use HTTP without TLS, which is only permitted for registries on loopback addresses.
    pub plain_http: bool,
    /// Rules for the addresses of the registry and of the stores that it redirects to.
    pub network: Arc<NetworkRules>,
}

/// A repository of a registry.
#[derive(Debug)]
pub struct Registry {
    reference: Reference,
    base: Url,
    options: Options,
    /// The `Authorization` header that answered the registry's latest challenge.
    authorization: Mutex<Option<HeaderValue>>,
}

/// A component in a registry whose manifest was read.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The reference with the digest of the manifest.
    pub reference: Reference,
    /// Digest of the manifest.
    pub digest: Digest,
    /// The manifest, verbatim.
    pub manifest_text: String,
    /// The layer with the component.
    pub layer: Descriptor,
}

/// State of a repository, as far as the registry reveals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryState {
    /// Its tags can be read.
    Readable,
    /// The registry has no repository of this name. The first push usually creates it.
    Missing,
}

/// Rights that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Pull,
    Push,
}

/// Response of a token server.
#[derive(Deserialize)]
struct Token {
    #[serde(alias = "access_token")]
    token: String,
}

/// Body of a registry's error response.
#[derive(Deserialize)]
struct Errors {
    errors: Vec<OneError>,
}

#[derive(Deserialize)]
struct OneError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Registry {
    /// Returns the repository that a reference names. No connection is opened yet.
    ///
    /// # Errors
    ///
    /// If plain HTTP is requested for another machine, or the host is not valid in a URL.
    pub fn new(reference: &Reference, options: Options) -> Result<Self, RegistryError> {
        if options.plain_http && !reference.is_loopback() {
            return Err(RegistryError::PlainHttp(reference.host.clone()));
        }
        let scheme = if options.plain_http { "http" } else { "https" };
        let url = format!("{scheme}://{}/v2/{}/", reference.host, reference.repository);
        let base = Url::parse(&url).map_err(|error| RegistryError::Unexpected {
            host: reference.host.clone(),
            what: "its address".to_owned(),
            answer: error.to_string(),
        })?;
        Ok(Self { reference: reference.clone(), base, options, authorization: Mutex::default() })
    }

    /// Returns whether there are credentials for the registry.
    pub fn has_credentials(&self) -> bool {
        self.options.credentials.is_some()
    }

    /// Requests the repository's tags, to learn whether the repository can be read.
    ///
    /// # Errors
    ///
    /// If the registry cannot be reached, refuses access or does not answer as a registry does.
    pub async fn repository_state(&self) -> Result<RepositoryState, RegistryError> {
        let url = self.url("tags/list?n=1");
        let answer = self.send(Access::Pull, &url, |client| client.get(url.clone())).await?;
        if answer.status() != StatusCode::NOT_FOUND {
            self.checked(answer, "a list of tags").await?;
            return Ok(RepositoryState::Readable);
        }
        let body = self.body(answer, "an error", ANSWER_BYTES_MAX).await?;
        // Servers that are not registries respond with 404, too.
        match serde_json::from_slice::<Errors>(&body) {
            Ok(Errors { errors }) if !errors.is_empty() => Ok(RepositoryState::Missing),
            _ => Err(self.unexpected("a list of tags", "404, but not as a registry does".to_owned())),
        }
    }

    /// Begins an upload and cancels it, to learn whether pushes are permitted.
    ///
    /// # Errors
    ///
    /// If the registry cannot be reached or refuses access.
    pub async fn try_upload(&self) -> Result<(), RegistryError> {
        let upload = self.begin_upload().await?;
        // An upload that a registry does not cancel expires there.
        let cancelled = self.send_once(Access::Push, &upload, |client| client.delete(upload.clone())).await;
        if let Err(error) = cancelled {
            tracing::debug!(%error, "an upload was not cancelled and expires in the registry");
        }
        Ok(())
    }

    /// Resolves a tag or digest, and returns the digest and the text of its manifest.
    ///
    /// # Errors
    ///
    /// If the registry does not have it, or the manifest has another digest.
    pub async fn manifest(&self, version: &str) -> Result<(Digest, String), RegistryError> {
        let url = self.url(&format!("manifests/{version}"));
        let get = |client: &Client| client.get(url.clone()).header(ACCEPT, artifact::MANIFEST);
        let answer = self.send(Access::Pull, &url, get).await?;
        let answer = self.checked(answer, version).await?;
        let bytes = self.body(answer, "the manifest", MANIFEST_BYTES_MAX).await?;
        let found = Digest::of(&bytes);
        if let Ok(expected) = parse_prefixed(version)
            && expected != found
        {
            return Err(RegistryError::DigestMismatch { what: "the manifest".to_owned(), expected, found });
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| RegistryError::NotComponent("its manifest is not text".to_owned()))?;
        Ok((found, text))
    }

    /// Resolves the reference to a component, without its bytes.
    ///
    /// # Errors
    ///
    /// If the registry does not have it, or it is not a component of at most `bytes_max` bytes.
    pub async fn resolve(&self, bytes_max: u64) -> Result<Pulled, RegistryError> {
        let (digest, manifest_text) = self.manifest(&self.reference.version()).await?;
        let layer = artifact::parse(&manifest_text)?.component()?.clone();
        if layer.size > bytes_max {
            return Err(RegistryError::TooLarge { what: "the component".to_owned(), bytes_max });
        }
        Ok(Pulled { reference: self.reference.at(digest), digest, manifest_text, layer })
    }

    /// Reads a blob. An interrupted download continues where it stopped. `received` is called with the number of
    /// bytes so far.
    ///
    /// # Errors
    ///
    /// If the registry does not have it, or the bytes have another size or digest.
    pub async fn blob(&self, blob: &Descriptor, received: impl Fn(u64)) -> Result<Vec<u8>, RegistryError> {
        let what = format!("the blob {}", prefixed(blob.digest));
        let mut bytes: Vec<u8> = Vec::new();
        let mut failures = 0;
        loop {
            let before = bytes.len();
            match self.blob_part(blob, &what, &mut bytes, &received).await {
                Ok(()) => break,
                Err(error) if !is_worth_another_attempt(&error) => return Err(error),
                Err(error) => {
                    failures = if bytes.len() > before { 1 } else { failures + 1 };
                    if failures >= ATTEMPTS_MAX {
                        return Err(error);
                    }
                    tracing::debug!(%error, received = bytes.len(), "a download continues after an error");
                    tokio::time::sleep(DELAY_BASE * 2_u32.pow(failures)).await;
                }
            }
        }
        let found = Digest::of(&bytes);
        if found == blob.digest {
            Ok(bytes)
        } else {
            Err(RegistryError::DigestMismatch { what, expected: blob.digest, found })
        }
    }

    /// Appends the rest of a blob.
    async fn blob_part(
        &self,
        blob: &Descriptor,
        what: &str,
        bytes: &mut Vec<u8>,
        received: &impl Fn(u64),
    ) -> Result<(), RegistryError> {
        let url = self.url(&format!("blobs/{}", prefixed(blob.digest)));
        let range = (!bytes.is_empty()).then(|| format!("bytes={}-", bytes.len()));
        let mut answer = self.redirected(&url, range.as_deref()).await?;
        answer = self.checked(answer, &prefixed(blob.digest)).await?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            // The server does not support ranges, and sends the blob from its beginning.
            bytes.clear();
        }
        loop {
            let chunk = match tokio::time::timeout(IDLE_TIME_MAX, answer.chunk()).await {
                Ok(chunk) => chunk.map_err(|error| self.unreachable(&url, error))?,
                Err(_) => return Err(self.idle(&url)),
            };
            let Some(chunk) = chunk else { break };
            if bytes.len() as u64 + chunk.len() as u64 > blob.size {
                return Err(RegistryError::TooLarge { what: what.to_owned(), bytes_max: blob.size });
            }
            bytes.extend_from_slice(&chunk);
            received(bytes.len() as u64);
        }
        if (bytes.len() as u64) < blob.size {
            return Err(RegistryError::Unreachable {
                host: self.reference.host.clone(),
                reason: format!("{what} ended after {} of {} bytes", bytes.len(), blob.size),
            });
        }
        Ok(())
    }

    /// Sends a download and follows its redirects. Credentials are sent to the registry only.
    async fn redirected(&self, url: &Url, range: Option<&str>) -> Result<Response, RegistryError> {
        let with_range = |request: RequestBuilder| match range {
            Some(range) => request.header(RANGE, range),
            None => request,
        };
        let mut answer = self.send(Access::Pull, url, |client| with_range(client.get(url.clone()))).await?;
        let mut at = url.clone();
        for _ in 0..REDIRECTS_MAX {
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            at = self.location(&at, &answer)?;
            if !self.may_connect(&at) {
                return Err(RegistryError::Forbidden {
                    host: host_of(&at),
                    reason: "the registry redirects to an address without TLS".to_owned(),
                });
            }
            let request = with_range(self.client(&at)?.get(at.clone()));
            answer = request.send().await.map_err(|error| self.unreachable(&at, error))?;
        }
        if answer.status().is_redirection() {
            return Err(self.unexpected("a download", format!("more than {REDIRECTS_MAX} redirects")));
        }
        Ok(answer)
    }

    /// Pushes a component under the reference's tag. Returns the reference with the digest of its manifest. Blobs that
    /// the registry has are not sent again.
    ///
    /// # Errors
    ///
    /// If the registry refuses it or cannot be reached.
    pub async fn push(
        &self,
        component: Bytes,
        interfaces: Interfaces<'_>,
        title: &str,
        sent: impl Fn(u64),
    ) -> Result<Reference, RegistryError> {
        let config = artifact::config(&component, interfaces);
        let layer = Descriptor::of(artifact::COMPONENT, &component);
        self.push_blob(&layer, component, &sent).await?;
        let annotations = [(artifact::TITLE.to_owned(), title.to_owned())].into();
        let config_descriptor = Descriptor::of(artifact::CONFIG, &config);
        self.push_blob(&config_descriptor, config.into(), &|_| {}).await?;
        let digest = self
            .push_manifest(
                &self.reference.version(),
                Manifest::bytes(config_descriptor, vec![layer], annotations),
            )
            .await?;
        Ok(self.reference.at(digest))
    }

    /// Pushes a manifest under a tag or digest. The registry must have its blobs already.
    ///
    /// # Errors
    ///
    /// If the registry refuses it or cannot be reached.
    pub async fn push_manifest(&self, version: &str, manifest: Vec<u8>) -> Result<Digest, RegistryError> {
        let digest = Digest::of(&manifest);
        let url = self.url(&format!("manifests/{version}"));
        let manifest = Bytes::from(manifest);
        let put = |client: &Client| {
            client.put(url.clone()).header(CONTENT_TYPE, artifact::MANIFEST).body(manifest.clone())
        };
        let answer = self.send(Access::Push, &url, put).await?;
        self.checked(answer, version).await?;
        Ok(digest)
    }

    /// Pushes a blob unless the registry has it. `sent` is called with the number of bytes so far.
    ///
    /// # Errors
    ///
    /// If the registry refuses it or cannot be reached.
    pub async fn push_blob(
        &self,
        blob: &Descriptor,
        bytes: Bytes,
        sent: &impl Fn(u64),
    ) -> Result<(), RegistryError> {
        let url = self.url(&format!("blobs/{}", prefixed(blob.digest)));
        let answer = self.send(Access::Push, &url, |client| client.head(url.clone())).await?;
        if answer.status().is_success() {
            return Ok(());
        }
        let mut at = self.begin_upload().await?;
        let mut rest = bytes.clone();
        if bytes.len() > PART_BYTES {
            (at, rest) = self.push_parts(at, &bytes, sent).await?;
        }
        at.query_pairs_mut().append_pair("digest", &prefixed(blob.digest));
        let put = |client: &Client| {
            let request = client.put(at.clone()).header(CONTENT_TYPE, "application/octet-stream");
            request.body(rest.clone())
        };
        let answer = self.send(Access::Push, &at, put).await?;
        self.checked(answer, "an upload").await?;
        sent(bytes.len() as u64);
        Ok(())
    }

    /// Begins an upload, and returns the address of its first part.
    async fn begin_upload(&self) -> Result<Url, RegistryError> {
        let uploads = self.url("blobs/uploads/");
        let begun = self.send(Access::Push, &uploads, |client| client.post(uploads.clone())).await?;
        let begun = self.checked(begun, "an upload").await?;
        self.location(&uploads, &begun)
    }

    /// Uploads all but the last part of a blob, and returns the address for the last part and its bytes.
    ///
    /// After an error, the upload continues after the bytes that the registry reports to have. If the registry no
    /// longer knows the upload, the blob is sent from its beginning: Docker's registry loses an upload that is
    /// interrupted within a part.
    async fn push_parts(
        &self,
        mut at: Url,
        bytes: &Bytes,
        sent: &impl Fn(u64),
    ) -> Result<(Url, Bytes), RegistryError> {
        let (mut done, mut failures, mut restarts) = (0, 0, 0);
        while bytes.len() - done > PART_BYTES {
            let part = bytes.slice(done..done + PART_BYTES);
            let range = format!("{done}-{}", done + PART_BYTES - 1);
            let patch = |client: &Client| {
                client
                    .patch(at.clone())
                    .header(CONTENT_TYPE, "application/octet-stream")
                    .header(CONTENT_RANGE, range.clone())
                    .body(part.clone())
            };
            let error = match self.send_once(Access::Push, &at, patch).await {
                Ok(answer) if answer.status().is_success() => {
                    (at, failures) = (self.location(&at, &answer)?, 0);
                    done += PART_BYTES;
                    sent(done as u64);
                    continue;
                }
                Ok(answer) => self.refused(answer, "an upload").await,
                Err(error) => error,
            };
            failures += 1;
            if failures >= ATTEMPTS_MAX || !is_worth_another_attempt(&error) {
                return Err(error);
            }
            tokio::time::sleep(DELAY_BASE * 2_u32.pow(failures)).await;
            let progress = self.send(Access::Push, &at, |client| client.get(at.clone())).await?;
            if progress.status() == StatusCode::NOT_FOUND && restarts < ATTEMPTS_MAX {
                tracing::debug!(%error, sent = done, "an upload begins again after an error");
                restarts += 1;
                (at, done) = (self.begin_upload().await?, 0);
                continue;
            }
            let progress = self.checked(progress, "an upload").await?;
            // The range contains the bytes that arrived, its end included.
            let range = progress.headers().get(RANGE).and_then(|range| range.to_str().ok());
            let end = range.and_then(|range| range.rsplit_once('-')?.1.parse::<usize>().ok());
            done = end.map_or(0, |end| if end == 0 { 0 } else { end + 1 }).min(bytes.len());
            at = self.location(&at, &progress)?;
        }
        Ok((at, bytes.slice(done..)))
    }

    /// Returns the URL of a part of the repository.
    fn url(&self, path: &str) -> Url {
        // The path consists of fixed words, digests and checked tags.
        self.base.join(path).unwrap_or_else(|_| self.base.clone())
    }

    /// Returns whether an address that the registry names has TLS, or is on this machine and plain HTTP is permitted.
    fn may_connect(&self, url: &Url) -> bool {
        let host = Reference { host: host_of(url), ..self.reference.clone() };
        url.scheme() == "https" || (self.options.plain_http && host.is_loopback())
    }

    fn client(&self, url: &Url) -> Result<Client, RegistryError> {
        checked_client(&self.options.network, url)
            .map_err(|error| RegistryError::Forbidden { host: host_of(url), reason: error.to_string() })
    }

    /// Sends a request, and repeats it after temporary errors.
    async fn send(
        &self,
        access: Access,
        url: &Url,
        request: impl Fn(&Client) -> RequestBuilder,
    ) -> Result<Response, RegistryError> {
        let mut attempt = 1;
        loop {
            let sent = self.send_once(access, url, &request).await;
            let is_temporary = match &sent {
                Ok(answer) => is_temporary_status(answer.status()),
                Err(error) => is_worth_another_attempt(error),
            };
            if !is_temporary || attempt >= ATTEMPTS_MAX {
                return sent;
            }
            let delay = DELAY_BASE * 2_u32.pow(attempt);
            attempt += 1;
            tracing::debug!(host = self.reference.host, attempt, "a request to a registry is repeated");
            tokio::time::sleep(delay).await;
        }
    }

    /// Sends a request. If the registry responds with a challenge, sends it again with the authorization.
    async fn send_once(
        &self,
        access: Access,
        url: &Url,
        request: impl Fn(&Client) -> RequestBuilder,
    ) -> Result<Response, RegistryError> {
        let client = self.client(url)?;
        // An upload may be at another host, which must not receive the credentials.
        let is_registry = url.origin() == self.base.origin();
        let send = async |authorization: Option<HeaderValue>| {
            let mut request = request(&client);
            if let Some(value) = authorization.filter(|_| is_registry) {
                request = request.header(AUTHORIZATION, value);
            }
            let sending = tokio::time::timeout(ANSWER_TIME_MAX, request.send()).await;
            sending.map_err(|_| self.idle(url))?.map_err(|error| self.unreachable(url, error))
        };
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = send(known).await?;
        if answer.status() != StatusCode::UNAUTHORIZED || !is_registry {
            return Ok(answer);
        }
        let challenge = answer.headers().get(WWW_AUTHENTICATE).and_then(|header| header.to_str().ok());
        let Some(authorization) = self.answer_challenge(access, challenge).await? else {
            return Ok(answer);
        };
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization.clone());
        send(Some(authorization)).await
    }

    /// Returns the header that answers a challenge, if there is one.
    async fn answer_challenge(
        &self,
        access: Access,
        challenge: Option<&str>,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        let credentials = self.options.credentials.as_ref();
        let (realm, service, scope) = match challenge.and_then(Challenge::parse) {
            None => return Ok(None),
            Some(Challenge::Basic) => return Ok(credentials.and_then(auth::basic)),
            Some(Challenge::Bearer { realm, service, scope }) => (realm, service, scope),
        };
        let wrong = |reason: &str| self.unexpected("a request", format!("a challenge {reason}"));
        let mut url = Url::parse(&realm).map_err(|_| wrong("without a valid address for tokens"))?;
        if !self.may_connect(&url) {
            return Err(wrong("that would send credentials without TLS"));
        }
        let actions = match access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let scope = scope.unwrap_or_else(|| format!("repository:{}:{actions}", self.reference.repository));
        let parameters = [("service", service), ("scope", Some(scope))];
        let parameters = || parameters.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        let client = self.client(&url)?;
        let request = match credentials {
            Some(Credentials::Refresh(token)) => client
                .post(url.clone())
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form(parameters(), token)),
            _ => {
                url.query_pairs_mut().extend_pairs(parameters());
                let request = client.request(Method::GET, url.clone());
                match credentials.and_then(auth::basic) {
                    Some(value) => request.header(AUTHORIZATION, value),
                    None => request,
                }
            }
        };
        let answer =
            request.timeout(ANSWER_TIME_MAX).send().await.map_err(|error| self.unreachable(&url, error))?;
        if answer.status() == StatusCode::UNAUTHORIZED || answer.status() == StatusCode::FORBIDDEN {
            return Err(self.denied(answer).await);
        }
        if !answer.status().is_success() {
            return Err(self.refused(answer, "a request for a token").await);
        }
        let body = self.body(answer, "a token", ANSWER_BYTES_MAX).await?;
        let Token { token } =
            serde_json::from_slice(&body).map_err(|_| wrong("whose answer has no token"))?;
        Ok(auth::sensitive(&format!("Bearer {token}")))
    }

    /// Returns the target of a redirect or upload.
    fn location(&self, at: &Url, answer: &Response) -> Result<Url, RegistryError> {
        let header = answer.headers().get(LOCATION).and_then(|header| header.to_str().ok());
        header.and_then(|location| at.join(location).ok()).ok_or_else(|| {
            self.unexpected("a request", format!("{} without a valid Location", answer.status()))
        })
    }

    /// Returns the response if it is a success.
    async fn checked(&self, answer: Response, what: &str) -> Result<Response, RegistryError> {
        if answer.status().is_success() { Ok(answer) } else { Err(self.refused(answer, what).await) }
    }

    /// Returns the error of a response that is not a success.
    async fn refused(&self, answer: Response, what: &str) -> RegistryError {
        match answer.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.denied(answer).await,
            StatusCode::NOT_FOUND => RegistryError::NotFound {
                host: self.reference.host.clone(),
                repository: self.reference.repository.clone(),
                what: what.to_owned(),
            },
            status => {
                let message = self.message(answer).await;
                self.unexpected(
                    what,
                    format!("{status}{}", if message.is_empty() { message } else { format!(": {message}") }),
                )
            }
        }
    }

    async fn denied(&self, answer: Response) -> RegistryError {
        let hint = match self.options.credentials {
            Some(_) => "the credentials give no such right; log in as a user that has it",
            None => {
                "there are no credentials for it; log in with a container tool, which writes them to its config.json"
            }
        };
        RegistryError::Denied {
            host: self.reference.host.clone(),
            repository: self.reference.repository.clone(),
            message: self.message(answer).await,
            hint: hint.to_owned(),
        }
    }

    /// Returns the message in a registry's error, shortened.
    async fn message(&self, answer: Response) -> String {
        let Ok(body) = self.body(answer, "an error", ANSWER_BYTES_MAX).await else { return String::new() };
        let text = match serde_json::from_slice::<Errors>(&body) {
            Ok(Errors { errors }) => {
                let each =
                    errors.iter().map(|error| format!("{} {}", error.code, error.message).trim().to_owned());
                each.collect::<Vec<_>>().join("; ")
            }
            Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
        };
        printable(&beginning(&text, SHOWN_BYTES_MAX))
    }

    /// Reads a body of limited size.
    async fn body(&self, mut answer: Response, what: &str, bytes_max: u64) -> Result<Vec<u8>, RegistryError> {
        let url = answer.url().clone();
        let mut body = Vec::new();
        loop {
            let chunk = tokio::time::timeout(IDLE_TIME_MAX, answer.chunk()).await;
            let chunk = chunk.map_err(|_| self.idle(&url))?.map_err(|error| self.unreachable(&url, error))?;
            let Some(chunk) = chunk else { return Ok(body) };
            if (body.len() + chunk.len()) as u64 > bytes_max {
                return Err(RegistryError::TooLarge { what: what.to_owned(), bytes_max });
            }
            body.extend_from_slice(&chunk);
        }
    }

    fn unexpected(&self, what: &str, answer: String) -> RegistryError {
        RegistryError::Unexpected { host: self.reference.host.clone(), what: what.to_owned(), answer }
    }

    fn unreachable(&self, url: &Url, error: reqwest::Error) -> RegistryError {
        let error = error.without_url();
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        RegistryError::Unreachable { host: host_of(url), reason }
    }

    fn idle(&self, url: &Url) -> RegistryError {
        RegistryError::Unreachable { host: host_of(url), reason: "it does not answer".to_owned() }
    }
}

/// Returns the body of a request that exchanges a refresh token for an access token.
fn form<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>, token: &'a Secret) -> String {
    let mut url = Url::parse("form://x").ok();
    if let Some(url) = &mut url {
        let fixed = [
            ("grant_type", "refresh_token"),
            ("client_id", "rollout-host"),
            ("refresh_token", token.expose()),
        ];
        url.query_pairs_mut().extend_pairs(fixed.into_iter().chain(parameters));
    }
    url.and_then(|url| url.query().map(str::to_owned)).unwrap_or_default()
}

/// Returns whether another attempt may succeed.
fn is_worth_another_attempt(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable { .. })
}

fn is_temporary_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
