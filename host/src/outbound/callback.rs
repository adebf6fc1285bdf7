//! Posts a result to the caller that asked for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{StatusCode, Url};

use super::plain::{Place, PlainClient};
use super::retry::{RetryPolicy, retry_after};
use super::{Secret, describe};
use crate::http1::Broken;
use crate::telemetry::{CallbackOutcome, Metrics};

/// The longest acknowledgement that is read, in bytes. It may carry token ids of many calls.
const ACKNOWLEDGEMENT_BYTES_MAX: usize = 32 << 20;

/// The client of every caller's callback address.
#[derive(Clone, Debug)]
pub struct CallbackClient {
    http: reqwest::Client,
    plain: Arc<PlainClient>,
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
        Self { http, plain: Arc::default(), policy, taken: Taken::AnySuccess, metrics }
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
        let (url, headers) = match address(url, key) {
            Ok(there) => there,
            Err(reason) => {
                callback.ended(CallbackOutcome::Unavailable);
                return Err(Undelivered { attempts: 1, reason, status: None });
            }
        };
        let place = Place::of(&url);
        loop {
            attempts += 1;
            let sent = async {
                match &place {
                    Some(place) => self.send_plainly(place, &headers, &body).await,
                    None => Box::pin(self.send(&url, &headers, &body)).await,
                }
            };
            let sent = tokio::time::timeout(self.policy.attempt_time_max, sent).await;
            let time_max = self.policy.attempt_time_max;
            let sent =
                sent.unwrap_or_else(|_| Err(format!("no answer within {}", crate::text::time(time_max))));
            let (reason, status, asked) = match sent {
                Ok(Answer { status, body, .. }) if matches!(self.taken.word(status), Word::Taken) => {
                    callback.ended(CallbackOutcome::Delivered);
                    return Ok(Acknowledged { status: status.as_u16(), attempts, body });
                }
                Ok(Answer { status, retry_after, .. }) => {
                    let reason = format!("it was answered {status}");
                    if matches!(self.taken.word(status), Word::Refused) {
                        callback.ended(CallbackOutcome::Refused);
                        return Err(Undelivered { attempts, reason, status: Some(status.as_u16()) });
                    }
                    let asked = match self.taken {
                        Taken::AnySuccess => retry_after,
                        Taken::OkOnly => None,
                    };
                    (reason, Some(status.as_u16()), asked)
                }
                Err(reason) => (reason, None, None),
            };
            let since_first = first_failure.get_or_insert_with(Instant::now).elapsed();
            let Some(delay) = self.policy.next_delay(attempts, since_first, asked) else {
                callback.ended(CallbackOutcome::Unavailable);
                return Err(Undelivered { attempts, reason, status });
            };
            callback.repeated();
            tracing::debug!(attempts, delay_secs = delay.as_secs_f64(), reason, "posting the callback again");
            tokio::time::sleep(delay).await;
        }
    }

    async fn send_plainly(&self, place: &Place, headers: &HeaderMap, body: &[u8]) -> Result<Answer, String> {
        match self.plain.post(place, place.request(headers, body), ACKNOWLEDGEMENT_BYTES_MAX).await {
            Ok(answer) => {
                let status = StatusCode::from_u16(answer.status).map_err(|error| error.to_string())?;
                Ok(Answer { status, retry_after: answer.retry_after, body: answer.body })
            }
            Err(Broken::Body { status, cause }) => match StatusCode::from_u16(status) {
                Ok(status) => Ok(Answer { status, retry_after: None, body: Bytes::new() }),
                Err(_) => Err(cause.to_string()),
            },
            Err(broken) => Err(broken.to_string()),
        }
    }

    async fn send(&self, url: &Url, headers: &HeaderMap, body: &Bytes) -> Result<Answer, String> {
        let request = self.http.post(url.clone()).headers(headers.clone()).body(body.clone());
        let response = request.send().await.map_err(describe)?;
        let (status, retry_after) = (response.status(), retry_after(response.headers()));
        Ok(Answer { status, retry_after, body: read(response).await })
    }
}

/// What a caller answered. A body that is too long, or that breaks off, is as good as an
/// empty one: delivered is delivered.
struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    body: Bytes,
}

/// Where a callback goes, and with what; or why it can go nowhere.
fn address(url: &str, key: Option<&Secret>) -> Result<(Url, HeaderMap), String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("its address is of the scheme {}, not http or https", url.scheme()));
    }
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = key.filter(|key| !key.expose().is_empty()) {
        let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
        headers.insert(AUTHORIZATION, value.map_err(|_| "the key fits no header".to_owned())?);
    }
    Ok((url, headers))
}

/// Reads an acknowledgement.
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
