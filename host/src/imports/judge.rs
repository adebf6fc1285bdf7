//! `judge`: a model that judges, lent to a grader.
//!
//! Its calls are kept apart from those of the model that is trained: they belong to no
//! sample, have budgets of their own, and never count as what a workflow did.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::judge::{self, Error, Reply, Request};
use super::calls::{Call, CallOutcome};
use super::clockwork::ANSWER;
use super::record::{ExchangeOutcome, JudgeExchange, JudgeFailure, Kept, Record};
use super::{Ended, Imports, ModelAccess, Role};
use crate::error::Fault;
use crate::limits::Limits;
use crate::outbound::{ChatFailure, RoutingHeaders};
use crate::telemetry::Limit;
use crate::wire::openai;

/// A request that was checked, counted and written down.
struct Prepared {
    judge: ModelAccess,
    routing: RoutingHeaders,
    body: Bytes,
    record: Arc<Record>,
    limits: Arc<Limits>,
    place: usize,
}

impl Imports {
    fn prepare_judging(&mut self, request: &Request) -> wasmtime::Result<Result<Prepared, Error>> {
        self.only(Role::Grader, "judge")?;
        let Some(judge) = self.judge.clone() else {
            let reason = "this host lends no judge; [judge] in its configuration, or --judge-url, does";
            self.record.lock().judge_failed(Fault::Host, reason.to_owned());
            return Ok(Err(Error::NotLent));
        };
        for (at, message) in request.messages.iter().enumerate() {
            if let Err(what) = self.check_message(message) {
                return Ok(Err(Error::InvalidRequest(format!("messages[{at}] is {what}"))));
            }
        }
        let params = request.params.as_deref();
        let body = match openai::request_body(
            judge.endpoint.model(),
            &request.messages,
            &[],
            params,
            &openai::Params::new(),
        ) {
            Ok(body) => body,
            Err(invalid) => return Ok(Err(Error::InvalidRequest(invalid.to_string()))),
        };
        let mut kept = self.record.lock();
        if let Err(spent) = within_budget(&mut kept, &self.limits) {
            return Ok(Err(Error::BudgetSpent(spent)));
        }
        if let Err(over) = kept.charge(body.len(), &self.limits) {
            return Ok(Err(Error::BudgetSpent(over.0)));
        }
        let place = kept.judged.len();
        kept.judged.push(JudgeExchange {
            request: body.clone(),
            started_at: SystemTime::now(),
            duration: Duration::ZERO,
            outcome: ExchangeOutcome::Abandoned,
        });
        drop(kept);
        Ok(Ok(Prepared {
            judge,
            routing: RoutingHeaders::of_rollout(&self.run.rollout_id),
            body,
            record: self.record.clone(),
            limits: self.limits.clone(),
            place,
        }))
    }
}

/// Says which budget is spent, if one is.
fn within_budget(kept: &mut Kept, limits: &Limits) -> Result<(), String> {
    if kept.judged.len() >= limits.judge_calls_max as usize {
        kept.fired.add(Limit::JudgeCalls);
        let max = limits.judge_calls_max;
        return Err(format!("judge-calls-max of {max} calls in one rollout; the operator can raise it"));
    }
    if kept.judge_tokens >= limits.judge_tokens_max {
        kept.fired.add(Limit::JudgeTokens);
        let max = limits.judge_tokens_max;
        return Err(format!("judge-tokens-max of {max} tokens in one rollout; the operator can raise it"));
    }
    Ok(())
}

impl Prepared {
    /// Sends it. The exchange is made where it is first polled, on a thread of the runtime.
    /// What spawns this is a guest's stack, where every copy of a large future would leave
    /// pages in use for as long as the guest waits.
    async fn send(self) -> Result<Reply, Error> {
        Box::pin(self.exchange()).await
    }

