//! A rollout of an environment: the policy plays one episode by its tools, in place of a workflow.
//!
//! The environment's instance and the host's loop share the run's record and its boundary, so limits, journal, replay and
//! trajectory are those of any other rollout.

#![expect(clippy::disallowed_types, reason = "metadata and descriptions are limited in size")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Rollout, grades_itself};
use crate::episode::{MessagePart, Observed, checked, reset_arguments, take_label};
use crate::model::{AgentForm, EnvironmentFacts, Failure, FailureKind, LoopReport, Stage};
use crate::moves::Moves;
use rollout_core::error::Fault;
use rollout_guest::imports::{Boundary, Imports, Live, Role, RunContext};
use rollout_guest::instance::{
    self, Bounds, Episode, EpisodeAction, EpisodeFailure, EpisodeStart, NativeAgent, NativeCall, NativeReply,
    RunError,
};
use rollout_wire::openai::ToolCall;

/// Maximum number of replies without a tool call, one after the other. The last one ends the episode.
const IDLE_REPLIES_MAX: u32 = 3;

/// Reason of the end of an episode that the environment ended.
const DONE: &str = "done";

/// Reason of the end of an episode in which the policy no longer acted.
const NO_ACTION: &str = "no_action";

/// Reason of the end of an episode in which a budget of the rollout was spent.
const BUDGET_SPENT: &str = "budget_spent";

/// Reason of the end of an episode in which the policy has replied as often as the caller allows.
const MAX_TURNS: &str = "max_turns";

/// Message to a policy that replied without a tool call.
const REMINDER: &str = "Act by calling one of the tools.";

impl Rollout {
    /// Has the policy play an episode and stores its result. The errors are those of [`Rollout::run_agent`].
    pub(super) async fn play(
        &mut self,
        imports: Box<Imports>,
        bounds: Bounds,
        boundary: &Arc<Boundary>,
    ) -> Result<Result<(), Failure>, RunError> {
        let facts = match self.host.environment().await {
            Ok(facts) => facts,
            Err(error) => return error.into_failure().map(Err),
        };
        let deployment = &self.host.0.deployment;
        let outside = Live { tools: deployment.tools.clone(), ..Live::until(bounds.deadline) };
        let (limits, record) = (deployment.limits.clone(), self.record.clone());
        let call_time_max = limits.workflow_time_max;
        // The arguments of the reset are all that the environment receives: metadata may have a label.
        let run = Arc::new(RunContext { metadata: None, ..(*self.run).clone() });
        let of_episode = Imports::new(Role::Environment, run, limits, outside, record);
        let of_episode = of_episode.across(boundary.clone());
        let deadline = bounds.deadline;
        let turns_max = self.request.loop_options.turns_max;
        let episode =
            instance::start_episode(deployment.workflow.linked(), of_episode, bounds, call_time_max);
        let start = self.episode_start();
        let opening = self.opening(&facts);
        let playing = async {
            let agent = NativeAgent::new(imports)?;
            let moves = Moves::new(&facts);
            let tools = moves.tools();
            Game { agent, episode, moves, tools, turns_max, played: Played::default() }
                .play(start, opening)
                .await
        };
        let ran = match deadline {
            Some(deadline) => {
                tokio::time::timeout_at(deadline, playing).await.unwrap_or(Err(RunError::Deadline))
            }
            None => playing.await,
        };
        let Played { reward, steps, tool_time, finish_reason, spent, .. } = self.end_run(boundary, ran)?;
        self.loop_report =
            Some(LoopReport { finish_reason: finish_reason.to_owned(), tool_calls: steps, tool_time });
        self.own_reward = reward;
        let is_over = finish_reason == DONE;
        if reward.is_none() && !is_over && self.host.grader().is_none() {
            // The environment can rate only the actions that it receives, so an episode that the model left has no
            // reward.
            let why = match finish_reason {
                NO_ACTION => "calling no tool".to_owned(),
                MAX_TURNS => {
                    format!("replying {} times, the caller's max_turns", turns_max.unwrap_or_default())
                }
                _ => format!("using up a budget ({})", spent.unwrap_or_default()),
            };
            let reason = format!(
                "the model ended the episode by {why}, and the environment gave it no reward until then"
            );
            return Ok(Err(Failure::new(Stage::Workflow, FailureKind::NoReward, Fault::Model, reason)));
        }
        Ok(Ok(()))
    }

    /// Returns the parameters of the episode. With a grader, a label in the arguments becomes the request's.
    fn episode_start(&mut self) -> EpisodeStart {
        let grades_itself = grades_itself(&self.host);
        let metadata = self.request.metadata.as_ref().map(|metadata| match grades_itself {
            true => metadata.whole(),
            false => metadata.public(),
        });
        let label = self.request.label.as_deref();
        let metadata = metadata.map(|metadata| metadata.get());
        let (seed, mut arguments) = reset_arguments(self.request.prompt.iter(), metadata, label);
        if !grades_itself {
            let label = take_label(&mut arguments);
            self.request.label = self.request.label.take().or(label);
        }
        EpisodeStart {
            seed,
            episode_id: Some(self.request.id.as_str().to_owned()),
            arguments: Value::Object(arguments).to_string(),
        }
    }

    /// Moves the label from the environment's task to the request, for a conversation that was held elsewhere.
    pub(super) fn take_task_label(&mut self) {
        if self.host.form() == AgentForm::Environment && !grades_itself(&self.host) {
            self.episode_start();
        }
    }

