//! URLs with placeholders: `{name}` for a model's argument, `${NAME}` for a secret. A value cannot change the rest of
//! the URL.

#![expect(
    clippy::disallowed_types,
    reason = "arguments of one call, of limited size, that a schema is checked against"
)]

use reqwest::Url;
use serde_json::{Map, Value};

use super::environment::{encoded, is_variable, variable};
use super::secrets::Secrets;

/// A URL with placeholders, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTemplate {
    parts: Vec<Part>,
    segments: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Argument(String),
    Secret(String),
}

impl UrlTemplate {
    /// Parses the text. The error describes the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = parts(text)?;
        if matches!(parts.as_slice(), [Part::Argument(_)]) {
            return Ok(Self { parts, segments: 0 });
        }
        let wrong = || format!("'{text}' is not an http or https URL with a host");
        let Some(Part::Literal(beginning)) = parts.first() else { return Err(wrong()) };
        let (_, after_scheme) = beginning.split_once("://").ok_or_else(wrong)?;
        if parts.len() > 1 && !after_scheme.contains(['/', '?']) {
            return Err(
                "a placeholder in the host; only path and query may have some, or the whole URL".to_owned()
            );
        }
        let filled: String =
            parts.iter().map(|part| if let Part::Literal(text) = part { text } else { "x" }).collect();
        let url = Url::parse(&filled).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong());
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err("a user, password or fragment in the URL; keys go in headers".to_owned());
        }
        Ok(Self { parts, segments: segments(&url) })
    }

    /// Iterates over the arguments that it requires.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Argument(name) => Some(name.as_str()),
            Part::Literal(_) | Part::Secret(_) => None,
        })
    }

    /// Returns whether the whole URL is one argument.
    pub fn is_whole(&self) -> bool {
        matches!(self.parts.as_slice(), [Part::Argument(_)])
    }

    /// Returns the values of its secrets from the environment.
    pub fn resolve(&self, secrets: &mut Secrets) -> Result<Vec<(String, String)>, Vec<String>> {
        let (mut values, mut missing) = (Vec::new(), Vec::new());
        for part in &self.parts {
            let Part::Secret(name) = part else { continue };
            match variable(name) {
                Ok(value) => {
                    secrets.add(&value);
                    values.push((name.clone(), value));
                }
                Err(what) => missing.push(what),
            }
        }
        if missing.is_empty() { Ok(values) } else { Err(missing) }
    }

    /// Returns the URL with the placeholders filled, and the arguments without a placeholder.
    pub(super) fn fill(
        &self,
        arguments: &Map<String, Value>,
        secrets: &[(String, String)],
    ) -> Result<(Url, Map<String, Value>), String> {
        let mut rest = arguments.clone();
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text += literal,
                Part::Secret(name) => {
                    let value = secrets.iter().find(|(secret, _)| secret == name);
                    text += &value.map(|(_, value)| encoded(value)).unwrap_or_default();
                }
                Part::Argument(name) => {
                    rest.remove(name);
                    let value = arguments.get(name).filter(|value| !value.is_null());
                    let value = plain(value.ok_or_else(|| format!("the argument '{name}' is missing"))?);
                    text += &if self.is_whole() { value } else { encoded(&value) };
                }
            }
        }
        let url = Url::parse(&text).map_err(|_| "the arguments form no valid URL".to_owned())?;
        // The parser resolves `.` and `..`, in any spelling, which changes the number of segments.
        if !self.is_whole() && segments(&url) != self.segments {
            return Err("an argument is '.' or '..', which leads elsewhere".to_owned());
        }
        Ok((url, rest))
    }
}

/// Formats a value as text: strings as they are, others as JSON.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn segments(url: &Url) -> usize {
    url.path_segments().map_or(0, Iterator::count)
}

/// Splits a template into literals and placeholders.
fn parts(text: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('{') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        let Some((name, after)) = after.split_once('}') else { return Err("'{' without its '}'".to_owned()) };
        if !is_variable(name) {
            return Err(format!("'{name}' is not the name of an argument or an environment variable"));
        }
        let (literal, placeholder) = match before.strip_suffix('$') {
            Some(literal) => (literal, Part::Secret(name.to_owned())),
            None => (before, Part::Argument(name.to_owned())),
        };
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
        }
        parts.push(placeholder);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Literal(rest.to_owned()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(template: &str, arguments: Value) -> Result<String, String> {
        let template = UrlTemplate::parse(template)?;
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let secrets = [("KEY".to_owned(), "k/1".to_owned())];
        template.fill(&arguments, &secrets).map(|(url, _)| url.to_string())
    }

    #[test]
    fn an_argument_stays_in_its_placeholder() {
        fn check(template: &str, arguments: Value, expected: &str) {
            let got = filled(template, arguments).unwrap_or_else(|what| what);
            assert_eq!(got, expected, "{template}");
        }
        check("http://h/a/{x}?k=${KEY}", json!({"x": "b/c?d#e&f"}), "http://h/a/b%2Fc%3Fd%23e%26f?k=k%2F1");
        check("http://h/{x}", json!({"x": 5}), "http://h/5");
        check("http://h/?q={x}", json!({"x": "a&b=c d"}), "http://h/?q=a%26b%3Dc%20d");
        check("http://h/{x}", json!({}), "the argument 'x' is missing");
        check("http://h/a/{x}/b", json!({"x": ".."}), "an argument is '.' or '..', which leads elsewhere");
        check(
            "http://h/a/{x}{y}/b",
            json!({"x": ".", "y": "."}),
            "an argument is '.' or '..', which leads elsewhere",
        );
        check("http://h/a/{x}", json!({"x": "."}), "http://h/a/");
        check("http://h/a/{x}", json!({"x": "%2e%2e"}), "http://h/a/%252e%252e");
        check("{url}", json!({"url": "http://other/p?q"}), "http://other/p?q");
        check("{url}", json!({"url": "no address"}), "the arguments form no valid URL");
    }

    #[test]
    fn a_template_for_arbitrary_servers_is_refused() {
        fn check(template: &str, expected: &str) {
            let error = UrlTemplate::parse(template).unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
        check("", "not an http or https URL");
        check("ftp://h/", "not an http or https URL");
        check("http://{host}/", "a placeholder in the host");
        check("http://h{x}/", "a placeholder in the host");
        check("{a}{b}", "not an http or https URL");
        check("http://u:p@h/", "a user, password or fragment");
        check("http://h/#{x}", "a user, password or fragment");
        check("http://h/{x", "without its '}'");
        check("http://h/{a b}", "'a b' is not the name");
    }
}
