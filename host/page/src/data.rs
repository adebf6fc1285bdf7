//! The pages of a host and of a rollout as data, for programs that show them elsewhere.
//!
//! The data is that of a page, with the same limits on its size, and texts of others are in the same form: without characters
//! that drive a terminal or turn the text around them.

use serde::{Deserialize, Serialize};

use rollout_rollout::{EndedRollout, FailureCause, FailureCount, LiveRollout, Outcome};

use crate::conversation::{Conversation, Ending, PageOfTurns, Reply, Turn};
use crate::format::{duration, phase_word};
use crate::history::LoadRates;
use crate::host::{Gauge, HostSource, PluginLine, TenantLine, live_time};
use crate::message::{Call, Message};
use crate::rollout::{Fact, RolloutSource, facts};
use crate::text::{Text, visible};

/// A list of which a page has the beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListData<T> {
    /// The elements of the page.
    pub items: Vec<T>,
    /// Number of all elements.
    pub count: usize,
}

impl<T> Default for ListData<T> {
    fn default() -> Self {
        Self { items: Vec::new(), count: 0 }
    }
}

impl<T> ListData<T> {
    fn new<S>((items, count): &(Vec<S>, usize), item: impl Fn(&S) -> T) -> Self {
        Self { items: items.iter().map(item).collect(), count: *count }
    }
}

/// A live rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveData {
    /// Its id.
    pub id: String,
    /// The id in the form in which it can be shown.
    pub shown_id: String,
    /// The plugin that runs it, if the process serves several.
    pub plugin: Option<String>,
    /// Its phase.
    pub phase: String,
    /// Seconds since its admission.
    pub secs: f64,
    /// Number of calls of the model.
    pub calls: u64,
    /// Number of tokens of these calls.
    pub tokens: u64,
}

/// A failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailureData {
    /// Its stage.
    pub stage: String,
    /// Its kind.
    pub kind: String,
    /// The party at fault.
    pub fault: String,
    /// Its reason, shortened.
    pub reason: String,
}

/// A rollout that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndedData {
    /// Its id.
    pub id: String,
    /// The id in the form in which it can be shown.
    pub shown_id: String,
    /// The plugin that ran it, if the process serves several.
    pub plugin: Option<String>,
    /// Its reward.
    pub reward: Option<f64>,
    /// Its failure, if it has no reward.
    pub failure: Option<FailureData>,
    /// Seconds from its admission to its end.
    pub secs: f64,
    /// Number of calls of the model.
    pub calls: u64,
    /// Number of tokens of these calls.
    pub tokens: u64,
}

/// The failures of one stage, kind and party at fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailuresData {
    /// Their stage.
    pub stage: String,
    /// Their kind.
    pub kind: String,
    /// The party at fault.
    pub fault: String,
    /// Number of rollouts since the start of the process.
    pub count: u64,
    /// Ids of the latest of them.
    pub examples: Vec<String>,
}

/// Numbers of rollouts that ended since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountsData {
    /// Rollouts with a reward.
    pub scored: u64,
    /// Rollouts without a reward.
    pub unscored: u64,
    /// The mean of the rewards.
    pub mean_reward: Option<f64>,
    /// Number of tokens of all calls of the model.
    pub tokens: u64,
}

/// The page of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostData {
    /// The name of the server.
    pub name: String,
    /// Whether rollouts are admitted.
    pub is_accepting: bool,
    /// Whether the data is of all tenants instead of the rollouts of one.
    pub is_overview: bool,
    /// Slots, memory and the like.
    pub gauges: Vec<Gauge>,
    /// Quotas and their use.
    pub quotas: Vec<Gauge>,
    /// Present rates.
    pub rates: LoadRates,
    /// Numbers of rollouts that ended.
    pub counts: CountsData,
    /// The tenants, for operators.
    pub tenants: Vec<TenantLine>,
    /// The tenant's plugins, if the process serves several.
    pub plugins: Vec<PluginLine>,
    /// Failures by cause.
    pub failures: Vec<FailuresData>,
    /// Running rollouts, the earliest admitted first.
    pub running: ListData<LiveData>,
    /// Queued rollouts, the earliest admitted first.
    pub queued: ListData<LiveData>,
    /// Finished rollouts, the latest first.
    pub ended: ListData<EndedData>,
}