    /// Returns the messages before the first observation: the prompt's system messages, or the environment's description.
    fn opening(&self, facts: &EnvironmentFacts) -> Vec<String> {
        let is_system =
            |message: &&str| MessagePart::read(message).is_some_and(|message| message.role == "system");
        let given: Vec<String> = self.request.prompt.iter().filter(is_system).map(str::to_owned).collect();
        if !given.is_empty() {
            return given;
        }
        let about = facts.description.trim();
        let text =
            format!("{about}\nAct by calling the tools, one step after the other, until the episode ends.");
        vec![json!({"role": "system", "content": text.trim_start()}).to_string()]
    }
}

/// Result of an episode.
struct Played {
    /// Sum of the rewards, if there was any.
    reward: Option<f64>,
    /// Number of actions that the environment took.
    steps: u32,
    /// Sum of their durations.
    tool_time: Duration,
    is_done: bool,
    finish_reason: &'static str,
    /// The budget that was spent.
    spent: Option<String>,
}

impl Default for Played {
    fn default() -> Self {
        Self {
            reward: None,
            steps: 0,
            tool_time: Duration::ZERO,
            is_done: false,
            finish_reason: DONE,
            spent: None,
        }
    }
}

impl Played {
    /// Ends the episode because a budget is spent.
    fn spend(&mut self, budget: String) {
        (self.finish_reason, self.spent) = (BUDGET_SPENT, Some(budget));
    }
}

/// An episode that the policy plays.
struct Game {
    agent: NativeAgent,
    episode: Episode,
    moves: Moves,
    /// OpenAI function tools.
    tools: Vec<String>,
    /// Maximum number of the policy's replies.
    turns_max: Option<u32>,
    played: Played,
}

impl Game {
    async fn play(mut self, start: EpisodeStart, opening: Vec<String>) -> Result<Played, RunError> {
        let mut new = opening;
        let first = self.episode.reset(start).await?.map_err(of_failure)?;
        let first = self.take(checked(first, true).map_err(RunError::Invalid)?)?;
        new.push(json!({"role": "user", "content": first}).to_string());
        let mut idle = 0;
        let mut turns = 0;
        while !self.played.is_done {
            if self.turns_max.is_some_and(|max| turns >= max) {
                self.played.finish_reason = MAX_TURNS;
                break;
            }
            turns += 1;
            let calls = match self.agent.complete(std::mem::take(&mut new), &self.tools).await? {
                NativeCall::Replied(NativeReply { tool_calls }) => tool_calls,
                NativeCall::BudgetSpent(budget) => {
                    self.played.spend(budget);
                    break;
                }
            };
            if calls.is_empty() {
                idle += 1;
                if idle == IDLE_REPLIES_MAX {
                    self.played.finish_reason = NO_ACTION;
                    break;
                }
                new.push(json!({"role": "user", "content": REMINDER}).to_string());
                continue;
            }
            idle = 0;
            for call in calls {
                let text = self.act(&call).await?;
                new.push(json!({"role": "tool", "tool_call_id": call.id, "content": text}).to_string());
            }
        }
        if !new.is_empty()
            && let Some(budget) = self.agent.push(new)?
            && !self.played.is_done
        {
            self.played.spend(budget);
        }
        self.agent.set_metric("steps", f64::from(self.played.steps))?;
        Ok(self.played)
    }

    /// Makes a call and returns its result for the policy.
    async fn act(&mut self, call: &ToolCall) -> Result<String, RunError> {
        if self.played.is_done {
            return Ok("error: the episode has ended".to_owned());
        }
        let action = match self.moves.action(&call.name, &call.arguments) {
            Ok(action) => action,
            Err(wrong) => return Ok(format!("error: {wrong}")),
        };
        let is_value = matches!(action, EpisodeAction::Value(_));
        let began = Instant::now();
        let outcome = self.episode.step(action).await?;
        self.played.tool_time += began.elapsed();
        match outcome {
            Ok(outcome) => {
                self.played.steps += 1;
                self.take(checked(outcome, is_value).map_err(RunError::Invalid)?)
            }
            Err(
                EpisodeFailure::Failed(reason)
                | EpisodeFailure::Invalid(reason)
                | EpisodeFailure::TimedOut(reason),
            ) => Ok(format!("error: {reason}")),
        }
    }

    /// Adds the result of a reset or a step to the episode, and returns its observation for the policy.
    fn take(&mut self, observed: Observed) -> Result<String, RunError> {
        let text = observed.text();
        let Observed { reward, done, .. } = observed;
        if let Some(reward) = reward {
            let sum = self.played.reward.unwrap_or_default() + reward;
            if !sum.is_finite() {
                return Err(RunError::Invalid(format!("the environment's rewards add up to {sum}")));
            }
            self.played.reward = Some(sum);
        }
        self.played.is_done = done;
        Ok(text)
    }
}

/// Converts the failure of a reset, without which there is no episode.
fn of_failure(failure: EpisodeFailure) -> RunError {
    match failure {
        EpisodeFailure::Failed(reason) => RunError::Failed(reason),
        EpisodeFailure::Invalid(reason) => RunError::Invalid(reason),
        EpisodeFailure::TimedOut(reason) => RunError::TimedOut(reason),
    }
}
