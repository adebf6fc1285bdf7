//! Asks a model's server for a chat completion.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::endpoint::{ModelEndpoint, RoutingHeaders};
use super::observer::{Observer, Retry, Watched};
use super::retry::{Meaning, RetryPolicy, Tries};
use super::transport::{Answer, Outgoing, Transport, Turn, Unanswered, Use, named};
use crate::budget::Charge;
use crate::http1::Broken;
use crate::telemetry::{Limit, Metrics, ModelOutcome, ModelRole};
use crate::text::beginning;
use crate::wire::openai::{AllowedParams, Completion};
use rollout_transcript::{ChatFailure, ChatReply};

/// How much of a refusal's body is shown.
const REFUSAL_BYTES_SHOWN: usize = 2048;

/// A reply that is longer is read on a thread of its own: a large one takes tens of
/// milliseconds, which others would wait for.
const READ_IN_PLACE_BYTES_MAX: usize = 256 << 10;

/// What is sent, made anew for each try: while an answer is waited for, which may take minutes,
/// nobody holds it.
pub trait RequestBody: Send + Sync {
    /// The body behind a head that says how long it is, with what it is charged to while it is
    /// there; an error where there is no room for it, or nothing more to ask for. The head is
    /// made with room for both, so that nothing is copied twice.
    fn make(&self, head: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<(Vec<u8>, Option<Charge>), String>;
}

/// The client of every model's server.
#[derive(Clone, Debug)]
pub struct ChatClient {
    asked: ModelRole,
    observer: Option<Arc<dyn Observer>>,
    transport: Transport,
    policy: RetryPolicy,
    reply_bytes_max: usize,
    allowed_params: Arc<AllowedParams>,
    metrics: Arc<Metrics>,
}

/// One try that did not end in a completion.
enum Miss {
    Final(ChatFailure),
    Again { reason: String, asked: Option<Duration>, is_hosts: bool },
}

impl ChatClient {
    /// A client over the host's transport.
    pub fn new(
        transport: Transport,
        policy: RetryPolicy,
        reply_bytes_max: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let allowed_params = Arc::default();
        Self {
            asked: ModelRole::Policy,
            observer: None,
            transport,
            policy,
            reply_bytes_max,
            allowed_params,
            metrics,
        }
    }

    /// The same client for judges, with how their calls are repeated and what graders may set
    /// in them. They are counted apart.
    pub fn for_judges(&self, policy: RetryPolicy, allowed: AllowedParams) -> Self {
        Self { asked: ModelRole::Judge, policy, allowed_params: Arc::new(allowed), ..self.clone() }
    }

    /// The same client, watched.
    pub fn watched_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// The same client, for guests that may set these parameters.
    pub fn allowing(self, allowed: AllowedParams) -> Self {
        Self { allowed_params: Arc::new(allowed), ..self }
    }

    /// The same client over another transport, for requests of somebody else.
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Which sampling parameters pass.
    pub(crate) fn allowed_params(&self) -> &AllowedParams {
        &self.allowed_params
    }

    /// Sends the body until there is a completion or no sense in trying.
    pub(crate) async fn complete(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
    ) -> Result<ChatReply, ChatFailure> {
        match &self.observer {
            None => self.exchange(endpoint, routing, body, None).await,
            // Boxed, because thousands wait for the other.
            Some(observer) => Box::pin(self.watched_exchange(&**observer, endpoint, routing, body)).await,
        }
    }

