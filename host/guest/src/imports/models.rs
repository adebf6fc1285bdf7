//! `models`: the policy, for a workflow, and a judge, for a grader.
//!
//! Calls of a judge are recorded separately: they belong to no sample, have budgets of their own, and never
//! count as a workflow's calls.

use std::time::SystemTime;

use bytes::Bytes;
use wasmtime::component::Resource;

use super::Imports;
use super::ask::{Prepared, contract_error, not_its_answer};
use super::bindings::rollout::plugin::models::{self, Completion, Conversation, Error, Request};
use super::bindings::rollout::plugin::samples::RecordError;
use super::bindings::rollout::plugin::types;
use super::boundary::{Begun, Taker};
use super::calls::Call;
use super::gate::{Import, ModelCallError};
use super::outside::{ModelFacts, Outside};
use super::record::RecordState;
use super::samples::OpenSample;
use super::virtual_clock::ANSWER;
use rollout_core::error::Fault;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Limit, ModelRole};
use rollout_outbound::RoutingHeaders;
use rollout_transcript::{CallResult, EXCHANGE_BYTES, Exchange, Owner, Sent, text_bytes};
use rollout_wire::openai::{self, BodyTemplate, InvalidRequest};

impl From<InvalidRequest> for ModelCallError {
    fn from(invalid: InvalidRequest) -> Self {
        invalid_request(invalid.to_string())
    }
}

fn invalid_request(what: impl Into<String>) -> ModelCallError {
    Error::InvalidRequest(what.into()).into()
}

/// The model, sample and owner of a request.
struct Question<'a> {
    asked: ModelRole,
    sample: Option<&'a Resource<OpenSample>>,
    owner: Owner,
    facts: ModelFacts<'a>,
}

impl Imports {
    /// Starts a call; returns its number.
    fn begin_call(
        &mut self,
        role: models::Role,
        sample: Option<&Resource<OpenSample>>,
        request: Request,
    ) -> Result<u32, ModelCallError> {
        let outside = self.outside.clone();
        let question = self.question(&*outside, role, sample)?;
        let Question { asked, owner, .. } = question;
        if asked == ModelRole::Judge {
            check_judge_request(&request)?;
        }
        let Request { conversation, tools, params, keep_reply } = request;
        let (Conversation::History(texts) | Conversation::Messages(texts)) = &conversation;
        self.check_messages(texts).map_err(invalid_request)?;
        let (template, template_bytes) = self.template(&question, &tools, params.as_deref())?;
        let sent = match conversation {
            Conversation::History(new) => self.send_history(&question, new, template_bytes)?,
            Conversation::Messages(all) => self.send_messages(&question, all, template_bytes)?,
        };
        let sample_id = question.sample.map(|sample| self.table.get(sample)).transpose()?;
        let sample_id = sample_id.map(|open| open.id.clone());
        let routing = match &sample_id {
            Some(sample_id) => RoutingHeaders::new(&self.run.rollout_id, sample_id),
            None => RoutingHeaders::for_rollout(&self.run.rollout_id),
        };
        #[expect(clippy::disallowed_methods, reason = "a time that is written, and not measured by")]
        let exchange = Exchange::new(sample_id, sent, template, SystemTime::now());
        let place = self.record.lock().transcript.calls_mut(asked).add(exchange);
        let keep_for = match owner {
            Owner::Sample(sample) if keep_reply => Some(sample),
            Owner::Sample(_) | Owner::Judge => None,
        };
        let Begun { call, is_live, .. } = self.start_model_call(asked, place, keep_for)?;
        if is_live {
            let prepared = Prepared { asked, outside, routing, record: self.record.clone(), place };
            let holder = self.record.holder().cloned();
            self.boundary.spawn_request(call, holder, prepared.send(), Prepared::failed);
        }
        Ok(call)
    }

    /// Passes the request at this index of the record to the boundary.
    fn start_model_call(
        &self,
        asked: ModelRole,
        place: usize,
        keep_for: Option<usize>,
    ) -> Result<Begun, ModelCallError> {
        let mut kept = self.record.lock();
        let transcript = &mut kept.transcript;
        let what = match self.boundary.is_recorded() {
            true => transcript.calls(asked).among(&transcript.samples).stored(asked, place),
            false => Bytes::new(),
        };
        let exchange = transcript.calls(asked).exchanges().get(place);
        let time = exchange.map_or(SystemTime::UNIX_EPOCH, |exchange| exchange.started_at);
        match self.boundary.start_call(Taker::Model { keep_for }, time, what) {
            Ok(begun) => {
                transcript.number_model_call(asked, place, begun.call, begun.time);
                Ok(begun)
            }
            Err(ended) => {
                // The guest made another call in an earlier process, and this one is not sent.
                transcript.calls_mut(asked).truncate(place);
                Err(ended.into())
            }
        }
    }

