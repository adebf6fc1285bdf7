//! Asking a model's server for a guest, and writing down what came of it.

use std::sync::Arc;
use std::time::Duration;

use super::Imports;
use super::bindings::rollout::plugin::models::Error;
use super::boundary::Of;
use super::calls::{CallOutcome, ModelAnswer};
use super::exchange::{ExchangeOutcome, ModelCalls};
use super::gate::AskRefused;
use super::host_tools::ToolAnswer;
use super::outside::{ModelQuestion, Outside};
use super::record::{JudgeFailure, Record, RecordState, message_bytes};
use super::run_event::Answer;
use rollout_core::budget::{Charge, Use};
use rollout_core::error::Fault;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Label, Limit, ModelRole, Span};
use rollout_outbound::{ChatFailure, ChatReply, RequestBody, RoutingHeaders};
use rollout_wire as wire;
use rollout_wire::openai::Completion;

/// A request that was checked, counted and written down; sending it is all that is left.
pub(super) struct Prepared {
    pub asked: ModelRole,
    pub outside: Arc<dyn Outside>,
    pub routing: RoutingHeaders,
    pub record: Arc<Record>,
    /// Where in the record what comes of it belongs.
    pub place: usize,
}

/// A body that is put together from the record.
struct Recorded<'a> {
    record: &'a Record,
    asked: ModelRole,
    place: usize,
}

impl RequestBody for Recorded<'_> {
    fn make(&self, head: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<(Vec<u8>, Option<Charge>), String> {
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        let kept = self.record.lock();
        let calls = kept.calls(self.asked);
        let exchange = calls.exchanges().get(self.place).ok_or("the rollout is over")?;
        let body = calls.among(&kept.samples).unmade(exchange);
        if let Some(charge) = &mut charge {
            charge.grow(body.bytes()).map_err(|over| over.to_string())?;
        }
        let mut request = head(body.bytes());
        body.add_to(&mut request);
        Ok((request, charge))
    }
}

/// Why a guest gets no answer.
enum NoAnswer {
    /// There was one, which the record has no room for.
    NotKept(String),
    /// There was none.
    Failed(ChatFailure),
}

impl Prepared {
    /// Sends the request. The exchange is made where it is first polled, on a thread of the
    /// runtime. What spawns this is a guest's stack, where every copy of a large future would
    /// leave pages in use for as long as the guest waits.
    pub(super) async fn send(self) -> Answer {
        Answer::Model(Box::pin(self.exchange()).await)
    }

    /// What came of one in which the host panicked.
    pub(super) fn failed() -> Answer {
        let reason = "the host panicked in the call".to_owned();
        Answer::Model(Err(ChatFailure::Host { attempts: 1, reason }))
    }

    async fn exchange(self) -> Result<ChatReply, ChatFailure> {
        let mut span = self.record.trace().request(match self.asked {
            ModelRole::Policy => "chat",
            ModelRole::Judge => "judge",
        });
        span.set("gen_ai.operation.name", "chat");
        let model = self.outside.model(self.asked).map_or("", |facts| facts.name);
        span.set("gen_ai.request.model", model.to_owned());
        let body = Recorded { record: &self.record, asked: self.asked, place: self.place };
        let question = ModelQuestion { asked: self.asked, routing: &self.routing, body: &body };
        let result = self.outside.ask(question).await;
        describe(&mut span, &result);
        result
    }
}

impl Record {
    /// Writes down what came of a call, and gives what the guest is told of it.
    pub(super) fn keep_answer(&self, of: Of, answer: Answer, took: Duration, limits: &Limits) -> CallOutcome {
        match (of, answer) {
            (Of::Model { asked, place, keep_for }, answer) => {
                let result = match answer {
                    Answer::Model(result) => result,
                    Answer::Tool(_) => Err(not_its_answer()),
                };
                let answer = self.lock().write_down(asked, place, took, result, limits);
                CallOutcome::Model(ModelAnswer { answer, keep_for })
            }
            (Of::Tool { place, kind, call_id }, answer) => {
                let answer = match answer {
                    Answer::Tool(answer) => answer,
                    Answer::Model(_) => ToolAnswer::unavailable(not_its_answer()),
                };
                CallOutcome::Tool(self.keep_result(place, kind, call_id, answer, took, limits))
            }
        }
    }
}

/// Only a past that somebody else wrote has such answers.
fn not_its_answer() -> ChatFailure {
    ChatFailure::Host { attempts: 0, reason: "what was kept of the call is no answer to it".to_owned() }
}

impl RecordState {
    /// The calls of a model.
    pub(super) fn calls(&self, asked: ModelRole) -> &ModelCalls {
        match asked {
            ModelRole::Policy => &self.policy,
            ModelRole::Judge => &self.judge,
        }
    }

    /// The same, for one more.
    pub(super) fn calls_mut(&mut self, asked: ModelRole) -> &mut ModelCalls {
        match asked {
            ModelRole::Policy => &mut self.policy,
            ModelRole::Judge => &mut self.judge,
        }
    }

