//! Checks a grader without an agent: it grades a made-up conversation twice.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::report::Report;
use super::{ANSWER, bounds, refused_uses, stand_in};
use rollout_assembly::config::Config;
use rollout_core::telemetry::Metrics;
use rollout_eval::Row;
use rollout_guest::imports::{Imports, Live, ModelAccess, Record, RefusedUses, Role, RunContext};
use rollout_guest::instance::{self, GuestVerdict, RunError, SampleToGrade};
use rollout_guest::plugin::{self, Plugin};
use rollout_mock_model::MockModel;
use rollout_outbound::{ChatClient, Transport};
use rollout_wire::id::RolloutId;
use rollout_wire::params::AllowedParams;

/// Id of the made-up sample.
const SAMPLE: &str = "main";

/// Maximum number of connections to the judge.
const CONNECTIONS: usize = 16;

/// Result of a run of the grader.
type Rating = Result<Vec<GuestVerdict>, RunError>;

/// Runs the grader twice on the row and reports the checks.
pub(super) async fn check(plugin: &Plugin, config: &Config, row: &Row, report: &mut Report) -> Result<()> {
    let grader = LoneGrader::new(plugin, config, row).await?;
    report.skipped("sample", "the component has no agent; the grader received a made-up conversation");
    let ((first, refused), (second, _)) = (grader.grade().await?, grader.grade().await?);
    match &first {
        Err(error) => {
            let advice = "if it needs another row than a sum, give one with --data FILE";
            report.failed_by(error.fault(), "reward", error.to_string(), advice);
        }
        Ok(verdicts) => reward(verdicts, report),
    }
    refused_uses(&refused, report);
    let (first, second) = (shown(&first), shown(&second));
    if first == second {
        report.passed("deterministic", "two runs returned the same verdict");
    } else {
        let advice = "a grader must give the same sample the same reward";
        report.failed("deterministic", format!("first {first}, then {second}"), advice);
    }
    Ok(())
}

/// The grader and the inputs of its runs.
struct LoneGrader<'a> {
    plugin: &'a Plugin,
    config: &'a Config,
    row: &'a Row,
    settings: plugin::PluginSettings,
    judge: ModelAccess,
    metrics: Arc<Metrics>,
    /// The stand-in for the judge, which serves until it is dropped.
    _mock: MockModel,
}

impl<'a> LoneGrader<'a> {
    async fn new(plugin: &'a Plugin, config: &'a Config, row: &'a Row) -> Result<Self> {
        let metrics = Arc::new(Metrics::new());
        let declared = plugin.declaration(&config.limits, config.clock_begins, &metrics).await?;
        let settings = plugin::resolve(declared.as_ref(), config.plugin.as_ref())?;
        let (mock, model) = stand_in(None, Duration::ZERO).await?;
        let client = ChatClient::new(
            Transport::new(CONNECTIONS)?,
            config.model.clone(),
            config.limits.reply_bytes_max,
            metrics.clone(),
        );
        let judge = ModelAccess {
            client: client.for_judges(config.model.clone(), AllowedParams::default()),
            endpoint: model.endpoint().clone(),
        };
        Ok(Self { plugin, config, row, settings, judge, metrics, _mock: mock })
    }

    /// Runs the grader in a new instance.
    async fn grade(&self) -> Result<(Rating, RefusedUses)> {
        let settings = self.settings.to_raw().map(Into::into);
        let run = RunContext {
            metadata: self.row.metadata.clone().map(Into::into),
            clock_begins: self.config.clock_begins,
            ..RunContext::without_rollout(RolloutId::parse("validate")?, settings, self.metrics.clone())
        };
        let bounds = bounds(self.config);
        let outside = Live { judge: Some(self.judge.clone()), ..Live::until(bounds.deadline) };
        let limits = Arc::new(self.config.limits.clone());
        let record = Arc::new(Record::default());
        let imports = Imports::new(Role::Grader, Arc::new(run), limits, outside, record.clone());
        let (label, samples) = (self.row.label.as_deref(), vec![self.sample()]);
        let rating = instance::run_grader(self.plugin.linked(), imports, bounds, label, samples).await;
        Ok((rating, record.refused_uses()))
    }

    /// Returns a sample with the row's prompt and the label as its answer.
    fn sample(&self) -> SampleToGrade {
        let mut messages: Vec<String> =
            self.row.prompt.iter().map(|message| message.get().to_owned()).collect();
        let text = format!("The result is {0}.\n#### {0}", self.row.label.as_deref().unwrap_or(ANSWER));
        messages.push(json!({"role": "assistant", "content": text}).to_string());
        SampleToGrade { id: SAMPLE.to_owned(), messages, metrics: Vec::new() }
    }
}

/// Checks the verdict on the sample.
fn reward(verdicts: &[GuestVerdict], report: &mut Report) {
    let verdict = match verdicts {
        [verdict] => verdict,
        [] => {
            return report.failed(
                "reward",
                "it returned no verdict",
                "a grader returns one verdict for each sample",
            );
        }
        several => {
            let detail = format!("it returned {} verdicts on one sample", several.len());
            return report.failed("reward", detail, "a grader returns one verdict for each sample");
        }
    };
    if verdict.sample_id != SAMPLE {
        let detail = format!("it graded a sample '{}' that it did not receive", verdict.sample_id);
        return report.failed("reward", detail, "a verdict must name a sample that the grader received");
    }
    match verdict.reward {
        Some(reward) if reward.is_finite() => report.passed("reward", reward.to_string()),
        Some(reward) => {
            report.failed("reward", format!("{reward} is not a finite number"), "a reward must be finite");
        }
        None if verdict.withdraw => report.warned("reward", "it withdrew the sample", ""),
        None => report.failed(
            "reward",
            "it gave the sample no reward",
            "a grader must give a reward to every sample that it does not withdraw",
        ),
    }
}

/// Renders the result of a run of the grader.
fn shown(rating: &Rating) -> String {
    let verdicts = match rating {
        Ok(verdicts) => verdicts,
        Err(error) => return format!("it {error}"),
    };
    let one = |verdict: &GuestVerdict| {
        let reward = verdict.reward.map_or("no reward".to_owned(), |reward| format!("the reward {reward}"));
        let withdrawn = if verdict.withdraw { ", withdrawn" } else { "" };
        let metric = |(name, value): &(String, f64)| format!(", {name} {value}");
        let metrics: String = verdict.metrics.iter().map(metric).collect();
        format!("{reward}{withdrawn}{metrics} for sample '{}'", verdict.sample_id)
    };
    if verdicts.is_empty() {
        "nothing".to_owned()
    } else {
        verdicts.iter().map(one).collect::<Vec<_>>().join(" and ")
    }
}