    async fn exchange(self) -> Result<Reply, Error> {
        let started = Instant::now();
        let result = self.judge.client.complete(&self.judge.endpoint, &self.routing, self.body).await;
        let mut kept = self.record.lock();
        let (outcome, result) = match result {
            Ok(reply) => match kept.charge(reply.body.len(), &self.limits) {
                Ok(()) => {
                    kept.judge_answered(self.place);
                    let usage = reply.completion.usage.unwrap_or_default();
                    let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
                    kept.judge_tokens = kept.judge_tokens.saturating_add(tokens);
                    let outcome = ExchangeOutcome::Replied {
                        body: reply.body,
                        finish_reason: reply.completion.finish_reason.clone(),
                        usage: reply.completion.usage,
                        attempts: reply.attempts,
                    };
                    (outcome, Ok(reply.completion.into()))
                }
                Err(over) => (ExchangeOutcome::Failed(over.0.clone()), Err(Error::BudgetSpent(over.0))),
            },
            Err(failure) => {
                let reason = said(&failure);
                kept.judge_failed(Fault::Model, reason.clone());
                (ExchangeOutcome::Failed(reason), Err(failure.into()))
            }
        };
        if let Some(exchange) = kept.judged.get_mut(self.place) {
            exchange.duration = started.elapsed();
            exchange.outcome = outcome;
        }
        result
    }
}

fn said(failure: &ChatFailure) -> String {
    match failure {
        ChatFailure::Refused { status, body } => format!("the judge's server answered {status}: {body}"),
        ChatFailure::Unavailable { attempts, reason } => {
            format!("the judge's server gave no completion in {attempts} attempts: {reason}")
        }
    }
}

impl Kept {
    /// The judge is the reason if the grader gives up now.
    fn judge_failed(&mut self, fault: Fault, reason: String) {
        self.judge_failure = Some((JudgeFailure { fault, reason }, self.judged.len()));
    }

    /// A call that was made after a failure and answered: the failure was got over. One
    /// that was under way beside it proves nothing.
    fn judge_answered(&mut self, place: usize) {
        if self.judge_failure.as_ref().is_some_and(|(_, calls_then)| place >= *calls_then) {
            self.judge_failure = None;
        }
    }
}

impl From<openai::Completion> for Reply {
    fn from(completion: openai::Completion) -> Self {
        let openai::Completion { message, text, tool_calls: _, finish_reason, usage } = completion;
        Self { message: Box::<str>::from(message).into(), text, finish_reason, usage: usage.map(Into::into) }
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

impl judge::Host for Imports {
    async fn complete(&mut self, request: Request) -> wasmtime::Result<Result<Reply, Error>> {
        self.called()?;
        match self.prepare_judging(&request)? {
            Ok(prepared) => {
                drop(request);
                // On a task of its own, for the guest's stack, as in `chat`.
                let result = AbortOnDropHandle::new(tokio::spawn(prepared.send().in_current_span())).await?;
                self.clock.pass(ANSWER);
                Ok(result)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn start(&mut self, request: Request) -> wasmtime::Result<Result<Resource<Call>, Error>> {
        self.called()?;
        if self.calls_under_way >= self.limits.concurrent_calls_max {
            self.record.limit_fired(Limit::ConcurrentCalls);
            let max = self.limits.concurrent_calls_max;
            return Ok(Err(Error::BudgetSpent(format!(
                "concurrent-calls-max of {max} calls under way at once; finish some first, or the operator can raise it"
            ))));
        }
        match self.prepare_judging(&request)? {
            Ok(prepared) => {
                let task = async { CallOutcome::Judge(prepared.send().await) };
                let task = tokio::spawn(task.in_current_span());
                Ok(Ok(self.lend(Call::under_way(task))?))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<Result<Reply, Error>> {
        self.called()?;
        let other = match self.take_back(call)?.outcome().await? {
            CallOutcome::Judge(result) => {
                self.clock.pass(ANSWER);
                return Ok(result);
            }
            CallOutcome::Chat(_) => "chat",
            CallOutcome::Tool(_) => "tools",
        };
        Err(wasmtime::Error::new(Ended::WrongCall("judge", other)))
    }
}
