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

/// Times of the phases of a rollout, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhaseTimes {
    /// Time of its admission.
    pub admitted_at: SystemTime,
    /// Time from its admission to its end, or until now.
    pub whole: Duration,
    /// Time in the queue.
    pub queued: Option<Duration>,
    /// Time when its workflow started.
    pub workflow_started_at: Option<SystemTime>,
    /// Time when its grader started.
    pub grader_started_at: Option<SystemTime>,
}

/// Returns the rows of a rollout.
pub(crate) fn rows(transcript: &Transcript, times: &PhaseTimes) -> Vec<TimelineRow> {
    let scale = Scale { began: times.admitted_at, whole: times.whole };
    let models = |role| transcript.calls(role).exchanges().iter().enumerate();
    let call = |what: &'static str| {
        move |(at, of): (usize, &rollout_transcript::Exchange)| {
            (of.started_at, of.duration, format!("{what} {}", at + 1))
        }
    };
    let tools = transcript.tools.iter().map(|tool| (tool.started_at, tool.duration, visible(&tool.name)));
    let queue = times.queued.map(|queued| (times.admitted_at, queued, "in the queue".to_owned()));
    let ended_at = times.admitted_at.checked_add(times.whole).unwrap_or(times.admitted_at);
    // The times in which a guest runs and no call of it is open.
    let calls = calls(transcript);
    let guest = |from: Option<SystemTime>, to: SystemTime, title: &'static str| {
        let mut alone_in = from.map(|from| alone(from, to, &calls)).unwrap_or_default();
        // A start is a time of day and an end is a measured duration, between which clocks may be changed.
        if let Some(from) = from.filter(|_| alone_in.is_empty()) {
            alone_in.push((from, Duration::ZERO));
        }
        alone_in.into_iter().map(move |(from, took)| (from, took, title.to_owned()))
    };
    let workflow_ended_at = times.grader_started_at.unwrap_or(ended_at);
    [
        scale.row("queue", queue.into_iter()),
        scale.row("guest", guest(times.workflow_started_at, workflow_ended_at, "the workflow alone")),
        scale.row("model", models(ModelRole::Policy).map(call("turn"))),
        scale.row("tools", tools),
        scale.row("grader", guest(times.grader_started_at, ended_at, "the grader alone")),
        scale.row("judge", models(ModelRole::Judge).map(call("judge's call"))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the times of all calls, the earliest first.
fn calls(transcript: &Transcript) -> Vec<(SystemTime, Duration)> {
    let models = [ModelRole::Policy, ModelRole::Judge].map(|role| transcript.calls(role).exchanges());
    let models = models.into_iter().flatten().map(|call| (call.started_at, call.duration));
    let tools = transcript.tools.iter().map(|tool| (tool.started_at, tool.duration));
    let mut calls: Vec<_> = models.chain(tools).collect();
    calls.sort_unstable();
    calls
}

/// Returns the parts of a span of time in which no call is open. Calls are in the order of their times.
fn alone(from: SystemTime, to: SystemTime, calls: &[(SystemTime, Duration)]) -> Vec<(SystemTime, Duration)> {
    let (mut parts, mut at) = (Vec::new(), from);
    let mut add = |from: SystemTime, to: SystemTime| {
        if let Ok(took) = to.duration_since(from)
            && took > Duration::ZERO
        {
            parts.push((from, took));
        }
    };
    for (began, took) in calls {
        add(at, (*began).min(to));
        at = at.max(began.checked_add(*took).unwrap_or(to));
    }
    add(at, to);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[test]
    fn a_guest_runs_alone_while_no_call_is_open() {
        let secs = Duration::from_secs;
        let calls = [(at(5), secs(3)), (at(6), secs(1)), (at(12), secs(2))];
        let alone = |from, to| alone(at(from), at(to), &calls);
        assert_eq!(alone(2, 20), [(at(2), secs(3)), (at(8), secs(4)), (at(14), secs(6))]);
        assert_eq!(alone(6, 13), [(at(8), secs(4))]);
        assert_eq!(alone(20, 21), [(at(20), secs(1))]);
    }

    #[test]
    fn the_grader_follows_the_guest() {
        let times = PhaseTimes {
            admitted_at: at(0),
            whole: Duration::from_secs(20),
            queued: Some(Duration::from_secs(1)),
            workflow_started_at: Some(at(1)),
            grader_started_at: Some(at(15)),
        };
        let rows = rows(&Transcript::default(), &times);
        let sums: Vec<_> = rows.iter().map(|row| (row.name, &*row.sum)).collect();
        assert_eq!(sums, [("queue", "1.0 s"), ("guest", "14.0 s"), ("grader", "5.0 s")]);
    }

    #[test]
    fn a_grader_that_began_after_the_measured_end_has_a_row() {
        let times = PhaseTimes {
            admitted_at: at(0),
            whole: Duration::from_secs(20),
            queued: None,
            workflow_started_at: Some(at(1)),
            grader_started_at: Some(at(21)),
        };
        let rows = rows(&Transcript::default(), &times);
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["guest", "grader"]);
    }
}
