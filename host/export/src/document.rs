//! Parsing of trajectories: the parts that a row needs.

use std::borrow::Cow;

use rollout_guest::imports::RefusedUses;
use rollout_wire::stream::{Text, each, members};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::messages::{Call, Message};
use crate::reply::{Reply, Tokens, ints, logprob_numbers, number};

/// Reason why a document is invalid.
pub(crate) type InvalidReason = String;

/// A trajectory.
pub(crate) struct Document<'a> {
    pub rollout_id: Cow<'a, str>,
    pub model: Option<Cow<'a, str>>,
    pub claimed: Vec<ClaimedMessage<'a>>,
    pub host: HostExtra<'a>,
    /// The protocol's record, or `None` if the rollout was not started through a protocol.
    pub protocol: Option<Protocol<'a>>,
}

/// A message that the workflow registered.
pub(crate) struct ClaimedMessage<'a> {
    pub message: Message<'a>,
    /// Tokens that a caller or the host reported for the call that returned the message.
    pub tokens: Tokens,
}

impl ClaimedMessage<'_> {
    fn is_empty_system_message(&self) -> bool {
        let Message { role, content, calls, .. } = &self.message;
        role == "system" && content.as_deref().unwrap_or_default().is_empty() && calls.is_empty()
    }
}

/// The host's record of the rollout, `extra.rollout_host`.
#[derive(Deserialize)]
pub(crate) struct HostExtra<'a> {
    #[serde(borrow)]
    pub outcome: RecordedOutcome<'a>,
    #[serde(default)]
    pub attempt: Option<i64>,
    #[serde(borrow, default)]
    pub plugin_digest: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub grader_digest: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub sample_id: Option<Text<'a>>,
    #[serde(default)]
    pub withdrawn: bool,
    #[serde(borrow, default)]
    pub fork_of: Option<ForkOrigin<'a>>,
    #[serde(default)]
    pub refused_uses: RefusedUses,
    #[serde(default)]
    pub usage: RecordedUsage,
    #[serde(borrow, default)]
    observed: Option<&'a RawValue>,
    #[serde(borrow, default)]
    observed_tool_calls: Option<&'a RawValue>,
}

/// Usage of the rollout.
#[derive(Default, Deserialize)]
pub(crate) struct RecordedUsage {
    #[serde(default)]
    pub duration_ms: f64,
}

/// A call of a tool that the host provided.
#[derive(Deserialize)]
pub(crate) struct ToolUse<'a> {
    #[serde(borrow)]
    pub tool_call_id: Text<'a>,
    #[serde(borrow)]
    pub function_name: Text<'a>,
    #[serde(borrow)]
    pub arguments: Text<'a>,
    #[serde(default)]
    pub started_at_unix_ms: f64,
    #[serde(default)]
    pub duration_ms: f64,
    #[serde(borrow, default)]
    pub content: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub error: Option<Text<'a>>,
}

#[derive(Deserialize)]
pub(crate) struct ForkOrigin<'a> {
    #[serde(borrow)]
    pub rollout_id: Text<'a>,
    pub turn: i64,
}

/// Outcome of the rollout.
#[derive(Deserialize)]
pub(crate) struct RecordedOutcome<'a> {
    #[serde(borrow)]
    pub outcome: Text<'a>,
    #[serde(borrow, default)]
    pub reward: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub stage: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub fault: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub reason: Option<Text<'a>>,
}

/// The protocol's record of the sample.
#[derive(Deserialize)]
pub(crate) struct Protocol<'a> {
    #[serde(borrow, default)]
    pub label: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub reward: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sample_metrics: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub request_metadata: Option<&'a RawValue>,
}

/// A call of the model with its reply.
#[derive(Deserialize)]
pub(crate) struct Exchange<'a> {
    #[serde(borrow)]
    pub request: Request<'a>,
    #[serde(borrow, default)]
    pub reply: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<Text<'a>>,
    #[serde(default)]
    pub attempts: Option<u32>,
    #[serde(default)]
    pub started_at_unix_ms: f64,
    #[serde(default)]
    pub duration_ms: f64,
    /// Index of the claimed message that is the reply, if the workflow registered it.
    #[serde(default)]
    pub reply_at: Option<usize>,
}