    /// Finds the requested model and checks that the arguments fit it.
    fn question<'a>(
        &mut self,
        outside: &'a dyn Outside,
        role: models::Role,
        sample: Option<&'a Resource<OpenSample>>,
    ) -> Result<Question<'a>, ModelCallError> {
        let asked = match role {
            models::Role::Policy => ModelRole::Policy,
            models::Role::Judge => ModelRole::Judge,
        };
        let owner = match (asked, sample) {
            (ModelRole::Policy, Some(sample)) => Owner::Sample(self.table.get(sample)?.place),
            (ModelRole::Judge, None) => Owner::Judge,
            (ModelRole::Policy, None) => {
                return Err(invalid_request("the policy is asked for a sample; give one"));
            }
            (ModelRole::Judge, Some(_)) => {
                return Err(invalid_request("a judge is asked for no sample; give none"));
            }
        };
        let Some(facts) = outside.model(asked) else {
            let reason = match asked {
                ModelRole::Policy => "this rollout has no model",
                ModelRole::Judge => {
                    "this host provides no judge; [judge] in its configuration, or --judge-url, does"
                }
            };
            if asked == ModelRole::Judge {
                self.record.lock().judge_failed(Fault::Host, reason.to_owned());
            }
            return Err(Error::NotProvided(reason.to_owned()).into());
        };
        Ok(Question { asked, sample, owner, facts })
    }

    /// Returns the request without its messages, and its cost to the record: 0 if it equals the previous one.
    /// The input is charged before the request is created.
    fn template(
        &self,
        question: &Question<'_>,
        tools: &[String],
        params: Option<&str>,
    ) -> Result<(BodyTemplate, usize), ModelCallError> {
        let ModelFacts { name, allowed, body } = question.facts;
        let none = openai::CallerParams::default();
        let caller = match question.asked {
            ModelRole::Policy => &self.run.caller_params,
            ModelRole::Judge => &none,
        };
        let given = tools.iter().map(String::len).chain(params.map(str::len)).fold(0, usize::saturating_add);
        self.record.lock().charge(given, &self.limits).map_err(|over| Error::BudgetSpent(over.0))?;
        let template = match body {
            None => openai::request_template(name, tools, params, caller, allowed),
            Some(body) => body.template(name, tools, params, caller, allowed),
        };
        let mut kept = self.record.lock();
        kept.release(given);
        Ok(kept.transcript.calls(question.asked).share(template?))
    }

    /// Adds the new messages to the sample's history and sends the history.
    fn send_history(
        &mut self,
        question: &Question<'_>,
        new: Vec<String>,
        template_bytes: usize,
    ) -> Result<Sent, ModelCallError> {
        let (Some(sample), Owner::Sample(place)) = (question.sample, question.owner) else {
            return Err(invalid_request("a judge has no history; give messages"));
        };
        if !new.is_empty() {
            let kept = self.keep(sample, new, false);
            kept.map_err(|refused| {
                refused.map(|error| match error {
                    RecordError::Invalid(what) => Error::InvalidRequest(what),
                    RecordError::OverLimit(what) => Error::BudgetSpent(what),
                })
            })?;
        }
        let mut kept = self.record.lock();
        let history = &kept.sample(place)?.messages;
        let (count, text_bytes) = (history.len(), history.text_bytes());
        if count == 0 {
            return Err(InvalidRequest::NoMessages.into());
        }
        let cost = Cost { kept: EXCHANGE_BYTES + template_bytes, sent: text_bytes + count };
        kept.charge_call(question.asked, &cost, &self.limits)?;
        Ok(kept.transcript.policy.send_history(place, count))
    }

    /// Sends a guest's list of messages. Its common beginning with stored messages is neither stored nor
    /// checked again.
    fn send_messages(
        &mut self,
        question: &Question<'_>,
        all: Vec<String>,
        template_bytes: usize,
    ) -> Result<Sent, ModelCallError> {
        let Question { asked, owner, .. } = *question;
        if all.is_empty() {
            return Err(InvalidRequest::NoMessages.into());
        }
        let mut kept = self.record.lock();
        if let Owner::Sample(place) = owner {
            kept.sample(place)?;
        }
        let beginning = kept.transcript.calls(asked).begin(&kept.transcript.samples, owner, &all);
        let from = beginning.count();
        let charged = text_bytes(&all[from..]) + EXCHANGE_BYTES + template_bytes;
        let sent = all.iter().map(|text| text.len() + 1).sum();
        kept.charge_call(asked, &Cost { kept: charged, sent }, &self.limits)?;
        drop(kept);
        let bytes = all[from..].iter().map(String::len).sum();
        let checked = Self::checked(all.into_iter().skip(from), from, bytes);
        let mut kept = self.record.lock();
        match checked {
            Ok(new) => {
                kept.release(bytes - new.text_bytes());
                Ok(kept.transcript.calls_mut(asked).send_list(owner, beginning, new))
            }
            Err(what) => {
                kept.release(charged);
                Err(invalid_request(what))
            }
        }
    }

    /// Waits for the result of a call. A reply that belongs in a history is added to it now, so that replies
    /// are in the order in which the guest receives them.
    async fn finish_call(&mut self, call: u32) -> Result<Completion, ModelCallError> {
        let taken = self.result(call).await?;
        let Taker::Model { keep_for } = taken.taker else { return Err(taken.not_of("models").into()) };
        let result = match taken.result {
            CallResult::Model(result) => result,
            CallResult::Tool(_) => Err(not_its_answer()),
        };
        self.clock.pass(ANSWER);
        let run = self.boundary.run();
        let completion = result.map_err(|failure| contract_error(run.model(), failure))?.completion;
        if let Some(sample) = keep_for {
            let ended = self.record.keep_reply(sample, run, call, &completion, &self.limits)?;
            self.boundary.keep_end(&ended);
        }
        Ok(completion.into())
    }
}

