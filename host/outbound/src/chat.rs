//! Client for chat completions of model servers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::endpoint::{ModelEndpoint, RoutingHeaders};
use super::observer::{Observer, Retry, Watched};
use super::retry::{Meaning, RetryPolicy, Tries};
use super::transport::{Answer, Outgoing, Transport, Turn, Unanswered, Use, named};
use crate::http1::Broken;
use rollout_core::budget::Charge;
use rollout_core::telemetry::{Limit, Metrics, ModelOutcome, ModelRole};
use rollout_transcript::{ChatFailure, ChatReply};
use rollout_wire::openai::{AllowedParams, Completion};
use rollout_wire::text::beginning;

/// Maximum size of a refusal's body in an error message, in bytes.
const REFUSAL_BYTES_SHOWN: usize = 2048;

/// Size up to which a reply is parsed on the current thread. A larger one takes tens of milliseconds, which would delay
/// other tasks.
const READ_IN_PLACE_BYTES_MAX: usize = 256 << 10;

/// Delay before a call to a pausing server is repeated, unless the server requests another delay; and the maximum of
/// this delay.
const PAUSE_DELAY: Duration = Duration::from_secs(1);
const PAUSE_DELAY_MAX: Duration = Duration::from_secs(10);

/// The body of a request, serialized again for each attempt, so that no copy is held while the host waits for a
/// response, perhaps for minutes.
pub trait RequestBody: Send + Sync {
    /// Serializes the body after a head, which `head` creates for its length. Returns it with the charge for its
    /// memory. Fails if there is no room for it or nothing more may be requested. `head` allocates room for both, so
    /// that nothing is copied twice.
    fn make(&self, head: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<(Vec<u8>, Option<Charge>), String>;
}

/// The client for all model servers.
#[derive(Clone, Debug)]
pub struct ChatClient {
    role: ModelRole,
    observer: Option<Arc<dyn Observer>>,
    transport: Transport,
    policy: RetryPolicy,
    reply_bytes_max: usize,
    allowed_params: Arc<AllowedParams>,
    metrics: Arc<Metrics>,
}

/// An attempt without a completion.
enum Miss {
    Final(ChatFailure),
    Again {
        reason: String,
        retry_after: Option<Duration>,
        is_host_fault: bool,
    },
    /// The server pauses. The attempt is not counted.
    Paused(Duration),
}

impl ChatClient {
    /// Creates a client over the host's transport.
    pub fn new(
        transport: Transport,
        policy: RetryPolicy,
        reply_bytes_max: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let allowed_params = Arc::default();
        Self {
            role: ModelRole::Policy,
            observer: None,
            transport,
            policy,
            reply_bytes_max,
            allowed_params,
            metrics,
        }
    }

    /// Returns a client for judges, with its own retry policy and allowed parameters. Its calls have separate metrics.
    pub fn for_judges(&self, policy: RetryPolicy, allowed: AllowedParams) -> Self {
        Self { role: ModelRole::Judge, policy, allowed_params: Arc::new(allowed), ..self.clone() }
    }

    /// Returns the client with an observer of its calls.
    pub fn watched_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Returns the client with the parameters that guests may set.
    pub fn allowing(self, allowed: AllowedParams) -> Self {
        Self { allowed_params: Arc::new(allowed), ..self }
    }

    /// Returns the client over another transport, for another tenant's requests.
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Returns the sampling parameters that guests may set.
    pub fn allowed_params(&self) -> &AllowedParams {
        &self.allowed_params
    }

    /// Sends the request until there is a completion or a retry would not help.
    pub async fn complete(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
    ) -> Result<ChatReply, ChatFailure> {
        match &self.observer {
            None => self.exchange(endpoint, routing, body, None).await,
            // Boxed, because it is larger, and thousands of calls wait in the other branch.
            Some(observer) => Box::pin(self.watched_exchange(&**observer, endpoint, routing, body)).await,
        }
    }

