//! The body of a chat request to a server with a closed set of fields: every request has each of them and no others.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;
use serde_json::value::{RawValue, to_raw_value};

use super::kind;
use super::openai::BodyTemplate;
use super::params::{AllowedParams, CallerParams, InvalidRequest, read_params};

/// Maximum number of texts in a list parameter. Servers accept about four.
const TEXTS_MAX: usize = 256;

/// The set of fields, in addition to `model` and `messages`.
#[derive(Clone, Debug)]
pub struct ClosedBody {
    /// Fields with the same value in every request, by name.
    pub fixed: Vec<(&'static str, Box<RawValue>)>,
    /// Sampling parameters that are sent, by name. All others are omitted.
    pub params: Vec<(&'static str, Param)>,
    /// Treatment of tools in a request.
    pub tools: ToolsRule,
}

/// Type and default of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param {
    /// A number.
    Number(f64),
    /// A whole number.
    Count(u64),
    /// A boolean.
    Flag(bool),
    /// A list of texts, or one text, which is sent as a list. Other elements are omitted, and so is the
    /// field if there are no texts.
    Texts,
}

/// Treatment of tools in a request whose body has no field for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolsRule {
    /// The server knows them from the beginning of the rollout.
    Known,
    /// The server does not know them, so a request with tools is refused.
    Unknown,
}

impl ClosedBody {
    /// Builds a request without its messages. The value of a parameter is the guest's, or else the caller's, or else
    /// the default.
    pub fn template(
        &self,
        model: &str,
        tools: &[String],
        params: Option<&str>,
        caller: &CallerParams,
        allowed: &AllowedParams,
    ) -> Result<BodyTemplate, InvalidRequest> {
        if !tools.is_empty() && self.tools == ToolsRule::Unknown {
            return Err(InvalidRequest::ToolsNotTaken);
        }
        let asked = read_params(params, allowed, caller)?;
        let mut given = Vec::with_capacity(self.params.len());
        for (name, param) in &self.params {
            let value = asked.get(*name).copied().or_else(|| caller.default_of(name));
            if let Some(value) = param.read(name, value)? {
                given.push((*name, value));
            }
        }
        BodyTemplate::new(model, &Fields { fixed: &self.fixed, given })
    }
}

impl Param {
    /// Returns the value to send, if there is one.
    fn read(self, name: &str, given: Option<&RawValue>) -> Result<Option<Box<RawValue>>, InvalidRequest> {
        let Some(given) = given.filter(|given| given.get() != "null") else { return self.default() };
        let wrong = |expected| InvalidRequest::Param(name.to_owned(), expected, kind(given.get()));
        match (self, given.get().as_bytes().first()) {
            (Self::Number(_), Some(b'-' | b'0'..=b'9')) => Ok(Some(given.to_owned())),
            (Self::Number(_), _) => Err(wrong("a number")),
            (Self::Count(_), _) => match whole(given) {
                Some(count) => raw(&count).map(Some),
                None => Err(wrong("a whole number")),
            },
            (Self::Flag(_), Some(b't' | b'f')) => Ok(Some(given.to_owned())),
            (Self::Flag(_), _) => Err(wrong("a boolean")),
            (Self::Texts, Some(b'"')) => raw(&[given]).map(Some),
            (Self::Texts, Some(b'[')) => texts(given).ok_or_else(|| wrong(TEXTS)).map(Some),
            (Self::Texts, _) => Ok(None),
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

fn whole(given: &RawValue) -> Option<u64> {
    // A whole number may be written as a float. Floats of this size are whole, and no number of tokens is larger.
    const MAX: f64 = 9_007_199_254_740_992.0;
    let number: Number = serde_json::from_str(given.get()).ok()?;
    number.as_u64().or_else(|| {
        let float = number.as_f64()?;
        ((0.0..MAX).contains(&float) && float.fract() == 0.0).then_some(float as u64)
    })
}

/// The expected type of a list of texts, for messages.
const TEXTS: &str = "a text or a list of at most 256 texts";

/// Returns a list in which an element that is not a text is replaced by its JSON.
fn texts(list: &RawValue) -> Option<Box<RawValue>> {
    struct Items;
    impl<'a> Visitor<'a> for Items {
        type Value = Vec<Box<RawValue>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut texts = Vec::new();
            while let Some(item) = list.next_element::<&RawValue>()? {
                if texts.len() == TEXTS_MAX {
                    return Err(A::Error::custom("too many"));
                }
                let text = match item.get().starts_with('"') {
                    true => Ok(item.to_owned()),
                    false => to_raw_value(item.get()),
                };
                texts.push(text.map_err(A::Error::custom)?);
            }
            Ok(texts)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(list.get());
    let texts = serde::Deserializer::deserialize_seq(&mut reader, Items).ok()?;
    to_raw_value(&texts).ok()
}

fn raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, InvalidRequest> {
    to_raw_value(value).map_err(|error| InvalidRequest::Params(error.to_string()))
}

/// The fields in the order in which they are sent.
struct Fields<'a> {
    fixed: &'a [(&'static str, Box<RawValue>)],
    given: Vec<(&'static str, Box<RawValue>)>,
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.fixed.iter().chain(&self.given) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

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
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let caller = CallerParams::read(object(caller).unwrap());
        let form = form(ToolsRule::Known);
        let template = form.template("m", &tools, Some(params), &caller, &AllowedParams::default());
        let messages = || [r#"{"role":"user","x":1.10}"#].into_iter();
        template
            .map(|template| String::from_utf8(template.around(messages(), 0)).unwrap())
            .map_err(|error| error.to_string())
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
        let caller = r#"{"model":"p","tools":[{}],"n":2,"temperature":1.0}"#;
        check(caller, caller, usual);
    }

    #[test]
    fn a_parameter_that_cannot_be_sent_is_refused_by_name() {
        let check =
            |params: &str, expected: &str| assert_eq!(build(&[], params, "{}").unwrap_err(), expected);
        check(r#"{"temperature":"hot"}"#, "params sets 'temperature' to a string; it has to be a number");
        check(r#"{"max_tokens":1.5}"#, "params sets 'max_tokens' to a number; it has to be a whole number");
        check(r#"{"max_tokens":-1}"#, "params sets 'max_tokens' to a number; it has to be a whole number");
        let stops = format!(r#"{{"stop":[{}]}}"#, vec!["\"\""; 257].join(","));
        check(&stops, "params sets 'stop' to an array; it has to be a text or a list of at most 256 texts");
        check(r#"{"n":2}"#, "params sets 'n', which the host decides; leave it out");
    }

    #[test]
    fn tools_that_the_server_does_not_know_are_refused() {
        let tools = ["{}".to_owned()];
        let allowed = AllowedParams::default();
        let template =
            form(ToolsRule::Unknown).template("m", &tools, None, &CallerParams::default(), &allowed);
        assert_eq!(template, Err(InvalidRequest::ToolsNotTaken));
    }
}
