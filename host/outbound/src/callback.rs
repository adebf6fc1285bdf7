//! Posts a result to the caller that asked for it.

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

/// The longest acknowledgement that is read, in bytes. It may carry token ids of many calls.
const ACKNOWLEDGEMENT_BYTES_MAX: usize = 32 << 20;

/// The client of every caller's callback address.
#[derive(Clone, Debug)]
pub struct CallbackClient {
    transport: Transport,
    policy: RetryPolicy,
    metrics: Arc<Metrics>,
}

/// A delivery that the caller confirmed, with what it said.
#[derive(Debug)]
pub struct Acknowledged {
    /// The answer's status.
    pub status: u16,
    /// Tries that it took.
    pub attempts: u32,
    /// The answer's body, without the key.
    pub body: Bytes,
}

/// Why a result did not arrive.
#[derive(Debug, thiserror::Error)]
#[error("callback not delivered after {attempts} attempts: {reason}")]
pub struct Undelivered {
    /// Tries made.
    pub attempts: u32,
    /// What the last of them met.
    pub reason: String,
    /// The status of the last answer, if there was one to the last try.
    pub status: Option<u16>,
    /// Whose move it is: the caller's, or the host's where it lacks what a connection takes.
    pub fault: Fault,
}

impl CallbackClient {
    /// A client over the host's transport.
    pub fn new(transport: Transport, policy: RetryPolicy, metrics: Arc<Metrics>) -> Self {
        Self { transport, policy, metrics }
    }

    /// The same client over another transport, for callbacks of somebody else.
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Where callbacks may go at present, and with them all that their callers' requests are sent to.
    pub fn rules(&self) -> Arc<NetworkRules> {
        self.transport.rules()
    }

    /// Posts the JSON body until it is taken, or finally refused. Repeated on trouble with the
    /// connection too.
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
            let (reason, status, asked) = match self.attempt(&address, &body).await {
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
                Err(Missed::Unanswered { reason, is_hosts }) => {
                    fault = if is_hosts { Fault::Host } else { fault };
                    (reason, None, None)
                }
            };
            let Some(delay) = tries.failed(asked) else {
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
                "posting the callback again"
            );
            tokio::time::sleep(delay).await;
        }
    }

    async fn attempt(&self, address: &Address, body: &[u8]) -> Result<Answer, Missed> {
        let turn = self.transport.turn(&address.target, Use::Callback).await;
        let bytes = address.target.request(&address.headers, body);
        let request = Outgoing { bytes, _charge: None };
        let sent = turn.post(&address.target, request, ACKNOWLEDGEMENT_BYTES_MAX);
        match tokio::time::timeout(self.policy.attempt_time_max, sent).await {
            Ok(Ok(answer)) => Ok(answer),
            // A body that is too long, or that breaks off, is as good as an empty one:
            // delivered is delivered.
            Ok(Err(Unanswered::Broken(Broken::Body { status, .. }))) => {
                Ok(Answer { status, retry_after: None, body: Bytes::new() })
            }
            // It stays so, and is the caller's to change.
            Ok(Err(Unanswered::Forbidden(why))) => Err(Missed::Forbidden(why.to_string())),
            Ok(Err(unanswered)) => Err(Missed::Unanswered {
                is_hosts: matches!(unanswered, Unanswered::Host(_)),
                reason: unanswered.to_string(),
            }),
            Err(_) => {
                Err(Missed::Unanswered { is_hosts: false, reason: no_answer(self.policy.attempt_time_max) })
            }
        }
    }
}

/// A try without an answer.
enum Missed {
    /// The address may not be reached.
    Forbidden(String),
    Unanswered {
        reason: String,
        is_hosts: bool,
    },
}

fn answered(status: u16) -> String {
    format!("it was answered {}", named(status))
}

fn no_answer(within: Duration) -> String {
    format!("no answer within {}", rollout_wire::text::time(within))
}

/// Where a callback goes, and with what.
struct Address {
    target: Target,
    headers: HeaderMap,
    secrets: Secrets,
}

impl Address {
    /// The address of this URL and key, or why a callback can go nowhere.
    fn of(url: &str, key: Option<&Secret>) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        let target = Target::of(&url).ok_or_else(|| {
            format!("its address is of the scheme {} and not a server's by http or https", url.scheme())
        })?;
        let mut secrets = Secrets::of_url(&url);
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = key.filter(|key| !key.expose().is_empty()) {
            headers.insert(AUTHORIZATION, bearer(key).map_err(|error| error.to_string())?);
            secrets.add(key.expose());
        }
        Ok(Self { target, headers, secrets })
    }
}
