//! Sampling parameters that a guest may set.
//!
//! They are sent to the model's server unchanged and influence how the model answers. Operator and caller alone decide
//! which model answers, where, whether it is called, and which data its server reads.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use super::object;
use super::stream::{members, text};

/// Error of a chat request that cannot be sent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The request has no message.
    #[error("messages is empty")]
    NoMessages,
    /// A tool is not a JSON object.
    #[error("tools[{0}] is {1}")]
    Tool(usize, String),
    /// The parameters are not a JSON object.
    #[error("params is {0}")]
    Params(String),
    /// The host sets this parameter.
    #[error("params sets '{0}', which the host decides; leave it out")]
    Reserved(String),
    /// The operator does not allow this parameter.
    #[error("params sets '{0}', which the operator does not allow; leave it out")]
    NotAllowed(String),
    /// The name of a parameter is invalid.
    #[error("params sets '{0}', which is not a valid parameter name; use letters, digits, '_', '-' and '.'")]
    ParamName(String),
    /// The server does not accept the value of a parameter.
    #[error("params sets '{0}' to {2}; it has to be {1}")]
    Param(String, &'static str, &'static str),
    /// The server does not accept tools.
    #[error(
        "tools cannot be sent: the model's server takes them only before a rollout begins, which an agent loop \
         can tell it and a workflow cannot; offer none, or export an agent loop"
    )]
    ToolsNotTaken,
}

/// Maximum number of sampling parameters of a request. An empty one takes hundreds of bytes in the host and four in the
/// guest's text.
pub const PARAMS_MAX: usize = 256;

/// Parameter with the model's name.
const MODEL: &str = "model";

/// Unchanged sampling parameters by name.
type Params = BTreeMap<String, Box<RawValue>>;

/// A caller's sampling parameters for all requests of a rollout, at most `PARAMS_MAX`.
#[derive(Clone, Debug, Default)]
pub struct CallerParams {
    /// Parameters of every request that does not set them itself.
    defaults: Params,
    /// Parameters that are reserved or have invalid names. They are not sent.
    reserved: Params,
}

/// Parameters that a guest may not set, as [`normalized`] writes them.
///
/// Collected from the fields of a chat request, other than sampling, that LiteLLM (1.7x), vLLM (0.10), SGLang (0.5),
/// TGI and OpenRouter read.
const RESERVED: [&str; 99] = [
    // The request itself, with `n`, because one reply is read.
    MODEL,
    "models",
    "messages",
    "tools",
    "functions",
    "stream",
    "stream_options",
    "n",
    "prompt",
    "input",
    "id",
    "request_id",
    "rid",
    "user",
    "metadata",
    "tags",
    "store",
    "background",
    "previous_response_id",
    "conversation",
    // Target and identity of the request.
    "api_type",
    "api_version",
    "api_token",
    "base_model",
    "custom_llm_provider",
    "llm_provider",
    "provider",
    "provider_options",
    "organization",
    "organization_id",
    "project",
    "project_id",
    "region",
    "region_name",
    "allowed_model_region",
    "deployment",
    "deployment_id",
    "engine",
    "host",
    "url",
    "proxy",
    "proxies",
    "ssl_verify",
    "client",
    "http_client",
    "headers",
    "body",
    "query",
    "cookies",
    "authorization",
    "token",
    "access_token",
    "hf_token",
    "credentials",
    "user_config",
    "configurable_clientside_auth_params",
    "specific_deployment",
    "model_list",
    "model_group",
    "model_info",
    "router_model_id",
    "route",
    "routing_strategy",
    "preset",
    "plugins",
    "transforms",
    "guardrails",
    "callbacks",
    "success_callback",
    "failure_callback",
    "logger_fn",
    "lora",
    "adapter_id",
    "data_parallel_rank",
    "kv_transfer_params",
    "session_params",
    "custom_logit_processor",
    "logits_processors",
    "vllm_xargs",
    // Caching, retries and fallbacks.
    "timeout",
    "stream_timeout",
    "request_timeout",
    "force_timeout",
    "num_retries",
    "max_retries",
    "retry_policy",
    "retry_strategy",
    "cooldown_time",
    "caching",
    "cache",
    "cache_key",
    "cache_salt",
    "ttl",
    "no_log",
    "drop_params",
    "prompt_id",
    "prompt_variables",
    "prompt_version",
    "use_in_pass_through",
];

