//! The page of a host: its rollouts, its load and its failures.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use askama::Template;
use rollout_rollout::{EndedCounts, EndedRollout, FailureCause, FailureCount, LiveRollout, Outcome};
use serde::{Deserialize, Serialize};

use crate::format::{duration, number, phase_word, reward, time_of_day, timestamp};
use crate::history::{LoadPlots, LoadSample};
use crate::links::{Frame, path_segment};
use crate::rollout::PageLinks;
use crate::text::visible;

/// Number of live rollouts of a phase that are listed.
pub const LIVE_PER_PAGE: usize = 50;

/// Number of finished rollouts of a page.
pub const ENDED_PER_PAGE: usize = 50;

/// Maximum number of causes of failures that are listed.
const FAILURES_MAX: usize = 20;

/// An amount that is in use, of a maximum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gauge {
    /// Its name.
    pub name: Cow<'static, str>,
    /// The amount in use, for people.
    pub used: String,
    /// The maximum, for people.
    pub max: String,
    /// The amount in use as a percentage.
    pub percent: u8,
}

impl Gauge {
    /// Creates a gauge of numbers.
    pub fn new(name: &'static str, used: u64, max: u64, shown: impl Fn(u64) -> String) -> Self {
        let percent = (u128::from(used) * 100 / u128::from(max.max(1))).min(100);
        Self { name: name.into(), used: shown(used), max: shown(max), percent: percent as u8 }
    }
}

/// A plugin of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PluginLine {
    /// Its name.
    pub name: String,
    /// Its active version.
    pub version: String,
    /// Number of running rollouts.
    pub running: u32,
    /// Number of queued rollouts.
    pub queued: u32,
    /// Maximum number of running rollouts.
    pub running_max: u32,
    /// Number of rollouts that ended.
    pub ended: u64,
    /// Number of those without a reward.
    pub unscored: u64,
    /// Number of tokens of those that ended.
    pub tokens: u64,
}

/// A plugin with the address of its page.
#[derive(Debug)]
struct PluginLink {
    line: PluginLine,
    link: String,
}

/// A tenant, for operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantLine {
    /// Its name.
    pub name: String,
    /// Number of running rollouts.
    pub running: usize,
    /// Number of queued rollouts.
    pub queued: usize,
    /// Number of rollouts that ended.
    pub ended: u64,
    /// Number of those without a reward.
    pub unscored: u64,
    /// Number of tokens of those that ended.
    pub tokens: u64,
}

/// A tenant with the address of its page.
#[derive(Debug)]
struct TenantLink {
    line: TenantLine,
    link: String,
    is_shown: bool,
}

/// A live rollout.
#[derive(Debug)]
struct LiveLine {
    id: String,
    link: String,
    plugin: String,
    phase: &'static str,
    time: String,
    calls: String,
    tokens: String,
}

/// A finished rollout.
#[derive(Debug)]
struct EndedLine {
    id: String,
    link: String,
    plugin: String,
    reward: Option<String>,
    kind: &'static str,
    reason: String,
    fault: &'static str,
    ended_at: String,
    ended_timestamp: String,
    duration: String,
    calls: String,
    tokens: String,
}

/// The failures of one cause.
#[derive(Debug)]
struct FailureGroup {
    stage: &'static str,
    kind: &'static str,
    fault: &'static str,
    count: String,
    filter: String,
    examples: Vec<(String, String)>,
}

/// The page of a host.
#[derive(Debug, Template)]
#[template(path = "host.html")]
pub struct HostPage {
    /// The frame.
    pub frame: Frame,
    gauges: Vec<Gauge>,
    quotas: Vec<Gauge>,
    load: LoadPlots,
    is_accepting: bool,
    scored: String,
    unscored: String,
    mean_reward: Option<String>,
    tokens: String,
    tenants: Vec<TenantLink>,
    plugins: Vec<PluginLink>,
    running: Vec<LiveLine>,
    running_count: String,
    running_left_out: usize,
    queued: Vec<LiveLine>,
    queued_count: String,
    queued_left_out: usize,
    ended: Vec<EndedLine>,
    ended_count: String,
    filter: EndedFilter,
    filters: Vec<FilterLink>,
    ended_links: PageLinks,
    failures: Vec<FailureGroup>,
    has_journal: bool,
    has_plugins: bool,
    is_overview: bool,
}

