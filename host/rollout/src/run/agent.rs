//! The agent's part of a rollout: a workflow, which registers samples, or an agent loop, which returns its conversation
//! and possibly its own reward. An environment that a model plays is in `play`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Rollout, brief};
use crate::model::{AgentForm, Failure, FailureKind, LoopReport, Stage};
use rollout_core::error::Fault;
use rollout_guest::imports::{Boundary, Imports, Live, Role, RunContext};
use rollout_guest::instance::{self, Bounds, LoopOutcome, LoopRequest, Permit, RunError, WorkflowOutcome};
use rollout_transcript::message_bytes;
use rollout_wire as wire;
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;

/// Id of the sample of an agent that only returned messages.
const ONLY_SAMPLE: &str = "main";

/// Timeout for an agent loop to return its tools. A caller waits for them and has a timeout of its own.
const TOOLS_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum size of a stored finish reason, in bytes. It is usually a word.
const FINISH_REASON_BYTES_MAX: usize = 256;

impl Rollout {
    /// Asks an agent loop for the tools of this rollout, in a separate instance. Returns none for other forms of an
    /// agent. `read` converts them for the caller, or returns an error. The error is stored for `Rollout::finish`, too.
    pub async fn tools<T>(
        &mut self,
        read: impl FnOnce(Vec<Box<RawValue>>) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let cancel = self.handle.cancel.clone();
        let result = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Failure::cancelled(Stage::Workflow)),
            result = self.ask_for_tools() => result,
        };
        let result = result.and_then(|tools| read(tools).map_err(invalid));
        self.failure = result.as_ref().err().cloned();
        result
    }

    async fn ask_for_tools(&self) -> Result<Vec<Box<RawValue>>, Failure> {
        if self.host.form() != AgentForm::AgentLoop {
            return Ok(Vec::new());
        }
        let inner = &self.host.0;
        let Some(permit) = inner.runtime.slots().declaration().await else {
            return Err(Failure::host(Stage::Workflow, "the host is shutting down"));
        };
        let deadline = Some(Instant::now() + TOOLS_TIME_MAX.min(inner.deployment.limits.workflow_time_max));
        let bounds = Bounds {
            memory_bytes_max: inner.deployment.limits.memory_bytes_max,
            deadline,
            permit: Permit::counted(permit),
        };
        let limits = inner.deployment.limits.clone();
        // The caller sees the tools, so the instance does not get the ground truth.
        let metadata = self.request.metadata.as_ref().map(|metadata| metadata.public().clone());
        let run = Arc::new(RunContext { metadata, ..(*self.run).clone() });
        let imports =
            Imports::new(Role::Declaration, run, limits, Live::until(deadline), self.record.clone());
        let plugin = inner.deployment.workflow.linked();
        let tools = instance::agent_loop_tools(plugin, imports, bounds, self.loop_request()).await;
        let tools = tools.map_err(|error| match error {
            RunError::Deadline => failed(
                FailureKind::Timeout,
                format!(
                    "the agent loop did not return its tools within {}",
                    rollout_wire::text::time(TOOLS_TIME_MAX)
                ),
            ),
            error => self.explain(Stage::Workflow, &error),
        })?;
        objects("offered tools", &tools)
    }

    fn loop_request(&self) -> LoopRequest {
        let options = &self.request.loop_options;
        LoopRequest {
            messages: self.prompt(),
            max_turns: options.max_turns,
            max_tokens_total: options.max_tokens_total,
            completion_params: options.completion_params.as_deref().map_or("{}", RawValue::get).to_owned(),
        }
    }

    fn prompt(&self) -> Vec<String> {
        self.request.prompt.iter().map(ToOwned::to_owned).collect()
    }

    /// Runs the agent and stores its result. The outer error is that of the run, the inner one that of the agent or of
    /// an invalid result.
    pub(super) async fn run_agent(
        &mut self,
        imports: Box<Imports>,
        bounds: Bounds,
        boundary: &Arc<Boundary>,
    ) -> Result<Result<(), Failure>, RunError> {
        let plugin = self.host.0.deployment.workflow.linked();
        Ok(match self.host.form() {
            AgentForm::Workflow => {
                let ran = instance::run_workflow(plugin, *imports, bounds, self.prompt()).await;
                let outcome = self.end_run(boundary, ran)?;
                self.settle_workflow(outcome)
            }
            AgentForm::AgentLoop => {
                let ran = instance::run_agent_loop(plugin, *imports, bounds, self.loop_request()).await;
                let outcome = self.end_run(boundary, ran)?;
                self.settle_loop(outcome)
            }
            AgentForm::Environment => return self.play(imports, bounds, boundary).await,
        })
    }

    /// Stores the result of a workflow.
    fn settle_workflow(&mut self, outcome: WorkflowOutcome) -> Result<(), Failure> {
        let WorkflowOutcome { messages, metrics } = outcome;
        if messages.is_none() && metrics.is_empty() {
            return Ok(());
        }
        check_metrics("workflow", &metrics).map_err(invalid)?;
        self.settle("workflow", messages.as_deref(), metrics)
    }

    /// Stores the conversation of a request that is only graded.
    pub(super) fn settle_request(&mut self, conversation: &Messages) -> Result<(), Failure> {
        let texts: Vec<String> = conversation.iter().map(ToOwned::to_owned).collect();
        self.settle("caller", Some(&texts), Vec::new())
    }

    /// Validates and stores the result of an agent loop, completely or not at all.
    fn settle_loop(&mut self, outcome: LoopOutcome) -> Result<(), Failure> {
        let LoopOutcome { error, messages, finish_reason, reward, metrics, tool_calls, tool_time_ms } =
            outcome;
        check_numbers(reward, &metrics).map_err(invalid)?;
        let tool_time = Duration::try_from_secs_f64(tool_time_ms / 1e3).map_err(|_| {
            invalid(format!("agent loop gave tool-time-ms {tool_time_ms}, which is not a valid time"))
        })?;
        // A loop that failed may have no messages; samples that it registered stay.
        if error.is_none() || !messages.is_empty() {
            self.settle("agent loop", Some(&messages), metrics)?;
        } else {
            let only = SampleId::parse(ONLY_SAMPLE).map_err(invalid)?;
            // With several samples the metrics are ambiguous, and the failure is more important.
            let _ = self.record.settle(only, None, metrics);
        }
        let finish_reason = rollout_wire::text::printable(&rollout_wire::text::beginning(
            &finish_reason,
            FINISH_REASON_BYTES_MAX,
        ));
        self.loop_report = Some(LoopReport { finish_reason, tool_calls, tool_time });
        match error {
            Some(reason) => Err(self.blame(&RunError::Failed(reason))),
            None => {
                self.own_reward = reward;
                Ok(())
            }
        }
    }

    /// Stores the messages as the history of the rollout's only sample, and the metrics with it.
    fn settle(
        &mut self,
        form: &str,
        texts: Option<&[String]>,
        metrics: Vec<(String, f64)>,
    ) -> Result<(), Failure> {
        let messages = texts.map(|texts| self.returned(form, texts)).transpose()?;
        self.returned_messages = messages.is_some();
        let only = SampleId::parse(ONLY_SAMPLE).map_err(invalid)?;
        let returned = if messages.is_some() { "messages" } else { "metrics" };
        self.record.settle(only, messages, metrics).map_err(|count| {
            invalid(format!(
                "{form} returned {returned} with {count} samples open, so their sample is ambiguous; \
                 give them to a sample and return none"
            ))
        })
    }

    /// Copies returned messages after charging them.
    fn returned(&self, form: &str, texts: &[String]) -> Result<Messages, Failure> {
        let source = format!("{form} returned messages");
        let bytes = message_bytes(texts.iter().map(String::as_str));
        self.charge(&source, bytes).map_err(|why| failed(FailureKind::Limit, why))?;
        Ok(objects(&source, texts)?.iter().map(AsRef::as_ref).collect())
    }

    /// Applies the own reward of an agent loop or an environment if no grader ran.
    pub(super) fn take_own_reward(&mut self) {
        let Some(reward) = self.own_reward.filter(|_| !self.graded && self.failure.is_none()) else { return };
        for sample in self.record.samples() {
            self.rewards.insert(sample.id, reward);
        }
    }
}

fn failed(kind: FailureKind, reason: String) -> Failure {
    Failure::new(Stage::Workflow, kind, Fault::Plugin, reason)
}

fn invalid(reason: String) -> Failure {
    failed(FailureKind::Invalid, reason)
}

/// Parses JSON objects of a guest without changing them.
fn objects(source: &str, texts: &[String]) -> Result<Vec<Box<RawValue>>, Failure> {
    let read = |(at, text): (usize, &String)| {
        wire::object(text)
            .map(ToOwned::to_owned)
            .map_err(|wrong| invalid(format!("{source}[{at}] that is {wrong}")))
    };
    texts.iter().enumerate().map(read).collect()
}

fn check_numbers(reward: Option<f64>, metrics: &[(String, f64)]) -> Result<(), String> {
    if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
        return Err(format!("agent loop gave itself the reward {reward}, which is not a finite number"));
    }
    check_metrics("agent loop", metrics)
}

fn check_metrics(form: &str, metrics: &[(String, f64)]) -> Result<(), String> {
    match metrics.iter().find(|(_, value)| !value.is_finite()) {
        Some((name, value)) => Err(format!(
            "{form} gave metric '{}' the value {value}, which is not a finite number",
            brief(name)
        )),
        None => Ok(()),
    }
}
