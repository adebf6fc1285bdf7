//! How an evaluation goes, for whoever waits for it: the bar, tries that are repeated, and
//! the end of an evaluation whose model never answers.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use crate::print::errln;
use rollout_core::outbound::{ChatFailure, Observer, Retry, Watched};
use rollout_core::telemetry::ModelRole;
use rollout_core::text::printable;
use rollout_eval::Tally;

/// Tries of calls that ended without a completion, after which a server that never gave one
/// is given up. Three calls with the usual number of tries: a server that is restarted is
/// waited for, and nobody waits for thousands of rows that end in the same way.
const TRIES_IN_VAIN_MAX: u32 = 24;

/// The pause between two lines where there is no terminal for a bar.
const LINE_PAUSE: Duration = Duration::from_secs(30);

/// The same for lines about trouble.
const TROUBLE_PAUSE: Duration = Duration::from_secs(10);

/// How much of a reason is shown while it goes on, in characters.
const REASON_CHARS_MAX: usize = 100;

/// Sees every call of model and judge.
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
    /// How it stands, without the tries.
    standing: String,
    line_at: Option<Instant>,
    trouble_at: Option<Instant>,
}

/// What is known of one server.
#[derive(Debug, Default)]
struct Server {
    has_answered: bool,
    tries_in_vain: u32,
    /// The try that is repeated at the moment.
    retrying: Option<String>,
    given_up: Option<String>,
}

impl Server {
    fn ended(&mut self, outcome: Result<&Bytes, &ChatFailure>) {
        let failure = match outcome {
            Ok(_) => {
                (self.has_answered, self.retrying) = (true, None);
                return;
            }
            Err(failure) => failure,
        };
        self.tries_in_vain = self.tries_in_vain.saturating_add(match failure {
            ChatFailure::Unavailable { attempts, .. } => *attempts,
            ChatFailure::Refused { .. } | ChatFailure::Forbidden { .. } => 1,
            // The server has no part in it.
            ChatFailure::Host { .. } => 0,
        });
        if !self.has_answered && self.tries_in_vain >= TRIES_IN_VAIN_MAX && self.given_up.is_none() {
            self.given_up =
                Some(format!("no completion in {} tries; the last: {failure}", self.tries_in_vain));
        }
    }
}

impl Watch {
    /// Stops the evaluation by this token where there is no sense in going on.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { bar: OnceLock::new(), state: Mutex::default(), stop }
    }

    /// Shows a bar of so many rollouts, if somebody sees it.
    pub(super) fn begin(&self, rollouts: usize, tally: &Tally) {
        let style = ProgressStyle::with_template(
            "{bar:30} {pos}/{len} rollouts  {elapsed} elapsed, {eta} to go\n{wide_msg}",
        );
        let bar = ProgressBar::new(rollouts as u64);
        // The template is fixed; were it wrong, the default one would do.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.reset_eta();
        let _ = self.bar.set(bar);
        self.show(tally);
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }

    /// Shows how things stand.
    pub(super) fn show(&self, tally: &Tally) {
        let unscored = match tally.unscored() {
            0 => String::new(),
            unscored => format!(", {unscored} without a reward"),
        };
        let mut state = self.state();
        state.standing = match tally.reward_mean() {
            Some(mean) => format!("mean reward {mean:.3}{unscored}"),
            None => format!("no reward yet{unscored}"),
        };
        if let Some(bar) = self.bar.get() {
            bar.set_position(tally.rollouts() as u64);
        }
        if state.model.given_up.is_some() || state.judge.given_up.is_some() {
            self.stop.cancel();
        }
        self.draw(&mut state);
    }

    /// Which server was given up, and why.
    pub(super) fn given_up(&self) -> Option<String> {
        let state = self.state();
        let why = |name: &str, server: &Server| {
            server.given_up.as_ref().map(|why| format!("the {name}'s server gave {}", printable(why)))
        };
        why("model", &state.model).or_else(|| why("judge", &state.judge))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, state: &mut State) {
        let Some(bar) = self.bar.get() else { return };
        let retrying = state.model.retrying.as_ref().or(state.judge.retrying.as_ref());
        let message = match retrying {
            Some(retrying) => format!("{}; {retrying}", state.standing),
            None => state.standing.clone(),
        };
        if !std::io::stderr().is_terminal() {
            // Trouble is said at once, and the usual now and then.
            let (at, pause) = match retrying {
                Some(_) => (&mut state.trouble_at, TROUBLE_PAUSE),
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
    fn server(&mut self, asked: ModelRole) -> &mut Server {
        match asked {
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
        // The rollout whose call was the last straw ends by itself and has its result, unless
        // its guest asks again.
        if server.given_up.is_some() {
            self.stop.cancel();
        }
        server.ended(outcome);
        drop(state);
        Box::pin(async { None })
    }
}
