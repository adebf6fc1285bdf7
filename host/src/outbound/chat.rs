//! Asks a model's server for a chat completion.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{StatusCode, Url};
use tokio::sync::Semaphore;

use super::observer::{Observer, Watched};
use super::plain::{Answer, Place, PlainClient};
use super::retry::{Repeated, RetryPolicy, retry_after};
use super::{Secret, describe};
use crate::http1::Broken;
use crate::telemetry::{Asked, Limit, Metrics, ModelOutcome};
use crate::text::beginning;
use crate::wire::closed::ClosedBody;
use crate::wire::openai::Completion;

/// How much of a refusal's body is shown.
const REFUSAL_BYTES_SHOWN: usize = 2048;

/// Where a rollout's model is, under which name and key. A guest sees none of it.
#[derive(Clone, Debug)]
pub struct ModelEndpoint {
    url: Url,
    plain: Option<Place>,
    model: String,
    api_key: Option<HeaderValue>,
    secret: Option<Secret>,
    manner: Option<Arc<Manner>>,
}

/// How a caller wants its model's server asked, where that is not the usual way.
#[derive(Debug)]
pub struct Manner {
    /// The fields of each request.
    pub body: ClosedBody,
    /// How calls are repeated.
    pub policy: RetryPolicy,
    /// Places for calls that are on the wire at once.
    pub connections: Semaphore,
}

/// Why an address or key cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// It is no address.
    #[error("'{0}' is not an http or https URL")]
    Url(String),
    /// The key cannot be sent.
    #[error("the key holds characters that no HTTP header can carry")]
    Key,
}

impl ModelEndpoint {
    /// An endpoint below a base URL, to which `/chat/completions` is added.
    pub fn new(
        base_url: &str,
        model: impl Into<String>,
        api_key: Option<Secret>,
    ) -> Result<Self, InvalidEndpoint> {
        let invalid = || InvalidEndpoint::Url(base_url.to_owned());
        let mut url = Url::parse(base_url).map_err(|_| invalid())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(invalid());
        }
        url.path_segments_mut().map_err(|()| invalid())?.pop_if_empty().extend(["chat", "completions"]);
        let header = api_key
            .as_ref()
            .map(|key| {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
                    .map_err(|_| InvalidEndpoint::Key)?;
                value.set_sensitive(true);
                Ok(value)
            })
            .transpose()?;
        let plain = Place::of(&url);
        Ok(Self { url, plain, model: model.into(), api_key: header, secret: api_key, manner: None })
    }

    /// The same endpoint, asked in this manner.
    pub fn asked(self, manner: Manner) -> Self {
        Self { manner: Some(Arc::new(manner)), ..self }
    }

    /// How it wants to be asked, where that is not the usual way.
    pub fn manner(&self) -> Option<&Manner> {
        self.manner.as_deref()
    }

    /// The name that goes into every request.
    pub fn model(&self) -> &str {
        &self.model
    }
}

/// The headers by which a server of many rollouts tells calls apart.
#[derive(Clone, Debug)]
pub struct RoutingHeaders {
    rollout_id: HeaderValue,
    sample_id: Option<HeaderValue>,
}

impl RoutingHeaders {
    /// Headers for two ids that [`crate::id`] has checked.
    pub fn new(rollout_id: &crate::id::RolloutId, sample_id: &crate::id::SampleId) -> Self {
        Self { sample_id: Some(header_value(sample_id.as_str())), ..Self::of_rollout(rollout_id) }
    }

    /// The header of a call that is about no sample.
    pub fn of_rollout(rollout_id: &crate::id::RolloutId) -> Self {
        Self { rollout_id: header_value(&rollout_id.header_value()), sample_id: None }
    }
}

/// Ids are made of bytes that a header carries; were that ever to change, an empty header
/// shows it sooner than a panic in somebody's rollout.
fn header_value(id: &str) -> HeaderValue {
    HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static(""))
}

/// A reply, read and whole.
#[derive(Debug)]
pub struct ChatReply {
    /// What a guest is told.
    pub completion: Completion,
    /// The body as it came.
    pub body: Bytes,
    /// Tries that it took.
    pub attempts: u32,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatFailure {
    /// The server understood and said no; trying again will not help.
    #[error("the model's server answered {status}: {body}")]
    Refused {
        /// The status code.
        status: u16,
        /// The beginning of the answer.
        body: String,
    },
    /// It could not be reached, or not made sense of, for as long as was tried.
    #[error("the model's server gave no completion in {attempts} attempts: {reason}")]
    Unavailable {
        /// Tries made.
        attempts: u32,
        /// What the last of them met.
        reason: String,
    },
}

/// The client of every model's server.
#[derive(Clone, Debug)]
pub struct ChatClient {
    asked: Asked,
    observer: Option<Arc<dyn Observer>>,
    http: reqwest::Client,
    plain: Arc<PlainClient>,
    policy: RetryPolicy,
    reply_bytes_max: usize,
    metrics: Arc<Metrics>,
}

/// One try that did not end in a completion.
enum Miss {
    Final(ChatFailure),
    Again { reason: String, asked: Option<Duration> },
}

impl ChatClient {
    /// A client over the process's HTTP client.
    pub fn new(
        http: reqwest::Client,
        policy: RetryPolicy,
        reply_bytes_max: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let plain = Arc::default();
        Self { asked: Asked::Model, observer: None, http, plain, policy, reply_bytes_max, metrics }
    }