impl HostData {
    /// Makes the data of a host with this name.
    pub fn new(name: String, source: &HostSource) -> Self {
        let counts = &source.counts;
        let live = |rollout: &LiveRollout| live(rollout, source);
        let mean_reward = (counts.scored > 0).then(|| counts.reward_sum / counts.scored as f64);
        Self {
            name: visible(&name),
            is_accepting: source.is_accepting,
            is_overview: source.is_overview,
            gauges: source.gauges.clone(),
            quotas: source.quotas.clone(),
            rates: LoadRates::new(&source.load),
            counts: CountsData {
                scored: counts.scored,
                unscored: counts.unscored,
                mean_reward,
                tokens: counts.tokens,
            },
            tenants: source.tenants.clone(),
            plugins: source.plugins.clone(),
            failures: source.failures.iter().map(failures).collect(),
            running: ListData::new(&source.running, live),
            queued: ListData::new(&source.queued, live),
            ended: ListData::new(&source.ended, ended),
        }
    }
}

fn live(rollout: &LiveRollout, source: &HostSource) -> LiveData {
    let facts = rollout.facts.as_ref();
    let usage = facts.and_then(|facts| facts.usage()).unwrap_or_default();
    LiveData {
        id: rollout.id.as_str().to_owned(),
        shown_id: visible(rollout.id.as_str()),
        plugin: facts.and_then(|facts| facts.plugin.as_deref()).map(visible),
        phase: phase_word(rollout.phase).to_owned(),
        secs: live_time(rollout, source.now).as_secs_f64(),
        calls: usage.chat_calls,
        tokens: usage.prompt_tokens + usage.completion_tokens,
    }
}

fn ended(rollout: &EndedRollout) -> EndedData {
    let (reward, failure) = outcome(&rollout.outcome);
    EndedData {
        id: rollout.id.as_str().to_owned(),
        shown_id: visible(rollout.id.as_str()),
        plugin: rollout.plugin.as_deref().map(visible),
        reward,
        failure,
        secs: rollout.duration.as_secs_f64(),
        calls: rollout.chat_calls,
        tokens: rollout.tokens,
    }
}

fn outcome(outcome: &Outcome) -> (Option<f64>, Option<FailureData>) {
    match outcome {
        Outcome::Scored { reward } => (Some(*reward), None),
        Outcome::Unscored(failure) => {
            let failure = FailureData {
                stage: failure.stage.as_str().to_owned(),
                kind: failure.kind.as_str().to_owned(),
                fault: failure.fault.as_str().to_owned(),
                reason: Text::beginning(&failure.reason, 4000).shown,
            };
            (None, Some(failure))
        }
    }
}

fn failures((cause, failures): &(FailureCause, FailureCount)) -> FailuresData {
    FailuresData {
        stage: cause.0.as_str().to_owned(),
        kind: cause.1.as_str().to_owned(),
        fault: cause.2.as_str().to_owned(),
        count: failures.count,
        examples: failures.examples.iter().map(|id| id.as_str().to_owned()).collect(),
    }
}

/// A text of which a page has the beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TextData {
    /// The part that is shown.
    pub shown: String,
    /// Number of bytes of the text that are left out.
    pub left_out: usize,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallData {
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: TextData,
    /// The result, if the conversation has it.
    pub result: Option<TextData>,
    /// The outcome and the time that the host observed, if the host provided the tool.
    pub observed: Option<String>,
}

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageData {
    /// Its role.
    pub role: String,
    /// A note beside its role.
    pub note: Option<String>,
    /// The model's reasoning.
    pub reasoning: TextData,
    /// Its text.
    pub text: TextData,
    /// Its calls of tools.
    pub calls: Vec<CallData>,
}

