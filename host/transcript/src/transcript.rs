//! The transcript of a rollout, which results from applying its events in order.

use std::time::{Duration, SystemTime};

use crate::calls::{Exchange, ModelCalls};
use crate::event::{End, Event};
use crate::labels::{Limit, ModelRole, Run, ToolKind};
use crate::request::{StoredCall, StoredRequest, StoredToolCall};
use crate::result::{CallResult, ChatFailure, ToolAnswer};
use crate::sample::{SampleRecord, message_bytes};

/// One call of a host-provided tool, as the host observed it.
#[derive(Clone, Debug)]
pub struct ToolUse {
    /// Number of the call in its run, from 1. It is 0 until the number is assigned.
    pub(crate) call: u32,
    /// The id that the caller gave to the call.
    pub call_id: String,
    /// The called name, whether or not a tool has it.
    pub name: String,
    /// The arguments, verbatim.
    pub arguments: String,
    /// The implementation behind the name.
    pub kind: ToolKind,
    /// Time of the call.
    pub started_at: SystemTime,
    /// Time until the answer; zero if the call was refused or abandoned.
    pub duration: Duration,
    /// Result of the call. A call without an answer counts as abandoned.
    pub answer: ToolAnswer,
    /// Whether the end of the call is known.
    pub(crate) has_ended: bool,
}

impl ToolUse {
    /// Creates a call that has no answer yet.
    pub fn new(call_id: String, name: String, arguments: String, started_at: SystemTime) -> Self {
        Self {
            call: 0,
            call_id,
            name,
            arguments,
            kind: ToolKind::None,
            started_at,
            duration: Duration::ZERO,
            answer: ToolAnswer::abandoned(),
            has_ended: false,
        }
    }
}

/// Error of an event that refers to a call that never started, or to a call of the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event belongs to call {0}, which did not start")]
pub struct UnknownCall(pub u32);

/// The history of a rollout. Samples are registered by the workflow; everything else follows from events.
#[derive(Debug, Default)]
pub struct Transcript {
    /// The samples in the order in which they were opened.
    pub samples: Vec<SampleRecord>,
    /// The calls of the policy.
    pub policy: ModelCalls,
    /// The calls of the judge.
    pub judge: ModelCalls,
    /// The calls of host-provided tools, in the order in which they were requested.
    pub tools: Vec<ToolUse>,
}

