//! What the operator provides a workflow, as the imports see it.
//!
//! The tools themselves (components, servers, addresses) are above and beside this
//! module; it is handed a [`HostTools`] and knows none of them. It counts, writes down
//! and answers for every call, so that no tool can do without being seen.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use rollout_core::budget::Holder;
use rollout_core::telemetry::ToolKind;
use rollout_transcript::ToolAnswer;

/// The tools that are provided to one plugin. They live as long as the host.
pub trait HostTools: Send + Sync + Debug {
    /// What the model is told of them: OpenAI function tools, one JSON object each.
    fn schemas(&self) -> &[String];

    /// What is provided under a name.
    fn find(&self, name: &str) -> Option<HostTool>;

    /// Makes a call within the tool's own limits. Dropping the future gives the call up.
    fn call(self: Arc<Self>, request: ToolRequest) -> BoxFuture<'static, ToolAnswer>;
}

/// One host-provided tool, as far as a call of it is accounted for here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTool {
    /// Where it is among those provided.
    pub place: usize,
    /// What is behind it.
    pub kind: ToolKind,
    /// How often one rollout may call it.
    pub calls_max: u32,
}

/// A call to be made.
#[derive(Clone, Debug)]
pub struct ToolRequest {
    /// The tool's place among those provided.
    pub place: usize,
    /// JSON text as the model wrote it, which may not be valid JSON.
    pub arguments: String,
    /// Tells this call apart from every other, the same in every repetition of the
    /// rollout; says nothing of the rollout.
    pub seed: String,
    /// Who holds what the call takes of memory.
    pub holder: Option<Holder>,
}
