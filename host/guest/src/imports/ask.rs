//! Requests to a model's server on behalf of a guest, and the transcript's entries for their results.

use std::sync::Arc;

use super::Imports;
use super::bindings::rollout::plugin::models::Error;
use super::gate::ModelCallError;
use super::outside::{ModelQuestion, Outside};
use super::record::{JudgeFailure, Record, RecordState};
use rollout_core::budget::{Charge, Use};
use rollout_core::error::Fault;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Label, Limit, ModelRole, Span};
use rollout_outbound::{RequestBody, RoutingHeaders};
use rollout_transcript::{CallResult, ChatFailure, ChatReply, End, Event, Run, ToolAnswer, message_bytes};
use rollout_wire::openai::Completion;

/// A checked, counted and recorded request that is ready to be sent.
pub(super) struct Prepared {
    pub asked: ModelRole,
    pub outside: Arc<dyn Outside>,
    pub routing: RoutingHeaders,
    pub record: Arc<Record>,
    /// Index of the call's exchange in the record.
    pub place: usize,
}

/// A request body that is assembled from the record.
struct Recorded<'a> {
    record: &'a Record,
    asked: ModelRole,
    place: usize,
}

impl RequestBody for Recorded<'_> {
    fn make(&self, head: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<(Vec<u8>, Option<Charge>), String> {
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        let kept = self.record.lock();
        let calls = kept.transcript.calls(self.asked);
        let exchange = calls.exchanges().get(self.place).ok_or("the rollout is over")?;
        let body = calls.among(&kept.transcript.samples).unassembled(exchange);
        if let Some(charge) = &mut charge {
            charge.grow(body.bytes()).map_err(|over| over.to_string())?;
        }
        let mut request = head(body.bytes());
        body.add_to(&mut request);
        Ok((request, charge))
    }
}

impl Prepared {
    /// Sends the request. The future of the exchange is created when it is first polled, on a thread of the
    /// runtime. The caller runs on a guest's stack, where every copy of a large future would keep pages in
    /// use while the guest waits.
    pub(super) async fn send(self) -> CallResult {
        CallResult::Model(Box::pin(self.exchange()).await)
    }

    /// Returns the result of a call in which the host panicked.
    pub(super) fn failed() -> CallResult {
        let reason = "the host panicked in the call".to_owned();
        CallResult::Model(Err(ChatFailure::Host { attempts: 1, reason }))
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
    /// Adds an answer to the transcript. Returns the guest's result, and the event of the call's end, if it
    /// ends now: a call whose reply goes into a history ends when the guest takes the reply.
    pub(super) fn keep_answer(
        &self,
        run: Run,
        answered: Event,
        is_for_history: bool,
        limits: &Limits,
    ) -> (CallResult, Option<Event>) {
        let mut kept = self.lock();
        let is_known = kept.transcript.apply(run, &answered).is_ok();
        let Event::Answered { call, mut result, .. } = answered else {
            return (CallResult::Tool(ToolAnswer::abandoned()), None);
        };
        if !is_known {
            // The rollout is over, or its recorded past has an answer to a call that the guest did not make.
            return (result, None);
        }
        let retries = result.retries();
        let mut end = kept.charge_result(&mut result, limits);
        if let CallResult::Model(result) = &result {
            kept.note(run, call, result, retries);
        }
        if end.is_none() && !(is_for_history && matches!(result, CallResult::Model(Ok(_)))) {
            end = Some(End::Kept { reply_at: None });
        }
        let ended = end.map(|end| Event::Ended { call, end });
        if let Some(ended) = &ended {
            // The call is known.
            let _ = kept.transcript.apply(run, ended);
        }
        (result, ended)
    }

    /// Ends the calls of a run that have no end; returns the events of their ends.
    pub(super) fn close_calls(&self, run: Run) -> Vec<Event> {
        let mut kept = self.read();
        let ends = kept.transcript.open_ends(run);
        for ended in &ends {
            // Each event belongs to a call in the transcript.
            let _ = kept.transcript.apply(run, ended);
        }
        ends
    }
}

impl RecordState {
    /// Charges a result. If the record has no room, the guest gets an error instead, and the call ends with
    /// it.
    fn charge_result(&mut self, result: &mut CallResult, limits: &Limits) -> Option<End> {
        match result {
            CallResult::Model(Ok(reply)) => {
                let over = self.charge(reply.completion.body().len(), limits).err()?;
                *result = CallResult::Model(Err(ChatFailure::OverLimit { reason: over.0.clone() }));
                Some(End::OverLimit { reason: over.0 })
            }
            CallResult::Model(Err(_)) => None,
            CallResult::Tool(answer) => self.charge_tool(answer, limits),
        }
    }

    /// Counts the limit that a tool call reached, and charges its result.
    pub(super) fn charge_tool(&mut self, answer: &mut ToolAnswer, limits: &Limits) -> Option<End> {
        if let Some(limit) = answer.limit {
            self.hits.add(limit);
        }
        let over = self.charge(answer.content.len(), limits).err()?;
        let reason = format!("its result is not kept: {}", over.0);
        *answer = ToolAnswer::over_limit(Limit::RecordBytes, &reason);
        Some(End::OverLimit { reason })
    }

    /// Records the effect of a model's result on the budgets and on the fault if the guest fails.
    fn note(&mut self, run: Run, call: u32, result: &Result<ChatReply, ChatFailure>, retries: u32) {
        match run.model() {
            ModelRole::Policy => self.note_policy(result, retries),
            ModelRole::Judge => {
                let place = self.transcript.model_call(run, call).unwrap_or_default();
                self.note_judge(result, place);
            }
        }
    }

