//! The body of a chat request to a server that takes a closed set of fields: those and no
//! others, each there in every request.

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::kind;
use super::openai::{InvalidRequest, Params, read_objects, read_params};

/// The set of fields, beside `model` and `messages`.
#[derive(Clone, Debug)]
pub struct ClosedBody {
    /// Fields that are the same in every request, by name.
    pub fixed: Vec<(&'static str, Box<RawValue>)>,
    /// Sampling parameters that are sent, by name. All others are left out.
    pub params: Vec<(&'static str, Param)>,
    /// What becomes of tools in a request.
    pub tools: ToolsRule,
}

/// What a parameter has to be, and what it is where nobody says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param {
    /// A number.
    Number(f64),
    /// A whole number.
    Count(u64),
    /// A truth value.
    Flag(bool),
    /// A list of texts, or one, which is sent as a list; anything else is left out, as
    /// the whole field is where nobody says.
    Texts,
}

/// What becomes of tools in a request whose body has no place for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolsRule {
    /// The server has known them since the rollout began.
    Known,
    /// The server does not know them, so that a model would be asked without.
    Unknown,
}

impl ClosedBody {
    /// Builds the body. Messages go in as they are, a parameter as the guest wrote it,
    /// else as the caller did, else with its default.
    pub fn build(
        &self,
        model: &str,
        messages: &[String],
        tools: &[String],
        params: Option<&str>,
        defaults: &Params,
    ) -> Result<Bytes, InvalidRequest> {
        if !tools.is_empty() && self.tools == ToolsRule::Unknown {
            return Err(InvalidRequest::ToolsNotTaken);
        }
        if messages.is_empty() {
            return Err(InvalidRequest::NoMessages);
        }
        let messages = read_objects(messages, InvalidRequest::Message)?;
        let asked = read_params(params)?;
        let mut fields = Fields(Vec::with_capacity(2 + self.fixed.len() + self.params.len()));
        fields.put("model", raw(&model)?);
        fields.put("messages", raw(&messages)?);
        for (name, value) in &self.fixed {
            fields.put(name, value.clone());
        }
        for (name, param) in &self.params {
            let given = asked.get(*name).copied().or_else(|| defaults.get(*name).map(AsRef::as_ref));
            if let Some(value) = param.read(name, given)? {
                fields.put(name, value);
            }
        }
        serde_json::to_vec(&fields)
            .map(Bytes::from)
            .map_err(|error| InvalidRequest::Params(error.to_string()))
    }
}

impl Param {
    /// The value that is sent, if one is.
    fn read(self, name: &str, given: Option<&RawValue>) -> Result<Option<Box<RawValue>>, InvalidRequest> {
        let Some(given) = given.filter(|given| given.get() != "null") else { return self.default() };
        let value: Value = serde_json::from_str(given.get()).unwrap_or_default();
        let wrong = |expected| InvalidRequest::Param(name.to_owned(), expected, kind(given.get()));
        match self {
            Self::Number(_) if value.is_number() => Ok(Some(given.to_owned())),
            Self::Number(_) => Err(wrong("a number")),
            Self::Count(_) => match whole(&value) {
                Some(count) => raw(&count).map(Some),
                None => Err(wrong("a whole number")),
            },
            Self::Flag(_) if value.is_boolean() => Ok(Some(given.to_owned())),
            Self::Flag(_) => Err(wrong("a truth value")),
            Self::Texts => match value {
                Value::String(text) => raw(&[text]).map(Some),
                Value::Array(items) => raw(&items.into_iter().map(text).collect::<Vec<_>>()).map(Some),
                _ => Ok(None),
            },
        }
    }

    fn default(self) -> Result<Option<Box<RawValue>>, InvalidRequest> {
        match self {
            Self::Number(number) => raw(&number).map(Some),
            Self::Count(count) => raw(&count).map(Some),
            Self::Flag(flag) => raw(&flag).map(Some),
            Self::Texts => Ok(None),
        }
    }
}