/// A filter of finished rollouts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedFilter {
    /// `scored`, `unscored`, or a failure's stage, kind and party at fault as `stage.kind.fault`.
    pub outcome: String,
    /// A text that the id contains.
    pub id: String,
}

/// A filter of finished rollouts to click.
#[derive(Debug)]
struct FilterLink {
    name: &'static str,
    link: String,
    is_chosen: bool,
}

impl EndedFilter {
    /// Returns whether a rollout matches the filter.
    pub fn matches(&self, rollout: &EndedRollout) -> bool {
        let outcome = match (&*self.outcome, &rollout.outcome) {
            ("", _) | ("scored", Outcome::Scored { .. }) | ("unscored", Outcome::Unscored(_)) => true,
            (cause, Outcome::Unscored(failure)) => {
                cause == cause_word(&(failure.stage, failure.kind, failure.fault))
            }
            (_, Outcome::Scored { .. }) => false,
        };
        outcome && (self.id.is_empty() || rollout.id.as_str().contains(&self.id))
    }

    fn query(&self, page: usize) -> String {
        let (outcome, id) = (path_segment(&self.outcome), path_segment(&self.id));
        let mut query = Vec::new();
        if !outcome.is_empty() {
            query.push(format!("outcome={outcome}"));
        }
        if !id.is_empty() {
            query.push(format!("id={id}"));
        }
        if page > 1 {
            query.push(format!("page={page}"));
        }
        query.join("&")
    }
}

fn cause_word((stage, kind, fault): &FailureCause) -> String {
    format!("{}.{}.{}", stage.as_str(), kind.as_str(), fault.as_str())
}

/// The data of the page of a host.
pub struct HostSource {
    /// Use of slots, memory and other resources.
    pub gauges: Vec<Gauge>,
    /// Quotas and their use.
    pub quotas: Vec<Gauge>,
    /// Samples of the load of the last hour.
    pub load: Vec<LoadSample>,
    /// Whether rollouts are admitted.
    pub is_accepting: bool,
    /// The tenants, for operators.
    pub tenants: Vec<TenantLine>,
    /// The tenant's plugins, if the process serves several.
    pub plugins: Vec<PluginLine>,
    /// Running rollouts, and the number of all of them.
    pub running: (Vec<LiveRollout>, usize),
    /// Queued rollouts, and the number of all of them.
    pub queued: (Vec<LiveRollout>, usize),
    /// Finished rollouts of a page, and the number of all that match the filter.
    pub ended: (Vec<EndedRollout>, usize),
    /// Number of that page, from 1.
    pub ended_page: usize,
    /// The filter of finished rollouts.
    pub filter: EndedFilter,
    /// Numbers of rollouts that ended.
    pub counts: EndedCounts,
    /// Failures by cause.
    pub failures: Vec<(FailureCause, FailureCount)>,
    /// Whether conversations are stored in a journal.
    pub has_journal: bool,
    /// Whether the page shows all tenants instead of the rollouts of one.
    pub is_overview: bool,
    /// The current time.
    pub now: SystemTime,
}

