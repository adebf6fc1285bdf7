//! Requests of `POST /rollout`, of any generation.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use reqwest::Url;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::fields::{Fields, Problem};
use super::generation::Generation;
use super::sample::{self, Form};
use crate::random;
pub(super) use rollout_assembly::config::OsmosisGeneration;
use rollout_core::budget::Charge;
use rollout_outbound::{NetworkRules, Secret};
use rollout_rollout::{
    ForkPoint, GROUP_SIZE_MAX, GroupSeat, Host, JOIN_SECS, LoopOptions, ModelAddress, Resources,
    RolloutRequest,
};
use rollout_wire::id::RolloutId;
use rollout_wire::messages::Messages;
use rollout_wire::metadata::RowMetadata;

/// Maximum number of messages of a prompt. Each takes about 40 bytes in addition to its text, both in the host and in the
/// guest. A conversation has some tens of messages.
pub(super) const MESSAGES_MAX: usize = 100_000;

/// Name of the model in all requests of this protocol.
const MODEL: &str = "osmosis-rollout";

/// A request, by the delivery of its result.
pub(super) enum StartRollout {
    /// Generation D.
    Polled(Polled),
    /// Generations B and C.
    CalledBack(CalledBack),
}

/// A parsed request for a rollout, of any generation.
pub(super) trait ForRollout {
    /// Returns its charged size in bytes.
    fn memory_bytes(&self) -> usize;

    /// Returns the rollout's data in addition to the request, for the charge.
    fn resources(&mut self) -> &mut Resources;
}

impl ForRollout for StartRollout {
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Polled(request) => request.parsed.memory_bytes(),
            Self::CalledBack(request) => {
                let CalledBack { parsed, form: _, completion_url, grader_url, controller_key } = request;
                let key = controller_key.as_ref().map_or(0, |key| key.expose().len());
                let urls = completion_url.len() + grader_url.as_ref().map_or(0, String::len);
                parsed.memory_bytes() + urls + key
            }
        }
    }

    fn resources(&mut self) -> &mut Resources {
        match self {
            Self::Polled(request) => &mut request.parsed.resources,
            Self::CalledBack(request) => &mut request.parsed.resources,
        }
    }
}

/// The parts of a request that all generations have.
pub(super) struct ParsedRequest {
    /// The request for the core.
    pub rollout: RolloutRequest,
    /// Data in addition to the request.
    pub resources: Resources,
    /// Whether the request has data for a comparison by the grader: a label, or metadata, even an empty object.
    pub gradable: bool,
    /// The label, which is returned with the sample.
    pub label: Option<String>,
    /// The point of another rollout at which it starts.
    pub fork_of: Option<ForkPoint>,
}

impl ParsedRequest {
    /// Adds the part of another rollout for a fork.
    pub(super) async fn forked(mut self, host: &Host) -> Result<Self, ApiError> {
        let Some(point) = self.fork_of.take() else { return Ok(self) };
        host.fork(&point, &mut self.rollout, &mut self.resources).await?;
        self.label.clone_from(&self.rollout.label);
        self.gradable = self.label.is_some() || self.rollout.metadata.is_some();
        Ok(self)
    }