fn whole(value: &Value) -> Option<u64> {
    // A whole number may have been written as a float. Floats this large are whole, and
    // past them nobody counts tokens.
    const MAX: f64 = 9_007_199_254_740_992.0;
    value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        ((0.0..MAX).contains(&float) && float.fract() == 0.0).then_some(float as u64)
    })
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, InvalidRequest> {
    to_raw_value(value).map_err(|error| InvalidRequest::Params(error.to_string()))
}

/// Fields in the order in which they are sent.
struct Fields(Vec<(&'static str, Box<RawValue>)>);

impl Fields {
    fn put(&mut self, name: &'static str, value: Box<RawValue>) {
        self.0.push((name, value));
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::object;
    use crate::wire::openai::caller_params;

    fn form(tools: ToolsRule) -> ClosedBody {
        ClosedBody {
            fixed: vec![("row", raw("r1").unwrap())],
            params: vec![
                ("temperature", Param::Number(1.0)),
                ("max_tokens", Param::Count(512)),
                ("stop", Param::Texts),
                ("logprobs", Param::Flag(true)),
            ],
            tools,
        }
    }

    fn build(tools: &[&str], params: &str, caller: &str) -> Result<String, String> {
        let messages = [r#"{"role":"user","x":1.10}"#.to_owned()];
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let caller = caller_params(object(caller).unwrap());
        let body = form(ToolsRule::Known).build("m", &messages, &tools, Some(params), &caller);
        body.map(|body| String::from_utf8(body.to_vec()).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_body_has_its_fields_and_no_others() {
        let check = |params: &str, caller: &str, expected: &str| {
            let beginning = r#"{"model":"m","messages":[{"role":"user","x":1.10}],"row":"r1","#;
            assert_eq!(
                build(&["{}"], params, caller).unwrap(),
                format!("{beginning}{expected}}}"),
                "{params}"
            );
        };
        let usual = r#""temperature":1.0,"max_tokens":512,"logprobs":true"#;
        check("{}", "{}", usual);
        check(r#"{"seed":1,"top_k":3}"#, r#"{"tools":[]}"#, usual);
        check(r#"{"temperature":null}"#, "{}", usual);
        check(
            r#"{"temperature":0.70}"#,
            r#"{"temperature":2,"max_tokens":64.0}"#,
            r#""temperature":0.70,"max_tokens":64,"logprobs":true"#,
        );
        check(r#"{"stop":"a"}"#, "{}", r#""temperature":1.0,"max_tokens":512,"stop":["a"],"logprobs":true"#);
        check(
            r#"{"stop":["a",1]}"#,
            "{}",
            r#""temperature":1.0,"max_tokens":512,"stop":["a","1"],"logprobs":true"#,
        );
        check(r#"{"stop":7}"#, "{}", usual);
    }

    #[test]
    fn a_parameter_that_cannot_be_sent_is_refused_by_name() {
        let check =
            |params: &str, expected: &str| assert_eq!(build(&[], params, "{}").unwrap_err(), expected);
        check(r#"{"temperature":"hot"}"#, "params sets 'temperature' to a string; it has to be a number");
        check(r#"{"max_tokens":1.5}"#, "params sets 'max_tokens' to a number; it has to be a whole number");
        check(r#"{"max_tokens":-1}"#, "params sets 'max_tokens' to a number; it has to be a whole number");
        check(r#"{"n":2}"#, "params sets 'n', which the host decides; leave it out");
    }

    #[test]
    fn tools_that_the_server_does_not_know_are_refused() {
        let messages = ["{}".to_owned()];
        let tools = ["{}".to_owned()];
        let body = form(ToolsRule::Unknown).build("m", &messages, &tools, None, &Params::new());
        assert_eq!(body, Err(InvalidRequest::ToolsNotTaken));
    }
}
