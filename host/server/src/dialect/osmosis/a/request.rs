//! Requests of `POST /v1/rollout/init`.

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

use super::super::error::ApiError;
use super::super::fields::{Fields, Problem, members};
use super::super::request::{ForRollout, MESSAGES_MAX, check_reach, is_json};
use super::super::sample;
use rollout_assembly::config::OsmosisInit;
use rollout_outbound::{InvalidEndpoint, NetworkRules, RequestProfile, Secret};
use rollout_rollout::{AgentForm, LoopOptions, ModelAddress, Resources, RolloutRequest};
use rollout_wire::closed::{ClosedBody, Param, ToolsRule};
use rollout_wire::digest::sha256_hex;
use rollout_wire::id::RolloutId;
use rollout_wire::metadata::RowMetadata;

/// Name of the model if the caller's sampling parameters do not name one.
const MODEL: &str = "default";

/// Name of the request profile for models of this generation's callers. [`profile`] creates the profile from the
/// rollout's id and the settings.
const PROFILE: &str = "osmosis-init";

/// Maximum number of characters of an id.
const ID_CHARS_MAX: usize = 256;

/// Maximum length in bytes of the key of repeated requests. The key is stored for as long as the response.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 512;

/// Maximum number of sampling parameters. Each is stored separately. Model servers know a few dozen.
const PARAMS_MAX: usize = 256;

/// A parsed request.
pub(super) struct Init {
    /// The request for the core.
    pub rollout: RolloutRequest,
    /// Data in addition to the request.
    pub resources: Resources,
    /// The rollout's id as the caller wrote it.
    pub id: String,
    /// The key of repeated requests.
    pub key: String,
    /// The address of the result.
    pub completed_url: String,
    /// The key of the callbacks.
    pub api_key: Option<Secret>,
    /// Whether the request has a label with which a grader can compare the answer.
    pub gradable: bool,
}

impl ForRollout for Init {
    fn memory_bytes(&self) -> usize {
        let Self { rollout, resources, id, key, completed_url, api_key, gradable: _ } = self;
        let texts = id.len() + key.len() + completed_url.len();
        let api_key = api_key.as_ref().map_or(0, |key| key.expose().len());
        rollout.memory_bytes() + resources.secrets.memory_bytes() + texts + api_key
    }

    fn resources(&mut self) -> &mut Resources {
        &mut self.resources
    }
}

/// Parses a request. The error has all mistakes.
pub(super) fn read(
    headers: &HeaderMap,
    body: &[u8],
    settings: &OsmosisInit,
    form: AgentForm,
    rules: &NetworkRules,
) -> Result<Init, ApiError> {
    let mut fields = Fields::of(body, is_json(headers))?;
    let init = fields_of(&mut fields, settings, form, rules);
    fields.finish(init).map_err(ApiError::Invalid)
}

fn fields_of(
    fields: &mut Fields<'_>,
    settings: &OsmosisInit,
    form: AgentForm,
    rules: &NetworkRules,
) -> Option<Init> {
    let id = id(fields);
    let server_url = server_url(fields, rules);
    let messages = fields.required_objects("messages", MESSAGES_MAX);
    let completion_params = completion_params(fields);
    // Fields for other servers, unused here.
    fields.text("tool_server_url");
    let max_turns = fields.whole("max_turns");
    let max_tokens_total = fields.whole("max_tokens_total");
    let metadata = metadata(fields, settings.metadata_bytes_max);
    let api_key = fields.text("api_key").filter(|key| !key.is_empty()).map(Secret::new);
    let idempotency_key = idempotency_key(fields);

    let (id, server_url, completion_params) = (id?, server_url?, completion_params?);
    let profile = profile(&id, settings, form)?;
    let base_url = format!("{server_url}/v1");
    let (model, secrets) = ModelAddress::split(&base_url, model_name(&completion_params), api_key.clone());
    let model = model.with_profile(PROFILE);
    let endpoint = match secrets.endpoint(&model) {
        Ok(endpoint) => Arc::new(endpoint.with_profile(profile)),
        Err(why) => {
            let field = if why == InvalidEndpoint::Key { "api_key" } else { "server_url" };
            fields.wrong(field, &why.to_string());
            return None;
        }
    };
    let defaults = LoopOptions::default();
    let label = metadata.as_ref().and_then(RowMetadata::truth);
    let (rollout_id, caller_id) = core_id(&id)?;
    Some(Init {
        key: idempotency_key.unwrap_or_else(|| id.clone()),
        completed_url: format!("{server_url}/v1/rollout/completed"),
        api_key,
        gradable: label.is_some(),
        id,
        resources: Resources { model: endpoint, secrets, charge: None, continuation: None, past: None },
        rollout: RolloutRequest {
            id: rollout_id,
            caller_id,
            attempt: 1,
            prompt: messages?,
            label,
            metadata: metadata.or_else(|| to_raw_value(&json!({})).ok().map(RowMetadata::from)),
            loop_options: LoopOptions {
                max_turns: max_turns.map_or(defaults.max_turns, clamped),
                turns_max: max_turns.map(clamped),
                max_tokens_total: max_tokens_total.map_or(defaults.max_tokens_total, clamped),
                completion_params: Some(completion_params),
            },
            model,
            samples_max: 1,
            samples_must_ask: false,
            workflow_secs: None,
            grader_secs: None,
            trajectory_extra: Some(sample::extra(None, false)),
            fork: None,
            conversation: None,
            group: None,
        },
    })
}

