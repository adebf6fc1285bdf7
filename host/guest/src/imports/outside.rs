//! What comes to a guest from outside of it: answers of models and tools, and how much time is left. In
//! which order it comes is the [boundary's](super::Boundary) to say. With both, and with what its
//! rollout asks for, a run can be made again; clocks and random numbers are the rollout's own.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::host_tools::{HostTool, HostTools, ToolRequest};
use rollout_core::telemetry::ModelRole;
use rollout_outbound::{ChatClient, ModelEndpoint, RequestBody, RoutingHeaders};
use rollout_transcript::{ChatFailure, ChatReply, ToolAnswer};
use rollout_wire::closed::ClosedBody;
use rollout_wire::openai::AllowedParams;

/// Where a guest's questions go.
pub trait Outside: Send + Sync + Debug {
    /// With what a request to a model is made; none where there is no such model.
    fn model(&self, asked: ModelRole) -> Option<ModelFacts<'_>>;

    /// Asks a model, as often as it takes. There is one, or it is a failure of the host.
    fn ask<'a>(&'a self, question: ModelQuestion<'a>) -> BoxFuture<'a, Result<ChatReply, ChatFailure>>;

    /// What a model is told of the tools: OpenAI function tools, one JSON object each.
    fn tools(&self) -> &[String];

    /// The tool of this name.
    fn tool(&self, name: &str) -> Option<HostTool>;

    /// Makes a call of a tool. Dropping the future gives the call up.
    fn call_tool(&self, request: ToolRequest) -> BoxFuture<'static, ToolAnswer>;

    /// Until the run is ended; none where it has no deadline.
    fn time_left(&self) -> Option<Duration>;
}

/// What of a model's endpoint is in a request to it.
#[derive(Clone, Copy, Debug)]
pub struct ModelFacts<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Sampling parameters that its server takes.
    pub allowed: &'a AllowedParams,
    /// The fields of each request, where they are not the usual ones.
    pub body: Option<&'a ClosedBody>,
}

/// One call of a model.
#[derive(Clone, Copy)]
pub struct ModelQuestion<'a> {
    /// Which model.
    pub asked: ModelRole,
    /// By what a server of many rollouts tells calls apart.
    pub routing: &'a RoutingHeaders,
    /// What it is asked.
    pub body: &'a dyn RequestBody,
}

/// A model that a guest may talk to: a workflow to the one that is trained, a grader to
/// a judge.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// The client that reaches it.
    pub client: ChatClient,
    /// Where it is.
    pub endpoint: Arc<ModelEndpoint>,
}

/// The world as it is now. By itself there is nothing in it, not even a deadline.
#[derive(Debug, Default)]
pub struct Live {
    /// Until when the guest runs.
    pub deadline: Option<Instant>,
    /// For a workflow.
    pub policy: Option<ModelAccess>,
    /// For a grader.
    pub judge: Option<ModelAccess>,
    /// For a workflow.
    pub tools: Option<Arc<dyn HostTools>>,
}

impl Live {
    /// Nothing but a deadline, if there is one.
    pub fn until(deadline: Option<Instant>) -> Self {
        Self { deadline, ..Self::default() }
    }

    fn access(&self, asked: ModelRole) -> Option<&ModelAccess> {
        match asked {
            ModelRole::Policy => self.policy.as_ref(),
            ModelRole::Judge => self.judge.as_ref(),
        }
    }
}

impl Outside for Live {
    fn model(&self, asked: ModelRole) -> Option<ModelFacts<'_>> {
        let ModelAccess { client, endpoint } = self.access(asked)?;
        let body = endpoint.profile().map(|profile| &profile.body);
        Some(ModelFacts { name: endpoint.model(), allowed: client.allowed_params(), body })
    }

    fn ask<'a>(
        &'a self,
        ModelQuestion { asked, routing, body }: ModelQuestion<'a>,
    ) -> BoxFuture<'a, Result<ChatReply, ChatFailure>> {
        let Some(ModelAccess { client, endpoint }) = self.access(asked) else {
            let reason = "there is no such model".to_owned();
            return std::future::ready(Err(ChatFailure::Host { attempts: 0, reason })).boxed();
        };
        client.complete(endpoint, routing, body).boxed()
    }

    fn tools(&self) -> &[String] {
        self.tools.as_deref().map(HostTools::schemas).unwrap_or_default()
    }

    fn tool(&self, name: &str) -> Option<HostTool> {
        self.tools.as_ref()?.find(name)
    }

    fn call_tool(&self, request: ToolRequest) -> BoxFuture<'static, ToolAnswer> {
        match &self.tools {
            Some(tools) => tools.clone().call(request),
            None => std::future::ready(ToolAnswer::unavailable("there is no such tool")).boxed(),
        }
    }

    fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}
