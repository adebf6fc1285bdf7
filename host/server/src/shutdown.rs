//! Graceful shutdown: running rollouts have time to end and to be reported; the remaining ones are cancelled, or left
//! in the journal for the next process.

use std::time::Duration;

use tokio::time::Instant;

use super::Server;

/// The deadlines of a shutdown's phases, within the drain time of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownDeadlines {
    /// The time at which running rollouts are cancelled.
    cancel_at: Instant,
    /// The time after which no result is reported.
    report_until: Instant,
    /// The time after which the server no longer waits for open connections.
    pub end_at: Instant,
}

impl ShutdownDeadlines {
    /// Maximum time for the reports of cancelled rollouts, which take the last quarter of the drain time.
    const REPORTING_MAX: Duration = Duration::from_secs(5);

    /// Returns the deadlines of a shutdown that starts now and takes at most `time`.
    pub fn within(time: Duration) -> Self {
        let end_at = Instant::now() + time;
        let reporting = (time / 4).min(Self::REPORTING_MAX);
        Self { cancel_at: end_at - reporting, report_until: end_at - reporting / 4, end_at }
    }
}

impl Server {
    /// Closes admission, waits for live rollouts and their reports, and cancels the remaining rollouts. With a journal
    /// they are not cancelled: the next process continues them.
    ///
    /// Returns whether every caller has received its result, or will receive it from the next process.
    pub async fn drain(&self, deadlines: &ShutdownDeadlines) -> bool {
        self.stop(deadlines, self.has_journal()).await
    }

    /// Drains like [`Self::drain`], but cancels and reports the remaining rollouts even with a journal. Use it for a
    /// host that no later process may continue, whose callers would otherwise wait in vain.
    pub async fn drain_completely(&self, deadlines: &ShutdownDeadlines) -> bool {
        self.stop(deadlines, false).await
    }

    /// Closes admission and drains. After the first deadline, the remaining rollouts are left to the next
    /// process with `leaves_rest`, and cancelled without it.
    async fn stop(&self, deadlines: &ShutdownDeadlines, leaves_rest: bool) -> bool {
        let host = self.0.serving.host();
        host.close();
        self.0.dialects.iter().for_each(|dialect| dialect.close());
        if !self.wait_drained(deadlines.cancel_at).await {
            let load = host.load();
            if leaves_rest {
                tracing::info!(
                    running = load.running,
                    queued = load.queued,
                    "the drain time is nearly over; running rollouts and unread results are left to the next start"
                );
                return true;
            }
            tracing::warn!(
                running = load.running,
                queued = load.queued,
                "the drain time is nearly over; cancelling the remaining rollouts"
            );
            self.0.dialects.iter().for_each(|dialect| dialect.announce_cancellation());
            host.cancel_all();
            self.wait_drained(deadlines.report_until).await;
            if load.queued + load.running > 0 {
                self.log_unreported();
                return false;
            }
        }
        let is_done = self.log_unreported() == 0;
        if is_done {
            tracing::info!("drained");
        }
        is_done
    }

    /// Closes the dialects and waits until the cancelled rollouts are reported, at most until `until`.
    pub(crate) async fn report_cancelled(&self, until: Instant) {
        self.0.dialects.iter().for_each(|dialect| dialect.close());
        self.0.dialects.iter().for_each(|dialect| dialect.announce_cancellation());
        if !self.wait_drained(until).await {
            self.log_unreported();
        }
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        self.0.serving.host().idle().await;
    }

    /// Returns whether rollouts are in a journal, so that the next process continues them.
    pub fn has_journal(&self) -> bool {
        self.0.serving.host().is_kept()
    }

    /// Answers all waiting polls at once; their callers poll again.
    pub fn answer_waiting(&self) {
        self.0.dialects.iter().for_each(|dialect| dialect.answer_waiting());
    }

    /// Waits until all dialects are drained, at most until `until`. Returns whether they are.
    async fn wait_drained(&self, until: Instant) -> bool {
        let all = self.0.dialects.iter().map(|dialect| dialect.drain(until));
        futures_util::future::join_all(all).await.into_iter().all(|is_drained| is_drained)
    }

    /// Logs the rollouts whose callers have not received the result, which is lost now, and returns their number.
    pub fn log_unreported(&self) -> usize {
        /// Maximum number of rollouts with a log line each.
        const LINES_MAX: usize = 100;
        let unreported: Vec<String> =
            self.0.dialects.iter().flat_map(|dialect| dialect.unreported()).collect();
        for rollout_id in unreported.iter().take(LINES_MAX) {
            tracing::error!(%rollout_id, "the result of this rollout was not reported and is lost");
        }
        if unreported.len() > LINES_MAX {
            let more = unreported.len() - LINES_MAX;
            tracing::error!(more, "the results of more rollouts were not reported and are lost");
        }
        unreported.len()
    }
}
