//! Asking a model's server for a guest: what `chat` and `judge` have in common.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::record::{ExchangeOutcome, Kept, Record};
use super::{Imports, ModelAccess};
use crate::limits::Limits;
use crate::outbound::{ChatFailure, ChatReply, RoutingHeaders};
use crate::telemetry::{Label, Limit, Span};
use crate::wire::openai::Completion;

/// A request that was checked, counted and written down; sending it is all that is left.
pub(super) struct Prepared {
    pub access: ModelAccess,
    pub routing: RoutingHeaders,
    pub body: Bytes,
    pub record: Arc<Record>,
    pub limits: Arc<Limits>,
    /// Where in the record what comes of it belongs.
    pub place: usize,
}

/// What came of a request.
pub(super) struct Asked {
    pub place: usize,
    pub duration: Duration,
    /// Tries after the first, as far as is known.
    pub retries: u32,
    pub outcome: ExchangeOutcome,
    pub answer: Result<Completion, NoAnswer>,
}

/// Why a guest gets no answer.
pub(super) enum NoAnswer {
    /// There was one, which the record has no room for.
    NotKept(String),
    /// There was none.
    Failed(ChatFailure),
}

impl Prepared {
    /// Sends the request and has what came of it written down; traces have it by this name. The exchange is made where
    /// it is first polled, on a thread of the runtime. What spawns this is a guest's stack,
    /// where every copy of a large future would leave pages in use for as long as the guest
    /// waits.
    pub(super) async fn send<T>(self, name: &'static str, write_down: fn(&mut Kept, Asked) -> T) -> T {
        Box::pin(self.exchange(name, write_down)).await
    }

    async fn exchange<T>(self, name: &'static str, write_down: fn(&mut Kept, Asked) -> T) -> T {
        let started = Instant::now();
        let mut span = self.record.trace().request(name);
        span.set("gen_ai.operation.name", "chat");
        span.set("gen_ai.request.model", self.access.endpoint.model().to_owned());
        let result = self.access.client.complete(&self.access.endpoint, &self.routing, self.body).await;
        describe(&mut span, &result);
        drop(span);
        let retries = match &result {
            Ok(reply) => reply.attempts.saturating_sub(1),
            Err(ChatFailure::Unavailable { attempts, .. } | ChatFailure::Host { attempts, .. }) => {
                attempts.saturating_sub(1)
            }
            Err(ChatFailure::Refused { .. }) => 0,
        };
        let mut kept = self.record.lock();
        let (outcome, answer) = match result {
            Ok(reply) => match kept.charge(reply.body.len(), &self.limits) {
                Ok(()) => {
                    let outcome = ExchangeOutcome::Replied {
                        body: reply.body,
                        finish_reason: reply.completion.finish_reason.clone(),
                        usage: reply.completion.usage,
                        attempts: reply.attempts,
                    };
                    (outcome, Ok(reply.completion))
                }
                Err(over) => (ExchangeOutcome::Failed(over.0.clone()), Err(NoAnswer::NotKept(over.0))),
            },
            Err(failure) => (ExchangeOutcome::Failed(failure.to_string()), Err(NoAnswer::Failed(failure))),
        };
        write_down(
            &mut kept,
            Asked { place: self.place, duration: started.elapsed(), retries, outcome, answer },
        )
    }
}

/// Says in a span what came of a call of the model, by the names that OpenTelemetry has.
fn describe(span: &mut Span, result: &Result<ChatReply, ChatFailure>) {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut attempts = |attempts: u32| span.set("http.request.resend_count", i64::from(attempts) - 1);
    match result {
        Ok(reply) => {
            attempts(reply.attempts);
            span.set("http.response.status_code", 200);
            if let Some(usage) = &reply.completion.usage {
                span.set("gen_ai.usage.input_tokens", count(usage.prompt_tokens));
                span.set("gen_ai.usage.output_tokens", count(usage.completion_tokens));
            }
            if let Some(reason) = &reply.completion.finish_reason {
                span.set_texts("gen_ai.response.finish_reasons", [reason.clone()]);
            }
        }
        Err(ChatFailure::Refused { status, .. }) => {
            span.set("http.response.status_code", i64::from(*status));
            span.failed("refused", "the model's server refused");
        }
        Err(ChatFailure::Unavailable { attempts: tries, reason }) => {
            attempts(*tries);
            span.failed("unavailable", reason);
        }
        Err(ChatFailure::Host { attempts: tries, reason }) => {
            attempts(*tries);
            span.failed("host", reason);
        }
    }
}

impl Kept {
    /// Lets a request through while less is used than a rollout may. Otherwise notes that
    /// the limit fired and says so.
    pub(super) fn within(&mut self, limit: Limit, used: u64, max: u64, unit: &str) -> Result<(), String> {
        if used < max {
            return Ok(());
        }
        self.fired.add_asked(limit, usize::try_from(used).unwrap_or(usize::MAX).saturating_add(1));
        Err(format!("{} of {max} {unit} in one rollout; the operator can raise it", limit.as_str()))
    }
}

impl Imports {
    /// Sees that no message of a request is too long, and says which is.
    pub(super) fn check_messages(&self, messages: &[String]) -> Result<(), String> {
        messages.iter().enumerate().try_for_each(|(at, message)| {
            self.check_message(message).map_err(|what| format!("messages[{at}] is {what}"))
        })
    }

    /// Sees that one more call may be under way.
    pub(super) fn check_under_way(&self, under_way: u32) -> Result<(), String> {
        let max = self.limits.concurrent_calls_max;
        if under_way < max {
            return Ok(());
        }
        Err(format!(
            "concurrent-calls-max of {max} calls under way at once; finish some first, or the operator can raise it"
        ))
    }

    /// The same, for a call that is refused here.
    pub(super) fn may_begin(&self) -> Result<(), String> {
        self.check_under_way(self.calls_under_way).inspect_err(|_| {
            let asked = self.calls_under_way as usize + 1;
            self.record.lock().fired.add_asked(Limit::ConcurrentCalls, asked);
        })
    }
}

/// Begins what a guest is to wait for. On a task of its own, because what is awaited in an
/// import is polled on the guest's stack, where an HTTP exchange would leave 30 KiB in use
/// for as long as the guest waits. Dropped, the task ends.
///
/// Await it in the import itself: each function in between takes of that stack, too.
pub(super) fn beside<T: Send + 'static>(
    call: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(tokio::spawn(call.in_current_span()))
}
