//! Sampling parameters: which of them a guest may set.
//!
//! They travel to the model's server as they were written, so they say how the model answers.
//! What decides which model answers, where, whether it is asked at all, or what it may read
//! on its server's side, is the operator's and the caller's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use super::object;
use super::openai::InvalidRequest;
use super::stream::members;

/// The most sampling parameters of one request. One that says nothing costs the host some
/// hundred bytes where the guest spends four on it.
pub(crate) const PARAMS_MAX: usize = 256;

/// Sampling parameters by name, each as it was written. At most `PARAMS_MAX`.
pub type Params = BTreeMap<String, Box<RawValue>>;

/// Parameters that are no guest's to set, as [`normalized`] writes them.
///
/// Collected from what LiteLLM (1.7x), vLLM (0.10), SGLang (0.5), TGI and OpenRouter read of a
/// chat request beyond sampling.
const RESERVED: [&str; 99] = [
    // The request itself. `n` is among them because one reply is read.
    "model",
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
    // Where the request goes, and as whom.
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
    // Whether it is made, how often, and from where it is answered.
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

/// Beginnings of names that providers make families of, none of them about sampling.
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

/// Parts of such names that mean the same wherever they stand.
const RESERVED_PARTS: [&str; 8] =
    ["fallback", "api_base", "api_key", "apikey", "base_url", "baseurl", "endpoint", "credential"];

/// The longest name of a parameter, in bytes. It is in the error that refuses it.
const NAME_BYTES_MAX: usize = 64;

/// Which parameters pass at all: those that the operator names, or all that are not reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedParams(Option<BTreeSet<String>>);

impl AllowedParams {
    /// Those of this list, where there is one. The error names what cannot be on it.
    pub fn of(names: Option<&[String]>) -> Result<Self, String> {
        let Some(names) = names else { return Ok(Self::default()) };
        for name in names {
            if !is_name(name) {
                return Err(format!("'{}' is no name of a parameter", shown(name)));
            }
            if is_reserved(name) {
                return Err(format!("'{name}' is not a guest's to set, whatever the list says"));
            }
        }
        Ok(Self(Some(names.iter().cloned().collect())))
    }

    fn allows(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }
}

/// Whether a name has the form that all parameters of all servers have, so that no letter that
/// only looks like another gets past a list.
fn is_name(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(part)
}

/// A name as servers may read it that care about neither case nor dashes.
fn normalized(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '.'], "_")
}

/// Whether a parameter is no guest's to set, however it is written.
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

/// A caller's parameters for all requests of a rollout, without those that the host
/// decides. What is no object has none, and neither has what has too many members.
pub fn caller_params(params: &RawValue) -> Params {
    let mut kept = Params::new();
    let read = members(params.get(), |name, value: &RawValue| {
        if kept.len() > PARAMS_MAX {
            return Err(format!("more than {PARAMS_MAX} members"));
        }
        kept.insert(name.into_owned(), value.to_owned());
        Ok(())
    });
    if let Err(error) = read.map_err(String::from) {
        tracing::warn!(error, "the caller's sampling parameters are left out");
        return Params::new();
    }
    kept.retain(|name, _| is_name(name) && !is_reserved(name));
    kept
}

/// A guest's parameters, if it may set all of them.
pub(super) fn read_params<'a>(
    params: Option<&'a str>,
    allowed: &AllowedParams,
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
    for name in params.keys() {
        if !is_name(name) {
            return Err(InvalidRequest::ParamName(shown(name)));
        }
        if is_reserved(name) {
            return Err(InvalidRequest::Reserved(name.to_string()));
        }
        if !allowed.allows(name) {
            return Err(InvalidRequest::NotAllowed(name.to_string()));
        }
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: &str, allowed: &AllowedParams) -> Result<usize, String> {
        read_params(Some(params), allowed).map(|params| params.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_decides_who_answers_is_refused_however_it_is_written() {
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
        // An escape does not get a reserved name past the check.
        let refused = read(r#"{"mod\u0065l":"gpt"}"#, &AllowedParams::default()).unwrap_err();
        assert!(refused.starts_with("params sets 'model'"), "{refused}");
        for name in ["mod\u{435}l", "\u{17f}tream", "", "a b", "model\\u0000", &"x".repeat(65)] {
            let refused = read(&format!("{{\"{name}\":1}}"), &AllowedParams::default()).unwrap_err();
            assert!(refused.contains("is no name of a parameter"), "{refused}");
        }
    }

    #[test]
    fn what_decides_how_the_model_answers_passes() {
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
    fn the_operator_says_which_pass_at_all() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let allowed = AllowedParams::of(Some(&names(&["temperature", "top_p"]))).unwrap();
        assert_eq!(read(r#"{"temperature":1}"#, &allowed), Ok(1));
        assert_eq!(
            read(r#"{"seed":1}"#, &allowed).unwrap_err(),
            "params sets 'seed', which the operator does not let through; leave it out"
        );
        let none = AllowedParams::of(Some(&[])).unwrap();
        assert!(read(r#"{"temperature":1}"#, &none).is_err());
        assert_eq!(read("{}", &none), Ok(0));
        assert!(AllowedParams::of(Some(&names(&["api_base"]))).unwrap_err().contains("not a guest's to set"));
        assert!(AllowedParams::of(Some(&names(&["a b"]))).unwrap_err().contains("no name of a parameter"));
    }

    #[test]
    fn a_caller_sets_what_a_guest_may_set() {
        let params = serde_json::from_str(r#"{"temperature":0.1,"Model":"x","api_base":"y","n":4}"#).unwrap();
        assert_eq!(caller_params(params).into_keys().collect::<Vec<_>>(), ["temperature"]);
    }
}
