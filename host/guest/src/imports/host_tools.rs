//! The tools that the operator provides to a workflow, as the imports see them.
//!
//! The tools themselves (components, servers, addresses) are outside of this module, which receives a
//! [`HostTools`] and knows none of them. The imports count, record and answer every call, so that no tool
//! runs unseen.

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

/// Properties of a host-provided tool that its calls are counted by.
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
    /// JSON text as the model wrote it, which may not be valid JSON.
    pub arguments: String,
    /// A value that is unique to this call and the same in every repetition of the rollout. It reveals
    /// nothing about the rollout.
    pub seed: String,
    /// Holder of the memory that the call takes.
    pub holder: Option<Holder>,
}