fn id(fields: &mut Fields<'_>) -> Option<String> {
    let id = fields.required_text("rollout_id")?;
    let count = id.chars().count();
    let at = || vec![json!("body"), json!("rollout_id")];
    if count == 0 {
        let msg = "String should have at least 1 character";
        let problem = Problem::new("string_too_short", at(), msg, json!(id));
        fields.problem(problem.with(json!({"min_length": 1})));
    } else if count > ID_CHARS_MAX {
        let msg = format!("String should have at most {ID_CHARS_MAX} characters");
        let problem = Problem::new("string_too_long", at(), msg, json!(id));
        fields.problem(problem.with(json!({"max_length": ID_CHARS_MAX})));
    } else if id.trim().is_empty() {
        fields.wrong("rollout_id", "rollout_id cannot be empty or whitespace only");
    }
    Some(id)
}

/// Returns the rollout's id in this host, and the caller's id if it differs. In this generation an id may contain path
/// separators.
fn core_id(id: &str) -> Option<(RolloutId, Option<String>)> {
    if let Ok(parsed) = RolloutId::parse(id) {
        return Some((parsed, None));
    }
    let readable = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
    let beginning: String = id.chars().take(64).map(readable).collect();
    let made = RolloutId::parse(format!("{beginning}-{}", sha256_hex(id.as_bytes()))).ok()?;
    Some((made, Some(id.to_owned())))
}

fn server_url(fields: &mut Fields<'_>, rules: &NetworkRules) -> Option<String> {
    let url = fields.required_text("server_url")?;
    match reqwest::Url::parse(&url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => {
            check_reach(fields, "server_url", &parsed, rules);
            Some(url.trim_end_matches('/').to_owned())
        }
        _ => {
            fields.wrong("server_url", "server_url must be an http or https URL with a host");
            None
        }
    }
}

fn completion_params(fields: &mut Fields<'_>) -> Option<Box<RawValue>> {
    let params = fields.required_object("completion_params")?;
    let count = members(&params);
    if count > PARAMS_MAX {
        fields.wrong(
            "completion_params",
            &format!("it has {count} parameters, more than the {PARAMS_MAX} allowed"),
        );
    }
    Some(params)
}

fn idempotency_key(fields: &mut Fields<'_>) -> Option<String> {
    let key = fields.text("idempotency_key").filter(|key| !key.is_empty())?;
    if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let bytes = key.len();
        fields.wrong(
            "idempotency_key",
            &format!("it is {bytes} bytes long, more than the {IDEMPOTENCY_KEY_BYTES_MAX} allowed"),
        );
    }
    Some(key)
}

fn metadata(fields: &mut Fields<'_>, bytes_max: usize) -> Option<RowMetadata> {
    let metadata = fields.object_if_given("metadata")?;
    let bytes = python_length(metadata.get());
    if bytes > bytes_max {
        fields.wrong(
            "metadata",
            &format!("metadata is {bytes} bytes of JSON, more than the {bytes_max} allowed"),
        );
    }
    Some(metadata.into())
}

