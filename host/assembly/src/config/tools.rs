//! `[[tools.component]]`, `[[tools.mcp]]` and `[[tools.http]]`: tools that the host provides to the plugin.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::Method;
use reqwest::header::HeaderName;
use serde_json::{Map, Value, json};

use super::setting::{self, AboveZero, Setting};
use rollout_guest::toolbox::{AddressSettings, CallLimits, ComponentSettings, ServerSettings, ToolSettings};
use rollout_outbound::{
    AllowedHost, HttpToolSettings, McpSettings, NetworkRules, SecretText, UrlTemplate, is_variable,
};
use rollout_wire::function::FunctionTool;

/// `[tools]`.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawTools {
    /// `[[tools.component]]`: components that export `tool`.
    pub component: Vec<RawComponent>,
    /// `[[tools.mcp]]`: servers that speak the Model Context Protocol.
    pub mcp: Vec<RawServer>,
    /// `[[tools.http]]`: addresses that are called over HTTP.
    pub http: Vec<RawAddress>,
}

/// `[[tools.mcp]]`: either `command` or `url`.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawServer {
    /// Program to start, with its arguments.
    pub command: Option<Vec<String>>,
    /// Variables of the host's environment that are passed to the program; no others are.
    pub environment: Option<Vec<String>>,
    /// Additional variables for the program. `${NAME}` stands for a variable of the host's environment.
    pub variables: Option<BTreeMap<String, String>>,
    /// Address of a running server, which is called over streamable HTTP.
    pub url: Option<String>,
    /// Headers of every request. `${NAME}` stands for a variable of the host's environment.
    pub headers: Option<BTreeMap<String, String>>,
    /// Prefix of the names of its tools.
    pub prefix: Option<String>,
    /// The provided tools, by the server's names; all by default.
    pub only: Option<Vec<String>>,
    /// Maximum wall time of a call, including the wait for its turn.
    pub deadline_secs: Option<f64>,
    /// Maximum size of a result.
    pub result_bytes_max: Option<usize>,
    /// Maximum number of concurrent calls of all rollouts.
    pub concurrent_max: Option<u32>,
    /// Maximum number of calls of each tool in a rollout.
    pub calls_max: Option<u32>,
}

/// `[[tools.http]]`: one tool.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawAddress {
    /// Name by which the model calls the tool.
    pub name: Option<String>,
    /// Description for the model.
    pub description: Option<String>,
    /// HTTP method; `GET` by default.
    pub method: Option<String>,
    /// The address. `{name}` is an argument, `${NAME}` a variable of the host's environment.
    pub url: Option<String>,
    /// JSON Schema of the arguments. By default, the arguments are those in the address, as strings.
    pub parameters: Option<toml::Table>,
    /// Headers of every request. `${NAME}` stands for a variable of the host's environment.
    pub headers: Option<BTreeMap<String, String>>,
    /// Permitted hosts besides the one in `url`.
    pub hosts: Option<Vec<String>>,
    /// Whether addresses outside the public network are permitted.
    pub private_addresses: Option<bool>,
    /// Maximum number of redirects, each to a permitted host; 0 by default.
    pub redirects_max: Option<u32>,
    /// Maximum wall time of a call, including the wait for its turn.
    pub deadline_secs: Option<f64>,
    /// Maximum size of a result.
    pub result_bytes_max: Option<usize>,
    /// Maximum number of concurrent calls of all rollouts.
    pub concurrent_max: Option<u32>,
    /// Maximum number of calls of the tool in a rollout.
    pub calls_max: Option<u32>,
}