/// A call of either kind.
enum CallMut<'a> {
    Model(&'a mut Exchange),
    Tool(&'a mut ToolUse),
}

impl Transcript {
    /// Creates the transcript from the events of both runs of a rollout. Events do not contain the samples.
    pub fn read<'a>(
        workflow: impl IntoIterator<Item = &'a Event>,
        grader: impl IntoIterator<Item = &'a Event>,
    ) -> Result<Self, String> {
        let mut transcript = Self::default();
        workflow.into_iter().try_for_each(|event| transcript.apply(Run::Workflow, event))?;
        grader.into_iter().try_for_each(|event| transcript.apply(Run::Grader, event))?;
        Ok(transcript)
    }

    /// Adds an event. The error names the part that cannot be read.
    ///
    /// While a guest runs, the host itself adds the start of a call, because it has the request in parts. Every other
    /// event is added by this function, whether it just happened or comes from a journal.
    pub fn apply(&mut self, run: Run, event: &Event) -> Result<(), String> {
        match event {
            Event::Started { call, time, request, .. } => self.start(*call, *time, request),
            Event::Answered { call, took, result, .. } => {
                self.answer(run, *call, *took, result).map_err(|unknown| unknown.to_string())
            }
            Event::Ended { call, end } => self.end(run, *call, end).map_err(|unknown| unknown.to_string()),
            Event::Cut { calls, .. } => {
                self.cut(run, *calls);
                Ok(())
            }
            Event::TimedOut { .. } | Event::TimeLeft { .. } => Ok(()),
        }
    }

    /// Returns the calls of one model.
    pub fn calls(&self, role: ModelRole) -> &ModelCalls {
        match role {
            ModelRole::Policy => &self.policy,
            ModelRole::Judge => &self.judge,
        }
    }

    /// Returns mutable access to the calls of one model.
    pub fn calls_mut(&mut self, role: ModelRole) -> &mut ModelCalls {
        match role {
            ModelRole::Policy => &mut self.policy,
            ModelRole::Judge => &mut self.judge,
        }
    }

    /// Assigns a number to the call of a model at `index`, and the time at which it was first made.
    pub fn number_model_call(&mut self, role: ModelRole, index: usize, call: u32, time: SystemTime) {
        if let Some(exchange) = self.calls_mut(role).exchanges_mut().get_mut(index) {
            (exchange.call, exchange.started_at) = (call, time);
        }
    }

    /// Assigns a number to the call of a tool at `index`, and the time at which it was first made.
    pub fn number_tool_call(&mut self, index: usize, call: u32, time: SystemTime) {
        if let Some(tool) = self.tools.get_mut(index) {
            (tool.call, tool.started_at) = (call, time);
        }
    }

    /// Returns the index of a run's request to its model, by the number of the call.
    pub fn model_call(&self, run: Run, call: u32) -> Option<usize> {
        let exchanges = self.calls(run.model()).exchanges();
        exchanges.binary_search_by_key(&call, |exchange| exchange.call).ok()
    }

    /// Returns a call of a tool by the number of the call.
    pub fn tool_call(&self, run: Run, call: u32) -> Option<&ToolUse> {
        let index = self.tools.binary_search_by_key(&call, |tool| tool.call).ok()?;
        self.tools.get(index).filter(|_| run == Run::Workflow)
    }

    /// Returns end events for the calls of a finished run that have no end yet.
    pub fn open_ends(&self, run: Run) -> Vec<Event> {
        let kept_or = |is_abandoned| if is_abandoned { End::Abandoned } else { End::Kept { reply_at: None } };
        let exchanges = self.calls(run.model()).exchanges().iter();
        let models = exchanges.filter(|exchange| exchange.call > 0 && !exchange.has_ended);
        let models =
            models.map(|model| (model.call, kept_or(model.result.as_ref().is_err_and(is_abandoned))));
        let tools = self.tools.iter().filter(|tool| run == Run::Workflow && tool.call > 0 && !tool.has_ended);
        let tools = tools.map(|tool| (tool.call, kept_or(tool.answer == ToolAnswer::abandoned())));
        models.chain(tools).map(|(call, end)| Event::Ended { call, end }).collect()
    }

    /// Replaces the history of a sample. Returns the number of bytes that this frees in the record, which is 0 if a
    /// request still needs the old history. Returns `None` if there is no such sample.
    pub fn replace_history(
        &mut self,
        sample: usize,
        messages: rollout_wire::messages::Messages,
    ) -> Option<usize> {
        let old = std::mem::replace(&mut self.samples.get_mut(sample)?.messages, messages);
        let is_needed = self.policy.replaced(sample, &old);
        Some(if is_needed { 0 } else { message_bytes(old.iter()) })
    }

    /// Adds a call from its start event.
    fn start(&mut self, call: u32, time: SystemTime, request: &[u8]) -> Result<(), String> {
        match StoredCall::read(request)? {
            StoredCall::Model(request @ StoredRequest { asked, .. }) => {
                self.calls_mut(asked).add_stored(call, request, time)?;
            }
            StoredCall::Tool(StoredToolCall { tool, kind, id, arguments }) => {
                let (id, tool, arguments) = (id.into_owned(), tool.into_owned(), arguments.into_owned());
                self.tools.push(ToolUse { call, kind, ..ToolUse::new(id, tool, arguments, time) });
            }
        }
        Ok(())
    }

    /// Finds a call by its number. Only a workflow calls tools.
    fn find(&mut self, run: Run, call: u32) -> Result<CallMut<'_>, UnknownCall> {
        if run == Run::Workflow
            && let Ok(index) = self.tools.binary_search_by_key(&call, |tool| tool.call)
        {
            return Ok(CallMut::Tool(&mut self.tools[index]));
        }
        let exchanges = self.calls_mut(run.model()).exchanges_mut();
        match exchanges.binary_search_by_key(&call, |exchange| exchange.call) {
            Ok(index) => Ok(CallMut::Model(&mut exchanges[index])),
            Err(_) => Err(UnknownCall(call)),
        }
    }

    /// Sets the answer of a call. A repeated run may answer a call again that ended in an earlier process, so the call is open
    /// until the run ends it.
    fn answer(
        &mut self,
        run: Run,
        call: u32,
        took: Duration,
        result: &CallResult,
    ) -> Result<(), UnknownCall> {
        match (self.find(run, call)?, result) {
            (CallMut::Model(exchange), CallResult::Model(result)) => {
                (exchange.duration, exchange.result) = (took, result.clone());
                exchange.has_ended = false;
            }
            (CallMut::Tool(tool), CallResult::Tool(answer)) => {
                (tool.duration, tool.answer) = (took, answer.clone());
                tool.has_ended = false;
            }
            // The host never stores an answer of the other kind.
            (CallMut::Model(_), CallResult::Tool(_)) | (CallMut::Tool(_), CallResult::Model(_)) => {
                return Err(UnknownCall(call));
            }
        }
        Ok(())
    }

    /// Ends a call: its answer stays or is replaced by the failure.
    fn end(&mut self, run: Run, call: u32, end: &End) -> Result<(), UnknownCall> {
        match self.find(run, call)? {
            CallMut::Model(exchange) => {
                exchange.has_ended = true;
                match end {
                    End::Kept { reply_at } => exchange.reply_at = *reply_at,
                    End::OverLimit { reason } => {
                        exchange.result = Err(ChatFailure::OverLimit { reason: reason.clone() });
                    }
                    End::Abandoned => {
                        (exchange.duration, exchange.result) = (Duration::ZERO, Err(ChatFailure::Abandoned));
                        exchange.reply_at = None;
                    }
                    // Only calls of tools can end so.
                    End::Refused(_) => {}
                }
            }
            CallMut::Tool(tool) => {
                tool.has_ended = true;
                match end {
                    End::Kept { .. } => {}
                    End::OverLimit { reason } => {
                        tool.answer = ToolAnswer::over_limit(Limit::RecordBytes, reason);
                    }
                    End::Abandoned => {
                        (tool.duration, tool.answer) = (Duration::ZERO, ToolAnswer::abandoned());
                    }
                    End::Refused(answer) => tool.answer = answer.clone(),
                }
            }
        }
        Ok(())
    }

    /// Removes the calls of a run after the first `calls`.
    fn cut(&mut self, run: Run, calls: u32) {
        let model_calls = self.calls_mut(run.model());
        let count = model_calls.exchanges().partition_point(|exchange| exchange.call <= calls);
        model_calls.truncate(count);
        if run == Run::Workflow {
            self.tools.truncate(self.tools.partition_point(|tool| tool.call <= calls));
        }
    }
}