    /// Makes a call that an observer sees. The observer may replace the reply or the failure.
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
        let call = Watched { asked: self.role, sample_id: routing.sample_id(), request: &request };
        observer.asking(call).await;
        let result = self.exchange(endpoint, routing, body, Some((observer, call))).await;
        let replacement = observer.answered(call, result.as_ref().map(|reply| reply.completion.body())).await;
        let Some(body) = replacement else { return result };
        let completion = Completion::parse(&body).map_err(|reason| ChatFailure::Unavailable {
            attempts: 1,
            reason: format!("the replacement of its response is not a chat completion: {reason}"),
        })?;
        Ok(ChatReply { completion, attempts: result.map_or(1, |reply| reply.attempts) })
    }

    /// Makes attempts until one succeeds, a retry would not help, or the policy allows no more. An attempt during a pause of
    /// the server does not count.
    async fn exchange(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
        watched: Option<(&dyn Observer, Watched<'_>)>,
    ) -> Result<ChatReply, ChatFailure> {
        let call = self.metrics.model_call(self.role);
        let policy = endpoint.profile().map_or(&self.policy, |profile| &profile.policy);
        let mut tries = Tries::of(policy);
        let failure = loop {
            let (reason, retry_after, is_host_fault) =
                match self.attempt(endpoint, routing, body, policy).await {
                    Ok(completion) => {
                        if let Some(usage) = &completion.usage {
                            call.used_tokens(usage.prompt_tokens, usage.completion_tokens);
                        }
                        call.ended(ModelOutcome::Replied);
                        return Ok(ChatReply { completion, attempts: tries.failures() + 1 });
                    }
                    Err(Miss::Final(failure)) => break failure,
                    Err(Miss::Paused(delay)) => {
                        tracing::debug!(delay_secs = delay.as_secs_f64(), "the model's server pauses");
                        tokio::time::sleep(delay).await;
                        continue;
                    }
                    Err(Miss::Again { reason, retry_after, is_host_fault }) => {
                        (reason, retry_after, is_host_fault)
                    }
                };
            let Some(delay) = tries.failed(retry_after) else {
                let attempts = tries.failures();
                break match is_host_fault {
                    true => ChatFailure::Host { attempts, reason },
                    false => ChatFailure::Unavailable { attempts, reason },
                };
            };
            call.repeated();
            tracing::debug!(
                failures = tries.failures(),
                delay_secs = delay.as_secs_f64(),
                reason,
                "retrying the call of the model"
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
            // Only a guest or its record ends a call in this way.
            ChatFailure::OverLimit { .. } | ChatFailure::Abandoned => ModelOutcome::Abandoned,
        });
        Err(failure)
    }

    /// Makes one attempt within its timeout, and interprets the response by the policy.
    async fn attempt(
        &self,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
        policy: &RetryPolicy,
    ) -> Result<Completion, Miss> {
        // The semaphore is never closed, so a permit is granted eventually. Without a limit no permit is needed.
        let _permit = match endpoint.profile() {
            Some(profile) => profile.connections.acquire().await.ok(),
            None => None,
        };
        let turn = self.transport.turn(&endpoint.target, Use::Model).await;
        let exchange = self.ask(turn, endpoint, routing, body);
        let Answer { status, retry_after, body } =
            match tokio::time::timeout(policy.attempt_time_max, exchange).await {
                Ok(answer) => answer?,
                Err(_) => {
                    return Err(again(format!(
                        "no answer within {}",
                        rollout_wire::text::time(policy.attempt_time_max)
                    )));
                }
            };
        if endpoint.pauses.iter().any(|sign| sign.is_in(status, &body)) {
            return Err(Miss::Paused(
                retry_after.unwrap_or(PAUSE_DELAY).clamp(PAUSE_DELAY / 4, PAUSE_DELAY_MAX),
            ));
        }
        match policy.statuses.meaning(status) {
            Meaning::Taken => Box::pin(read(body, endpoint)).await.map_err(|what| {
                let reason = format!("its response is not a chat completion: {what}");
                match policy.statuses.repeats_unreadable() {
                    true => again(reason),
                    false => Miss::Final(ChatFailure::Unavailable { attempts: 1, reason }),
                }
            }),
            Meaning::Again => {
                let reason = format!("it answered {}: {}", named(status), shown(&body, endpoint));
                Err(Miss::Again { reason, retry_after, is_host_fault: false })
            }
            Meaning::Refused => {
                Err(Miss::Final(ChatFailure::Refused { status, body: shown(&body, endpoint) }))
            }
        }
    }

    /// Sends the request over this connection, and converts the lack of a response to a miss.
    async fn ask(
        &self,
        turn: Turn,
        endpoint: &ModelEndpoint,
        routing: &RoutingHeaders,
        body: &dyn RequestBody,
    ) -> Result<Answer, Miss> {
        let request = request(endpoint, routing, body)?;
        turn.post(&endpoint.target, request, self.reply_bytes_max).await.map_err(|unanswered| {
            let is_host_fault = matches!(unanswered, Unanswered::Host(_));
            match unanswered {
                // A retry would not help, and the server is not at fault.
                Unanswered::Forbidden(why) => {
                    tracing::debug!(origin = endpoint.target.origin(), %why, "requests to a model's server are forbidden");
                    Miss::Final(ChatFailure::Forbidden { reason: why.without_address() })
                }
                Unanswered::Broken(Broken::Body { cause, .. }) if matches!(*cause, Broken::TooLong(_)) => {
                    self.too_large()
                }
                unanswered => Miss::Again { reason: unanswered.to_string(), retry_after: None, is_host_fault },
            }
        })
    }

    fn too_large(&self) -> Miss {
        self.metrics.limit_hit(Limit::ReplyBytes);
        let max = self.reply_bytes_max;
        Miss::Final(ChatFailure::Unavailable {
            attempts: 1,
            reason: format!("its response is longer than reply-bytes-max, {max} bytes"),
        })
    }
}

/// Serializes the whole request. No other copy of its body exists afterwards.
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

/// Returns a miss of the server that is worth a retry.
fn again(reason: String) -> Miss {
    Miss::Again { reason, retry_after: None, is_host_fault: false }
}

/// Parses a reply after removing the endpoint's secrets.
async fn read(body: Bytes, endpoint: &ModelEndpoint) -> Result<Completion, String> {
    let read = |body: Bytes, secrets: &super::Secrets| Completion::parse(&secrets.cut_from_reply(body));
    if body.len() <= READ_IN_PLACE_BYTES_MAX {
        // A short reply is copied: its parts stay in memory as long as the rollout, and would hold the whole read
        // buffer, which is ten times as large. A copy of a long reply would double its memory.
        return read(Bytes::copy_from_slice(&body), &endpoint.secrets);
    }
    let secrets = endpoint.secrets.clone();
    let done = tokio::task::spawn_blocking(move || read(body, &secrets)).await;
    done.unwrap_or_else(|error| Err(format!("parsing it failed: {error}")))
}

/// Returns the beginning of a response for an error message, which a guest may read. The key of a server that echoes it
/// is removed, before the text is truncated: half a key would not be recognized.
fn shown(body: &[u8], endpoint: &ModelEndpoint) -> String {
    let text = endpoint.secrets.cut_from(String::from_utf8_lossy(body).into_owned());
    beginning(&text, REFUSAL_BYTES_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn a_refusal_is_shown_without_the_key() {
        let endpoint = ModelEndpoint::new("http://h", "m", Some(Secret::new("s3cret"))).unwrap();
        assert_eq!(shown(b"wrong key s3cret!", &endpoint), "wrong key (secret)!");
        assert_eq!(shown(br"wrong key s3\u0063ret!", &endpoint), "wrong key (secret)!");
        let cut = format!("{}s3cret", "x".repeat(REFUSAL_BYTES_SHOWN - 3));
        assert!(!shown(cut.as_bytes(), &endpoint).contains("s3c"));
    }
}
