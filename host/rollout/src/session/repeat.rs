//! Repeats the last episode of a session that an earlier process stored.
//!
//! The calls in the log are made again in a new instance, which receives the recorded answers from outside at its own calls,
//! and draws the same random numbers. Each answer must equal the stored one. The call during which the process was
//! stopped has no answer yet: it is completed, and its answer goes to the caller that repeats it.

use std::io;

use super::call::{Answer, AnswerLine, CallLine, SessionCall};
use super::stored::UnrepeatedEpisode;
use super::{Session, SessionError};
use crate::journal::{SessionEvent, SessionHistory};
use rollout_core::budget::Use;
use rollout_core::error::Fault;
use rollout_guest::imports::{Past, Then};

/// Copies of the history in memory: the bytes in the log and the parsed calls.
const COPIES: usize = 2;

/// A call of an earlier process.
struct PastCall {
    line: CallLine,
    answer: Option<AnswerLine>,
}

impl Session {
    /// Repeats the last episode of an earlier process, unless it was repeated before.
    pub(super) async fn repeat_past(&mut self) -> Result<(), SessionError> {
        let unrepeated = self.kept.as_ref().and_then(|kept| kept.unrepeated());
        let Some(UnrepeatedEpisode { log, differs }) = unrepeated else { return Ok(()) };
        let bytes = {
            let log = log.clone();
            read(move || log.session_bytes()).await?
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut charge = self.holder.nothing(Use::Record);
        charge.grow(bytes.saturating_mul(COPIES)).map_err(|over| SessionError::Failed(over.to_string()))?;
        let SessionHistory { calls, run } = read(move || log.session_history()).await?;
        let calls = parse(calls).map_err(unreadable)?;
        self.resets = calls.last().map_or(0, |last| last.line.resets);
        self.answers = super::Answers::default();
        for PastCall { line, answer } in &calls {
            if let Some((name, answer)) = line.key.clone().zip(answer.as_ref()) {
                self.answers.add(name, answer.answer(), &self.holder);
            }
        }
        let has_reset = calls.iter().any(|call| matches!(call.line.call, SessionCall::Reset { .. }));
        let is_over = calls.last().is_none_or(|PastCall { line, answer }| {
            answer.as_ref().is_some_and(|answer| answer.ends_episode(&line.call))
        });
        let past = Past::new(run, Then::Continues).charged_to(&self.holder);
        let repeated = match differs {
            _ if is_over => Ok(()),
            Some(differs) => Err(format!("the plugin is another one: {differs}")),
            None => self.repeat(calls, past).await?,
        };
        if let Some(kept) = &mut self.kept {
            kept.set_repeated(has_reset, bytes);
        }
        let Err(reason) = repeated else { return Ok(()) };
        self.episode = None;
        tracing::error!(session_id = %self.id, reason, "the episode of a session cannot be continued");
        let reason = format!("the server was restarted, and the episode cannot be continued: {reason}");
        let over = SessionError::EpisodeOver { reason, fault: Fault::Plugin };
        // The next process need not try again.
        self.store_answer(None, Err(over)).await.map(drop)
    }

    /// Makes the calls again. The inner error is the reason why the episode cannot be continued.
    async fn repeat(&mut self, calls: Vec<PastCall>, past: Past) -> Result<Result<(), String>, SessionError> {
        let mut past = Some(past);
        let count = calls.len();
        for (number, PastCall { line, answer: stored }) in (1..).zip(calls) {
            let CallLine { key, call, resets: _ } = line;
            let answer = match past.take() {
                Some(past) => self.begin_episode(&call, past, stored.as_ref()).await,
                None => self.perform(&call, stored.as_ref()).await,
            };
            if let Err(
                error @ (SessionError::SessionOver(_) | SessionError::EpisodeOver { fault: Fault::Host, .. }),
            ) = answer
            {
                self.episode = None;
                return Err(error);
            }
            let is_named = key.is_some();
            let (answer, stored) = match stored {
                Some(stored) => (answer, stored),
                None => {
                    let answer = self.store_answer(key, answer).await;
                    if number == count && !is_named {
                        self.keep_interrupted(call, answer);
                    }
                    continue;
                }
            };
            if !AnswerLine::of(&answer).is_some_and(|again| stored.is_repeated_by(&again)) {
                return Ok(Err(format!("the environment answered call {number} of {count} in another way")));
            }
        }
        Ok(Ok(()))
    }

    fn keep_interrupted(&mut self, call: SessionCall, answer: Result<Answer, SessionError>) {
        if let Some(kept) = &mut self.kept {
            kept.set_interrupted(call, answer);
        }
    }
}

/// Parses the calls of a log. An answer that follows another replaces it.
fn parse(events: Vec<SessionEvent>) -> Result<Vec<PastCall>, serde_json::Error> {
    let mut calls: Vec<PastCall> = Vec::new();
    for event in events {
        match event {
            SessionEvent::Called(text) => {
                calls.push(PastCall { line: serde_json::from_slice(&text)?, answer: None });
            }
            SessionEvent::Answered(text) => {
                if let Some(last) = calls.last_mut() {
                    last.answer = Some(serde_json::from_slice(&text)?);
                }
            }
        }
    }
    Ok(calls)
}

/// Reads files on another thread.
async fn read<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, SessionError> {
    let read = tokio::task::spawn_blocking(work).await.map_err(unreadable)?;
    read.map_err(unreadable)
}

fn unreadable(error: impl std::fmt::Display) -> SessionError {
    SessionError::SessionOver(format!("the history of the session cannot be read: {error}"))
}
