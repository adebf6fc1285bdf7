//! The page of a rollout.

use std::time::{Duration, SystemTime};

use askama::Template;
use rollout_guest::imports::{LogEntry, LogLevel};
use rollout_rollout::{FailureKind, Finished, ForkMember, ForkPoint, GroupSeat, Outcome};
use rollout_transcript::{ModelRole, Part, Transcript};
use rollout_wire::id::RolloutId;

use crate::artifact::ArtifactLine;
use crate::command::shell_word;
use crate::conversation::{Conversation, PageOfTurns, Reply};
use crate::family::{FamilyLine, family_lines};
use crate::format::{amount, bytes, date_and_time, duration, number, reward, timestamp};
use crate::links::{Frame, path_segment};
use crate::message::Message;
use crate::text::{Text, visible};
use crate::timeline::{PhaseTimes, TimelineRow, rows};

/// Number of log lines of a page.
pub const LOG_LINES_PER_PAGE: usize = 200;

/// Maximum number of bytes of a log line that are shown.
const LOG_LINE_BYTES: usize = 2000;

/// Maximum number of artifacts, samples or metrics that are listed.
const LIST_MAX: usize = 200;

/// The data of the page of a rollout.
pub struct RolloutSource<'a> {
    /// Its id.
    pub id: &'a RolloutId,
    /// The plugin that runs it, if the process serves several.
    pub plugin: Option<&'a str>,
    /// The word for its phase; none once it has ended.
    pub phase: Option<&'static str>,
    /// Time of its admission.
    pub admitted_at: SystemTime,
    /// Time since then, or until its end.
    pub time: Duration,
    /// Time when its workflow started, if it is known.
    pub workflow_started_at: Option<SystemTime>,
    /// Time when its grader started, if it did and the time is known.
    pub grader_started_at: Option<SystemTime>,
    /// Its calls.
    pub transcript: &'a Transcript,
    /// Its outcome, once it has ended.
    pub outcome: Option<&'a Outcome>,
    /// Its end with all figures, if they are stored.
    pub finished: Option<&'a Finished>,
    /// The rollout that it is a fork of.
    pub fork: Option<&'a ForkPoint>,
    /// Its seat in a group, if it is a member of one.
    pub group: Option<&'a GroupSeat>,
    /// The tree of forks that it belongs to.
    pub family: Vec<ForkMember>,
    /// Its log.
    pub log: &'a [LogEntry],
    /// Number of log entries that were dropped at the limit.
    pub log_dropped: u64,
    /// Names and contents of its artifacts.
    pub artifacts: Vec<(&'a str, &'a [u8])>,
    /// The directory of the journal for commands, if they need it.
    pub journal: Option<&'a str>,
    /// A note on missing data, with its reason.
    pub caveat: Option<String>,
}

/// A name with a value.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A sample.
#[derive(Clone, Debug)]
pub(crate) struct SampleLine {
    /// Its id.
    pub id: String,
    /// Its reward.
    pub reward: Option<String>,
    /// Whether it is excluded from training.
    pub is_withdrawn: bool,
    /// Its metrics.
    pub metrics: Vec<Fact>,
}

/// A failure.
#[derive(Clone, Debug)]
pub(crate) struct FailureLine {
    /// Its stage.
    pub stage: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// The party at fault.
    pub fault: &'static str,
    /// Its reason.
    pub reason: Text,
}

/// A limit.
#[derive(Clone, Debug)]
pub(crate) struct LimitLine {
    /// Its name.
    pub name: String,
    /// The amount in use.
    pub used: String,
    /// The limit.
    pub max: String,
    /// The amount in use as a percentage.
    pub percent: u8,
    /// Number of times that it stopped or refused something.
    pub hits: u64,
}

/// A line of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogLine {
    /// Its number, from 1.
    pub number: usize,
    /// Its severity.
    pub level: &'static str,
    /// Its text.
    pub text: Text,
}

/// A command to copy.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    /// Its purpose.
    pub about: &'static str,
    /// The command.
    pub command: String,
}

/// The page of a rollout.
#[derive(Debug, Template)]
#[template(path = "rollout.html")]
pub struct RolloutPage {
    /// The frame.
    pub frame: Frame,
    id: String,
    plugin: Option<String>,
    phase: Option<&'static str>,
    admitted_at: String,
    admitted_timestamp: String,
    reward: Option<String>,
    failure: Option<FailureLine>,
    is_not_graded: bool,
    facts: Vec<Fact>,
    samples: Vec<SampleLine>,
    fork: Option<(String, String)>,
    family: Vec<FamilyLine>,
    conversation: Conversation,
    page_links: PageLinks,
    limits: Vec<LimitLine>,
    timeline: Vec<TimelineRow>,
    time: String,
    log: Vec<LogLine>,
    log_count: usize,
    log_dropped: u64,
    log_links: PageLinks,
    artifacts: Vec<ArtifactLine>,
    artifacts_left_out: usize,
    commands: Vec<CommandLine>,
    caveat: Option<String>,
}

