//! What was said in a rollout, shown as `test` shows it and with a stop at every reply.
//!
//! The rollout was made again by then: it takes no time, because nobody is asked. So what is shown ends
//! where it parted from what it was.

use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::test::{Prompt, Style, Transcript, When};
use rollout_core::imports::{Difference, Role};
use rollout_core::outbound::{ChatFailure, Observer, Watched};
use rollout_core::rollout::{Finished, ReplayEnd, StoredRollout};
use rollout_core::telemetry::ModelRole;
use rollout_transcript::{CallResult, End, Event, Run, ToolUse, Transcript as Calls};

/// Something that is shown.
enum Shown {
    /// A call of a model was made.
    Asked(Request),
    /// It was answered, after so long.
    Answered(Request, Duration, Result<Bytes, ChatFailure>),
    /// A host-provided tool was called.
    Called { name: String, arguments: String },
    /// It gave this.
    Gave { name: String, content: String },
}

/// A request as it was sent.
struct Request {
    asked: ModelRole,
    sample: String,
    body: Bytes,
}

/// Both runs, in order: each of what is shown with its role and call.
pub(super) struct Script(Vec<(Role, u32, Shown)>);

impl Script {
    pub(super) fn of(stored: &StoredRollout) -> Self {
        let mut all = Vec::new();
        let runs =
            [(Role::Workflow, Run::Workflow, &stored.workflow), (Role::Grader, Run::Grader, &stored.grader)];
        for (role, run, events) in runs {
            let mut shows = Shows { run, calls: Calls::default() };
            let shown = events.iter().filter_map(|event| shows.read(event));
            all.extend(shown.map(|(call, shown)| (role, call, shown)));
        }
        Self(all)
    }

    /// Shows it up to where the rollout parted from it, if it did, and what came of it. Says whether
    /// somebody saw it to its end.
    pub(super) async fn show(self, end: Option<&ReplayEnd>, now: &Finished) -> bool {
        let quit = CancellationToken::new();
        let transcript = Transcript::new(Style::new(When::Auto), Some(Prompt::new(quit.clone())));
        let parted = match end {
            Some(ReplayEnd::Diverged(role, diverged)) => match &diverged.difference {
                Difference::Asked { call, .. } => Some((*role, *call)),
                Difference::Waited | Difference::TimeLeft => None,
            },
            _ => None,
        };
        let is_before = |role: Role, call: u32| match parted {
            Some((Role::Workflow, parted)) => role == Role::Workflow && call < parted,
            Some((_, parted)) => role == Role::Workflow || call < parted,
            None => true,
        };
        let shown = self.0.into_iter().filter(|(role, call, _)| is_before(*role, *call));
        for (_, _, shown) in shown {
            tokio::select! {
                biased;
                () = quit.cancelled() => return false,
                () = show(&transcript, shown) => {}
            }
        }
        if parted.is_none() {
            transcript.end(now).await;
        }
        !quit.is_cancelled()
    }
}

async fn show(transcript: &Transcript, shown: Shown) {
    match shown {
        Shown::Asked(request) => transcript.asking(request.watched()).await,
        Shown::Answered(request, took, reply) => {
            transcript.show_reply(request.watched(), took, reply.as_ref()).await;
        }
        Shown::Called { name, arguments } => transcript.tool_called(&name, &arguments),
        Shown::Gave { name, content } => transcript.tool_gave(&name, &content),
    }
}

impl Request {
    fn watched(&self) -> Watched<'_> {
        Watched { asked: self.asked, sample_id: &self.sample, request: &self.body }
    }
}

/// The calls of a run so far.
struct Shows {
    run: Run,
    calls: Calls,
}

impl Shows {
    /// Returns what an event shows, with the number of its call.
    fn read(&mut self, event: &Event) -> Option<(u32, Shown)> {
        self.calls.apply(self.run, event).ok()?;
        Some(match event {
            Event::Started { call, .. } => match self.tool(*call) {
                Some(ToolUse { name, arguments, .. }) => {
                    (*call, Shown::Called { name: name.clone(), arguments: arguments.clone() })
                }
                None => (*call, Shown::Asked(self.request(*call)?)),
            },
            Event::Answered { call, took, result: CallResult::Model(reply), .. } => {
                let reply = reply.as_ref().map(|reply| reply.completion.body().clone());
                (*call, Shown::Answered(self.request(*call)?, *took, reply.map_err(Clone::clone)))
            }
            Event::Answered { call, result: CallResult::Tool(answer), .. }
            | Event::Ended { call, end: End::Refused(answer) } => {
                let (name, content) = (self.tool(*call)?.name.clone(), answer.content.clone());
                (*call, Shown::Gave { name, content })
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
