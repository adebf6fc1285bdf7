//! `judge`: a model that judges, lent to a grader.
//!
//! Its calls are kept apart from those of the model that is trained: they belong to no
//! sample, have budgets of their own, and never count as what a workflow did.

use std::time::{Duration, SystemTime};

use tracing::Instrument;
use wasmtime::component::Resource;

use super::ask::{Asked, NoAnswer, Prepared, beside};
use super::bindings::rollout::plugin::judge::{self, Error, Reply, Request};
use super::calls::{Call, CallOutcome};
use super::clockwork::ANSWER;
use super::record::{ExchangeOutcome, JudgeExchange, JudgeFailure, Kept};
use super::{Imports, Role};
use crate::error::Fault;
use crate::limits::Limits;
use crate::outbound::{ChatFailure, RoutingHeaders};
use crate::telemetry::Limit;
use crate::wire::openai;

impl Imports {
    fn prepare_judging(&mut self, request: &Request) -> wasmtime::Result<Result<Prepared, Error>> {
        self.only(Role::Grader, "judge")?;
        let Some(judge) = self.judge.clone() else {
            let reason = "this host lends no judge; [judge] in its configuration, or --judge-url, does";
            self.record.lock().judge_failed(Fault::Host, reason.to_owned());
            return Ok(Err(Error::NotLent));
        };
        if let Err(what) = self.check_messages(&request.messages) {
            return Ok(Err(Error::InvalidRequest(what)));
        }
        // Charged before it is copied into a body.
        let parts = request.messages.iter().chain(&request.params);
        let charged = parts.map(String::len).fold(0, usize::saturating_add);
        if let Err(spent) = self.record.lock().charge_judging(charged, &self.limits) {
            return Ok(Err(Error::BudgetSpent(spent)));
        }
        let params = request.params.as_deref();
        let body = match openai::request_body(
            judge.endpoint.model(),
            &request.messages,
            &[],
            params,
            &openai::Params::new(),
            judge.client.allowed_params(),
        ) {
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
        let place = kept.judged.len();
        kept.judged.push(JudgeExchange {
            request: body.clone(),
            started_at: SystemTime::now(),
            duration: Duration::ZERO,
            outcome: ExchangeOutcome::Abandoned,
        });
        drop(kept);
        Ok(Ok(Prepared {
            access: judge,
            routing: RoutingHeaders::of_rollout(&self.run.rollout_id),
            body,
            record: self.record.clone(),
            limits: self.limits.clone(),
            place,
        }))
    }
}

fn write_down(
    kept: &mut Kept,
    Asked { place, duration, retries: _, mut outcome, answer }: Asked,
) -> Result<openai::Completion, Error> {
    match &answer {
        Ok(completion) => {
            kept.judge_answered(place);
            let tokens = completion.usage.unwrap_or_default().total();
            kept.judge_tokens = kept.judge_tokens.saturating_add(tokens);
        }
        Err(NoAnswer::Failed(failure)) => {
            let reason = said(failure);
            outcome = ExchangeOutcome::Failed(reason.clone());
            kept.judge_failed(failure.fault(), reason);
        }
        Err(NoAnswer::NotKept(_)) => {}
    }
    if let Some(exchange) = kept.judged.get_mut(place) {
        exchange.duration = duration;
        exchange.outcome = outcome;
    }
    Ok(answer?)
}

fn said(failure: &ChatFailure) -> String {
    match failure {
        ChatFailure::Refused { status, body } => format!("the judge's server answered {status}: {body}"),
        ChatFailure::Unavailable { attempts, reason } => {
            format!("the judge's server gave no completion in {attempts} attempts: {reason}")
        }
        ChatFailure::Host { attempts, reason } => {
            format!("the host could not ask the judge in {attempts} attempts: {reason}")
        }
    }
}

impl Kept {
    /// Takes a request of this size out of the budgets, or says which is spent.
    fn charge_judging(&mut self, bytes: usize, limits: &Limits) -> Result<(), String> {
        let calls = self.judged.len() as u64;
        self.within(Limit::JudgeCalls, calls, limits.judge_calls_max.into(), "calls")?;
        self.within(Limit::JudgeTokens, self.judge_tokens, limits.judge_tokens_max, "tokens")?;
        self.charge(bytes, limits).map_err(|over| over.0)
    }

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
        Self {
            message: completion.message().to_owned(),
            text: completion.text().into_owned(),
            finish_reason: completion.finish_reason,
            usage: completion.usage.map(Into::into),
        }
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
            NoAnswer::Failed(failure @ ChatFailure::Host { .. }) => Self::Unavailable(said(&failure)),
        }
    }
}

impl judge::Host for Imports {
    async fn complete(&mut self, request: Request) -> wasmtime::Result<Result<Reply, Error>> {
        self.called()?;
        match self.prepare_judging(&request)? {
            Ok(prepared) => {
                drop(request);
                let result = beside(prepared.send("judge", write_down)).await?;
                self.clock.pass(ANSWER);
                Ok(result.map(Into::into))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn start(&mut self, request: Request) -> wasmtime::Result<Result<Resource<Call>, Error>> {
        self.called()?;
        if let Err(limit) = self.may_begin() {
            return Ok(Err(Error::BudgetSpent(limit)));
        }
        match self.prepare_judging(&request)? {
            Ok(prepared) => {
                let task = async { CallOutcome::Judge(prepared.send("judge", write_down).await) };
                let task = tokio::spawn(task.in_current_span());
                Ok(Ok(self.lend(Call::under_way(task))?))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<Result<Reply, Error>> {
        self.called()?;
        match self.take_back(call)?.outcome().await? {
            CallOutcome::Judge(result) => {
                self.clock.pass(ANSWER);
                Ok(result.map(Into::into))
            }
            other => Err(other.not_of("judge")),
        }
    }
}
