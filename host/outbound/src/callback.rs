//! Delivery of results to callers by callback.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::endpoint::bearer;
use super::network::NetworkRules;
use super::retry::{Meaning, RetryPolicy, Tries};
use super::secrets::{Secret, Secrets};
use super::transport::{Answer, Outgoing, Target, Transport, Unanswered, Use, named};
use crate::http1::Broken;
use rollout_core::error::Fault;
use rollout_core::telemetry::{CallbackOutcome, Metrics};

/// Maximum size of a caller's response in bytes. It may contain token ids of many calls.
const ACKNOWLEDGEMENT_BYTES_MAX: usize = 32 << 20;

/// The client for all callers' callback addresses.
#[derive(Clone, Debug)]
pub struct CallbackClient {
    transport: Transport,
    policy: RetryPolicy,
    metrics: Arc<Metrics>,
}

/// A delivery that the caller confirmed, with its response.
#[derive(Debug)]
pub struct Acknowledged {
    /// Status of the response.
    pub status: u16,
    /// Number of attempts.
    pub attempts: u32,
    /// Body of the response, without the key.
    pub body: Bytes,
}

/// Error of a callback that was not delivered.
#[derive(Debug, thiserror::Error)]
#[error("callback not delivered after {attempts} attempts: {reason}")]
pub struct Undelivered {
    /// Number of attempts.
    pub attempts: u32,
    /// The error of the last attempt.
    pub reason: String,
    /// Status of the last attempt's response, if there was one.
    pub status: Option<u16>,
    /// The party that must act: the caller, or the host if it cannot open a connection.
    pub fault: Fault,
}

impl CallbackClient {
    /// Creates a client over the host's transport.
    pub fn new(transport: Transport, policy: RetryPolicy, metrics: Arc<Metrics>) -> Self {
        Self { transport, policy, metrics }
    }

    /// Returns a client over another transport, for another tenant's callbacks.
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Returns the current network rules, which apply to callbacks and to the rest of the callers' requests.
    pub fn rules(&self) -> Arc<NetworkRules> {
        self.transport.rules()
    }

    /// Posts the JSON body until the caller accepts or finally refuses it. Errors of the connection are retried, too.
    pub async fn post(
        &self,
        url: &str,
        key: Option<&Secret>,
        body: Bytes,
    ) -> Result<Acknowledged, Undelivered> {
        let callback = self.metrics.callback();
        let address = match Address::of(url, key) {
            Ok(address) => address,
            Err(reason) => {
                callback.ended(CallbackOutcome::Unavailable);
                return Err(Undelivered { attempts: 1, reason, status: None, fault: Fault::Caller });
            }
        };
        let mut tries = Tries::of(&self.policy);
        loop {
            let mut fault = Fault::Caller;
            let (reason, status, retry_after) = match self.attempt(&address, &body).await {
                Ok(Answer { status, retry_after, body }) => match self.policy.statuses.meaning(status) {
                    Meaning::Taken => {
                        callback.ended(CallbackOutcome::Delivered);
                        let body = address.secrets.cut_from_reply(body);
                        return Ok(Acknowledged { status, attempts: tries.failures() + 1, body });
                    }
                    Meaning::Refused => {
                        callback.ended(CallbackOutcome::Refused);
                        let (attempts, reason) = (tries.failures() + 1, answered(status));
                        return Err(Undelivered { attempts, reason, status: Some(status), fault });
                    }
                    Meaning::Again => (answered(status), Some(status), retry_after),
                },
                Err(Missed::Forbidden(reason)) => {
                    callback.ended(CallbackOutcome::Forbidden);
                    let attempts = tries.failures() + 1;
                    return Err(Undelivered { attempts, reason, status: None, fault });
                }
                Err(Missed::Unanswered { reason, is_host_fault }) => {
                    fault = if is_host_fault { Fault::Host } else { fault };
                    (reason, None, None)
                }
            };
            let Some(delay) = tries.failed(retry_after) else {
                callback.ended(match fault {
                    Fault::Host => CallbackOutcome::Host,
                    _ => CallbackOutcome::Unavailable,
                });
                return Err(Undelivered { attempts: tries.failures(), reason, status, fault });
            };
            callback.repeated();
            tracing::debug!(
                attempts = tries.failures(),
                delay_secs = delay.as_secs_f64(),
                reason,
                "retrying the callback"
            );
            tokio::time::sleep(delay).await;
        }
    }

    /// Sends the body once.
    async fn attempt(&self, address: &Address, body: &[u8]) -> Result<Answer, Missed> {
        let turn = self.transport.turn(&address.target, Use::Callback).await;
        let bytes = address.target.request(&address.headers, body);
        let request = Outgoing { bytes, _charge: None };
        let sent = turn.post(&address.target, request, ACKNOWLEDGEMENT_BYTES_MAX);
        match tokio::time::timeout(self.policy.attempt_time_max, sent).await {
            Ok(Ok(answer)) => Ok(answer),
            // A body that is too long or truncated counts as empty: the result is delivered.
            Ok(Err(Unanswered::Broken(Broken::Body { status, .. }))) => {
                Ok(Answer { status, retry_after: None, body: Bytes::new() })
            }
            // A retry would not help; the caller must change the address.
            Ok(Err(Unanswered::Forbidden(why))) => Err(Missed::Forbidden(why.to_string())),
            Ok(Err(unanswered)) => Err(Missed::Unanswered {
                is_host_fault: matches!(unanswered, Unanswered::Host(_)),
                reason: unanswered.to_string(),
            }),
            Err(_) => Err(Missed::Unanswered {
                is_host_fault: false,
                reason: no_answer(self.policy.attempt_time_max),
            }),
        }
    }
}

/// An attempt without a response.
enum Missed {
    /// The address is forbidden.
    Forbidden(String),
    Unanswered {
        reason: String,
        is_host_fault: bool,
    },
}

fn answered(status: u16) -> String {
    format!("the caller's server answered {}", named(status))
}

fn no_answer(within: Duration) -> String {
    format!("no answer within {}", rollout_wire::text::time(within))
}

/// The address of a callback and its headers.
struct Address {
    target: Target,
    headers: HeaderMap,
    secrets: Secrets,
}

impl Address {
    /// Parses a URL and a key. The error is the reason why no callback can be sent.
    fn of(url: &str, key: Option<&Secret>) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        let target = Target::of(&url)
            .ok_or_else(|| format!("its URL has the scheme {}, not http or https", url.scheme()))?;
        let mut secrets = Secrets::from_url(&url);
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = key.filter(|key| !key.expose().is_empty()) {
            headers.insert(AUTHORIZATION, bearer(key).map_err(|error| error.to_string())?);
            secrets.add(key.expose());
        }
        Ok(Self { target, headers, secrets })
    }
}
