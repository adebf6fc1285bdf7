//! Posts a result to the caller that asked for it.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};

use super::retry::{RetryPolicy, retry_after};
use super::{Secret, describe};
use crate::telemetry::{CallbackOutcome, Metrics};

/// The longest acknowledgement that is read, in bytes. It may carry token ids.
const ACKNOWLEDGEMENT_BYTES_MAX: usize = 64 << 20;

/// The client of every caller's callback address.
#[derive(Clone, Debug)]
pub struct CallbackClient {
    http: reqwest::Client,
    policy: RetryPolicy,
    taken: Taken,
    metrics: Arc<Metrics>,
}

/// By which answers a caller takes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Any 2xx. Tried again on 429, 500, 502, 503 and 504; any other is final.
    AnySuccess,
    /// 200 alone. Any 4xx is final; all others are tried again.
    OkOnly,
}

/// What an answer's status says of a delivery.
enum Word {
    Taken,
    Again,
    Refused,
}

impl Taken {
    fn word(self, status: StatusCode) -> Word {
        match (self, status.as_u16()) {
            (Self::AnySuccess, 200..=299) | (Self::OkOnly, 200) => Word::Taken,
            (Self::AnySuccess, 429 | 500 | 502 | 503 | 504) => Word::Again,
            (Self::AnySuccess, _) | (Self::OkOnly, 400..=499) => Word::Refused,
            (Self::OkOnly, _) => Word::Again,
        }
    }
}

/// A delivery that the caller confirmed, with what it said.
#[derive(Debug)]
pub struct Acknowledged {
    /// The answer's status.
    pub status: u16,
    /// Tries that it took.
    pub attempts: u32,
    /// The answer's body.
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
}

impl CallbackClient {
    /// A client over the process's HTTP client.
    pub fn new(http: reqwest::Client, policy: RetryPolicy, metrics: Arc<Metrics>) -> Self {
        Self { http, policy, taken: Taken::AnySuccess, metrics }
    }

    /// The same client, for callers who take results by these answers.
    pub fn taken_by(self, taken: Taken) -> Self {
        Self { taken, ..self }
    }

    /// Posts the JSON body until it is [taken](Taken), or finally refused. Repeated on
    /// trouble with the connection too.
    pub async fn post(
        &self,
        url: &str,
        key: Option<&Secret>,
        body: Bytes,
    ) -> Result<Acknowledged, Undelivered> {
        let callback = self.metrics.callback();
        let mut attempts = 0;
        let mut first_failure = None;
        loop {
            attempts += 1;
            let mut request = self
                .http
                .post(url)
                .header(CONTENT_TYPE, "application/json")
                .timeout(self.policy.attempt_time_max)
                .body(body.clone());
            if let Some(key) = key.filter(|key| !key.expose().is_empty()) {
                request = request.header(AUTHORIZATION, format!("Bearer {}", key.expose()));
            }
            let (reason, status, asked) = match request.send().await {
                Ok(response) if matches!(self.taken.word(response.status()), Word::Taken) => {
                    let status = response.status().as_u16();
                    let body = read(response).await;
                    callback.ended(CallbackOutcome::Delivered);
                    return Ok(Acknowledged { status, attempts, body });
                }
                Ok(response) => {
                    let status = response.status();
                    let reason = format!("it was answered {status}");
                    if matches!(self.taken.word(status), Word::Refused) {
                        callback.ended(CallbackOutcome::Refused);
                        return Err(Undelivered { attempts, reason, status: Some(status.as_u16()) });
                    }
                    let asked = match self.taken {
                        Taken::AnySuccess => retry_after(response.headers()),
                        Taken::OkOnly => None,
                    };
                    (reason, Some(status.as_u16()), asked)
                }
                Err(error) if error.is_builder() => {
                    callback.ended(CallbackOutcome::Unavailable);
                    return Err(Undelivered { attempts, reason: describe(error), status: None });
                }
                Err(error) => (describe(error), None, None),
            };
            let since_first = first_failure.get_or_insert_with(Instant::now).elapsed();
            let Some(delay) = self.policy.next_delay(attempts, since_first, asked) else {
                callback.ended(CallbackOutcome::Unavailable);
                return Err(Undelivered { attempts, reason, status });
            };
            callback.repeated();
            tracing::debug!(attempts, ?delay, reason, "posting the callback again");
            tokio::time::sleep(delay).await;
        }
    }
}

/// Reads an acknowledgement. Delivered is delivered: one that is too long, or that breaks
/// off, is as good as an empty one.
async fn read(mut response: reqwest::Response) -> Bytes {
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(None) => return body.freeze(),
            Ok(Some(chunk)) if body.len() + chunk.len() <= ACKNOWLEDGEMENT_BYTES_MAX => {
                body.extend_from_slice(&chunk);
            }
            Ok(Some(_)) | Err(_) => return Bytes::new(),
        }
    }
}