/// Cost of a request in bytes.
struct Cost {
    /// Bytes that the record stores.
    kept: usize,
    /// Bytes that are sent, without the template.
    sent: usize,
}

/// Checks that a request to a judge has no history, no tools and no reply to store.
fn check_judge_request(request: &Request) -> Result<(), ModelCallError> {
    match request {
        Request { conversation: Conversation::History(_), .. } => {
            Err(invalid_request("a judge has no history; give messages"))
        }
        Request { keep_reply: true, .. } => Err(invalid_request("a judge's reply belongs to no history")),
        Request { tools, .. } if !tools.is_empty() => Err(invalid_request("a judge takes no tools")),
        _ => Ok(()),
    }
}

impl RecordState {
    /// Charges a request to the budgets. The error names an exhausted one.
    fn charge_call(&mut self, asked: ModelRole, cost: &Cost, limits: &Limits) -> Result<(), ModelCallError> {
        let calls = self.transcript.calls(asked).exchanges().len() as u64;
        let within = match asked {
            ModelRole::Policy => {
                self.within(Limit::ChatCalls, calls, limits.chat_calls_max.into(), "calls").and_then(|()| {
                    self.within(Limit::ChatTokens, self.chat_tokens, limits.chat_tokens_max, "tokens")
                })
            }
            ModelRole::Judge => {
                self.within(Limit::JudgeCalls, calls, limits.judge_calls_max.into(), "calls").and_then(|()| {
                    self.within(Limit::JudgeTokens, self.judge_tokens, limits.judge_tokens_max, "tokens")
                })
            }
        };
        within.map_err(Error::BudgetSpent)?;
        let sent = self.sent_bytes.saturating_add(cost.sent as u64);
        if sent > limits.chat_bytes_max {
            self.hits.add_requested(Limit::ChatBytes, usize::try_from(sent).unwrap_or(usize::MAX));
            return Err(Error::BudgetSpent(format!(
                "chat-bytes-max of {} bytes sent in one rollout: {} more would make {sent}; the operator can raise it",
                limits.chat_bytes_max, cost.sent
            ))
            .into());
        }
        self.charge(cost.kept, limits).map_err(|over| Error::BudgetSpent(over.0))?;
        self.sent_bytes = sent;
        Ok(())
    }
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

impl From<openai::TokenUsage> for types::Usage {
    fn from(openai::TokenUsage { prompt_tokens, completion_tokens }: openai::TokenUsage) -> Self {
        Self { prompt_tokens, completion_tokens }
    }
}

impl models::Host for Imports {
    fn convert_error(&mut self, refused: ModelCallError) -> wasmtime::Result<Error> {
        refused.for_guest()
    }

    async fn complete(
        &mut self,
        role: models::Role,
        sample: Option<Resource<OpenSample>>,
        request: Request,
    ) -> Result<Completion, ModelCallError> {
        self.enter(import_of(role))?;
        let call = self.begin_call(role, sample.as_ref(), request)?;
        self.finish_call(call).await
    }

    fn start(
        &mut self,
        role: models::Role,
        sample: Option<Resource<OpenSample>>,
        request: Request,
    ) -> Result<Resource<Call>, ModelCallError> {
        self.enter(import_of(role))?;
        self.may_begin().map_err(Error::BudgetSpent)?;
        let call = self.begin_call(role, sample.as_ref(), request)?;
        Ok(self.hand_over(call)?)
    }

    async fn finish(&mut self, call: Resource<Call>) -> Result<Completion, ModelCallError> {
        self.enter(Import::MODEL_FINISH)?;
        let call = self.take_back(call)?;
        self.finish_call(call).await
    }
}

/// Returns the import that gives access to a model of this role.
fn import_of(role: models::Role) -> Import {
    match role {
        models::Role::Policy => Import::ASK_POLICY,
        models::Role::Judge => Import::ASK_JUDGE,
    }
}