    /// Keeps what came of a call, and says what the guest is told.
    fn write_down(
        &mut self,
        asked: ModelRole,
        place: usize,
        duration: Duration,
        result: Result<ChatReply, ChatFailure>,
        limits: &Limits,
    ) -> Result<Completion, Error> {
        let retries = match &result {
            Ok(reply) => reply.attempts.saturating_sub(1),
            Err(ChatFailure::Unavailable { attempts, .. } | ChatFailure::Host { attempts, .. }) => {
                attempts.saturating_sub(1)
            }
            Err(ChatFailure::Refused { .. } | ChatFailure::Forbidden { .. }) => 0,
        };
        let (outcome, answer) = match result {
            Ok(ChatReply { completion, attempts }) => match self.charge(completion.body().len(), limits) {
                Ok(()) => {
                    (ExchangeOutcome::Replied { completion: completion.clone(), attempts }, Ok(completion))
                }
                Err(over) => (ExchangeOutcome::NotKept(over.0.clone()), Err(NoAnswer::NotKept(over.0))),
            },
            Err(failure) => (ExchangeOutcome::Failed(said(asked, &failure)), Err(NoAnswer::Failed(failure))),
        };
        match asked {
            ModelRole::Policy => self.note_policy(&answer, retries),
            ModelRole::Judge => self.note_judge(&answer, place),
        }
        if let Some(exchange) = self.calls_mut(asked).exchange_mut(place) {
            exchange.duration = duration;
            exchange.outcome = outcome;
        }
        answer.map_err(|why| told(asked, why))
    }

    fn note_policy(&mut self, answer: &Result<Completion, NoAnswer>, retries: u32) {
        self.model_failed = match answer {
            Err(NoAnswer::Failed(failure)) => Some(failure.fault(ModelRole::Policy)),
            Ok(_) | Err(NoAnswer::NotKept(_)) => None,
        };
        self.chat_retries = self.chat_retries.saturating_add(retries.into());
        if let Ok(Completion { usage: Some(usage), .. }) = answer {
            self.chat_tokens = self.chat_tokens.saturating_add(usage.total());
        }
    }

    fn note_judge(&mut self, answer: &Result<Completion, NoAnswer>, place: usize) {
        match answer {
            Ok(completion) => {
                self.judge_answered(place);
                let tokens = completion.usage.unwrap_or_default().total();
                self.judge_tokens = self.judge_tokens.saturating_add(tokens);
            }
            Err(NoAnswer::Failed(failure)) => {
                self.judge_failed(failure.fault(ModelRole::Judge), said(ModelRole::Judge, failure));
            }
            Err(NoAnswer::NotKept(_)) => {}
        }
    }

    /// The judge is the reason if the grader gives up now.
    pub(super) fn judge_failed(&mut self, fault: Fault, reason: String) {
        self.judge_failure = Some((JudgeFailure { fault, reason }, self.judge.exchanges().len()));
    }

    /// A call that was made after a failure and answered: the failure was got over. One
    /// that was under way beside it proves nothing.
    fn judge_answered(&mut self, place: usize) {
        if self.judge_failure.as_ref().is_some_and(|(_, calls_then)| place >= *calls_then) {
            self.judge_failure = None;
        }
    }
}

impl Record {
    /// Pushes a reply's message to a sample's history.
    pub(super) fn keep_reply(
        &self,
        sample: usize,
        reply: &Completion,
        limits: &Limits,
    ) -> Result<(), AskRefused> {
        let text = reply.message();
        let mut kept = self.lock();
        kept.sample(sample)?;
        if text.len() > limits.message_bytes_max {
            kept.hits.add_asked(Limit::MessageBytes, text.len());
            let max = limits.message_bytes_max;
            let limit =
                format!("the reply is longer than message-bytes-max, {max} bytes; the operator can raise it");
            return Err(Error::BudgetSpent(limit).into());
        }
        // A server's reply may have what callers cannot read, which no history takes.
        let message = wire::object(text)
            .map_err(|what| Error::BudgetSpent(format!("the reply cannot be kept: its message is {what}")))?;
        kept.charge(message_bytes([text]), limits).map_err(|over| Error::BudgetSpent(over.0))?;
        kept.sample(sample)?.messages.push(message);
        Ok(())
    }
}

/// A failure in the words for its model.
pub(super) fn said(asked: ModelRole, failure: &ChatFailure) -> String {
    match (asked, failure) {
        (ModelRole::Policy, failure) => failure.to_string(),
        (ModelRole::Judge, ChatFailure::Refused { status, body }) => {
            format!("the judge's server answered {status}: {body}")
        }
        (ModelRole::Judge, ChatFailure::Unavailable { attempts, reason }) => {
            format!("the judge's server gave no completion in {attempts} attempts: {reason}")
        }
        (ModelRole::Judge, ChatFailure::Forbidden { reason }) => {
            format!("the judge's server may not be asked: {reason}")
        }
        (ModelRole::Judge, ChatFailure::Host { attempts, reason }) => {
            format!("the host could not ask the judge in {attempts} attempts: {reason}")
        }
    }
}

fn told(asked: ModelRole, why: NoAnswer) -> Error {
    match why {
        NoAnswer::NotKept(limit) => Error::BudgetSpent(limit),
        NoAnswer::Failed(ChatFailure::Refused { status, body }) => Error::Refused((status, body)),
        NoAnswer::Failed(ChatFailure::Unavailable { attempts, reason }) => {
            Error::Unavailable(format!("no completion in {attempts} attempts: {reason}"))
        }
        NoAnswer::Failed(failure @ (ChatFailure::Forbidden { .. } | ChatFailure::Host { .. })) => {
            Error::Unavailable(said(asked, &failure))
        }
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
        Err(ChatFailure::Forbidden { reason }) => span.failed("forbidden", reason),
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

impl RecordState {
    /// Lets a request through while less is used than a rollout may. Otherwise notes that
    /// the limit was hit and says so.
    pub(super) fn within(&mut self, limit: Limit, used: u64, max: u64, unit: &str) -> Result<(), String> {
        if used < max {
            return Ok(());
        }
        self.hits.add_asked(limit, usize::try_from(used).unwrap_or(usize::MAX).saturating_add(1));
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
            self.record.lock().hits.add_asked(Limit::ConcurrentCalls, asked);
        })
    }
}
