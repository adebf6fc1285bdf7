//! Progress of an evaluation: the progress bar, reports of retries, and the stop of an evaluation whose
//! model never answers.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use crate::print::errln;
use rollout_core::telemetry::ModelRole;
use rollout_eval::Tally;
use rollout_outbound::{ChatFailure, Observer, Retry, Watched};
use rollout_wire::text::printable;

/// Number of failed tries after which a server that never returned a completion counts as unavailable. These are three
/// calls with the default number of tries: a server may be restarted meanwhile, but thousands of rows do not fail in
/// the same way.
const FAILED_TRIES_MAX: u32 = 24;

/// Pause between two lines of progress if there is no terminal for a bar.
const LINE_PAUSE: Duration = Duration::from_secs(30);

/// Pause between two lines about retries if there is no terminal.
const RETRY_LINE_PAUSE: Duration = Duration::from_secs(10);

/// Maximum number of characters of the reason for a retry.
const REASON_CHARS_MAX: usize = 100;

/// Observes every call of the model and the judge, and shows the progress.
#[derive(Debug)]
pub(super) struct Watch {
    bar: OnceLock<ProgressBar>,
    state: Mutex<State>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    model: Server,
    judge: Server,
    /// The figures so far, without retries.
    figures: String,
    line_at: Option<Instant>,
    retry_line_at: Option<Instant>,
}

/// State of a server.
#[derive(Debug, Default)]
struct Server {
    has_answered: bool,
    failed_tries: u32,
    /// Description of the current retry.
    retrying: Option<String>,
    /// Reason why the server counts as unavailable.
    unavailable: Option<String>,
}

impl Server {
    fn record(&mut self, outcome: Result<&Bytes, &ChatFailure>) {
        let failure = match outcome {
            Ok(_) => {
                (self.has_answered, self.retrying) = (true, None);
                return;
            }
            Err(failure) => failure,
        };
        self.failed_tries = self.failed_tries.saturating_add(match failure {
            ChatFailure::Unavailable { attempts, .. } => *attempts,
            ChatFailure::Refused { .. } | ChatFailure::Forbidden { .. } => 1,
            // Not caused by the server.
            ChatFailure::Host { .. } | ChatFailure::OverLimit { .. } | ChatFailure::Abandoned => 0,
        });
        if !self.has_answered && self.failed_tries >= FAILED_TRIES_MAX && self.unavailable.is_none() {
            self.unavailable =
                Some(format!("no completion in {} tries; the last error: {failure}", self.failed_tries));
        }
    }
}

impl Watch {
    /// Creates an observer that cancels `stop` once the model or the judge counts as unavailable.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { bar: OnceLock::new(), state: Mutex::default(), stop }
    }

    /// Shows a progress bar for this number of rollouts, if there is a terminal.
    pub(super) fn begin(&self, rollouts: usize, tally: &Tally) {
        let style = ProgressStyle::with_template(
            "{bar:30} {pos}/{len} rollouts  {elapsed} elapsed, {eta} to go\n{wide_msg}",
        );
        let bar = ProgressBar::new(rollouts as u64);
        // The template is a constant; if it were malformed, the default style would be used.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.reset_eta();
        let _ = self.bar.set(bar);
        self.show(tally);
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }

    /// Shows the figures so far.
    pub(super) fn show(&self, tally: &Tally) {
        let unscored = match tally.unscored() {
            0 => String::new(),
            unscored => format!(", {unscored} without a reward"),
        };
        let mut state = self.state();
        state.figures = match tally.reward_mean() {
            Some(mean) => format!("mean reward {mean:.3}{unscored}"),
            None => format!("no reward yet{unscored}"),
        };
        if let Some(bar) = self.bar.get() {
            bar.set_position(tally.rollouts() as u64);
        }
        if state.model.unavailable.is_some() || state.judge.unavailable.is_some() {
            self.stop.cancel();
        }
        self.draw(&mut state);
    }

    /// Returns the server that counts as unavailable, with the reason.
    pub(super) fn unavailable(&self) -> Option<String> {
        let state = self.state();
        let reason = |name: &str, server: &Server| {
            let reason = server.unavailable.as_ref()?;
            Some(format!("the {name}'s server returned {}", printable(reason)))
        };
        reason("model", &state.model).or_else(|| reason("judge", &state.judge))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the progress bar. Without a terminal, prints a line from time to time.
    fn draw(&self, state: &mut State) {
        let Some(bar) = self.bar.get() else { return };
        let retrying = state.model.retrying.as_ref().or(state.judge.retrying.as_ref());
        let message = match retrying {
            Some(retrying) => format!("{}; {retrying}", state.figures),
            None => state.figures.clone(),
        };
        if !std::io::stderr().is_terminal() {
            // The first retry is reported immediately, other progress from time to time.
            let (at, pause) = match retrying {
                Some(_) => (&mut state.retry_line_at, RETRY_LINE_PAUSE),
                None => (&mut state.line_at, LINE_PAUSE),
            };
            let is_due = match (*at, retrying) {
                (Some(last), _) => last.elapsed() >= pause,
                (None, retrying) => retrying.is_some(),
            };
            if is_due {
                errln!("{} of {} rollouts; {message}", bar.position(), bar.length().unwrap_or_default());
            }
            if is_due || at.is_none() {
                *at = Some(Instant::now());
            }
        }
        bar.set_message(message);
    }
}

impl State {
    fn server(&mut self, role: ModelRole) -> &mut Server {
        match role {
            ModelRole::Policy => &mut self.model,
            ModelRole::Judge => &mut self.judge,
        }
    }
}

impl Observer for Watch {
    fn asking<'a>(&'a self, _call: Watched<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn retrying(&self, call: Watched<'_>, retry: &Retry<'_>) {
        let Retry { failures, attempts_max, reason, .. } = *retry;
        let reason = printable(reason).replace(['\n', '\t'], " ");
        let shown: String = reason.chars().take(REASON_CHARS_MAX).collect();
        let more = if shown.len() < reason.len() { "…" } else { "" };
        let mut state = self.state();
        state.server(call.asked).retrying =
            Some(format!("retrying ({failures} of {attempts_max}): {shown}{more}"));
        self.draw(&mut state);
    }

    fn answered<'a>(
        &'a self,
        call: Watched<'a>,
        outcome: Result<&'a Bytes, &'a ChatFailure>,
    ) -> BoxFuture<'a, Option<Bytes>> {
        let mut state = self.state();
        let server = state.server(call.asked);
        // The rollout of the call that made the server count as unavailable may end by itself and have a
        // result, unless its guest makes another call.
        if server.unavailable.is_some() {
            self.stop.cancel();
        }
        server.record(outcome);
        drop(state);
        Box::pin(async { None })
    }
}