/// Prefixes of parameter names that providers use for settings other than sampling.
const RESERVED_BEGINNINGS: [&str; 19] = [
    "additional_drop_",
    "allowed_openai_",
    "api_",
    "aws_",
    "azure_",
    "base_url",
    "bedrock_",
    "bootstrap_",
    "default_",
    "extra_",
    "gcs_",
    "litellm",
    "lora_",
    "mock_",
    "oci_",
    "proxy_",
    "sagemaker_",
    "vertex_",
    "watsonx_",
];

/// Parts that reserve every name that contains one of them.
const RESERVED_PARTS: [&str; 8] =
    ["fallback", "api_base", "api_key", "apikey", "base_url", "baseurl", "endpoint", "credential"];

/// Maximum length of a parameter's name in bytes. The error shows the name.
const NAME_BYTES_MAX: usize = 64;

/// The parameters that a guest may set: a list of the operator, or all that are not reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedParams(Option<BTreeSet<String>>);

impl AllowedParams {
    /// Creates the set from the operator's list, if there is one. The error names an invalid entry.
    pub fn of(names: Option<&[String]>) -> Result<Self, String> {
        let Some(names) = names else { return Ok(Self::default()) };
        for name in names {
            if !is_name(name) {
                return Err(format!("'{}' is not a valid parameter name", shown(name)));
            }
            if is_reserved(name) {
                return Err(format!("'{name}' can be set by the host only; remove it from the list"));
            }
        }
        Ok(Self(Some(names.iter().cloned().collect())))
    }

    fn allows(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }
}

/// Returns whether a name has only characters that servers' parameters have. A reserved name cannot be disguised by
/// letters that merely look like ASCII.
fn is_name(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(part)
}

/// Normalizes a name, because some servers ignore case and do not distinguish '-', '.' and '_'.
fn normalized(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '.'], "_")
}

/// Returns whether a guest may not set a parameter, in any spelling.
fn is_reserved(name: &str) -> bool {
    let name = normalized(name);
    let name = name.trim_matches('_');
    RESERVED.contains(&name)
        || RESERVED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || RESERVED_PARTS.iter().any(|part| name.contains(part))
}

fn shown(name: &str) -> String {
    crate::text::printable(&crate::text::beginning(name, NAME_BYTES_MAX))
}

impl CallerParams {
    /// Reads a caller's parameters and separates those that the host decides. A value that is not an object counts as an
    /// empty object, and so does an object with too many members.
    pub fn read(params: &RawValue) -> Self {
        let mut given = Params::new();
        let read = members(params.get(), |name, value: &RawValue| {
            if given.len() > PARAMS_MAX {
                return Err(format!("more than {PARAMS_MAX} members"));
            }
            given.insert(name.into_owned(), value.to_owned());
            Ok(())
        });
        if let Err(error) = read.map_err(String::from) {
            tracing::warn!(error, "the caller's sampling parameters are malformed and were ignored");
            return Self::default();
        }
        let (defaults, reserved) =
            given.into_iter().partition(|(name, _)| is_name(name) && !is_reserved(name));
        Self { defaults, reserved }
    }

    /// Returns the parameters of every request that does not set them itself.
    pub(super) fn defaults(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.defaults.iter().map(|(name, value)| (name.as_str(), &**value))
    }

    /// Returns the caller's value of a parameter.
    pub(super) fn default_of(&self, name: &str) -> Option<&RawValue> {
        self.defaults.get(name).map(AsRef::as_ref)
    }

    /// Returns whether a guest passes the caller's own value of a parameter that it may not set.
    ///
    /// An agent loop receives the caller's parameters and may pass them with each request. This changes nothing,
    /// because the host adds them to every request. Reserved parameters are never sent, so their values do not matter,
    /// except that of `model`, which must be the caller's.
    fn is_callers_own(&self, name: &str, value: &RawValue) -> bool {
        match self.reserved.get(name) {
            Some(own) => name != MODEL || is_same_json(own.get(), value.get()),
            None => self.default_of(name).is_some_and(|own| is_same_json(own.get(), value.get())),
        }
    }
}