/// The neighbours of a page of a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageLinks {
    /// Number of the page, from 1.
    pub page: usize,
    /// Number of pages.
    pub count: usize,
    /// The address of the previous page.
    pub before: Option<String>,
    /// The address of the next page.
    pub after: Option<String>,
}

impl PageLinks {
    pub(crate) fn new(page: usize, count: usize, address: impl Fn(usize) -> String) -> Self {
        let before = (page > 1).then(|| address(page - 1));
        let after = (page < count).then(|| address(page + 1));
        Self { page, count, before, after }
    }
}

impl RolloutPage {
    /// Makes the page with these turns, and these lines of the log.
    pub fn new(frame: Frame, source: &RolloutSource<'_>, turns: PageOfTurns, log_page: usize) -> Self {
        let id = source.id;
        let samples = source.finished.map(|finished| &finished.samples[..]);
        let mut conversation = Conversation::read(source.transcript, samples, turns);
        add_links(&mut conversation, |turn, message| {
            frame.links.below_rollout(id, "/text", &format!("turn={turn}&message={message}"))
        });
        let (page, count) = (conversation.page, conversation.page_count);
        let page_links =
            PageLinks::new(page, count, |page| frame.links.below_rollout(id, "", &format!("page={page}")));
        let log_count = source.log.len().div_ceil(LOG_LINES_PER_PAGE).max(1);
        let log_page = if log_page == 0 { log_count } else { log_page.min(log_count) };
        let log_links = PageLinks::new(log_page, log_count, |log| {
            frame.links.below_rollout(id, "", &format!("page={page}&log={log}")) + "#log"
        });
        let from = (log_page - 1) * LOG_LINES_PER_PAGE;
        let log = source.log.iter().enumerate().skip(from).take(LOG_LINES_PER_PAGE);
        let failure = source.outcome.and_then(|outcome| match outcome {
            Outcome::Scored { .. } => None,
            Outcome::Unscored(failure) => Some(failure),
        });
        let artifacts = source.artifacts.iter().take(LIST_MAX).enumerate().map(|(at, (name, content))| {
            let link = frame.links.below_rollout(id, "/artifact", &format!("name={}", path_segment(name)));
            ArtifactLine::new(at, name, content, link)
        });
        Self {
            id: visible(id.as_str()),
            plugin: source.plugin.map(visible),
            phase: source.phase,
            admitted_at: date_and_time(source.admitted_at),
            admitted_timestamp: timestamp(source.admitted_at),
            reward: source.outcome.and_then(|outcome| match outcome {
                Outcome::Scored { reward: value } => Some(reward(*value)),
                Outcome::Unscored(_) => None,
            }),
            is_not_graded: failure.is_some_and(|failure| failure.kind == FailureKind::NotGraded),
            failure: failure.map(|failure| FailureLine {
                stage: failure.stage.as_str(),
                kind: failure.kind.as_str(),
                fault: failure.fault.as_str(),
                reason: Text::beginning(&failure.reason, 4000),
            }),
            facts: facts(source),
            samples: samples.unwrap_or_default().iter().take(LIST_MAX).map(sample_line).collect(),
            fork: source.fork.map(|fork| {
                let text = format!("{} after turn {}", visible(fork.rollout_id.as_str()), fork.turn);
                (frame.links.rollout(&fork.rollout_id), text)
            }),
            family: family_lines(&frame.links, id, &source.family),
            conversation,
            page_links,
            limits: source.finished.map(limit_lines).unwrap_or_default(),
            timeline: rows(
                source.transcript,
                &PhaseTimes {
                    admitted_at: source.admitted_at,
                    whole: source.time,
                    queued: source.finished.map(|finished| finished.queued),
                    workflow_started_at: source.workflow_started_at,
                    grader_started_at: source.grader_started_at,
                },
            ),
            time: duration(source.time),
            log: log.map(|(at, entry)| log_line(at + 1, entry)).collect(),
            log_count: source.log.len(),
            log_dropped: source.log_dropped,
            log_links,
            artifacts: artifacts.collect(),
            artifacts_left_out: source.artifacts.len().saturating_sub(LIST_MAX),
            commands: commands(source),
            caveat: source.caveat.clone(),
            frame,
        }
    }
}

/// Adds the addresses of whole messages. The message 0 of a turn is its reply.
fn add_links(conversation: &mut Conversation, address: impl Fn(usize, usize) -> String) {
    let link = |message: &mut Message, turn: usize, at: usize| {
        message.whole = message.is_cut().then(|| address(turn, at));
    };
    for turn in &mut conversation.turns {
        let number = turn.number;
        for message in &mut turn.messages {
            // The number of a message within its request is not known here; the whole request is shown.
            message.whole = message.is_cut().then(|| address(number, 1));
        }
        if let Reply::Message(message) = &mut turn.reply {
            link(message, number, 0);
        }
    }
}

