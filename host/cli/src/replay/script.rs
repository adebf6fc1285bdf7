//! Shows a recorded rollout as `test` does, with a stop at every reply.
//!
//! The replay has already ended by then, because it waits for no model. The script ends where the replay
//! diverged from the record.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::test::{Prompt, Style, Transcript, When};
use rollout_core::telemetry::ModelRole;
use rollout_guest::imports::{Answer, Difference, ReadCall, ReadCalls, Role, RunEvent, WrittenToolCall};
use rollout_outbound::{ChatFailure, Observer, Watched};
use rollout_rollout::{Finished, ReplayEnd, StoredRollout};

/// A step of the script.
enum Step {
    /// A request to a model.
    Request(Request),
    /// A model's answer, with the time that it took.
    Reply(Request, Duration, Result<Bytes, ChatFailure>),
    /// A call of a host-provided tool.
    ToolCall { name: String, arguments: String },
    /// Result of a host-provided tool.
    ToolResult { name: String, content: String },
}

/// A recorded request.
#[derive(Clone)]
struct Request {
    asked: ModelRole,
    sample: String,
    body: Bytes,
}

/// Steps of workflow and grader in order, each with its role and the number of its call.
pub(super) struct Script(Vec<(Role, u32, Step)>);

impl Script {
    /// Creates the script of a recorded rollout.
    pub(super) fn new(stored: &StoredRollout) -> Self {
        let mut all = Vec::new();
        for (role, events) in [(Role::Workflow, &stored.workflow), (Role::Grader, &stored.grader)] {
            let mut run = Run::default();
            let steps = events.iter().filter_map(|event| run.add(event));
            all.extend(steps.map(|(call, step)| (role, call, step)));
        }
        Self(all)
    }

    /// Shows the script up to where the replay diverged; without a divergence, also the outcome. Returns
    /// whether it was shown to its end, not quit.
    pub(super) async fn show(self, end: Option<&ReplayEnd>, now: &Finished) -> bool {
        let quit = CancellationToken::new();
        let transcript = Transcript::new(Style::new(When::Auto), Some(Prompt::new(quit.clone())));
        let diverged_at = match end {
            Some(ReplayEnd::Diverged(role, diverged)) => match &diverged.difference {
                Difference::Asked { call, .. } => Some((*role, *call)),
                Difference::Waited | Difference::TimeLeft => None,
            },
            _ => None,
        };
        let is_before = |role: Role, call: u32| match diverged_at {
            Some((Role::Workflow, diverged_at)) => role == Role::Workflow && call < diverged_at,
            Some((_, diverged_at)) => role == Role::Workflow || call < diverged_at,
            None => true,
        };
        let steps = self.0.into_iter().filter(|(role, call, _)| is_before(*role, *call));
        for (_, _, step) in steps {
            tokio::select! {
                biased;
                () = quit.cancelled() => return false,
                () = show(&transcript, step) => {}
            }
        }
        if diverged_at.is_none() {
            transcript.end(now).await;
        }
        !quit.is_cancelled()
    }
}

async fn show(transcript: &Transcript, step: Step) {
    match step {
        Step::Request(request) => transcript.asking(request.watched()).await,
        Step::Reply(request, took, reply) => {
            transcript.show_reply(request.watched(), took, reply.as_ref()).await;
        }
        Step::ToolCall { name, arguments } => transcript.tool_call(&name, &arguments),
        Step::ToolResult { name, content } => transcript.tool_result(&name, &content),
    }
}

impl Request {
    fn watched(&self) -> Watched<'_> {
        Watched { asked: self.asked, sample_id: &self.sample, request: &self.body }
    }
}

/// Calls of a run so far.
#[derive(Default)]
struct Run {
    calls: ReadCalls,
    requests: HashMap<u32, Request>,
    tools: HashMap<u32, String>,
}

impl Run {
    /// Adds an event and returns its step, with the number of the call.
    fn add(&mut self, event: &RunEvent) -> Option<(u32, Step)> {
        match event {
            RunEvent::Asked { call, what, time, .. } => Some((*call, self.add_call(*call, what, *time)?)),
            RunEvent::Answered { call, took, answer, .. } => {
                let step = match answer {
                    Answer::Model(reply) => {
                        let reply = reply.as_ref().map(|reply| reply.completion.body().clone());
                        let request = self.requests.get(call)?.clone();
                        Step::Reply(request, *took, reply.map_err(Clone::clone))
                    }
                    Answer::Tool(answer) => Step::ToolResult {
                        name: self.tools.get(call)?.clone(),
                        content: answer.content.clone(),
                    },
                };
                Some((*call, step))
            }
            _ => None,
        }
    }

    fn add_call(&mut self, call: u32, what: &[u8], time: SystemTime) -> Option<Step> {
        match self.calls.add(what, time).ok()? {
            ReadCall::Tool(WrittenToolCall { tool, arguments, .. }) => {
                let (name, arguments) = (tool.into_owned(), arguments.into_owned());
                self.tools.insert(call, name.clone());
                Some(Step::ToolCall { name, arguments })
            }
            ReadCall::Model(asked, place) => {
                let (body, sample) = self.calls.request(asked, place)?;
                let request = Request { asked, sample: sample.to_owned(), body };
                self.requests.insert(call, request.clone());
                Some(Step::Request(request))
            }
        }
    }
}