#[derive(Deserialize)]
pub(crate) struct Request<'a> {
    /// Number of messages at the beginning that repeat those of the previous call.
    #[serde(default)]
    pub messages_repeated: usize,
    #[serde(borrow)]
    pub messages_new: Vec<&'a RawValue>,
    #[serde(borrow)]
    rest: &'a RawValue,
}

impl<'a> Document<'a> {
    /// Parses a trajectory.
    pub(crate) fn read(json: &'a str) -> Result<Self, InvalidReason> {
        #[derive(Deserialize)]
        struct Whole<'a> {
            #[serde(borrow)]
            session_id: Text<'a>,
            #[serde(borrow)]
            agent: Agent<'a>,
            #[serde(borrow)]
            steps: &'a RawValue,
            #[serde(borrow)]
            extra: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Agent<'a> {
            #[serde(borrow, default)]
            model_name: Option<Text<'a>>,
        }
        let Whole { session_id: Text(rollout_id), agent, steps, extra } =
            serde_json::from_str(json).map_err(|error| format!("not a trajectory of this host: {error}"))?;
        let (mut host, mut protocol) = (None, None);
        let read = members(extra.get(), |name, value: &RawValue| -> Result<(), InvalidReason> {
            let invalid = |error| format!("`extra.{name}`: {error}");
            if name == "rollout_host" {
                host = Some(serde_json::from_str(value.get()).map_err(invalid)?);
            } else if value.get().starts_with('{') {
                protocol = Some(serde_json::from_str(value.get()).map_err(invalid)?);
            }
            Ok(())
        });
        read.map_err(InvalidReason::from)?;
        let host = host.ok_or("not a trajectory of this host: `extra.rollout_host` is missing")?;
        let mut claimed = Vec::new();
        let read = each(steps.get(), |step: Step<'_>| -> Result<(), InvalidReason> {
            step.add_to(&mut claimed);
            Ok(())
        });
        read.map_err(|error| format!("`steps`: {}", InvalidReason::from(error)))?;
        if matches!(claimed.as_slice(), [only] if only.is_empty_system_message()) {
            // An empty conversation is written as one empty step.
            claimed.clear();
        }
        let model = agent.model_name.map(|Text(name)| name);
        Ok(Self { rollout_id, model, claimed, host, protocol })
    }

    /// Parses this sample's calls of the model, in order.
    pub(crate) fn exchanges(&self) -> Result<Vec<Exchange<'a>>, InvalidReason> {
        let observed = self.host.observed.map_or("[]", RawValue::get);
        serde_json::from_str(observed).map_err(|error| format!("`extra.rollout_host.observed`: {error}"))
    }

    /// Parses the calls of tools that the host provided.
    pub(crate) fn tool_calls(&self) -> Result<Vec<ToolUse<'a>>, InvalidReason> {
        let observed = self.host.observed_tool_calls.map_or("[]", RawValue::get);
        serde_json::from_str(observed)
            .map_err(|error| format!("`extra.rollout_host.observed_tool_calls`: {error}"))
    }
}

impl<'a> Protocol<'a> {
    /// Parses the sample's metrics, in the order of the document.
    pub(crate) fn metrics(&self) -> Result<Vec<(Cow<'a, str>, f64)>, InvalidReason> {
        let mut metrics = Vec::new();
        let json = self.sample_metrics.map_or("{}", RawValue::get);
        let read = members(json, |name, value: &RawValue| -> Result<(), InvalidReason> {
            let value = number(value).ok_or_else(|| format!("the metric '{name}' is not a number"))?;
            metrics.push((name, value));
            Ok(())
        });
        read.map_err(InvalidReason::from)?;
        Ok(metrics)
    }
}

impl<'a> Exchange<'a> {
    /// Returns the server's reply, if there is one.
    pub(crate) fn reply(&self) -> Option<Reply<'a>> {
        self.reply.filter(|reply| reply.get().starts_with('{')).map(|reply| Reply::read(reply.get()))
    }

    /// Returns the offered tools.
    pub(crate) fn tools(&self) -> Option<&'a RawValue> {
        #[derive(Deserialize)]
        struct Rest<'a> {
            #[serde(borrow, default)]
            tools: Option<&'a RawValue>,
        }
        serde_json::from_str::<Rest<'_>>(self.request.rest.get()).ok()?.tools
    }
}