/// `[[tools.component]]`.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawComponent {
    /// The component's file.
    pub path: Option<PathBuf>,
    /// Prefix of the names of its tools.
    pub prefix: Option<String>,
    /// The component's own configuration, passed on unchanged.
    pub config: Option<toml::Table>,
    /// Maximum memory of a call.
    pub memory_bytes_max: Option<usize>,
    /// Maximum CPU time of a call.
    pub cpu_secs_max: Option<f64>,
    /// Maximum wall time of a call, including the wait for its turn.
    pub deadline_secs: Option<f64>,
    /// Maximum size of a result.
    pub result_bytes_max: Option<usize>,
    /// Maximum number of concurrent calls of all rollouts.
    pub concurrent_max: Option<u32>,
    /// Maximum number of calls of each tool in a rollout.
    pub calls_max: Option<u32>,
}

/// Position of an entry in the file, and checks that all kinds of entries share.
struct Common<'a> {
    at: String,
    problems: &'a mut Vec<String>,
}

/// Limits of calls as written by the operator.
struct RawCallLimits {
    deadline_secs: Option<f64>,
    result_bytes_max: Option<usize>,
    concurrent_max: Option<u32>,
    calls_max: Option<u32>,
}

/// Maximum size of a result, which becomes a message to the model.
const RESULT_BYTES_MAX: usize = 16 << 20;
/// Maximum number of concurrent calls of an entry. Each call of a component takes memory.
const CONCURRENT_MAX: u32 = 1024;
/// Maximum length of a prefix, which leaves room for the names.
const PREFIX_BYTES_MAX: usize = 32;

