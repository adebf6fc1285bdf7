//! The tools that the operator provides to a workflow, as the imports see them.
//!
//! The implementations of the tools (components, servers, HTTP endpoints) are outside of this module, which receives a
//! [`HostTools`] and knows none of them. Every call passes through the imports, which count it, record it and answer
//! it.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use rollout_core::budget::Holder;
use rollout_core::telemetry::ToolKind;
use rollout_transcript::ToolAnswer;

/// The tools that are provided to one plugin. They live as long as the host.
pub trait HostTools: Send + Sync + Debug {
    /// Returns the tools as a model sees them: OpenAI function tools, one JSON object each.
    fn schemas(&self) -> &[String];

    /// Returns the tool of this name.
    fn find(&self, name: &str) -> Option<HostTool>;

    /// Calls a tool within its own limits. Dropping the future abandons the call.
    fn call(self: Arc<Self>, request: ToolRequest) -> BoxFuture<'static, ToolAnswer>;
}

/// Properties of a host-provided tool that are needed to count its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTool {
    /// The tool's index among those provided.
    pub place: usize,
    /// Kind of the tool's implementation.
    pub kind: ToolKind,
    /// Number of calls that one rollout may make.
    pub calls_max: u32,
}

/// A call of a tool.
#[derive(Clone, Debug)]
pub struct ToolRequest {
    /// The tool's index among those provided.
    pub place: usize,
    /// The arguments as the model wrote them: JSON text, which may be invalid.
    pub arguments: String,
    /// A value that is unique to this call, is the same whenever the rollout is repeated, and reveals nothing about
    /// the rollout.
    pub seed: String,
    /// The rollout that the call's memory is charged to.
    pub holder: Option<Holder>,
}