/// Returns the length of valid JSON as Python writes it by default: with a space after each comma and colon, and in ASCII.
/// The limits of this generation apply to this length.
fn python_length(json: &str) -> usize {
    let mut length = 0;
    let mut rest = json;
    while let Some(first) = rest.chars().next() {
        let (took, counts) = match first {
            '"' => string_length(rest),
            ',' | ':' => (1, 2),
            '-' | '0'..='9' => number_length(rest),
            space if space.is_ascii_whitespace() => (1, 0),
            // A bracket, or a letter of `true`, `false` or `null`.
            _ => (1, 1),
        };
        length += counts;
        rest = &rest[took..];
    }
    length
}

/// Returns the length of the string at the beginning of a text, here and in Python.
fn string_length(text: &str) -> (usize, usize) {
    let (mut counts, mut characters) = (2, text.char_indices().skip(1));
    while let Some((at, character)) = characters.next() {
        counts += match character {
            '"' => return (at + 1, counts),
            '\\' => match characters.next() {
                Some((at, 'u')) => {
                    characters.nth(3);
                    let unit =
                        text.get(at + 1..at + 5).and_then(|digits| u32::from_str_radix(digits, 16).ok());
                    unit.and_then(char::from_u32).map_or(6, written_length)
                }
                Some((_, '/')) => 1,
                _ => 2,
            },
            plain => written_length(plain),
        };
    }
    (text.len(), counts)
}

fn written_length(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        ' '..='~' => 1,
        // Six bytes for each UTF-16 unit.
        other => 6 * other.len_utf16(),
    }
}

/// Returns the length of the number at the beginning of a text, here and in Python.
fn number_length(text: &str) -> (usize, usize) {
    let is_part = |c: char| matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E');
    let length = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let number = serde_json::from_str::<serde_json::Number>(&text[..length]);
    (length, number.map_or(length, |number| number.to_string().len()))
}

fn model_name(completion_params: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    struct Named {
        model: Option<String>,
    }
    let named: Option<Named> = serde_json::from_str(completion_params.get()).ok();
    named.and_then(|named| named.model).unwrap_or_else(|| MODEL.to_owned())
}

/// Returns the request profile of this generation's callers.
pub(super) fn profile(id: &str, settings: &OsmosisInit, form: AgentForm) -> Option<RequestProfile> {
    Some(RequestProfile {
        body: ClosedBody {
            fixed: vec![("rollout_id", to_raw_value(id).ok()?)],
            params: vec![
                ("temperature", Param::Number(1.0)),
                ("top_p", Param::Number(1.0)),
                ("max_tokens", Param::Count(512)),
                ("stop", Param::Texts),
                ("logprobs", Param::Flag(true)),
            ],
            tools: match form {
                AgentForm::AgentLoop => ToolsRule::Known,
                AgentForm::Workflow | AgentForm::Environment => ToolsRule::Unknown,
            },
        },
        policy: settings.chat(),
        connections: Semaphore::new(settings.client_max_connections as usize),
    })
}

fn clamped(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_measured_as_python_writes_it() {
        fn check(text: &str, python: &str) {
            assert_eq!(python_length(text), python.len(), "{text}");
        }
        check("{}", "{}");
        check(r#"{"a":1,"b":[1,2.5,null,true]}"#, r#"{"a": 1, "b": [1, 2.5, null, true]}"#);
        check("{ \"a\" :\n1.50 , \"b\":[ ] }", r#"{"a": 1.5, "b": []}"#);
        check(r#"{"é":"🙂\n"}"#, r#"{"\u00e9": "\ud83d\ude42\n"}"#);
        check("\"\u{7f}\\u0001\\\"\"", r#""\u007f\u0001\"""#);
        check(r#""\u0041\u0022\u000a\/\ud83d\ude42\\""#, r#""A\"\n/\ud83d\ude42\\""#);
    }

    #[test]
    fn a_rollout_whose_id_is_not_a_path_segment_gets_another_id() {
        assert_eq!(core_id("a b:c").unwrap(), (RolloutId::parse("a b:c").unwrap(), None));
        let (id, caller) = core_id("../../etc/passwd").unwrap();
        assert!(id.as_str().starts_with("______etc_passwd-"), "{id}");
        assert_eq!(caller.as_deref(), Some("../../etc/passwd"));
        assert_ne!(core_id("a/b").unwrap().0, core_id("a\\b").unwrap().0);
        assert!(core_id("..").unwrap().0.as_str().starts_with("__-"));
        assert!(core_id(&format!("{}/", "\u{1f642}".repeat(255))).is_some());
    }
}