impl RawTools {
    /// Returns the tables as text, without absent settings, so that a configuration has the same text in every version.
    pub(super) fn source(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Fills in defaults and checks every field.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> ToolSettings {
        let at = |kind: &str, place: usize| format!("tools.{kind}[{place}]");
        let mut settings = ToolSettings::default();
        for (place, raw) in self.component.into_iter().enumerate() {
            settings.components.push(raw.resolve(Common { at: at("component", place), problems }));
        }
        for (place, raw) in self.mcp.into_iter().enumerate() {
            settings.servers.extend(raw.resolve(Common { at: at("mcp", place), problems }));
        }
        for (place, raw) in self.http.into_iter().enumerate() {
            settings.addresses.extend(raw.resolve(Common { at: at("http", place), problems }));
        }
        settings
    }
}

impl RawComponent {
    fn resolve(self, mut common: Common<'_>) -> ComponentSettings {
        if self.path.is_none() {
            common.wrong("path", "missing; give the component's file");
        }
        let default = ComponentSettings::default();
        let memory_bytes_max = common.value(
            "memory-bytes-max",
            self.memory_bytes_max,
            default.memory_bytes_max,
            1 << 20..=4 << 30,
        );
        let limits = RawCallLimits {
            deadline_secs: self.deadline_secs,
            result_bytes_max: self.result_bytes_max,
            concurrent_max: self.concurrent_max,
            calls_max: self.calls_max,
        };
        ComponentSettings {
            // The top-level configuration sets it for all components.
            clock_begins: default.clock_begins,
            path: self.path.unwrap_or_default(),
            prefix: common.prefix(self.prefix),
            config: self.config.and_then(|table| match serde_json::value::to_raw_value(&table) {
                Ok(raw) => Some(raw.into()),
                Err(error) => {
                    common.wrong("config", &error.to_string());
                    None
                }
            }),
            memory_bytes_max,
            cpu_time_max: common.value("cpu-secs-max", self.cpu_secs_max, default.cpu_time_max, AboveZero),
            limits: common.limits(limits),
            at: common.at,
        }
    }
}

impl RawServer {
    /// Returns `None`, with a problem added, if the kind of server is unclear.
    fn resolve(self, mut common: Common<'_>) -> Option<ServerSettings> {
        let limits = common.limits(RawCallLimits {
            deadline_secs: self.deadline_secs,
            result_bytes_max: self.result_bytes_max,
            concurrent_max: self.concurrent_max,
            calls_max: self.calls_max,
        });
        let prefix = common.prefix(self.prefix);
        let has_headers = self.headers.is_some();
        let has_environment = self.environment.is_some() || self.variables.is_some();
        let variables = common.secret_texts("variables", self.variables);
        let headers = common.headers(self.headers);
        let reach = match (self.command, self.url) {
            (Some(command), None) => {
                if command.first().is_none_or(String::is_empty) {
                    common.wrong("command", "is empty; give the program and its arguments");
                }
                if has_headers {
                    common.wrong("headers", "apply only to a server with a url; use variables for a command");
                }
                let environment = self.environment.unwrap_or_default();
                McpSettings::Process { command, environment, variables }
            }
            (None, Some(url)) => {
                if !(url.starts_with("http://") || url.starts_with("https://")) {
                    common.wrong("url", "not an http or https address");
                }
                if has_environment {
                    common
                        .wrong("environment", "and variables apply only to a command; use headers for a url");
                }
                // The address is the operator's, so only the rules for every address apply.
                McpSettings::Http { url, headers, network: Arc::new(NetworkRules::open()) }
            }
            (None, None) => {
                common.wrong("command", "missing, and so is url; give one of them");
                return None;
            }
            (Some(_), Some(_)) => {
                common.wrong("url", "contradicts command; remove one of them");
                return None;
            }
        };
        Some(ServerSettings { at: common.at, reach, prefix, only: self.only, limits })
    }
}

impl RawAddress {
    /// Returns `None`, with a problem added, if a required field is missing.
    fn resolve(self, mut common: Common<'_>) -> Option<AddressSettings> {
        let limits = common.limits(RawCallLimits {
            deadline_secs: self.deadline_secs,
            result_bytes_max: self.result_bytes_max,
            concurrent_max: self.concurrent_max,
            calls_max: self.calls_max,
        });
        let headers = common.headers(self.headers);
        let method = common.method(self.method.as_deref().unwrap_or("GET"));
        let hosts = common.hosts(self.hosts.unwrap_or_default());
        let name = common.required("name", "the name by which the model calls the tool", self.name);
        let url = common.required("url", "the address to call", self.url)?;
        let url = match UrlTemplate::parse(&url) {
            Ok(url) => url,
            Err(what) => {
                common.wrong("url", &what);
                return None;
            }
        };
        if url.is_whole() && hosts.is_empty() {
            common.wrong("hosts", "missing; the host of the url is an argument, so list the permitted hosts");
        }
        let parameters = common.parameters(self.parameters, &url);
        let function = match FunctionTool::new(&name?, self.description.as_deref(), parameters.clone()) {
            Ok(function) => function,
            Err(what) => {
                common.problems.push(format!("{}: it is {what}", common.at));
                return None;
            }
        };
        let ask = HttpToolSettings {
            method,
            url,
            headers,
            hosts,
            network: Arc::new(match self.private_addresses {
                Some(true) => NetworkRules::open(),
                Some(false) | None => NetworkRules::allow_list(Vec::new()),
            }),
            redirects_max: self.redirects_max.unwrap_or(0),
            parameters,
        };
        Some(AddressSettings { at: common.at, function, ask, limits })
    }
}

impl Common<'_> {
    fn wrong(&mut self, field: &str, what: &str) {
        self.problems.push(format!("{}.{field}: {what}", self.at));
    }

    /// Returns the given value, or else the default, in a range.
    fn value<T: Setting>(
        &mut self,
        field: &str,
        given: Option<T::Written>,
        default: T,
        range: impl RangeBounds<T>,
    ) -> T {
        setting::value((&self.at, field), given, default, range, self.problems)
    }

