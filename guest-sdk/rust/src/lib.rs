//! Workflows, agent loops and graders for rollout-host in Rust.
//!
//! A *workflow* runs the agent: it takes a prompt, calls the model, runs tools and records the conversation
//! as samples. A *grader* is a reward function: it takes the samples and the label and returns rewards. Both
//! are compiled into one WebAssembly component, and the host runs each rollout in an instance of its own.
//!
//! ```
//! use rollout_sdk::*;
//!
//! struct Arithmetic;
//!
//! impl Workflow for Arithmetic {
//!     fn run(ctx: Context) -> Result<Output> {
//!         Ok(ctx.agent()?.run()?.into())
//!     }
//! }
//!
//! impl Grader for Arithmetic {
//!     fn grade(ctx: GradeContext) -> Result<Verdicts> {
//!         let answer = ctx.sample()?.answer_after("####").unwrap_or_default();
//!         Ok(same_number(&answer, ctx.require_label()?).into())
//!     }
//! }
//!
//! export!(workflow = Arithmetic, grader = Arithmetic);
//! ```
//!
//! An [`AgentLoop`] replaces the workflow if the caller must know the tools before the rollout runs, or if
//! the agent rates itself.
//!
//! An [`Environment`] is for callers whose own model acts: the plugin only answers with observations and
//! rewards.
//!
//! A plugin is a library crate of type `cdylib`, built for `wasm32-wasip2`. A call of the model suspends the
//! instance and blocks no thread. For concurrent calls see [`chat_all`] and [`wait_any`].
//!
//! Functions that call the host panic outside the host, for example in a native test. Pure functions, such as
//! [`Tool::call`] and [`answer_after`], run anywhere.

#![warn(missing_docs)]

pub mod artifact;
pub mod host_tools;
pub mod log;

pub use agent::{Agent, AgentRun, Stop};
pub use agent_loop::{AgentLoop, LoopContext, LoopOutput, LoopRequest};
pub use answer::{answer_after, parse_number, same_number};
pub use artifact::ArtifactError;
pub use calls::{UnderWay, sleep, wait_any};
pub use chat::{ChatError, ChatRequest, Completion, Pending, Usage, chat_all};
pub use context::{Context, Output, Workflow};
pub use environment::{Environment, EnvironmentTool, EpisodeStart, Split, SplitKind, ToolsOnly, Turn};
pub use error::{Error, ErrorKind, OrError, Result};
pub use grading::{Exchange, GradeContext, GradedSample, Grader, Reward, Verdict, Verdicts};
pub use group::{FailedMember, GroupContext, GroupGrader, GroupMember, GroupRating, GroupSample};
pub use judge::{JudgeError, JudgeReply, JudgeRequest, PendingJudge};
pub use message::{Message, ToolCall, last_assistant_text};
pub use reward::reward;
pub use rubric::{Rating, Rubric, RubricError, rubric};
pub use sample::{OpenError, RecordError, Sample};
pub use serde_json::{Map, Value, json};
pub use settings::Concurrency;
pub use tool::{Tool, ToolPlugin, ToolResult};
pub use tool_call::{
    ToolArgumentError, ToolCallInfo, ToolWork, create_tool_error_result, create_tool_result,
    execute_tool_calls, get_tool_call_info, parse_tool_arguments, serialize_tool_result,
};
pub use toolbox::Toolbox;

// Re-exported so that an author derives types with the versions that this crate uses.
pub use {schemars, serde, serde_json};

mod agent;
mod agent_loop;
mod answer;
#[allow(missing_docs, reason = "generated")]
mod bindings;
mod calls;
mod chat;
mod context;
mod environment;
mod error;
mod export;
mod grading;
mod group;
mod judge;
mod message;
mod reward;
mod rubric;
mod sample;
mod settings;
mod tool;
mod tool_call;
mod toolbox;

/// Expansion of [`export!`]. Not for direct use.
#[doc(hidden)]
pub mod __private {
    pub use crate::bindings::imports::types::Failure;
    pub use crate::bindings::{agent_loop, environment, grader, group_grader, settings, tool, workflow};
    pub use crate::environment::EpisodeCell;
    pub use crate::export::{
        agent_loop_name, agent_loop_tools, call_tool, declare_settings, describe_environment, describe_tools,
        environment_state, environment_task, reset_environment, run_agent_loop, run_grader, run_group_grader,
        run_workflow, step_environment, used_agent_loop, used_environment, used_grader, used_group_grader,
        used_settings, used_tool, used_workflow,
    };
}
