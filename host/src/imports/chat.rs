//! `chat`: the model, lent to a workflow.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::chat::{self, Completion, Error, Request};
use super::bindings::rollout::plugin::types;
use super::calls::{Call, CallOutcome};
use super::clockwork::ANSWER;
use super::record::{Exchange, ExchangeOutcome, Record};
use super::samples::OpenSample;
use super::{Ended, Imports, ModelAccess, Role};
use crate::limits::Limits;
use crate::outbound::{ChatFailure, ChatReply, RoutingHeaders};
use crate::telemetry::{Limit, Span};
use crate::wire::openai;

/// A request that was checked, counted and written down; sending it is all that is left.
struct Prepared {
    model: ModelAccess,
    routing: RoutingHeaders,
    body: Bytes,
    record: Arc<Record>,
    limits: Arc<Limits>,
    place: usize,
}

impl Imports {
    fn prepare(
        &mut self,
        sample: &Resource<OpenSample>,
        request: &Request,
    ) -> wasmtime::Result<Result<Prepared, Error>> {
        self.only(Role::Workflow, "chat")?;
        let sample_id = self.table.get(sample)?.id.clone();
        // A workflow always has a model: its imports are made with one.
        let Some(model) = self.model.clone() else {
            return Ok(Err(Error::Unavailable("this rollout has no model".to_owned())));
        };
        for (at, message) in request.messages.iter().enumerate() {
            if let Err(what) = self.check_message(message) {
                return Ok(Err(Error::InvalidRequest(format!("messages[{at}] is {what}"))));
            }
        }
        let (name, params, defaults) =
            (model.endpoint.model(), request.params.as_deref(), &self.run.chat_defaults);
        let body = match model.endpoint.manner() {
            None => openai::request_body(name, &request.messages, &request.tools, params, defaults),
            Some(manner) => manner.body.build(name, &request.messages, &request.tools, params, defaults),
        };
        let body = match body {
            Ok(body) => body,
            Err(invalid) => return Ok(Err(Error::InvalidRequest(invalid.to_string()))),
        };
        let mut kept = self.record.lock();
        if kept.exchanges.len() >= self.limits.chat_calls_max as usize {
            let asked = kept.exchanges.len() + 1;
            kept.fired.add_asked(Limit::ChatCalls, asked);
            let max = self.limits.chat_calls_max;
            return Ok(Err(Error::BudgetSpent(format!(
                "chat-calls-max of {max} calls in one rollout; the operator can raise it"
            ))));
        }
        if kept.chat_tokens >= self.limits.chat_tokens_max {
            kept.fired.add(Limit::ChatTokens);
            let max = self.limits.chat_tokens_max;
            return Ok(Err(Error::BudgetSpent(format!(
                "chat-tokens-max of {max} tokens in one rollout; the operator can raise it"
            ))));
        }
        if let Err(over) = kept.charge(body.len(), &self.limits) {
            return Ok(Err(Error::BudgetSpent(over.0)));
        }
        let place = kept.exchanges.len();
        kept.exchanges.push(Exchange {
            sample: sample_id.clone(),
            request: body.clone(),
            started_at: SystemTime::now(),
            duration: Duration::ZERO,
            outcome: ExchangeOutcome::Abandoned,
        });
        drop(kept);
        Ok(Ok(Prepared {
            routing: RoutingHeaders::new(&self.run.rollout_id, &sample_id),
            model,
            body,
            record: self.record.clone(),
            limits: self.limits.clone(),
            place,
        }))
    }
}

impl Prepared {
    /// Sends it. The exchange is made where it is first polled, on a thread of the runtime.
    /// What spawns this is a guest's stack, where every copy of a large future would leave
    /// pages in use for as long as the guest waits.
    async fn send(self) -> Result<Completion, Error> {
        Box::pin(self.exchange()).await
    }

