//! A timeline of a rollout: its waits, its calls of models and tools, and its grading.

use std::time::{Duration, SystemTime};

use rollout_transcript::{ModelRole, Transcript};

use crate::format::duration;
use crate::text::visible;

/// Maximum number of bars of one row.
const BARS_MAX: usize = 400;

/// Width of the whole time.
const WIDTH: f64 = 1000.0;

/// A row of the timeline.
#[derive(Clone, Debug)]
pub(crate) struct TimelineRow {
    /// Its name.
    pub name: &'static str,
    /// Its bars.
    pub bars: Vec<Bar>,
    /// Sum of their times, overlaps included.
    pub sum: String,
}

/// A bar of the timeline, in units of a thousandth of the whole time.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// Its left end.
    pub left: String,
    /// Its width.
    pub width: String,
    /// Its title.
    pub title: String,
}

/// Spans of time within a whole.
struct Scale {
    began: SystemTime,
    whole: Duration,
}

impl Scale {
    fn bar(&self, from: SystemTime, took: Duration, title: String) -> Bar {
        let share = |time: Duration| {
            (time.as_secs_f64() / self.whole.as_secs_f64().max(1e-9) * WIDTH).clamp(0.0, WIDTH)
        };
        let left = share(from.duration_since(self.began).unwrap_or_default());
        // A short call is visible, too.
        let width = share(took).max(2.0).min(WIDTH - left.min(WIDTH - 2.0));
        Bar { left: format!("{:.1}", left.min(WIDTH - 2.0)), width: format!("{width:.1}"), title }
    }

    fn row(
        &self,
        name: &'static str,
        spans: impl Iterator<Item = (SystemTime, Duration, String)>,
    ) -> Option<TimelineRow> {
        let (mut bars, mut sum) = (Vec::new(), Duration::ZERO);
        for (from, took, title) in spans {
            sum += took;
            if bars.len() < BARS_MAX {
                bars.push(self.bar(from, took, format!("{title}: {}", duration(took))));
            }
        }
        (!bars.is_empty()).then(|| TimelineRow { name, bars, sum: duration(sum) })
    }
}

/// Returns the rows of a rollout that began at a time and took this long so far.
pub(crate) fn rows(
    transcript: &Transcript,
    began: SystemTime,
    whole: Duration,
    queued: Option<Duration>,
) -> Vec<TimelineRow> {
    let scale = Scale { began, whole };
    let models = |role| transcript.calls(role).exchanges().iter().enumerate();
    let call = |what: &'static str| {
        move |(at, of): (usize, &rollout_transcript::Exchange)| {
            (of.started_at, of.duration, format!("{what} {}", at + 1))
        }
    };
    let tools = transcript.tools.iter().map(|tool| (tool.started_at, tool.duration, visible(&tool.name)));
    let queue = queued.map(|queued| (began, queued, "in the queue".to_owned()));
    [
        scale.row("queue", queue.into_iter()),
        scale.row("model", models(ModelRole::Policy).map(call("turn"))),
        scale.row("tools", tools),
        scale.row("judge", models(ModelRole::Judge).map(call("judge's call"))),
    ]
    .into_iter()
    .flatten()
    .collect()
}
