//! The page of a gateway: its workers, and the rollouts of all of them.

use std::collections::BTreeMap;

use askama::Template;

use crate::data::{CountsData, EndedData, FailuresData, HostData, ListData, LiveData};
use crate::format::{duration, number, reward};
use crate::history::LoadRates;
use crate::host::{ENDED_PER_PAGE, Gauge, LIVE_PER_PAGE};
use crate::links::{Frame, path_segment};
use crate::text::{Text, visible};

/// Maximum number of workers on the page.
const WORKERS_PER_PAGE: usize = 200;

/// Maximum number of bytes of a reason on the page.
const REASON_BYTES_MAX: usize = 200;

/// A worker of a gateway.
#[derive(Clone, Debug, Default)]
pub struct WorkerLine {
    /// Its name.
    pub name: String,
    /// Its state: `up`, `full`, `draining` or `away`.
    pub state: &'static str,
    /// Number of its running rollouts.
    pub running: u32,
    /// Number of its queued rollouts.
    pub queued: u32,
    /// Number of its slots.
    pub slots: u32,
    /// Version of its program.
    pub version: String,
    /// The reason why it does not answer, or has less than all logs that it should have.
    pub problem: String,
}

#[derive(Debug)]
struct TenantLink {
    name: String,
    link: String,
    running: usize,
    queued: usize,
    ended: u64,
}

#[derive(Debug)]
struct Line {
    id: String,
    link: String,
    plugin: String,
    phase: String,
    reward: String,
    kind: String,
    fault: String,
    reason: String,
    time: String,
    calls: String,
    tokens: String,
}

/// The page of a gateway.
#[derive(Debug, Template)]
#[template(path = "cluster.html")]
pub struct ClusterPage {
    frame: Frame,
    workers: Vec<WorkerLine>,
    workers_left_out: usize,
    missing: usize,
    gauges: Vec<Gauge>,
    tenants: Vec<TenantLink>,
    is_overview: bool,
    scored: String,
    unscored: String,
    mean_reward: Option<String>,
    running: Vec<Line>,
    running_count: usize,
    queued: Vec<Line>,
    queued_count: usize,
    ended: Vec<Line>,
    ended_count: usize,
    failures: Vec<FailuresData>,
}

impl ClusterPage {
    /// Creates the page from the workers, which only operators see, and from the data of those that answer. `missing` is the
    /// number of the others.
    pub fn new(frame: Frame, mut workers: Vec<WorkerLine>, missing: usize, data: HostData) -> Self {
        let workers_left_out = workers.len().saturating_sub(WORKERS_PER_PAGE);
        workers.truncate(WORKERS_PER_PAGE);
        for worker in &mut workers {
            worker.name = visible(&worker.name);
            worker.problem = visible(&worker.problem);
        }
        let link = |id: &str| {
            let page = format!("{}/rollouts/{}", frame.links.root, path_segment(id));
            frame.links.with_query(page, "")
        };
        let live = |rollout: LiveData| Line {
            link: link(&rollout.id),
            id: rollout.shown_id,
            plugin: rollout.plugin.unwrap_or_default(),
            phase: rollout.phase,
            time: duration(std::time::Duration::try_from_secs_f64(rollout.secs).unwrap_or_default()),
            calls: number(rollout.calls),
            tokens: number(rollout.tokens),
            ..Line::none()
        };
        let ended = |rollout: EndedData| {
            let failure = rollout.failure.unwrap_or_default();
            Line {
                link: link(&rollout.id),
                id: rollout.shown_id,
                plugin: rollout.plugin.unwrap_or_default(),
                reward: rollout.reward.map(reward).unwrap_or_default(),
                kind: failure.kind,
                fault: failure.fault,
                reason: Text::beginning(&failure.reason, REASON_BYTES_MAX).shown,
                time: duration(std::time::Duration::try_from_secs_f64(rollout.secs).unwrap_or_default()),
                calls: number(rollout.calls),
                tokens: number(rollout.tokens),
                ..Line::none()
            }
        };
        let tenant = |tenant: crate::TenantLine| TenantLink {
            link: format!("{}/?tenant={}", frame.links.root, path_segment(&tenant.name)),
            name: tenant.name,
            running: tenant.running,
            queued: tenant.queued,
            ended: tenant.ended,
        };
        Self {
            workers,
            workers_left_out,
            missing,
            gauges: data.gauges,
            tenants: data.tenants.into_iter().map(tenant).collect(),
            is_overview: data.is_overview,
            scored: number(data.counts.scored),
            unscored: number(data.counts.unscored),
            mean_reward: data.counts.mean_reward.map(reward),
            running_count: data.running.count,
            running: data.running.items.into_iter().map(live).collect(),
            queued_count: data.queued.count,
            queued: data.queued.items.into_iter().map(live).collect(),
            ended_count: data.ended.count,
            ended: data.ended.items.into_iter().map(ended).collect(),
            failures: data.failures,
            frame,
        }
    }
}

impl Line {
    fn none() -> Self {
        let none = String::new;
        Self {
            id: none(),
            link: none(),
            plugin: none(),
            phase: none(),
            reward: none(),
            kind: none(),
            fault: none(),
            reason: none(),
            time: none(),
            calls: none(),
            tokens: none(),
        }
    }
}