/// One call of a model, or the messages after the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnData {
    /// Its title.
    pub title: String,
    /// Time, tokens and the like.
    pub facts: Vec<String>,
    /// A difference between the workflow's conversation and the observed one.
    pub warning: Option<String>,
    /// The new messages, and the reply as the last one.
    pub messages: Vec<MessageData>,
    /// The error of the call.
    pub error: Option<String>,
    /// Whether the reply is awaited.
    pub is_awaited: bool,
}

/// The page of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutData {
    /// Its id in the form in which it can be shown.
    pub shown_id: String,
    /// The plugin that runs it, if the process serves several.
    pub plugin: Option<String>,
    /// Its phase, until it has ended.
    pub phase: Option<String>,
    /// Its reward.
    pub reward: Option<f64>,
    /// Its failure.
    pub failure: Option<FailureData>,
    /// Names and values of figures.
    pub facts: Vec<(String, String)>,
    /// A note on missing data.
    pub caveat: Option<String>,
    /// The turns of the page, with the calls of the judge on the last page.
    pub turns: Vec<TurnData>,
    /// Number of the page, from 1.
    pub page: usize,
    /// Number of pages.
    pub page_count: usize,
}

impl RolloutData {
    /// Makes the data of a rollout with these turns.
    pub fn new(source: &RolloutSource<'_>, turns: PageOfTurns) -> Self {
        let samples = source.finished.map(|finished| &finished.samples[..]);
        let Conversation { turns, page, page_count, endings, judge, .. } =
            Conversation::read(source.transcript, samples, turns);
        let (reward, failure) = source.outcome.map(outcome).unwrap_or_default();
        let turns = turns.into_iter().map(|turn| turn_data("turn", turn));
        let endings = endings.into_iter().map(ending_data);
        let judge = judge.into_iter().map(|turn| turn_data("judge's call", turn));
        Self {
            shown_id: visible(source.id.as_str()),
            plugin: source.plugin.map(visible),
            phase: source.phase.map(str::to_owned),
            reward,
            failure,
            facts: facts(source).into_iter().map(|Fact { name, value }| (name, value)).collect(),
            caveat: source.caveat.clone(),
            turns: turns.chain(endings).chain(judge).collect(),
            page,
            page_count,
        }
    }
}

fn turn_data(word: &str, turn: Turn) -> TurnData {
    let sample = turn.sample.map(|sample| format!(" of {sample}")).unwrap_or_default();
    let mut data = TurnData {
        title: format!("{word} {}{sample}", turn.number),
        facts: turn.facts,
        warning: turn.warning,
        messages: turn.messages.into_iter().map(message_data).collect(),
        ..TurnData::default()
    };
    match turn.reply {
        Reply::Message(message) => data.messages.push(message_data(*message)),
        Reply::Failed(reason) => data.error = Some(reason),
        Reply::Awaited => data.is_awaited = true,
    }
    data
}

fn ending_data(ending: Ending) -> TurnData {
    let sample = ending.sample.map(|sample| format!(" of {sample}")).unwrap_or_default();
    TurnData {
        title: format!("after the last reply{sample}"),
        warning: ending.warning,
        messages: ending.messages.into_iter().map(message_data).collect(),
        ..TurnData::default()
    }
}

fn message_data(message: Message) -> MessageData {
    let text = |text: Text| TextData { shown: text.shown, left_out: text.left_out };
    let call = |call: Call| CallData {
        name: call.name,
        arguments: text(call.arguments),
        result: call.result.map(text),
        observed: call.observed.map(|observed| format!("{}, {}", observed.outcome, duration(observed.took))),
    };
    MessageData {
        role: message.role,
        note: message.note,
        reasoning: text(message.reasoning),
        text: text(message.text),
        calls: message.calls.into_iter().map(call).collect(),
    }
}