    async fn watched_exchange(
        &self,
        observer: &dyn Observer,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
    ) -> Result<ChatReply, ChatFailure> {
        let (request, _charge) =
            body.make(&mut Vec::with_capacity).map_err(|reason| ChatFailure::Host { attempts: 0, reason })?;
        let request = Bytes::from(request);
        let call = Watched { asked: self.asked, sample_id: routing.sample_id(), request: &request };
        observer.asking(call).await;
        let result = self.exchange(endpoint, routing, body, Some((observer, call))).await;
        let instead = observer.answered(call, result.as_ref().map(|reply| reply.completion.body())).await;
        let Some(body) = instead else { return result };
        let completion = Completion::parse(&body).map_err(|reason| ChatFailure::Unavailable {
            attempts: 1,
            reason: format!("what was put in the place of its answer is no chat completion: {reason}"),
        })?;
        Ok(ChatReply { completion, attempts: result.map_or(1, |reply| reply.attempts) })
    }

    async fn exchange(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
        watched: Option<(&dyn Observer, Watched<'_>)>,
    ) -> Result<ChatReply, ChatFailure> {
        let call = self.metrics.model_call(self.asked);
        let policy = endpoint.profile().map_or(&self.policy, |profile| &profile.policy);
        let mut tries = Tries::of(policy);
        let failure = loop {
            let (reason, asked, is_hosts) = match self.attempt(endpoint, routing, body, policy).await {
                Ok(completion) => {
                    if let Some(usage) = &completion.usage {
                        call.used_tokens(usage.prompt_tokens, usage.completion_tokens);
                    }
                    call.ended(ModelOutcome::Replied);
                    return Ok(ChatReply { completion, attempts: tries.failures() + 1 });
                }
                Err(Miss::Final(failure)) => break failure,
                Err(Miss::Again { reason, asked, is_hosts }) => (reason, asked, is_hosts),
            };
            let Some(delay) = tries.failed(asked) else {
                let attempts = tries.failures();
                break match is_hosts {
                    true => ChatFailure::Host { attempts, reason },
                    false => ChatFailure::Unavailable { attempts, reason },
                };
            };
            call.repeated();
            tracing::debug!(
                failures = tries.failures(),
                delay_secs = delay.as_secs_f64(),
                reason,
                "asking the model again"
            );
            if let Some((observer, call)) = watched {
                let (failures, attempts_max) = (tries.failures(), policy.attempts_max);
                observer.retrying(call, &Retry { failures, attempts_max, delay, reason: &reason });
            }
            tokio::time::sleep(delay).await;
        };
        call.ended(match &failure {
            ChatFailure::Refused { .. } => ModelOutcome::Refused,
            ChatFailure::Unavailable { .. } => ModelOutcome::Unavailable,
            ChatFailure::Forbidden { .. } => ModelOutcome::Forbidden,
            ChatFailure::Host { .. } => ModelOutcome::Host,
            // Only a guest or its record ends a call so.
            ChatFailure::OverLimit { .. } | ChatFailure::Abandoned => ModelOutcome::Abandoned,
        });
        Err(failure)
    }

    async fn attempt(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
        policy: &RetryPolicy,
    ) -> Result<Completion, Miss> {
        // Nobody closes it, so there is a place sooner or later, and none where there is
        // no limit.
        let _place = match endpoint.profile() {
            Some(profile) => profile.connections.acquire().await.ok(),
            None => None,
        };
        let turn = self.transport.turn(&endpoint.target, Use::Model).await;
        let exchange = self.ask(turn, endpoint, routing, body);
        let Answer { status, retry_after: asked, body } =
            match tokio::time::timeout(policy.attempt_time_max, exchange).await {
                Ok(answer) => answer?,
                Err(_) => {
                    return Err(again(format!(
                        "no answer within {}",
                        crate::text::time(policy.attempt_time_max)
                    )));
                }
            };
        match policy.statuses.meaning(status) {
            Meaning::Taken => Box::pin(read(body, endpoint)).await.map_err(|what| {
                let reason = format!("its answer is no chat completion: {what}");
                match policy.statuses.repeats_unreadable() {
                    true => again(reason),
                    false => Miss::Final(ChatFailure::Unavailable { attempts: 1, reason }),
                }
            }),
            Meaning::Again => {
                let reason = format!("it answered {}: {}", named(status), shown(&body, endpoint));
                Err(Miss::Again { reason, asked, is_hosts: false })
            }
            Meaning::Refused => {
                Err(Miss::Final(ChatFailure::Refused { status, body: shown(&body, endpoint) }))
            }
        }
    }

    async fn ask(
        &self,
        turn: Turn,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
    ) -> Result<Answer, Miss> {
        let request = request(endpoint, routing, body)?;
        turn.post(&endpoint.target, request, self.reply_bytes_max).await.map_err(|unanswered| {
            let is_hosts = matches!(unanswered, Unanswered::Host(_));
            match unanswered {
                // It stays so, and what is to change is not the server.
                Unanswered::Forbidden(why) => {
                    tracing::debug!(origin = endpoint.target.origin(), %why, "a model's server may not be asked");
                    Miss::Final(ChatFailure::Forbidden { reason: why.without_address() })
                }
                Unanswered::Broken(Broken::Body { cause, .. }) if matches!(*cause, Broken::TooLong(_)) => {
                    self.too_large()
                }
                unanswered => Miss::Again { reason: unanswered.to_string(), asked: None, is_hosts },
            }
        })
    }

    fn too_large(&self) -> Miss {
        self.metrics.limit_hit(Limit::ReplyBytes);
        let max = self.reply_bytes_max;
        Miss::Final(ChatFailure::Unavailable {
            attempts: 1,
            reason: format!("its answer is longer than reply-bytes-max, {max} bytes"),
        })
    }
}

/// The whole request. Its body is gone when this is back.
fn request(
    endpoint: &ModelEndpoint,
    routing: &RoutingHeaders,
    body: &dyn RequestBody,
) -> Result<Outgoing, Miss> {
    let headers = endpoint.headers(routing);
    let made = body.make(&mut |length| endpoint.target.head(&headers, length));
    let (bytes, charge) = made.map_err(|reason| Miss::Final(ChatFailure::Host { attempts: 1, reason }))?;
    Ok(Outgoing { bytes, _charge: charge })
}

fn again(reason: String) -> Miss {
    Miss::Again { reason, asked: None, is_hosts: false }
}

/// A reply without the endpoint's secrets.
async fn read(body: Bytes, endpoint: &ModelEndpoint) -> Result<Completion, String> {
    let read = |body: Bytes, secrets: &super::Secrets| Completion::parse(&secrets.cut_from_reply(body));
    if body.len() <= READ_IN_PLACE_BYTES_MAX {
        // What is kept of it is kept for as long as the rollout, and would keep all of what was read into with it, which
        // for a short reply is ten times as much. A long one would be there twice.
        return read(Bytes::copy_from_slice(&body), &endpoint.secrets);
    }
    let secrets = endpoint.secrets.clone();
    let done = tokio::task::spawn_blocking(move || read(body, &secrets)).await;
    done.unwrap_or_else(|error| Err(format!("reading it failed: {error}")))
}

/// The beginning of an answer for an error message, which a guest may read: a server
/// that echoes the key back does not get it past here. The key goes before the rest is
/// cut off, because half a key would not be known again.
fn shown(body: &[u8], endpoint: &ModelEndpoint) -> String {
    let text = endpoint.secrets.cut_from(String::from_utf8_lossy(body).into_owned());
    beginning(&text, REFUSAL_BYTES_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::Secret;

    #[test]
    fn a_refusal_is_shown_without_the_key() {
        let endpoint = ModelEndpoint::new("http://h", "m", Some(Secret::new("s3cret"))).unwrap();
        assert_eq!(shown(b"wrong key s3cret!", &endpoint), "wrong key (secret)!");
        assert_eq!(shown(br"wrong key s3\u0063ret!", &endpoint), "wrong key (secret)!");
        let cut = format!("{}s3cret", "x".repeat(REFUSAL_BYTES_SHOWN - 3));
        assert!(!shown(cut.as_bytes(), &endpoint).contains("s3c"));
    }
}