impl HostPage {
    /// Makes the page.
    pub fn new(frame: Frame, source: HostSource) -> Self {
        let HostSource { counts, filter, now, .. } = source;
        let links = &frame.links;
        let (running, running_count) = source.running;
        let (queued, queued_count) = source.queued;
        let (ended, ended_count) = source.ended;
        let home = |query: &str| links.with_query(format!("{}/", links.root), query);
        let ended_address = |page| home(&filter.query(page)) + "#finished";
        let pages = ended_count.div_ceil(ENDED_PER_PAGE).max(1);
        let choice = |name, outcome: &str| {
            let other = EndedFilter { outcome: outcome.to_owned(), ..filter.clone() };
            FilterLink { name, link: home(&other.query(1)) + "#finished", is_chosen: other == filter }
        };
        let live = |rollout: &LiveRollout| live_line(&frame, rollout, now);
        let failures = source.failures.iter().take(FAILURES_MAX).map(|(cause, failures)| FailureGroup {
            stage: cause.0.as_str(),
            kind: cause.1.as_str(),
            fault: cause.2.as_str(),
            count: number(failures.count),
            filter: home(&EndedFilter { outcome: cause_word(cause), id: String::new() }.query(1))
                + "#finished",
            examples: failures.examples.iter().map(|id| (links.rollout(id), visible(id.as_str()))).collect(),
        });
        let tenant_link = |line: TenantLine| TenantLink {
            link: format!("{}/?tenant={}", links.root, path_segment(&line.name)),
            is_shown: links.tenant.as_ref() == Some(&line.name),
            line,
        };
        let has_plugins = !source.plugins.is_empty();
        let plugins = source.plugins.into_iter().map(|line| PluginLink {
            link: links.with_query(format!("{}/plugins/{}", links.root, path_segment(&line.name)), ""),
            line,
        });
        let plugins = plugins.collect();
        Self {
            gauges: source.gauges,
            quotas: source.quotas,
            load: LoadPlots::new(&source.load),
            is_accepting: source.is_accepting,
            scored: number(counts.scored),
            unscored: number(counts.unscored),
            mean_reward: (counts.scored > 0).then(|| reward(counts.reward_sum / counts.scored as f64)),
            tokens: number(counts.tokens),
            running_left_out: running_count - running.len(),
            running: running.iter().map(live).collect(),
            running_count: number(running_count as u64),
            queued_left_out: queued_count - queued.len(),
            queued: queued.iter().map(live).collect(),
            queued_count: number(queued_count as u64),
            ended: ended.iter().map(|rollout| ended_line(&frame, rollout)).collect(),
            ended_count: number(ended_count as u64),
            filters: vec![
                choice("all", ""),
                choice("with reward", "scored"),
                choice("without reward", "unscored"),
            ],
            ended_links: PageLinks::new(source.ended_page.min(pages), pages, ended_address),
            failures: failures.collect(),
            tenants: source.tenants.into_iter().map(tenant_link).collect(),
            has_plugins,
            plugins,
            has_journal: source.has_journal,
            is_overview: source.is_overview,
            filter: EndedFilter { id: visible(&filter.id), outcome: filter.outcome },
            frame,
        }
    }
}

/// Returns the time since the admission of a live rollout.
pub(crate) fn live_time(rollout: &LiveRollout, now: SystemTime) -> Duration {
    let admitted_at = rollout.facts.as_ref().map(|facts| facts.admitted_at);
    admitted_at.and_then(|admitted_at| now.duration_since(admitted_at).ok()).unwrap_or_default()
}

fn live_line(frame: &Frame, rollout: &LiveRollout, now: SystemTime) -> LiveLine {
    let facts = rollout.facts.as_ref();
    let usage = facts.and_then(|facts| facts.usage()).unwrap_or_default();
    let time = live_time(rollout, now);
    LiveLine {
        id: visible(rollout.id.as_str()),
        link: frame.links.rollout(&rollout.id),
        plugin: facts.and_then(|facts| facts.plugin.as_deref()).map(visible).unwrap_or_default(),
        phase: phase_word(rollout.phase),
        // Whole seconds, so that a row changes once a second at most.
        time: if time.as_secs() < 60 { format!("{} s", time.as_secs()) } else { duration(time) },
        calls: number(usage.chat_calls),
        tokens: number(usage.prompt_tokens + usage.completion_tokens),
    }
}

fn ended_line(frame: &Frame, rollout: &EndedRollout) -> EndedLine {
    let failure = match &rollout.outcome {
        Outcome::Scored { .. } => None,
        Outcome::Unscored(failure) => Some(failure),
    };
    EndedLine {
        id: visible(rollout.id.as_str()),
        link: frame.links.rollout(&rollout.id),
        plugin: rollout.plugin.as_deref().map(visible).unwrap_or_default(),
        reward: match rollout.outcome {
            Outcome::Scored { reward: value } => Some(reward(value)),
            Outcome::Unscored(_) => None,
        },
        kind: failure.map_or("", |failure| failure.kind.as_str()),
        fault: failure.map_or("", |failure| failure.fault.as_str()),
        reason: failure.map(|failure| visible(&failure.reason)).unwrap_or_default(),
        ended_at: time_of_day(rollout.ended_at),
        ended_timestamp: timestamp(rollout.ended_at),
        duration: duration(rollout.duration),
        calls: number(rollout.chat_calls),
        tokens: number(rollout.tokens),
    }
}