    /// The same client for judges, with how their calls are repeated. They are counted
    /// apart.
    pub fn for_judges(&self, policy: RetryPolicy) -> Self {
        Self { asked: Asked::Judge, policy, ..self.clone() }
    }

    /// The same client, watched.
    pub fn watched_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Sends the body until there is a completion or no sense in trying.
    pub async fn complete(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: Bytes,
    ) -> Result<ChatReply, ChatFailure> {
        match &self.observer {
            None => self.exchange(endpoint, routing, &body).await,
            // Boxed, because thousands wait for the other.
            Some(observer) => Box::pin(self.watched_exchange(&**observer, endpoint, routing, &body)).await,
        }
    }

    async fn watched_exchange(
        &self,
        observer: &dyn Observer,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &Bytes,
    ) -> Result<ChatReply, ChatFailure> {
        let sample_id = routing.sample_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
        let call = Watched { asked: self.asked, sample_id, request: body };
        observer.asking(call).await;
        let result = self.exchange(endpoint, routing, body).await;
        let instead = observer.answered(call, result.as_ref().map(|reply| &reply.body)).await;
        let Some(body) = instead else { return result };
        let completion = Completion::parse(&body).map_err(|reason| ChatFailure::Unavailable {
            attempts: 1,
            reason: format!("what was put in the place of its answer is no chat completion: {reason}"),
        })?;
        Ok(ChatReply { completion, body, attempts: result.map_or(1, |reply| reply.attempts) })
    }

    async fn exchange(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &Bytes,
    ) -> Result<ChatReply, ChatFailure> {
        let call = self.metrics.model_call(self.asked);
        let mut failures = 0;
        let mut first_failure = None;
        let policy = endpoint.manner().map_or(&self.policy, |manner| &manner.policy);
        loop {
            let (reason, asked) = match self.attempt(endpoint, routing, body, policy).await {
                Ok((completion, body)) => {
                    if let Some(usage) = &completion.usage {
                        call.used_tokens(usage.prompt_tokens, usage.completion_tokens);
                    }
                    call.ended(ModelOutcome::Replied);
                    return Ok(ChatReply { completion, body, attempts: failures + 1 });
                }
                Err(Miss::Final(failure)) => {
                    call.ended(match &failure {
                        ChatFailure::Refused { .. } => ModelOutcome::Refused,
                        ChatFailure::Unavailable { .. } => ModelOutcome::Unavailable,
                    });
                    return Err(failure);
                }
                Err(Miss::Again { reason, asked }) => (reason, asked),
            };
            failures += 1;
            let since_first = first_failure.get_or_insert_with(Instant::now).elapsed();
            let Some(delay) = policy.next_delay(failures, since_first, asked) else {
                call.ended(ModelOutcome::Unavailable);
                return Err(ChatFailure::Unavailable { attempts: failures, reason });
            };
            call.repeated();
            tracing::debug!(failures, delay_secs = delay.as_secs_f64(), reason, "asking the model again");
            tokio::time::sleep(delay).await;
        }
    }

    async fn attempt(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &Bytes,
        policy: &RetryPolicy,
    ) -> Result<(Completion, Bytes), Miss> {
        // Nobody closes it, so there is a place sooner or later, and none where there is
        // no limit.
        let _place = match endpoint.manner() {
            Some(manner) => manner.connections.acquire().await.ok(),
            None => None,
        };
        let exchange = async {
            let headers = headers(endpoint, routing);
            let (status, asked, body) = match &endpoint.plain {
                Some(place) => {
                    let request = place.request(&headers, body);
                    // The answer may take minutes.
                    drop(headers);
                    self.ask_plainly(place, request).await?
                }
                // Boxed, because it is ten times the size of the other, and either waits.
                None => Box::pin(self.ask(endpoint, headers, body.clone())).await?,
            };
            let asked = match policy.repeated {
                Repeated::Transient => asked,
                Repeated::ServerErrors => None,
            };
            if status == StatusCode::OK {
                let completion = Completion::parse(&body).map_err(|what| {
                    let reason = format!("its answer is no chat completion: {what}");
                    match policy.repeated {
                        Repeated::Transient => again(reason),
                        Repeated::ServerErrors => {
                            Miss::Final(ChatFailure::Unavailable { attempts: 1, reason })
                        }
                    }
                })?;
                return Ok((completion, body));
            }
            let shown = shown(&body, endpoint);
            if is_repeated(status, policy.repeated) {
                return Err(Miss::Again { reason: format!("it answered {status}: {shown}"), asked });
            }
            Err(Miss::Final(ChatFailure::Refused { status: status.as_u16(), body: shown }))
        };
        match tokio::time::timeout(policy.attempt_time_max, exchange).await {
            Ok(result) => result,
            Err(_) => Err(again(format!("no answer within {}", crate::text::time(policy.attempt_time_max)))),
        }
    }

