//! Server-sent events: an open page is notified of a change and requests itself again.
//!
//! An event has no data, so that a page is made in one place, with the rights of its request. A stream sends at most one
//! event in each interval, however much changes. It ends when its session ends or the server drains.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::shares::Held;

/// Interval without an event after which a comment is sent, so that the connection counts as read.
const BEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The next event of a page's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing has changed.
    None,
    /// The page has changed.
    Changed,
    /// The page has changed for the last time.
    Over,
    /// The stream ends, and the browser tries again.
    Closed,
}

/// Returns the response with a page's events. `news` is called in each interval.
pub(crate) fn response(
    held: Held,
    interval: Duration,
    news: impl FnMut() -> News + Send + 'static,
) -> Response {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let state = Stream { ticks, news, last: Instant::now(), is_over: false, _held: held };
    // The first event after a connection was lost may have been missed.
    let first =
        stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"retry: 3000\n\nevent: change\ndata:\n\n"))]);
    let rest = stream::unfold(state, |mut stream| async move {
        let part = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from_static(part)), stream))
    });
    body(Body::from_stream(futures_util::StreamExt::chain(first, rest)))
}

/// Returns the response of a page that cannot have a stream.
pub(crate) fn full() -> Response {
    let text = "event: full\ndata: not live: too many pages are open; reload to see changes\n\n";
    body(Body::from(text))
}

fn body(body: Body) -> Response {
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}

struct Stream<F> {
    ticks: Interval,
    news: F,
    last: Instant,
    is_over: bool,
    _held: Held,
}

impl<F: FnMut() -> News> Stream<F> {
    /// Returns the next part; `None` at the end.
    async fn next(&mut self) -> Option<&'static [u8]> {
        if self.is_over {
            return None;
        }
        loop {
            self.ticks.tick().await;
            let part: &[u8] = match (self.news)() {
                News::None if self.last.elapsed() < BEAT_INTERVAL => continue,
                News::None => b":\n\n",
                News::Changed => b"event: change\ndata:\n\n",
                News::Over => {
                    self.is_over = true;
                    b"event: over\ndata:\n\n"
                }
                News::Closed => return None,
            };
            self.last = Instant::now();
            return Some(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;

    use super::super::shares::Shares;
    use super::*;

    #[tokio::test]
    async fn a_stream_reports_changes_and_releases_its_share_at_the_end() {
        let shares = Shares::new(1, 1);
        let mut news = [News::None, News::Changed, News::None, News::Over].into_iter();
        let held = shares.take(1).unwrap();

        let response = response(held, Duration::from_millis(1), move || news.next().unwrap_or(News::Closed));

        assert!(shares.take(1).is_none());
        let parts: Vec<Bytes> = response.into_body().into_data_stream().try_collect().await.unwrap();
        let text: String = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
        let change = "event: change\ndata:\n\n";
        assert_eq!(text, format!("retry: 3000\n\n{change}{change}event: over\ndata:\n\n"));
        assert!(shares.take(1).is_some());
    }
}