    /// Returns the same request once more, charged here.
    pub(super) fn again(&self, charge: Charge) -> Self {
        let Resources { model, secrets, .. } = &self.resources;
        let (model, secrets) = (model.clone(), secrets.clone());
        Self {
            rollout: self.rollout.clone(),
            resources: Resources { model, secrets, charge: Some(charge), continuation: None, past: None },
            gradable: self.gradable,
            label: self.label.clone(),
            fork_of: self.fork_of.clone(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.rollout.memory_bytes() + self.resources.secrets.memory_bytes()
    }
}

/// A rollout with a polled result.
pub(super) struct Polled {
    pub parsed: ParsedRequest,
    /// Whether the caller asks for a reward.
    pub grade: bool,
    /// Number of continuations, for a request that starts a group of forks.
    pub continuations: Option<u32>,
}

/// A rollout with a posted result.
pub(super) struct CalledBack {
    pub parsed: ParsedRequest,
    pub form: Form,
    pub completion_url: String,
    /// `None` if the caller asks for no reward.
    pub grader_url: Option<String>,
    /// The key of the callbacks.
    pub controller_key: Option<Secret>,
}

/// Parses a request. The error has all mistakes.
pub(super) fn read(
    headers: &HeaderMap,
    body: &[u8],
    configured: OsmosisGeneration,
    rules: &NetworkRules,
) -> Result<StartRollout, ApiError> {
    let fields = Fields::of(body, is_json(headers))?;
    let read = match Generation::of(&fields, configured) {
        Generation::D => polled(fields, rules),
        Generation::C => called_back(fields, rules, Form::One, SamplesRule::One),
        Generation::B => called_back(fields, rules, Form::Map, SamplesRule::ManyWithCalls),
        Generation::BOrC { one_sample: true } => called_back(fields, rules, Form::Both, SamplesRule::One),
        Generation::BOrC { one_sample: false } => called_back(fields, rules, Form::Both, SamplesRule::Many),
    };
    read.map_err(ApiError::Invalid)
}

/// Returns whether the content type is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

fn polled(mut fields: Fields<'_>, rules: &NetworkRules) -> Result<StartRollout, Vec<Problem>> {
    let common = Common::read(&mut fields, IdRule::Required);
    let key_rule = "llm_api_key must be omitted or a non-empty string";
    let key = api_key(&mut fields, "llm_api_key", key_rule);
    let grade = fields.flag("grade");
    let ungraded = (grade == Some(false)).then_some("leave out grade");
    let group = group(&mut fields, ungraded);
    let continuations = continuations(&mut fields, common.fork_of.is_some());
    let parsed = common.into_request(&mut fields, rules, key, SamplesRule::One);
    fields.finish(parsed.map(|mut parsed| {
        parsed.rollout.group = group;
        StartRollout::Polled(Polled { parsed, grade: grade.unwrap_or(true), continuations })
    }))
}

/// Reads the host's own field for the rollout's seat in a group. `ungraded` is the way to have the rollout graded, if it is
/// not.
fn group(fields: &mut Fields<'_>, ungraded: Option<&str>) -> Option<GroupSeat> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct GroupField {
        id: RolloutId,
        size: u32,
        member: u32,
        #[serde(default)]
        join_timeout_sec: Option<u32>,
    }
    let given = fields.object("group")?;
    let GroupField { id, size, member, join_timeout_sec } = match serde_json::from_str(given.get()) {
        Ok(group) => group,
        Err(why) => {
            let form = "{\"id\": text, \"size\": number, \"member\": number}";
            fields.wrong("group", &format!("must be {form}: {why}"));
            return None;
        }
    };
    let seat = GroupSeat { id, size, member, join_secs: join_timeout_sec.unwrap_or(JOIN_SECS) };
    if let Err(why) = seat.check() {
        fields.wrong("group", &why.to_string());
    }
    if let Some(advice) = ungraded {
        fields.wrong("group", &format!("members of a group are graded; {advice}, or leave out the group"));
    }
    Some(seat)
}

/// Reads the host's own field for the number of forks that one request starts.
fn continuations(fields: &mut Fields<'_>, is_fork: bool) -> Option<u32> {
    let count = fields.whole("continuations")?;
    let checked = u32::try_from(count).ok().filter(|count| (1..=GROUP_SIZE_MAX).contains(count));
    if checked.is_none() {
        fields.wrong("continuations", &format!("must be a number from 1 to {GROUP_SIZE_MAX}"));
    }
    if !is_fork {
        fields.wrong("continuations", "needs fork_of, the rollout and the turn that are continued");
    }
    if fields.is_given("group") {
        fields.wrong("continuations", "makes a group of its own; leave out group");
    }
    checked
}

fn called_back(
    mut fields: Fields<'_>,
    rules: &NetworkRules,
    form: Form,
    samples: SamplesRule,
) -> Result<StartRollout, Vec<Problem>> {
    // B cannot return a generated id to its caller, and has no key for the model.
    let is_b = form == Form::Map;
    let common = Common::read(&mut fields, if is_b { IdRule::Required } else { IdRule::Generated });
    let key_rule = "llm_api_key must be omitted or a non-empty string; empty string is not a legacy fallback";
    let llm_key = if is_b { None } else { api_key(&mut fields, "llm_api_key", key_rule) };
    let controller_key = fields.text("controller_api_key").filter(|key| !key.is_empty()).map(Secret::new);
    let completion_url = fields.required_text("completion_callback_url");
    let grader_url = fields.text("grader_callback_url");
    for (name, url) in [("completion_callback_url", &completion_url), ("grader_callback_url", &grader_url)] {
        match url.as_deref().map(http_url) {
            Some(None) => fields.wrong(name, "must be an http or https URL"),
            Some(Some(url)) => check_reach(&mut fields, name, &url, rules),
            None => {}
        }
    }
    let ungraded = grader_url.is_none().then_some("give grader_callback_url");
    let group = group(&mut fields, ungraded);
    let parsed = common.into_request(&mut fields, rules, llm_key.or_else(|| controller_key.clone()), samples);
    let read = parsed.zip(completion_url).map(|(mut parsed, completion_url)| {
        parsed.rollout.group = group;
        StartRollout::CalledBack(CalledBack { parsed, form, completion_url, grader_url, controller_key })
    });
    fields.finish(read)
}

fn http_url(url: &str) -> Option<Url> {
    Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

/// Reports an address that would be refused at its first use.
pub(super) fn check_reach(fields: &mut Fields<'_>, name: &str, url: &Url, rules: &NetworkRules) {
    if let Err(why) = rules.check(url) {
        fields.wrong(name, &format!("must be an address to which this host may send requests: {why}"));
    }
}

fn api_key(fields: &mut Fields<'_>, name: &str, rule: &str) -> Option<Secret> {
    let key = fields.text(name)?;
    if key.is_empty() {
        fields.wrong(name, rule);
        return None;
    }
    Some(Secret::new(key))
}

/// Reads the host's own field for the rollout from which a fork starts.
fn fork_of(fields: &mut Fields<'_>) -> Option<ForkPoint> {
    let given = fields.object("fork_of")?;
    let read = serde_json::from_str(given.get());
    if let Err(why) = &read {
        fields.wrong("fork_of", &format!("must be {{\"rollout_id\": text, \"turn\": number}}: {why}"));
    }
    read.ok()
}

/// The samples that a caller accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SamplesRule {
    One,
    Many,
    /// Several samples, each of which called the model.
    ManyWithCalls,
}

enum IdRule {
    Required,
    /// The server generates an id if this is absent or null.
    Generated,
}

/// The fields of every generation, in the order of the reported problems.
struct Common {
    messages: Option<Messages>,
    label: Option<String>,
    metadata: Option<RowMetadata>,
    id: Option<RolloutId>,
    chat_url: Option<String>,
    workflow_secs: Option<f64>,
    grader_secs: Option<f64>,
    extra_fields: Option<Box<RawValue>>,
    fork_of: Option<ForkPoint>,
}

impl Common {
    fn read(fields: &mut Fields<'_>, rule: IdRule) -> Self {
        let messages = fields.required_objects("initial_messages", MESSAGES_MAX);
        let label = fields.text("label");
        let metadata = fields.object("metadata").map(RowMetadata::from);
        let id = match rule {
            IdRule::Required => fields.required_text("rollout_id"),
            IdRule::Generated if fields.has("rollout_id") => {
                let given = fields.text("rollout_id");
                given.or_else(|| Some(random::id()))
            }
            IdRule::Generated => Some(random::id()),
        };
        let id = id.and_then(|id| {
            let parsed = RolloutId::parse(id);
            if let Err(why) = parsed {
                let rule =
                    "rollout_id must be a single path segment (no path separators, and not '.' or '..')";
                fields.wrong("rollout_id", &format!("{rule}: {why}"));
            }
            parsed.ok()
        });
        Self {
            messages,
            label,
            metadata,
            id,
            chat_url: fields.required_text("chat_completions_url"),
            workflow_secs: fields.seconds("agent_timeout_sec"),
            grader_secs: fields.seconds("grader_timeout_sec"),
            extra_fields: fields.object("extra_fields"),
            fork_of: fork_of(fields),
        }
    }