    fn required<T>(&mut self, field: &str, what: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.wrong(field, &format!("missing; give {what}"));
        }
        value
    }

    fn method(&mut self, name: &str) -> Method {
        match name {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            "DELETE" => Method::DELETE,
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            _ => {
                self.wrong("method", "must be GET, HEAD, DELETE, POST, PUT or PATCH");
                Method::GET
            }
        }
    }

    fn secret_texts(
        &mut self,
        field: &str,
        texts: Option<BTreeMap<String, String>>,
    ) -> Vec<(String, SecretText)> {
        let mut parsed = Vec::new();
        for (name, text) in texts.into_iter().flatten() {
            match SecretText::parse(&text) {
                Ok(_) if field == "variables" && !is_variable(&name) => {
                    self.wrong(&format!("{field}.{name}"), "not the name of an environment variable");
                }
                Ok(text) => parsed.push((name, text)),
                Err(what) => self.wrong(&format!("{field}.{name}"), &what),
            }
        }
        parsed
    }

    fn headers(&mut self, headers: Option<BTreeMap<String, String>>) -> Vec<(HeaderName, SecretText)> {
        let mut parsed = Vec::new();
        for (name, text) in self.secret_texts("headers", headers) {
            match HeaderName::try_from(&name) {
                Ok(name) => parsed.push((name, text)),
                Err(_) => self.wrong(&format!("headers.{name}"), "not the name of a header"),
            }
        }
        parsed
    }

    fn hosts(&mut self, hosts: Vec<String>) -> Vec<AllowedHost> {
        let mut parsed = Vec::new();
        for (place, host) in hosts.iter().enumerate() {
            match AllowedHost::parse(host) {
                Ok(host) => parsed.push(host),
                Err(what) => self.wrong(&format!("hosts[{place}]"), &what),
            }
        }
        parsed
    }

    /// Returns the schema of the arguments, which must include those in the address.
    fn parameters(&mut self, written: Option<toml::Table>, url: &UrlTemplate) -> Value {
        let Some(written) = written else {
            let names: Vec<&str> = url.arguments().collect();
            let properties: Map<String, Value> =
                names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
            return json!({
                "type": "object", "properties": properties, "required": names, "additionalProperties": false,
            });
        };
        let schema = serde_json::to_value(written).unwrap_or_default();
        for name in url.arguments().filter(|name| schema["properties"].get(*name).is_none()) {
            self.wrong("parameters", &format!("properties has no '{name}', which the url needs"));
        }
        schema
    }

    fn prefix(&mut self, prefix: Option<String>) -> String {
        let prefix = prefix.unwrap_or_default();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.chars().all(is_part) {
            self.wrong("prefix", &format!("must be at most {PREFIX_BYTES_MAX} letters, digits, '_' and '-'"));
        }
        prefix
    }

    fn limits(&mut self, raw: RawCallLimits) -> CallLimits {
        let default = CallLimits::default();
        if raw.calls_max == Some(0) {
            self.wrong("calls-max", "must be at least 1; to disable the tool, remove the entry");
        }
        CallLimits {
            deadline: self.value("deadline-secs", raw.deadline_secs, default.deadline, AboveZero),
            result_bytes_max: self.value(
                "result-bytes-max",
                raw.result_bytes_max,
                default.result_bytes_max,
                1..=RESULT_BYTES_MAX,
            ),
            concurrent_max: self.value(
                "concurrent-max",
                raw.concurrent_max,
                default.concurrent_max,
                1..=CONCURRENT_MAX,
            ),
            calls_max: raw.calls_max.unwrap_or(default.calls_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_tools_depends_on_the_settings_and_not_on_their_notation() {
        let source = |text: &str| toml::from_str::<RawTools>(text).unwrap().source().unwrap();
        let one = source("[[http]]\nname = 'a'\nurl = 'https://h/{x}'\ndeadline-secs = 2\n");
        assert_eq!(one, source("http = [{deadline-secs = 2.0, url = \"https://h/{x}\", name = \"a\"}]"));
        assert_ne!(one, source("[[http]]\nname = 'a'\nurl = 'https://h/{x}'\ndeadline-secs = 3\n"));
        assert!(!one.contains("calls-max"), "absent settings are omitted: {one}");
    }
}
