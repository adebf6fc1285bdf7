//! `chat`: the model, lent to a workflow.

use std::time::{Duration, SystemTime};

use tracing::Instrument;
use wasmtime::component::Resource;

use super::ask::{Asked, NoAnswer, Prepared, beside};
use super::bindings::rollout::plugin::chat::{self, Completion, Error, Request};
use super::bindings::rollout::plugin::types;
use super::calls::{Call, CallOutcome};
use super::clockwork::ANSWER;
use super::record::{Exchange, ExchangeOutcome, Kept};
use super::samples::OpenSample;
use super::{Imports, Role};
use crate::limits::Limits;
use crate::outbound::{ChatFailure, RoutingHeaders};
use crate::telemetry::Limit;
use crate::wire::openai;

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
        if let Err(what) = self.check_messages(&request.messages) {
            return Ok(Err(Error::InvalidRequest(what)));
        }
        // Charged before it is copied into a body.
        let parts = request.messages.iter().chain(&request.tools).chain(&request.params);
        let charged = parts.map(String::len).fold(0, usize::saturating_add);
        if let Err(spent) = self.record.lock().charge_chat(charged, &self.limits) {
            return Ok(Err(Error::BudgetSpent(spent)));
        }
        let (name, params, defaults) =
            (model.endpoint.model(), request.params.as_deref(), &self.run.chat_defaults);
        let allowed = model.client.allowed_params();
        let body = match model.endpoint.manner() {
            None => openai::request_body(name, &request.messages, &request.tools, params, defaults, allowed),
            Some(manner) => {
                manner.body.build(name, &request.messages, &request.tools, params, defaults, allowed)
            }
        };
        let body = match body {
            Ok(body) => body,
            Err(invalid) => {
                self.record.lock().release(charged);
                return Ok(Err(Error::InvalidRequest(invalid.to_string())));
            }
        };
        let mut kept = self.record.lock();
        if let Err(over) = kept.recharge(charged, body.len(), &self.limits) {
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
            access: model,
            body,
            record: self.record.clone(),
            limits: self.limits.clone(),
            place,
        }))
    }
}

impl Kept {
    /// Takes a request of this size out of the budgets, or says which is spent.
    fn charge_chat(&mut self, bytes: usize, limits: &Limits) -> Result<(), String> {
        let calls = self.exchanges.len() as u64;
        self.within(Limit::ChatCalls, calls, limits.chat_calls_max.into(), "calls")?;
        self.within(Limit::ChatTokens, self.chat_tokens, limits.chat_tokens_max, "tokens")?;
        self.charge(bytes, limits).map_err(|over| over.0)
    }
}

fn write_down(
    kept: &mut Kept,
    Asked { place, duration, retries, outcome, answer }: Asked,
) -> Result<openai::Completion, Error> {
    kept.model_failed = match &answer {
        Err(NoAnswer::Failed(failure)) => Some(failure.fault()),
        Ok(_) | Err(NoAnswer::NotKept(_)) => None,
    };
    kept.chat_retries = kept.chat_retries.saturating_add(retries.into());
    if let Ok(openai::Completion { usage: Some(usage), .. }) = &answer {
        kept.chat_tokens = kept.chat_tokens.saturating_add(usage.total());
    }
    if let Some(exchange) = kept.exchanges.get_mut(place) {
        exchange.duration = duration;
        exchange.outcome = outcome;
    }
    Ok(answer?)
}

impl From<openai::Completion> for Completion {
    fn from(completion: openai::Completion) -> Self {
        Self {
            message: completion.message().to_owned(),
            text: completion.text().into_owned(),
            tool_calls: completion.tool_calls().into_iter().map(Into::into).collect(),
            finish_reason: completion.finish_reason,
            usage: completion.usage.map(Into::into),
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

impl From<NoAnswer> for Error {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::NotKept(limit) => Self::BudgetSpent(limit),
            NoAnswer::Failed(ChatFailure::Refused { status, body }) => Self::Refused((status, body)),
            NoAnswer::Failed(ChatFailure::Unavailable { attempts, reason }) => {
                Self::Unavailable(format!("no completion in {attempts} attempts: {reason}"))
            }
            NoAnswer::Failed(failure @ ChatFailure::Host { .. }) => Self::Unavailable(failure.to_string()),
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
                let result = beside(prepared.send("chat", write_down)).await?;
                self.clock.pass(ANSWER);
                Ok(result.map(Into::into))
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
        if let Err(limit) = self.may_begin() {
            return Ok(Err(Error::BudgetSpent(limit)));
        }
        match self.prepare(&sample, &request)? {
            Ok(prepared) => {
                let task = async { CallOutcome::Chat(prepared.send("chat", write_down).await) };
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
                Ok(result.map(Into::into))
            }
            other => Err(other.not_of("chat")),
        }
    }
}
