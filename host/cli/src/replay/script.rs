//! Shows a recorded rollout as `test` does, with a stop at every reply.
//!
//! The replay has already ended by then, because it waits for no model. The script ends where the replay
//! diverged from the record.

use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::test::{Prompt, Style, Transcript, When};
use rollout_core::telemetry::ModelRole;
use rollout_guest::imports::{Difference, Role};
use rollout_outbound::{ChatFailure, Observer, Watched};
use rollout_rollout::{Finished, ReplayEnd, StoredRollout};
use rollout_transcript::{CallResult, End, Event, Run, ToolUse, Transcript as Calls};

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
        let runs =
            [(Role::Workflow, Run::Workflow, &stored.workflow), (Role::Grader, Run::Grader, &stored.grader)];
        for (role, run, events) in runs {
            let mut run_steps = RunSteps { run, calls: Calls::default() };
            let steps = events.iter().filter_map(|event| run_steps.add(event));
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
struct RunSteps {
    run: Run,
    calls: Calls,
}

impl RunSteps {
    /// Adds an event and returns its step, with the number of the call.
    fn add(&mut self, event: &Event) -> Option<(u32, Step)> {
        self.calls.apply(self.run, event).ok()?;
        Some(match event {
            Event::Started { call, .. } => match self.tool(*call) {
                Some(ToolUse { name, arguments, .. }) => {
                    (*call, Step::ToolCall { name: name.clone(), arguments: arguments.clone() })
                }
                None => (*call, Step::Request(self.request(*call)?)),
            },
            Event::Answered { call, took, result: CallResult::Model(reply), .. } => {
                let reply = reply.as_ref().map(|reply| reply.completion.body().clone());
                (*call, Step::Reply(self.request(*call)?, *took, reply.map_err(Clone::clone)))
            }
            Event::Answered { call, result: CallResult::Tool(answer), .. }
            | Event::Ended { call, end: End::Refused(answer) } => {
                let (name, content) = (self.tool(*call)?.name.clone(), answer.content.clone());
                (*call, Step::ToolResult { name, content })
            }
            Event::Ended { .. } | Event::Cut { .. } | Event::TimedOut { .. } | Event::TimeLeft { .. } => {
                return None;
            }
        })
    }

    fn tool(&self, call: u32) -> Option<&ToolUse> {
        self.calls.tool_call(self.run, call)
    }

    fn request(&self, call: u32) -> Option<Request> {
        let asked = self.run.model();
        let lists = self.calls.calls(asked).among(&[]);
        let exchange = lists.exchanges().get(self.calls.model_call(self.run, call)?)?;
        let sample = exchange.sample.as_ref().map_or("", |id| id.as_str()).to_owned();
        Some(Request { asked, sample, body: lists.body(exchange).into() })
    }
}