    async fn exchange(self) -> Result<Completion, Error> {
        let started = Instant::now();
        let mut span = self.record.trace().request("chat");
        span.set("gen_ai.operation.name", "chat");
        span.set("gen_ai.request.model", self.model.endpoint.model().to_owned());
        let result = self.model.client.complete(&self.model.endpoint, &self.routing, self.body).await;
        describe(&mut span, &result);
        drop(span);
        let mut kept = self.record.lock();
        let (outcome, result, failed) = match result {
            Ok(reply) => match kept.charge(reply.body.len(), &self.limits) {
                Ok(()) => {
                    let outcome = ExchangeOutcome::Replied {
                        body: reply.body,
                        finish_reason: reply.completion.finish_reason.clone(),
                        usage: reply.completion.usage,
                        attempts: reply.attempts,
                    };
                    (outcome, Ok(reply.completion.into()), None)
                }
                Err(over) => (ExchangeOutcome::Failed(over.0.clone()), Err(Error::BudgetSpent(over.0)), None),
            },
            Err(failure) => {
                let text = failure.to_string();
                (ExchangeOutcome::Failed(text.clone()), Err(failure.into()), Some(text))
            }
        };
        kept.model_failed = failed;
        if let ExchangeOutcome::Replied { usage: Some(usage), .. } = &outcome {
            let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
            kept.chat_tokens = kept.chat_tokens.saturating_add(tokens);
        }
        if let Some(exchange) = kept.exchanges.get_mut(self.place) {
            exchange.duration = started.elapsed();
            exchange.outcome = outcome;
        }
        result
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
    }
}

impl From<openai::Completion> for Completion {
    fn from(completion: openai::Completion) -> Self {
        let openai::Completion { message, text, tool_calls, finish_reason, usage } = completion;
        Self {
            message: Box::<str>::from(message).into(),
            text,
            tool_calls: tool_calls.into_iter().map(Into::into).collect(),
            finish_reason,
            usage: usage.map(Into::into),
        }
    }
}

impl From<openai::ToolCall> for types::ToolCall {
    fn from(openai::ToolCall { id, name, arguments }: openai::ToolCall) -> Self {
        Self { id, name, arguments }
    }
}

impl From<openai::Usage> for types::Usage {
    fn from(openai::Usage { prompt_tokens, completion_tokens }: openai::Usage) -> Self {
        Self { prompt_tokens, completion_tokens }
    }
}

impl From<ChatFailure> for Error {
    fn from(failure: ChatFailure) -> Self {
        match failure {
            ChatFailure::Refused { status, body } => Self::Refused((status, body)),
            ChatFailure::Unavailable { attempts, reason } => {
                Self::Unavailable(format!("no completion in {attempts} attempts: {reason}"))
            }
        }
    }
}

impl chat::Host for Imports {
    async fn complete(
        &mut self,
        sample: Resource<OpenSample>,
        request: Request,
    ) -> wasmtime::Result<Result<Completion, Error>> {
        self.called()?;
        match self.prepare(&sample, &request)? {
            Ok(prepared) => {
                // The guest waits; what it sent is in the prepared body now.
                drop(request);
                // On a task of its own, because what is awaited here is polled on the
                // guest's stack, where an HTTP exchange would leave 30 KiB in use for
                // as long as the guest waits. Dropped, the task ends.
                let result = AbortOnDropHandle::new(tokio::spawn(prepared.send().in_current_span())).await?;
                self.clock.pass(ANSWER);
                Ok(result)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn start(
        &mut self,
        sample: Resource<OpenSample>,
        request: Request,
    ) -> wasmtime::Result<Result<Resource<Call>, Error>> {
        self.called()?;
        if self.calls_under_way >= self.limits.concurrent_calls_max {
            let asked = self.calls_under_way as usize + 1;
            self.record.lock().fired.add_asked(Limit::ConcurrentCalls, asked);
            let max = self.limits.concurrent_calls_max;
            return Ok(Err(Error::BudgetSpent(format!(
                "concurrent-calls-max of {max} calls under way at once; finish some first, or the operator can raise it"
            ))));
        }
        match self.prepare(&sample, &request)? {
            Ok(prepared) => {
                let task = async { CallOutcome::Chat(prepared.send().await) };
                // The task's log lines are the rollout's, as the guest's own calls are.
                let task = tokio::spawn(task.in_current_span());
                Ok(Ok(self.lend(Call::under_way(task))?))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<Result<Completion, Error>> {
        self.called()?;
        match self.take_back(call)?.outcome().await? {
            CallOutcome::Chat(result) => {
                self.clock.pass(ANSWER);
                Ok(result)
            }
            CallOutcome::Tool(_) => Err(wasmtime::Error::new(Ended::WrongCall("chat", "tools"))),
            CallOutcome::Judge(_) => Err(wasmtime::Error::new(Ended::WrongCall("chat", "judge"))),
        }
    }
}