/// Returns a guest's parameters, if it may set all of them. The caller's own values of parameters that it may not set
/// are omitted.
pub(super) fn read_params<'a>(
    params: Option<&'a str>,
    allowed: &AllowedParams,
    caller: &CallerParams,
) -> Result<BTreeMap<Cow<'a, str>, &'a RawValue>, InvalidRequest> {
    let Some(text) = params else { return Ok(BTreeMap::new()) };
    let raw = object(text).map_err(InvalidRequest::Params)?;
    let mut params = BTreeMap::new();
    let read = members(raw.get(), |name, value: &RawValue| {
        params.insert(name, value);
        if params.len() > PARAMS_MAX {
            return Err(format!("an object of more than {PARAMS_MAX} members; a server knows some forty"));
        }
        Ok(())
    });
    read.map_err(|stopped| InvalidRequest::Params(stopped.into()))?;
    let mut accepted = BTreeMap::new();
    for (name, value) in params {
        match check_param(&name, allowed) {
            Ok(()) => drop(accepted.insert(name, value)),
            Err(_) if caller.is_callers_own(&name, value) => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(accepted)
}

fn check_param(name: &str, allowed: &AllowedParams) -> Result<(), InvalidRequest> {
    if !is_name(name) {
        return Err(InvalidRequest::ParamName(shown(name)));
    }
    if is_reserved(name) {
        return Err(InvalidRequest::Reserved(name.to_owned()));
    }
    if !allowed.allows(name) {
        return Err(InvalidRequest::NotAllowed(name.to_owned()));
    }
    Ok(())
}

/// Returns whether two JSON texts are equal up to escapes and white space, with members in the same order, without
/// building a tree.
fn is_same_json(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one, other);
    loop {
        match (next_token(&mut one), next_token(&mut other)) {
            (None, None) => return true,
            (Some(one), Some(other)) if is_same_token(one, other) => {}
            _ => return false,
        }
    }
}

/// Returns the first string, number or other character of valid JSON.
fn next_token<'a>(json: &mut &'a str) -> Option<&'a str> {
    *json = json.trim_ascii_start();
    let bytes = json.as_bytes();
    let length = match bytes.first()? {
        b'"' => {
            let mut is_escaped = false;
            let end = bytes[1..].iter().position(|byte| {
                let ends = *byte == b'"' && !is_escaped;
                is_escaped = *byte == b'\\' && !is_escaped;
                ends
            });
            end.map_or(bytes.len(), |end| end + 2)
        }
        b'-' | b'0'..=b'9' => {
            let is_part = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
            bytes.iter().position(|byte| !is_part(byte)).unwrap_or(bytes.len())
        }
        _ => 1,
    };
    let (token, rest) = json.split_at_checked(length)?;
    *json = rest;
    Some(token)
}

