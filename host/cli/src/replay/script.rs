//! What was said in a rollout, shown as `test` shows it and with a stop at every reply.
//!
//! The rollout was made again by then: it takes no time, because nobody is asked. So what is shown ends
//! where it parted from what it was.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::test::{Prompt, Style, Transcript, When};
use rollout_core::telemetry::ModelRole;
use rollout_guest::imports::{Answer, Difference, ReadCall, ReadCalls, Role, RunEvent, WrittenToolCall};
use rollout_outbound::{ChatFailure, Observer, Watched};
use rollout_rollout::{Finished, ReplayEnd, StoredRollout};

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
#[derive(Clone)]
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
        for (role, events) in [(Role::Workflow, &stored.workflow), (Role::Grader, &stored.grader)] {
            let mut run = Run::default();
            let shown = events.iter().filter_map(|event| run.read(event));
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
#[derive(Default)]
struct Run {
    calls: ReadCalls,
    requests: HashMap<u32, Request>,
    tools: HashMap<u32, String>,
}

impl Run {
    fn read(&mut self, event: &RunEvent) -> Option<(u32, Shown)> {
        match event {
            RunEvent::Asked { call, what, time, .. } => Some((*call, self.asked(*call, what, *time)?)),
            RunEvent::Answered { call, took, answer, .. } => {
                let shown = match answer {
                    Answer::Model(reply) => {
                        let reply = reply.as_ref().map(|reply| reply.completion.body().clone());
                        let request = self.requests.get(call)?.clone();
                        Shown::Answered(request, *took, reply.map_err(Clone::clone))
                    }
                    Answer::Tool(answer) => {
                        Shown::Gave { name: self.tools.get(call)?.clone(), content: answer.content.clone() }
                    }
                };
                Some((*call, shown))
            }
            _ => None,
        }
    }

    fn asked(&mut self, call: u32, what: &[u8], time: SystemTime) -> Option<Shown> {
        match self.calls.add(what, time).ok()? {
            ReadCall::Tool(WrittenToolCall { tool, arguments, .. }) => {
                let (name, arguments) = (tool.into_owned(), arguments.into_owned());
                self.tools.insert(call, name.clone());
                Some(Shown::Called { name, arguments })
            }
            ReadCall::Model(asked, place) => {
                let (body, sample) = self.calls.request(asked, place)?;
                let request = Request { asked, sample: sample.to_owned(), body };
                self.requests.insert(call, request.clone());
                Some(Shown::Asked(request))
            }
        }
    }
}