    fn into_request(
        self,
        fields: &mut Fields<'_>,
        rules: &NetworkRules,
        key: Option<Secret>,
        samples: SamplesRule,
    ) -> Option<ParsedRequest> {
        if let Some(url) = http_url(self.chat_url.as_deref()?) {
            check_reach(fields, "chat_completions_url", &url, rules);
        }
        let (model, secrets) = ModelAddress::split(self.chat_url.as_deref()?, MODEL, key);
        let endpoint = match secrets.endpoint(&model) {
            Ok(endpoint) => Arc::new(endpoint),
            Err(why) => {
                fields.wrong("chat_completions_url", &why.to_string());
                return None;
            }
        };
        Some(ParsedRequest {
            gradable: self.label.is_some() || self.metadata.is_some(),
            label: self.label.clone(),
            fork_of: self.fork_of,
            resources: Resources { model: endpoint, secrets, charge: None, continuation: None, past: None },
            rollout: RolloutRequest {
                id: self.id?,
                caller_id: None,
                attempt: 1,
                prompt: self.messages?,
                label: self.label,
                metadata: self.metadata,
                loop_options: LoopOptions::default(),
                model,
                samples_max: if samples == SamplesRule::One { 1 } else { u32::MAX },
                samples_must_ask: samples == SamplesRule::ManyWithCalls,
                workflow_secs: self.workflow_secs,
                grader_secs: self.grader_secs,
                trajectory_extra: Some(sample::extra(self.extra_fields, samples != SamplesRule::One)),
                fork: None,
                conversation: None,
                group: None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that all stored parts of a request are charged. Otherwise callers could use memory without a charge.
    #[test]
    fn a_request_is_charged_for_all_its_fields() {
        let check = |field: &str, value: serde_json::Value| {
            let mut body = serde_json::json!({
                "rollout_id": "r",
                "initial_messages": [{"role": "user", "content": "?"}],
                "chat_completions_url": "http://h/v1",
                "completion_callback_url": "http://h/done",
            });
            body[field] = value;
            let json = "application/json".parse().unwrap();
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
            let request =
                read(&headers, body.to_string().as_bytes(), OsmosisGeneration::C, &NetworkRules::open())
                    .unwrap();
            assert!(request.memory_bytes() > 1 << 20, "{field}: {}", request.memory_bytes());
        };
        let long = "x".repeat(1 << 20);
        check("extra_fields", serde_json::json!({ "x": long }));
        check("metadata", serde_json::json!({ "x": long }));
        check("label", long.as_str().into());
        check("llm_api_key", long.as_str().into());
        check("controller_api_key", long.as_str().into());
        for url in ["chat_completions_url", "completion_callback_url", "grader_callback_url"] {
            check(url, format!("http://h/{long}").into());
        }
    }
}