/// Adds up the data of several workers. Lists have the beginnings of the workers' lists in turn, within the limits of one
/// page.
pub fn merged(name: String, gauges: Vec<Gauge>, all: Vec<HostData>) -> HostData {
    let mut sum = HostData { name, gauges, ..HostData::default() };
    let mut reward_sum = 0.0;
    let (mut tenants, mut plugins, mut failures) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (mut running, mut queued, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    for data in all {
        sum.is_accepting |= data.is_accepting;
        sum.is_overview |= data.is_overview;
        let CountsData { scored, unscored, mean_reward, tokens } = data.counts;
        reward_sum += mean_reward.unwrap_or(0.0) * scored as f64;
        sum.counts.scored += scored;
        sum.counts.unscored += unscored;
        sum.counts.tokens += tokens;
        let LoadRates { ended_per_minute, tokens_per_minute, guest_cores } = data.rates;
        sum.rates.ended_per_minute += ended_per_minute;
        sum.rates.tokens_per_minute += tokens_per_minute;
        sum.rates.guest_cores += guest_cores;
        for tenant in data.tenants {
            let of_all: &mut crate::TenantLine = tenants.entry(tenant.name.clone()).or_default();
            of_all.name = tenant.name;
            of_all.running += tenant.running;
            of_all.queued += tenant.queued;
            of_all.ended += tenant.ended;
            of_all.unscored += tenant.unscored;
            of_all.tokens += tenant.tokens;
        }
        for plugin in data.plugins {
            let of_all: &mut crate::PluginLine = plugins.entry(plugin.name.clone()).or_default();
            of_all.name = plugin.name;
            of_all.version = plugin.version;
            of_all.running += plugin.running;
            of_all.queued += plugin.queued;
            of_all.running_max += plugin.running_max;
            of_all.ended += plugin.ended;
            of_all.unscored += plugin.unscored;
            of_all.tokens += plugin.tokens;
        }
        for failure in data.failures {
            let cause = (failure.stage.clone(), failure.kind.clone(), failure.fault.clone());
            match failures.get_mut(&cause) {
                None => drop(failures.insert(cause, failure)),
                Some(of_all) => add_failures(of_all, failure),
            }
        }
        running.push(data.running);
        queued.push(data.queued);
        ended.push(data.ended);
    }
    sum.counts.mean_reward = (sum.counts.scored > 0).then(|| reward_sum / sum.counts.scored as f64);
    sum.tenants = tenants.into_values().collect();
    sum.plugins = plugins.into_values().collect();
    sum.failures = failures.into_values().collect();
    sum.failures.sort_by_key(|failures: &FailuresData| std::cmp::Reverse(failures.count));
    sum.running = in_turn(running, LIVE_PER_PAGE);
    sum.running.items.sort_by(|one, other| other.secs.total_cmp(&one.secs));
    sum.queued = in_turn(queued, LIVE_PER_PAGE);
    sum.queued.items.sort_by(|one, other| other.secs.total_cmp(&one.secs));
    sum.ended = in_turn(ended, ENDED_PER_PAGE);
    sum
}

fn add_failures(to: &mut FailuresData, more: FailuresData) {
    const EXAMPLES_MAX: usize = 3;
    to.count += more.count;
    to.examples.extend(more.examples);
    to.examples.truncate(EXAMPLES_MAX);
}

/// Takes the first element of each list, then the second of each, and so on.
fn in_turn<T>(lists: Vec<ListData<T>>, max: usize) -> ListData<T> {
    let count = lists.iter().map(|list| list.count).sum();
    let mut lists: Vec<_> = lists.into_iter().map(|list| list.items.into_iter()).collect();
    let mut items = Vec::new();
    while items.len() < max {
        let before = items.len();
        items.extend(lists.iter_mut().filter_map(Iterator::next));
        if items.len() == before {
            break;
        }
    }
    items.truncate(max);
    ListData { items, count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(worker: &str, scored: u64, mean: f64) -> HostData {
        let live =
            |at: usize| LiveData { id: format!("{worker}{at}"), secs: at as f64, ..LiveData::default() };
        let ended = |at: usize| EndedData { id: format!("{worker}{at}"), ..EndedData::default() };
        HostData {
            counts: CountsData { scored, mean_reward: Some(mean), ..CountsData::default() },
            running: ListData { items: (0..3).map(live).collect(), count: 60 },
            ended: ListData { items: (0..2).map(ended).collect(), count: 2 },
            tenants: vec![crate::TenantLine { name: "t".to_owned(), running: 2, ..Default::default() }],
            ..HostData::default()
        }
    }

    #[test]
    fn numbers_of_workers_are_summed_and_their_lists_are_mixed() {
        let sum = merged("gateway".to_owned(), Vec::new(), vec![data("a", 1, 1.0), data("b", 3, 0.0)]);
        assert_eq!((sum.counts.scored, sum.counts.mean_reward), (4, Some(0.25)));
        assert_eq!((sum.running.count, sum.running.items.len(), sum.tenants[0].running), (120, 6, 4));
        let ids: Vec<&str> = sum.ended.items.iter().map(|rollout| &*rollout.id).collect();
        assert_eq!(ids, ["a0", "b0", "a1", "b1"]);
        assert_eq!(sum.running.items[0].secs, 2.0, "the earliest admitted first");
    }

    #[test]
    fn text_of_workers_and_callers_is_escaped() {
        let mut data = data("<b>", 0, 0.0);
        data.running.items[0].shown_id = "<script>".to_owned();
        let worker = WorkerLine { name: "<i>\u{202e}".to_owned(), state: "up", ..WorkerLine::default() };
        let page = ClusterPage::new(
            Frame::default(),
            vec![worker],
            1,
            merged(String::new(), Vec::new(), vec![data]),
        );
        let text = page.render().unwrap();
        for forbidden in ["<b>", "<i>", "<script>", "\u{202e}"] {
            assert!(!text.contains(forbidden), "{forbidden}: {text}");
        }
    }
}