    async fn ask_plainly(
        &self,
        place: &Place,
        request: Vec<u8>,
    ) -> Result<(StatusCode, Option<Duration>, Bytes), Miss> {
        let answer = self.plain.post(place, request, self.reply_bytes_max).await;
        let Answer { status, retry_after, body } = answer.map_err(|broken| match broken {
            Broken::Body { cause, .. } if matches!(*cause, Broken::TooLong(_)) => self.too_large(),
            broken => again(broken.to_string()),
        })?;
        let status = StatusCode::from_u16(status).map_err(|error| again(error.to_string()))?;
        Ok((status, retry_after, body))
    }

    async fn ask(
        &self,
        endpoint: &ModelEndpoint,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Option<Duration>, Bytes), Miss> {
        let request = self.http.post(endpoint.url.clone()).headers(headers).body(body);
        let response = request.send().await.map_err(|error| again(describe(error)))?;
        let (status, asked) = (response.status(), retry_after(response.headers()));
        Ok((status, asked, self.read(response).await?))
    }

    fn too_large(&self) -> Miss {
        self.metrics.limit_fired(Limit::ReplyBytes);
        let max = self.reply_bytes_max;
        Miss::Final(ChatFailure::Unavailable {
            attempts: 1,
            reason: format!("its answer is longer than reply-bytes-max, {max} bytes"),
        })
    }

    /// Reads a body up to the limit.
    async fn read(&self, mut response: reqwest::Response) -> Result<Bytes, Miss> {
        if response.content_length().is_some_and(|length| length > self.reply_bytes_max as u64) {
            return Err(self.too_large());
        }
        let mut chunk = response.chunk().await.map_err(|error| again(describe(error)))?;
        let mut body = BytesMut::new();
        while let Some(bytes) = chunk {
            if body.len() + bytes.len() > self.reply_bytes_max {
                return Err(self.too_large());
            }
            let next = response.chunk().await.map_err(|error| again(describe(error)))?;
            if body.is_empty() && next.is_none() {
                // The usual case, a body that came in one piece, is not copied.
                return Ok(bytes);
            }
            body.extend_from_slice(&bytes);
            chunk = next;
        }
        Ok(body.freeze())
    }
}

fn again(reason: String) -> Miss {
    Miss::Again { reason, asked: None }
}

fn headers(endpoint: &ModelEndpoint, routing: &RoutingHeaders) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(HeaderName::from_static("x-rollout-id"), routing.rollout_id.clone());
    if let Some(sample_id) = &routing.sample_id {
        headers.insert(HeaderName::from_static("x-sample-id"), sample_id.clone());
    }
    if let Some(key) = &endpoint.api_key {
        headers.insert(AUTHORIZATION, key.clone());
    }
    headers
}

/// Whether the same request may succeed later.
fn is_repeated(status: StatusCode, repeated: Repeated) -> bool {
    match repeated {
        Repeated::Transient => matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504 | 529),
        Repeated::ServerErrors => status.is_server_error(),
    }
}

/// The beginning of an answer for an error message, which a guest may read: a server
/// that echoes the key back does not get it past here. The key goes before the rest is
/// cut off, because half a key would not be known again.
fn shown(body: &[u8], endpoint: &ModelEndpoint) -> String {
    let text = String::from_utf8_lossy(body);
    let text = match &endpoint.secret {
        Some(secret) if !secret.expose().is_empty() => text.replace(secret.expose(), "(key)").into(),
        _ => text,
    };
    beginning(&text, REFUSAL_BYTES_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_below_its_base_url() {
        fn check(base: &str, expected: &str) {
            assert_eq!(ModelEndpoint::new(base, "m", None).unwrap().url.as_str(), expected);
        }
        check("http://h:1/v1", "http://h:1/v1/chat/completions");
        check("http://h:1/v1/", "http://h:1/v1/chat/completions");
        check("http://h:1", "http://h:1/chat/completions");
        check("https://h/v1/rollouts/a%20b", "https://h/v1/rollouts/a%20b/chat/completions");
        check("http://h/v1?x=1", "http://h/v1/chat/completions?x=1");
        assert!(ModelEndpoint::new("ftp://h/", "m", None).is_err());
        assert!(ModelEndpoint::new("h:80/v1", "m", None).is_err());
        assert_eq!(
            ModelEndpoint::new("http://h", "m", Some(Secret::new("a\nb"))).unwrap_err(),
            InvalidEndpoint::Key
        );
    }

    #[test]
    fn a_key_is_shown_to_nobody() {
        let endpoint = ModelEndpoint::new("http://h", "m", Some(Secret::new("s3cret"))).unwrap();
        assert!(!format!("{endpoint:?}").contains("s3cret"));
        assert_eq!(shown(b"wrong key s3cret!", &endpoint), "wrong key (key)!");
        let cut = format!("{}s3cret", "x".repeat(REFUSAL_BYTES_SHOWN - 3));
        assert!(!shown(cut.as_bytes(), &endpoint).contains("s3c"));
    }
}