/// A step: a message and the results of its tool calls.
#[derive(Deserialize)]
struct Step<'a> {
    #[serde(borrow)]
    source: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    #[serde(borrow, default)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow, default)]
    tool_calls: Vec<StepCall<'a>>,
    #[serde(borrow, default)]
    observation: Option<Observation<'a>>,
    #[serde(borrow, default)]
    metrics: Option<Metrics<'a>>,
    #[serde(borrow, default)]
    extra: Option<StepExtra<'a>>,
}

#[derive(Deserialize)]
struct StepCall<'a> {
    #[serde(borrow)]
    tool_call_id: Text<'a>,
    #[serde(borrow)]
    function_name: Text<'a>,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

#[derive(Deserialize)]
struct Observation<'a> {
    #[serde(borrow)]
    results: Vec<ToolResult<'a>>,
}

#[derive(Deserialize)]
struct ToolResult<'a> {
    #[serde(borrow, default)]
    source_call_id: Option<Text<'a>>,
    #[serde(borrow)]
    content: Text<'a>,
}

#[derive(Deserialize)]
struct Metrics<'a> {
    #[serde(borrow, default)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct StepExtra<'a> {
    /// Role of a message with an unusual role; null if the message had none.
    #[serde(borrow, default)]
    original_role: Option<Text<'a>>,
    /// Id of the last result that answers none of the step's calls.
    #[serde(borrow, default)]
    tool_call_id: Option<Text<'a>>,
}

impl<'a> Step<'a> {
    /// Adds the step's message, followed by the results of its calls of tools.
    fn add_to(self, claimed: &mut Vec<ClaimedMessage<'a>>) {
        let extra = self.extra.unwrap_or_default();
        let results = self.observation.map(|observation| observation.results).unwrap_or_default();
        let Text(message) = self.message;
        // The host adds an empty step for results without a preceding step of the agent.
        let is_carrier = self.source.0 == "system" && message.is_empty() && !results.is_empty();
        if !is_carrier {
            let calls: Vec<Call<'_>> = self.tool_calls.into_iter().map(StepCall::call).collect();
            let role = match (extra.original_role, &*self.source.0) {
                (Some(Text(role)), _) => role,
                (None, "agent") => "assistant".into(),
                (None, "system") => "system".into(),
                (None, _) => "user".into(),
            };
            let content = (!message.is_empty() || calls.is_empty()).then_some(message);
            let reasoning = self.reasoning_content.map(|Text(text)| text);
            let message = Message { role, content, reasoning, calls, ..Message::default() };
            claimed.push(ClaimedMessage {
                message,
                tokens: self.metrics.map(Metrics::tokens).unwrap_or_default(),
            });
        }
        let mut stray = extra.tool_call_id;
        let last_stray = results.iter().rposition(|result| result.source_call_id.is_none());
        for (index, ToolResult { source_call_id, content: Text(content) }) in results.into_iter().enumerate()
        {
            let id = match source_call_id {
                None if Some(index) == last_stray => stray.take(),
                id => id,
            };
            let tool_call_id = id.map(|Text(id)| id);
            let message =
                Message { role: "tool".into(), content: Some(content), tool_call_id, ..Message::default() };
            claimed.push(ClaimedMessage { message, tokens: Tokens::default() });
        }
    }
}

impl<'a> StepCall<'a> {
    fn call(self) -> Call<'a> {
        /// Arguments that are not an object.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RawArguments<'a> {
            #[serde(borrow)]
            _raw: Text<'a>,
        }
        let Self { tool_call_id: Text(id), function_name: Text(name), arguments } = self;
        let arguments = match serde_json::from_str(arguments.get()) {
            Ok(RawArguments { _raw: Text(text) }) => text,
            Err(_) => arguments.get().into(),
        };
        Call { id, name, arguments }
    }
}

impl Metrics<'_> {
    fn tokens(self) -> Tokens {
        Tokens {
            prompt_ids: self.prompt_token_ids.and_then(ints),
            completion_ids: self.completion_token_ids.and_then(ints),
            logprobs: self.logprobs.and_then(logprob_numbers),
        }
    }
}

/// Returns the unchanged JSON text of a value, or `None` if it is null.
pub(crate) fn non_null(json: Option<&RawValue>) -> Option<&str> {
    json.map(RawValue::get).filter(|json| *json != "null")
}