    fn note_policy(&mut self, result: &Result<ChatReply, ChatFailure>, retries: u32) {
        self.chat_retries = self.chat_retries.saturating_add(retries.into());
        self.model_failed = result.as_ref().err().and_then(|failure| failure.fault(ModelRole::Policy));
        if let Ok(ChatReply { completion: Completion { usage: Some(usage), .. }, .. }) = result {
            self.chat_tokens = self.chat_tokens.saturating_add(usage.total());
        }
    }

    fn note_judge(&mut self, result: &Result<ChatReply, ChatFailure>, place: usize) {
        match result {
            Ok(reply) => {
                self.judge_answered(place);
                let tokens = reply.completion.usage.unwrap_or_default().total();
                self.judge_tokens = self.judge_tokens.saturating_add(tokens);
            }
            Err(failure) => {
                if let Some(fault) = failure.fault(ModelRole::Judge) {
                    self.judge_failed(fault, failure.message(ModelRole::Judge));
                }
            }
        }
    }

    /// Records a failure of the judge, which explains a failure of the grader from now on.
    pub(super) fn judge_failed(&mut self, fault: Fault, reason: String) {
        self.judge_failure = Some((JudgeFailure { fault, reason }, self.transcript.judge.exchanges().len()));
    }

    /// Clears the judge's failure if this call started after it. A call that was pending at the time of the
    /// failure does not show that the judge works again.
    fn judge_answered(&mut self, place: usize) {
        if self.judge_failure.as_ref().is_some_and(|(_, calls_then)| place >= *calls_then) {
            self.judge_failure = None;
        }
    }
}

impl Record {
    /// Adds the reply to a call to a sample's history; returns the event of the call's end.
    pub(super) fn keep_reply(
        &self,
        sample: usize,
        run: Run,
        call: u32,
        reply: &Completion,
        limits: &Limits,
    ) -> Result<Event, ModelCallError> {
        let text = reply.message();
        let mut kept = self.lock();
        kept.sample(sample)?;
        if text.len() > limits.message_bytes_max {
            kept.hits.add_requested(Limit::MessageBytes, text.len());
            let max = limits.message_bytes_max;
            let limit =
                format!("the reply is longer than message-bytes-max, {max} bytes; the operator can raise it");
            return Err(Error::BudgetSpent(limit).into());
        }
        // A reply from a server has a message, and one that all readers accept.
        if text.is_empty() {
            return Err(Error::BudgetSpent("the reply cannot be kept: it has no message".to_owned()).into());
        }
        kept.charge(message_bytes([text]), limits).map_err(|over| Error::BudgetSpent(over.0))?;
        let history = &mut kept.sample(sample)?.messages;
        let reply_at = Some(history.len());
        history.push_text(text);
        let ended = Event::Ended { call, end: End::Kept { reply_at } };
        // The call is in the transcript, because its sample is.
        let _ = kept.transcript.apply(run, &ended);
        Ok(ended)
    }
}

/// Returns the failure of a model call whose stored answer is a tool's, or the reverse. Only a past of
/// another origin has such answers.
pub(super) fn not_its_answer() -> ChatFailure {
    ChatFailure::Host { attempts: 0, reason: "the stored answer belongs to another kind of call".to_owned() }
}

/// Converts the failure of a call to the contract's type.
pub(super) fn contract_error(role: ModelRole, failure: ChatFailure) -> Error {
    match failure {
        ChatFailure::OverLimit { reason } => Error::BudgetSpent(reason),
        ChatFailure::Refused { status, body } => Error::Refused((status, body)),
        ChatFailure::Unavailable { attempts, reason } => {
            Error::Unavailable(format!("no completion in {attempts} attempts: {reason}"))
        }
        failure @ (ChatFailure::Forbidden { .. } | ChatFailure::Host { .. } | ChatFailure::Abandoned) => {
            Error::Unavailable(failure.message(role))
        }
    }
}

/// Describes the result of a model call in its span, with OpenTelemetry's attribute names.
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
        // Only a guest or its record causes these failures, never a request.
        Err(ChatFailure::OverLimit { .. } | ChatFailure::Abandoned) => {}
    }
}

impl RecordState {
    /// Checks that less than the maximum of a rollout is used. Otherwise counts a hit of the limit and returns the
    /// error message.
    pub(super) fn within(&mut self, limit: Limit, used: u64, max: u64, unit: &str) -> Result<(), String> {
        if used < max {
            return Ok(());
        }
        self.hits.add_requested(limit, usize::try_from(used).unwrap_or(usize::MAX).saturating_add(1));
        Err(format!("{} of {max} {unit} in one rollout; the operator can raise it", limit.as_str()))
    }
}

impl Imports {
    /// Checks that no message of a request is too long. The error contains the index of the message.
    pub(super) fn check_messages(&self, messages: &[String]) -> Result<(), String> {
        messages.iter().enumerate().try_for_each(|(at, message)| {
            self.check_message(message).map_err(|what| format!("messages[{at}] is {what}"))
        })
    }

    /// Checks that one more call may be pending.
    pub(super) fn check_pending_calls(&self, pending: u32) -> Result<(), String> {
        let max = self.limits.concurrent_calls_max;
        if pending < max {
            return Ok(());
        }
        Err(format!(
            "concurrent-calls-max of {max} calls under way at once; finish some first, or the operator can raise it"
        ))
    }

    /// Checks that one more call may be pending, and counts a hit of the limit if not.
    pub(super) fn may_begin(&self) -> Result<(), String> {
        self.check_pending_calls(self.pending_calls).inspect_err(|_| {
            let asked = self.pending_calls as usize + 1;
            self.record.lock().hits.add_requested(Limit::ConcurrentCalls, asked);
        })
    }
}