/// Returns the whole request (`message` is 1) or reply (0) of a turn as the host observed it, one message per line.
pub fn whole_text(transcript: &Transcript, turn: usize, message: usize) -> Option<String> {
    let policy = transcript.calls(ModelRole::Policy);
    let exchange = policy.exchanges().get(turn.checked_sub(1)?)?;
    if message == 0 {
        return Some(exchange.completion()?.message().to_owned());
    }
    let parts = policy.among(&transcript.samples).messages(exchange);
    let mut text = String::new();
    for message in parts.iter().flat_map(Part::iter) {
        text.push_str(message);
        text.push('\n');
    }
    Some(text)
}

/// Returns the figures of a rollout.
pub(crate) fn facts(source: &RolloutSource<'_>) -> Vec<Fact> {
    let fact = |name: &str, value: String| Fact { name: name.to_owned(), value };
    let mut facts = vec![fact("time", duration(source.time))];
    if let Some(GroupSeat { id, size, member, .. }) = source.group {
        facts.push(fact("group", format!("{}, member {member} of {size}", visible(id.as_str()))));
    }
    if let Some(group) = source.finished.and_then(|finished| finished.group.as_ref()) {
        let by = if group.graded { "the group grader" } else { "no group grader" };
        facts.push(fact("rated by", by.to_owned()));
        facts.extend(group.own_reward.filter(|_| group.graded).map(|own| fact("own reward", reward(own))));
        facts.push(fact("failed members", number(group.failed.len() as u64)));
    }
    let Some(finished) = source.finished else { return facts };
    let usage = &finished.usage;
    facts.push(fact("in the queue", duration(finished.queued)));
    facts.push(fact("model calls", number(usage.chat_calls)));
    let (prompt, completion) = (number(usage.prompt_tokens), number(usage.completion_tokens));
    facts.push(fact("tokens", format!("{prompt} + {completion}")));
    facts.push(fact("tool calls", number(usage.tool_calls)));
    if usage.judge_calls > 0 {
        facts.push(fact(
            "judge",
            format!("{} calls, {} tokens", usage.judge_calls, number(usage.judge_tokens)),
        ));
    }
    if usage.chat_retries > 0 {
        facts.push(fact("retries", number(usage.chat_retries)));
    }
    facts.push(fact("guest CPU", duration(usage.guest_cpu)));
    facts.push(fact("peak memory", bytes(usage.memory_bytes_peak as u64)));
    facts
}

fn sample_line(sample: &rollout_rollout::FinishedSample) -> SampleLine {
    let record = &sample.record;
    let metrics = record.metrics.iter().take(LIST_MAX);
    SampleLine {
        id: visible(record.id.as_str()),
        reward: sample.reward.map(reward),
        is_withdrawn: record.withdrawn,
        metrics: metrics.map(|(name, value)| Fact { name: visible(name), value: reward(*value) }).collect(),
    }
}

fn limit_lines(finished: &Finished) -> Vec<LimitLine> {
    use rollout_core::limits::Amount;
    let as_number = |amount: Amount| match amount {
        Amount::Count(count) => count as f64,
        Amount::Secs(secs) => secs,
    };
    let line = |limit: &rollout_rollout::LimitUse| {
        let used = limit.used?;
        let share = as_number(used) / as_number(limit.max).max(f64::MIN_POSITIVE);
        Some(LimitLine {
            name: limit.name.to_string(),
            used: amount(&limit.name, used),
            max: amount(&limit.name, limit.max),
            percent: (share * 100.0).clamp(0.0, 100.0) as u8,
            hits: limit.hits,
        })
    };
    let mut lines: Vec<LimitLine> = finished.limits.iter().filter_map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse((line.hits, line.percent)));
    lines
}

fn log_line(number: usize, entry: &LogEntry) -> LogLine {
    let (level, text) = match entry {
        LogEntry::Line { level, text } => {
            let level = match level {
                LogLevel::Debug => "debug",
                LogLevel::Info => "info",
                LogLevel::Warn => "warn",
                LogLevel::Error => "error",
            };
            (level, Text::beginning(text, LOG_LINE_BYTES))
        }
        LogEntry::Event { event, data } => {
            ("event", Text::beginning(&format!("{event} {}", data.get()), LOG_LINE_BYTES))
        }
    };
    LogLine { number, level, text }
}

fn commands(source: &RolloutSource<'_>) -> Vec<CommandLine> {
    let id = source.id.as_str();
    // A name that begins with a dash would be an option.
    let dashes = if id.starts_with('-') { "-- " } else { "" };
    let id = format!("{dashes}{}", shell_word(id));
    let journal = source.journal.map(|dir| format!("--journal {} ", shell_word(dir))).unwrap_or_default();
    let turn = source.transcript.calls(ModelRole::Policy).exchanges().len().saturating_sub(1);
    vec![
        CommandLine {
            about: "Runs it again with the recorded answers",
            command: format!("rollout-host replay {journal}{id}"),
        },
        CommandLine {
            about: "Continues it from one of its turns, eight times",
            command: format!("rollout-host fork {journal}--turn {turn} --count 8 --model mock {id}"),
        },
        CommandLine {
            about: "Writes its trajectory",
            command: format!("rollout-host trajectory {journal}{id}"),
        },
    ]
}