fn is_abandoned(failure: &ChatFailure) -> bool {
    *failure == ChatFailure::Abandoned
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use bytes::Bytes;
    use rollout_wire::openai::Completion;

    use super::*;
    use crate::labels::ToolOutcome;
    use crate::result::ChatReply;

    fn started(call: u32, request: &str) -> Event {
        Event::Started { at: 1, call, time: UNIX_EPOCH, request: Bytes::copy_from_slice(request.as_bytes()) }
    }

    fn asked(call: u32) -> Event {
        let frame = r#"{"messages_at":24,"body":"{\"model\":\"m\",\"messages\":[]}"}"#;
        let new = r#"[{"role":"user","content":"q"}]"#;
        started(
            call,
            &format!(
                r#"{{"asked":"policy","sample":"s","before":null,"shared":0,"frame":{frame},"new":{new}}}"#
            ),
        )
    }

    fn called(call: u32) -> Event {
        started(call, r#"{"tool":"f","kind":"http","id":"c","arguments":"{}"}"#)
    }

    fn answered(call: u32, result: CallResult) -> Event {
        Event::Answered { at: 1, call, took: Duration::from_secs(1), result }
    }

    fn replied(call: u32) -> Event {
        let body = r#"{"choices":[{"message":{"role":"assistant","content":"a"}}]}"#;
        let completion = Completion::parse(&Bytes::from_static(body.as_bytes())).unwrap();
        answered(call, CallResult::Model(Ok(ChatReply { completion, attempts: 1 })))
    }

    fn gave(call: u32) -> Event {
        answered(call, CallResult::Tool(ToolAnswer::answered("42".to_owned())))
    }

    fn ended(call: u32, end: End) -> Event {
        Event::Ended { call, end }
    }

    fn over() -> End {
        End::OverLimit { reason: "full".to_owned() }
    }

    /// Describes each call: its number, whether it took time, and its result.
    fn calls(events: &[Event]) -> Vec<String> {
        let transcript = Transcript::read(events, []).unwrap();
        let policy = transcript.policy.exchanges().iter().map(|of| {
            let result = match &of.result {
                Ok(_) => format!("replied at {:?}", of.reply_at),
                Err(failure) => failure.to_string(),
            };
            format!("{} {:?} {result}", of.call, of.duration)
        });
        let tools = transcript.tools.iter().map(|of| {
            let ToolAnswer { outcome, content, .. } = &of.answer;
            format!("{} {:?} {outcome:?} {content}", of.call, of.duration)
        });
        policy.chain(tools).collect()
    }

    #[test]
    fn a_call_has_the_result_that_its_end_says() {
        #[track_caller]
        fn check(events: &[Event], expected: &str) {
            assert_eq!(calls(events), [expected]);
        }
        let kept = || End::Kept { reply_at: None };
        let abandoned = "abandoned before there was an answer";
        check(&[asked(1)], &format!("1 0ns {abandoned}"));
        check(&[asked(1), replied(1)], "1 1s replied at None");
        check(&[asked(1), replied(1), ended(1, End::Kept { reply_at: Some(3) })], "1 1s replied at Some(3)");
        check(&[asked(1), replied(1), ended(1, over())], "1 1s full");
        check(&[asked(1), replied(1), ended(1, End::Abandoned)], &format!("1 0ns {abandoned}"));
        // A repeated run continued after an earlier process had ended the call.
        check(&[asked(1), ended(1, End::Abandoned), replied(1), ended(1, kept())], "1 1s replied at None");
        check(&[called(2), gave(2), ended(2, kept())], "2 1s Answered 42");
        check(&[called(2), gave(2), ended(2, over())], "2 1s OverLimit Error: full");
        check(&[called(2), gave(2), ended(2, End::Abandoned)], "2 0ns Abandoned ");
        let refused = ToolAnswer::over_limit(Limit::ToolCalls, "enough");
        check(&[called(2), ended(2, End::Refused(refused))], "2 0ns OverLimit Error: enough");
    }

    #[test]
    fn calls_that_a_repeated_run_did_not_make_are_removed() {
        let first = [asked(1), called(2), replied(1), gave(2), asked(3)];
        let cut = |calls| first.iter().cloned().chain([Event::Cut { at: 9, calls }]).collect::<Vec<_>>();
        assert_eq!(calls(&first).len(), 3);
        assert_eq!(calls(&cut(3)).len(), 3);
        assert_eq!(calls(&cut(2)).len(), 2);
        assert_eq!(calls(&cut(1)), ["1 1s replied at None"]);
        assert!(calls(&cut(0)).is_empty());
    }

    #[test]
    fn a_run_that_is_over_ends_its_open_calls_once() {
        let events = [asked(1), asked(2), called(3), called(4), replied(1), gave(4)];
        let mut transcript = Transcript::read(&events, []).unwrap();
        let ends = transcript.open_ends(Run::Workflow);
        let abandoned: Vec<u32> = ends
            .iter()
            .filter_map(|event| match event {
                Event::Ended { call, end: End::Abandoned } => Some(*call),
                _ => None,
            })
            .collect();
        assert_eq!((ends.len(), abandoned), (4, vec![2, 3]));
        assert!(transcript.open_ends(Run::Grader).is_empty());
        ends.iter().for_each(|event| transcript.apply(Run::Workflow, event).unwrap());
        assert!(transcript.open_ends(Run::Workflow).is_empty());
    }

    #[test]
    fn an_event_of_a_call_that_did_not_start_is_an_error() {
        let mut transcript = Transcript::default();
        for event in [replied(1), gave(1), ended(1, End::Abandoned)] {
            let error = transcript.apply(Run::Workflow, &event).unwrap_err();
            assert!(error.contains("call 1"), "{error}");
        }
        transcript.apply(Run::Workflow, &called(1)).unwrap();
        assert!(transcript.apply(Run::Grader, &gave(1)).is_err(), "a grader calls no tools");
        assert_eq!(transcript.tools[0].answer.outcome, ToolOutcome::Abandoned);
    }
}