fn is_same_token(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'"'), Some(b'"')) => text(one).is_some_and(|one| Some(one) == text(other)),
        (Some(b'-' | b'0'..=b'9'), Some(b'-' | b'0'..=b'9')) => {
            let number = |text: &str| text.parse::<f64>().ok();
            number(one).is_some_and(|one| Some(one) == number(other))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: &str, allowed: &AllowedParams) -> Result<usize, String> {
        let read = read_params(Some(params), allowed, &CallerParams::default());
        read.map(|params| params.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn reserved_parameters_are_refused_in_every_spelling() {
        for name in [
            "model",
            "Model",
            "STREAM",
            "stream-options",
            "Api_Base",
            "api-base",
            "api_key",
            "openai_api_key",
            "base_url",
            "Base-URL",
            "baseURL",
            "mock_response",
            "MOCK_TOOL_CALLS",
            "fallbacks",
            "context_window_fallbacks",
            "model_list",
            "custom_llm_provider",
            "extra_headers",
            "extra_body",
            "headers",
            "timeout",
            "num_retries",
            "drop_params",
            "additional_drop_params",
            "litellm_params",
            "lora_path",
            "kv_transfer_params",
            "custom_logit_processor",
            "bootstrap_host",
            "user_config",
            "_model",
            "aws_bedrock_runtime_endpoint",
            "vertex_project",
            "metadata",
            "provider",
            "no-log",
        ] {
            let refused = read(&format!("{{\"{name}\":1}}"), &AllowedParams::default()).unwrap_err();
            assert!(refused.starts_with(&format!("params sets '{name}', which")), "{refused}");
        }
        // An escape does not hide a reserved name.
        let refused = read(r#"{"mod\u0065l":"gpt"}"#, &AllowedParams::default()).unwrap_err();
        assert!(refused.starts_with("params sets 'model'"), "{refused}");
        for name in ["mod\u{435}l", "\u{17f}tream", "", "a b", "model\\u0000", &"x".repeat(65)] {
            let refused = read(&format!("{{\"{name}\":1}}"), &AllowedParams::default()).unwrap_err();
            assert!(refused.contains("is not a valid parameter name"), "{refused}");
        }
    }

    #[test]
    fn sampling_parameters_are_accepted() {
        for name in [
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "use_beam_search",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "seed",
            "logprobs",
            "top_logprobs",
            "prompt_logprobs",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "logit_bias",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "reasoning_effort",
            "reasoning",
            "thinking",
            "chat_template_kwargs",
            "guided_json",
            "guided_regex",
            "structured_outputs",
            "stop_token_ids",
            "include_stop_str_in_output",
            "ignore_eos",
            "min_tokens",
            "skip_special_tokens",
            "return_token_ids",
            "return_tokens_as_token_ids",
            "add_generation_prompt",
            "continue_final_message",
            "bad_words",
            "best_of",
            "priority",
            "service_tier",
            "verbosity",
            "length_penalty",
            "truncate_prompt_tokens",
            "regex",
            "ebnf",
            "return_hidden_states",
            "modalities",
        ] {
            assert_eq!(read(&format!("{{\"{name}\":1}}"), &AllowedParams::default()), Ok(1), "{name}");
        }
    }

    #[test]
    fn the_operator_can_limit_the_accepted_parameters() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let allowed = AllowedParams::of(Some(&names(&["temperature", "top_p"]))).unwrap();
        assert_eq!(read(r#"{"temperature":1}"#, &allowed), Ok(1));
        assert_eq!(
            read(r#"{"seed":1}"#, &allowed).unwrap_err(),
            "params sets 'seed', which the operator does not allow; leave it out"
        );
        let none = AllowedParams::of(Some(&[])).unwrap();
        assert!(read(r#"{"temperature":1}"#, &none).is_err());
        assert_eq!(read("{}", &none), Ok(0));
        assert!(
            AllowedParams::of(Some(&names(&["api_base"])))
                .unwrap_err()
                .contains("can be set by the host only")
        );
        assert!(
            AllowedParams::of(Some(&names(&["a b"]))).unwrap_err().contains("not a valid parameter name")
        );
    }

    fn caller(params: &str) -> CallerParams {
        CallerParams::read(serde_json::from_str(params).unwrap())
    }

    #[test]
    fn a_caller_sets_only_parameters_that_a_guest_may_set() {
        let params = caller(r#"{"temperature":0.1,"Model":"x","api_base":"y","n":4}"#);
        assert_eq!(params.defaults().map(|(name, _)| name).collect::<Vec<_>>(), ["temperature"]);
    }

    #[test]
    fn a_guest_may_repeat_the_callers_parameters() {
        let caller = caller(r#"{"model":"p\u006f","n":4,"tools":[{}],"a b":1,"seed":3.0,"temperature":1}"#);
        let only = AllowedParams::of(Some(&["temperature".to_owned()])).unwrap();
        let check = |params: &str, expected: Result<&[&str], &str>| {
            let read = read_params(Some(params), &only, &caller);
            match (read, expected) {
                (Ok(read), Ok(names)) => assert!(read.keys().eq(names), "{params}: {read:?}"),
                (Err(error), Err(text)) => assert!(error.to_string().starts_with(text), "{params}: {error}"),
                (read, _) => panic!("{params}: {read:?}"),
            }
        };
        check(r#"{"model":"po","n":4,"tools":[],"a b":1,"seed":3,"temperature":0.5}"#, Ok(&["temperature"]));
        check(r#"{"model":"another"}"#, Err("params sets 'model', which the host decides"));
        check(r#"{"Model":"po"}"#, Err("params sets 'Model', which the host decides"));
        check(r#"{"api_base":"x"}"#, Err("params sets 'api_base', which the host decides"));
        check(r#"{"seed":4}"#, Err("params sets 'seed', which the operator does not allow"));
        check(r#"{"top_p":1}"#, Err("params sets 'top_p', which the operator does not allow"));
    }

    #[test]
    fn the_notation_of_json_does_not_matter_for_equality() {
        let check = |one: &str, other: &str, expected: bool| {
            assert_eq!(is_same_json(one, other), expected, "{one} and {other}");
            assert_eq!(is_same_json(other, one), expected, "{other} and {one}");
        };
        check("null", "null", true);
        check("true", "false", false);
        check("1", "1.0", true);
        check("1e3", "1000.0", true);
        check("1", "12", false);
        check(r#""a\"b""#, r#""a\u0022b""#, true);
        check(r#""a""#, r#""b""#, false);
        check(r#"{"a":[1,"x"]}"#, "{ \"a\" :\n[1.0, \"x\"] }", true);
        check("[1]", "[1,2]", false);
        check(r#"["a"]"#, r#""a""#, false);
    }
}
