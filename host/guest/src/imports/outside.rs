//! Sources outside of the guest that answer its requests: models, tools and the time left. The
//! [boundary](super::Boundary) decides the order of the answers. The answers, their order and the rollout's request are
//! enough to repeat a run, because the rollout determines clocks and random numbers.

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

/// Access to models, tools and the deadline of a rollout.
pub trait Outside: Send + Sync + Debug {
    /// Returns the properties of a model that shape its requests; `None` if there is no such model.
    fn model(&self, asked: ModelRole) -> Option<ModelFacts<'_>>;

    /// Sends a request to a model, with retries. Fails with a failure of the host if there is no such model.
    fn ask<'a>(&'a self, question: ModelQuestion<'a>) -> BoxFuture<'a, Result<ChatReply, ChatFailure>>;

    /// Returns the tools as a model sees them: OpenAI function tools, one JSON object each.
    fn tools(&self) -> &[String];

    /// Returns the tool of this name.
    fn tool(&self, name: &str) -> Option<HostTool>;

    /// Calls a tool. Dropping the future abandons the call.
    fn call_tool(&self, request: ToolRequest) -> BoxFuture<'static, ToolAnswer>;

    /// Returns the time until the deadline; `None` without a deadline.
    fn time_left(&self) -> Option<Duration>;
}

/// Properties of a model's endpoint that shape a request.
#[derive(Clone, Copy, Debug)]
pub struct ModelFacts<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Sampling parameters that the model's server accepts.
    pub allowed: &'a AllowedParams,
    /// The fields of each request, if the endpoint's profile replaces the usual ones.
    pub body: Option<&'a ClosedBody>,
}

/// One call of a model.
#[derive(Clone, Copy)]
pub struct ModelQuestion<'a> {
    /// The model's role.
    pub asked: ModelRole,
    /// Headers by which a server of many rollouts distinguishes calls.
    pub routing: &'a RoutingHeaders,
    /// The request's body.
    pub body: &'a dyn RequestBody,
}

/// A model that a guest may call: the policy for a workflow, a judge for a grader.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// The client that connects to the model.
    pub client: ChatClient,
    /// The model's endpoint.
    pub endpoint: Arc<ModelEndpoint>,
}

/// Live access to models and tools. The default has none, and no deadline.
#[derive(Debug, Default)]
pub struct Live {
    /// The guest's deadline.
    pub deadline: Option<Instant>,
    /// The model of a workflow.
    pub policy: Option<ModelAccess>,
    /// The judge of a grader.
    pub judge: Option<ModelAccess>,
    /// The tools of a workflow.
    pub tools: Option<Arc<dyn HostTools>>,
}

impl Live {
    /// Creates an empty `Live` with this deadline.
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
