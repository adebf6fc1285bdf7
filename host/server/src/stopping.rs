//! How a server stops: what runs may end and be reported, then what is left is cancelled, or left to
//! the next start where it is in a journal.

use std::time::Duration;

use tokio::time::Instant;

use super::Server;

/// When stopping is at what. All of it together takes what the operator gave it.
#[derive(Clone, Copy, Debug)]
pub struct Stopping {
    /// What still runs then is cancelled.
    cancels_at: Instant,
    /// What was not reported by then is lost.
    reports_until: Instant,
    /// Connections that are open then are left.
    pub ends_at: Instant,
}

impl Stopping {
    /// What is cancelled is reported in the last quarter, for which no more than this is needed.
    const REPORTING_MAX: Duration = Duration::from_secs(5);

    /// All of it within this time from now.
    pub fn within(time: Duration) -> Self {
        let ends_at = Instant::now() + time;
        let reporting = (time / 4).min(Self::REPORTING_MAX);
        Self { cancels_at: ends_at - reporting, reports_until: ends_at - reporting / 4, ends_at }
    }
}

impl Server {
    /// Lets running rollouts end and be reported, then cancels what is left, unless it is in a
    /// journal: then the next process goes on with it. Says whether every caller has heard, or will
    /// hear, what came of its rollout.
    pub async fn drain(&self, stopping: &Stopping) -> bool {
        let host = self.0.serving.host();
        host.close();
        self.0.dialects.iter().for_each(|dialect| dialect.close());
        if !self.drained(stopping.cancels_at).await {
            let load = host.load();
            if host.is_kept() {
                tracing::info!(
                    running = load.running,
                    queued = load.queued,
                    "the drain time is nearly over; what still runs, and results that nobody read, are left to the next start"
                );
                return true;
            }
            tracing::warn!(
                running = load.running,
                queued = load.queued,
                "the drain time is nearly over; cancelling what still runs"
            );
            self.0.dialects.iter().for_each(|dialect| dialect.cancels_rest());
            host.cancel_all();
            self.drained(stopping.reports_until).await;
            if load.queued + load.running > 0 {
                self.name_unreported();
                return false;
            }
        }
        let is_done = self.name_unreported() == 0;
        if is_done {
            tracing::info!("drained");
        }
        is_done
    }

    /// Takes nothing more, and waits until what was cancelled is reported, or until the time is.
    pub(crate) async fn report_cancelled(&self, until: Instant) {
        self.0.dialects.iter().for_each(|dialect| dialect.close());
        self.0.dialects.iter().for_each(|dialect| dialect.cancels_rest());
        if !self.drained(until).await {
            self.name_unreported();
        }
    }

    /// Waits until no rollout is alive.
    pub async fn idle(&self) {
        self.0.serving.host().idle().await;
    }

    /// Whether what is left undone here goes on in the next process.
    pub fn is_kept(&self) -> bool {
        self.0.serving.host().is_kept()
    }

    /// Answers everybody who waits for news that there are none yet. They come again.
    pub fn answer_waiting(&self) {
        self.0.dialects.iter().for_each(|dialect| dialect.answer_waiting());
    }

    /// Waits until all protocols are through, or until the time is. Says whether they are.
    async fn drained(&self, until: Instant) -> bool {
        let all = self.0.dialects.iter().map(|dialect| dialect.drain(until));
        futures_util::future::join_all(all).await.into_iter().all(|is_drained| is_drained)
    }

    /// Says which rollouts' callers have not heard what came of them, because nobody can ask for
    /// that any more. Gives their number.
    pub fn name_unreported(&self) -> usize {
        /// Rollouts that are named one by one.
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
