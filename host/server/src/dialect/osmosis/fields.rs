//! A reader of the fields of a JSON body that collects all mistakes in the form of this protocol's clients.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use rollout_wire::messages::Messages;
use rollout_wire::strict;
use rollout_wire::text::beginning;

/// All fields of this protocol's requests. Others are skipped: a request may have a million of them.
const KNOWN: [&str; 27] = [
    "agent_timeout_sec",
    "all",
    "api_key",
    "chat_completions_url",
    "completion_callback_url",
    "completion_params",
    "continuations",
    "controller_api_key",
    "extra_fields",
    "fork_of",
    "grade",
    "grader_callback_url",
    "grader_timeout_sec",
    "group",
    "idempotency_key",
    "ids",
    "initial_messages",
    "label",
    "llm_api_key",
    "max_tokens_total",
    "max_turns",
    "messages",
    "metadata",
    "prefix",
    "rollout_id",
    "server_url",
    "tool_server_url",
];

/// Maximum number of items in a list of texts. Each item is stored separately, so short ones take many times their length.
const TEXTS_MAX: usize = 100_000;

/// Maximum number of problems that are reported for a request. Without it, the response to a list of a million wrong items
/// would be gigabytes long.
const PROBLEMS_MAX: usize = 64;

/// Maximum length of a JSON value in an error message.
const INPUT_BYTES_MAX: usize = 4096;

/// A mistake in a request.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    r#type: &'static str,
    loc: Vec<Value>,
    msg: String,
    input: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    ctx: Option<Value>,
}

impl Problem {
    pub(crate) fn new(r#type: &'static str, loc: Vec<Value>, msg: impl Into<String>, input: Value) -> Self {
        Self { r#type, loc, msg: msg.into(), input, ctx: None }
    }

    /// Creates the problem of an impossible value, found by a later reader of the request.
    pub(crate) fn invalid_value(name: &str, why: &str) -> Self {
        Self::new("value_error", loc(name), format!("Value error, {why}"), Value::Null)
            .with(json!({"error": {}}))
    }

    pub(crate) fn with(self, ctx: Value) -> Self {
        Self { ctx: Some(ctx), ..self }
    }
}

/// Error of a body without fields.
#[derive(Debug)]
pub(super) enum NoFields {
    /// The body is not UTF-8.
    NotText,
    /// The body is no JSON object.
    Invalid(Vec<Problem>),
}

/// The fields of a JSON object while they are read.
pub(super) struct Fields<'a> {
    body: &'a str,
    fields: BTreeMap<&'static str, &'a RawValue>,
    problems: Vec<Problem>,
}

impl<'a> Fields<'a> {
    /// Parses the body. `is_json` says whether its content type is JSON.
    pub(crate) fn of(body: &'a [u8], is_json: bool) -> Result<Self, NoFields> {
        let body = std::str::from_utf8(body).map_err(|_| NoFields::NotText)?;
        let fields = Self::known(body, is_json).map_err(NoFields::Invalid)?;
        Ok(Self { body, fields, problems: Vec::new() })
    }

    /// Returns the known fields of a body.
    fn known(body: &'a str, is_json: bool) -> Result<BTreeMap<&'static str, &'a RawValue>, Vec<Problem>> {
        let here = || vec![json!("body")];
        if body.is_empty() {
            return Err(vec![Problem::new("missing", here(), "Field required", Value::Null)]);
        }
        let no_object = |input| {
            let msg = "Input should be a valid dictionary or object to extract fields from";
            vec![Problem::new("model_attributes_type", here(), msg, input)]
        };
        if !is_json {
            return Err(no_object(beginning(body, INPUT_BYTES_MAX).into()));
        }
        let mut reader = serde_json::Deserializer::from_str(body);
        let read = serde::Deserializer::deserialize_map(&mut reader, KnownFields);
        let error = match read.and_then(|fields| reader.end().map(|()| fields)) {
            Ok(fields) => return Ok(fields),
            Err(error) => error,
        };
        // A body that is no JSON is reported by the reader of any JSON, as the published server does.
        let error = match serde_json::from_str::<&RawValue>(body) {
            Ok(raw) if !raw.get().starts_with('{') => return Err(no_object(shown(raw))),
            Ok(_) => error,
            Err(error) => error,
        };
        let at = vec![json!("body"), json!(offset(body, &error))];
        let problem = Problem::new("json_invalid", at, "JSON decode error", json!({}));
        Err(vec![problem.with(json!({"error": error.to_string()}))])
    }

    /// Returns whether a field is present, even as null.
    pub(crate) fn has(&self, name: &str) -> bool {
        debug_assert!(KNOWN.contains(&name), "{name} is not among the known fields");
        self.fields.contains_key(name)
    }

    /// Returns whether a field is present and not null.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.optional(name).is_some()
    }

    /// Returns the text of a field, or `None` for any other value. Reports no problem.
    pub(crate) fn peek_text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.optional(name)?.get()).ok()
    }

    /// Adds the problem of a field's value that is wrong for this reason.
    pub(crate) fn wrong(&mut self, name: &str, why: &str) {
        let input = self.fields.get(name).map_or(Value::Null, |raw| shown(raw));
        let problem = Problem::new("value_error", loc(name), format!("Value error, {why}"), input);
        self.problems.push(problem.with(json!({"error": {}})));
    }

    /// Returns the parsed request, unless there were mistakes.
    pub(crate) fn finish<T>(self, read: Option<T>) -> Result<T, Vec<Problem>> {
        match read {
            Some(read) if self.problems.is_empty() => Ok(read),
            _ => Err(self.problems),
        }
    }

    /// Returns the raw value of a field. `None` if it is absent or null.
    fn optional(&self, name: &str) -> Option<&'a RawValue> {
        debug_assert!(KNOWN.contains(&name), "{name} is not among the known fields");
        self.fields.get(name).copied().filter(|raw| raw.get() != "null")
    }

    fn missing(&mut self, name: &str) {
        let input = shown_text(self.body);
        self.problems.push(Problem::new("missing", loc(name), "Field required", input));
    }

    fn add_type_problem(&mut self, r#type: &'static str, name: &str, msg: &'static str) {
        let input = self.fields.get(name).map_or(Value::Null, |raw| shown(raw));
        self.problems.push(Problem::new(r#type, loc(name), msg, input));
    }

    /// Reads a text that may be absent or null.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let raw = self.optional(name)?;
        let read = serde_json::from_str(raw.get()).ok();
        if read.is_none() && raw.get().starts_with('"') {
            let msg = "Input should be a valid string, unable to parse raw data as a unicode string";
            self.add_type_problem("string_unicode", name, msg);
        } else if read.is_none() {
            self.add_type_problem("string_type", name, "Input should be a valid string");
        }
        read
    }

    /// Reads a required text.
    pub(crate) fn required_text(&mut self, name: &str) -> Option<String> {
        if !self.has(name) {
            self.missing(name);
            return None;
        }
        if self.optional(name).is_none() {
            self.add_type_problem("string_type", name, "Input should be a valid string");
        }
        self.text(name)
    }

    /// Adds a problem.
    pub(crate) fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Reads a required object, unchanged.
    pub(crate) fn required_object(&mut self, name: &str) -> Option<Box<RawValue>> {
        if !self.has(name) {
            self.missing(name);
            return None;
        }
        self.object_if_given(name)
    }

    /// Reads an object that may be absent but not null, unchanged.
    pub(crate) fn object_if_given(&mut self, name: &str) -> Option<Box<RawValue>> {
        if self.has(name) && self.optional(name).is_none() {
            self.add_type_problem("dict_type", name, "Input should be a valid dictionary");
        }
        self.object(name)
    }

    /// Reads a whole number that may be absent but not null, in all forms of the protocol's clients.
    pub(crate) fn whole(&mut self, name: &str) -> Option<i64> {
        let raw = self.fields.get(name).copied()?;
        let read = match scalar(raw) {
            Value::Bool(flag) => Ok(i64::from(flag)),
            Value::Number(number) => whole_number(&number),
            Value::String(text) => text.trim().parse().map_err(|_| {
                ("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
            }),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                Err(("int_type", "Input should be a valid integer"))
            }
        };
        match read {
            Ok(number) => Some(number),
            Err((r#type, msg)) => {
                self.add_type_problem(r#type, name, msg);
                None
            }
        }
    }

    /// Reads an object that may be absent or null, unchanged.
    pub(crate) fn object(&mut self, name: &str) -> Option<Box<RawValue>> {
        let raw = self.optional(name)?;
        if raw.get().starts_with('{') {
            if let Err(why) = strict::check(raw.get()) {
                self.problems.push(unfit(loc(name), &why));
                // Later readers may rely on its depth.
                return None;
            }
            return Some(raw.to_owned());
        }
        self.add_type_problem("dict_type", name, "Input should be a valid dictionary");
        None
    }

    /// Reads a required list of at most `count_max` objects, each unchanged.
    pub(crate) fn required_objects(&mut self, name: &str, count_max: usize) -> Option<Messages> {
        let Some(raw) = self.fields.get(name).copied() else {
            self.missing(name);
            return None;
        };
        if !raw.get().starts_with('[') {
            self.add_type_problem("list_type", name, "Input should be a valid list");
            return None;
        }
        let mut messages = Messages::with_capacity(raw.get().len());
        let mut count = 0;
        strict::elements(raw.get(), |item, checked| {
            if count < count_max && self.problems.len() < PROBLEMS_MAX {
                let place = || vec![json!("body"), json!(name), json!(count)];
                if !item.starts_with('{') {
                    let msg = "Input should be a valid dictionary";
                    self.problems.push(Problem::new("dict_type", place(), msg, shown_text(item)));
                } else if let Err(why) = checked {
                    self.problems.push(unfit(place(), &why));
                } else {
                    messages.push_text(item);
                }
            }
            count += 1;
        });
        if count > count_max {
            self.too_many(name, count_max, count);
        }
        messages.shrink();
        Some(messages)
    }

    fn too_many(&mut self, name: &str, count_max: usize, count: usize) {
        let msg = format!("List should have at most {count_max} items after validation, not {count}");
        let problem = Problem::new("too_long", loc(name), msg, Value::Null);
        let ctx = json!({"field_type": "List", "max_length": count_max, "actual_length": count});
        self.problems.push(problem.with(ctx));
    }

    /// Reads a list of texts that may be absent or null.
    pub(crate) fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let raw = self.optional(name)?;
        let mut reader = serde_json::Deserializer::from_str(raw.get());
        let Ok((texts, count)) = serde::Deserializer::deserialize_seq(&mut reader, Texts) else {
            self.add_type_problem("list_type", name, "Input should be a valid list");
            return None;
        };
        if count > TEXTS_MAX {
            self.too_many(name, TEXTS_MAX, count);
        }
        Some(texts)
    }

    /// Reads a boolean that may be absent, in all forms of the protocol's clients.
    pub(crate) fn flag(&mut self, name: &str) -> Option<bool> {
        let raw = self.fields.get(name).copied()?;
        let flag = match scalar(raw) {
            Value::Bool(flag) => Some(flag),
            Value::Number(number) if number.as_f64() == Some(1.0) => Some(true),
            Value::Number(number) if number.as_f64() == Some(0.0) => Some(false),
            Value::String(word) => match word.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
                "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
                _ => None,
            },
            Value::Null | Value::Array(_) | Value::Object(_) => {
                self.add_type_problem("bool_type", name, "Input should be a valid boolean");
                return None;
            }
            Value::Number(_) => None,
        };
        if flag.is_none() {
            self.add_type_problem(
                "bool_parsing",
                name,
                "Input should be a valid boolean, unable to interpret input",
            );
        }
        flag
    }

    /// Reads a time in seconds that may be absent or null: a finite number, or one as text.
    pub(crate) fn seconds(&mut self, name: &str) -> Option<f64> {
        let raw = self.optional(name)?;
        let secs = match scalar(raw) {
            Value::Bool(flag) => f64::from(u8::from(flag)),
            Value::String(text) => match text.trim().parse() {
                Ok(secs) => secs,
                Err(_) => {
                    let msg = "Input should be a valid number, unable to parse string as a number";
                    self.add_type_problem("float_parsing", name, msg);
                    return None;
                }
            },
            Value::Number(number) => number.as_f64().unwrap_or(f64::INFINITY),
            // A number that is too large for a float does not parse as a value.
            Value::Null => f64::INFINITY,
            Value::Array(_) | Value::Object(_) => {
                self.add_type_problem("float_type", name, "Input should be a valid number");
                return None;
            }
        };
        if !secs.is_finite() {
            self.wrong(name, "timeout must be finite; omit it to run unbounded");
            return None;
        }
        Some(secs)
    }
}

/// Returns the number of members of an object.
pub(super) fn members(object: &RawValue) -> usize {
    struct Count;
    impl<'a> Visitor<'a> for Count {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<usize, A::Error> {
            let mut count = 0;
            while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                count += 1;
            }
            Ok(count)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(object.get());
    serde::Deserializer::deserialize_map(&mut reader, Count).unwrap_or(0)
}

/// Creates the problem of a value that a reader of the result might not be able to read.
fn unfit(at: Vec<Value>, why: &strict::Unfit) -> Problem {
    Problem::new("value_error", at, format!("Value error, {why}"), Value::Null).with(json!({"error": {}}))
}

/// A visitor that stores known fields. Of several with the same name, it stores the last.
struct KnownFields;

impl<'a> Visitor<'a> for KnownFields {
    type Value = BTreeMap<&'static str, &'a RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = members.next_key_seed(KnownName)? {
            match name {
                Some(name) => drop(fields.insert(name, members.next_value()?)),
                None => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields)
    }
}

/// The name of a field, if it is known.
struct KnownName;

impl<'a> DeserializeSeed<'a> for KnownName {
    type Value = Option<&'static str>;

    fn deserialize<D: serde::Deserializer<'a>>(self, name: D) -> Result<Self::Value, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for KnownName {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(KNOWN.into_iter().find(|known| *known == name))
    }
}

/// Reader of a list of texts that counts them.
struct Texts;

impl<'a> Visitor<'a> for Texts {
    type Value = (Vec<String>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while texts.len() < TEXTS_MAX
            && let Some(text) = items.next_element()?
        {
            texts.push(text);
        }
        let mut count = texts.len();
        while items.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((texts, count))
    }
}

/// Returns a number without a fraction, or the mistake. A number that is too large becomes the largest one.
fn whole_number(number: &serde_json::Number) -> Result<i64, (&'static str, &'static str)> {
    if let Some(whole) = number.as_i64() {
        return Ok(whole);
    }
    match number.as_f64() {
        Some(float) if float.fract() == 0.0 => Ok(float as i64),
        _ => {
            let msg = "Input should be a valid integer, got a number with a fractional part";
            Err(("int_from_float", msg))
        }
    }
}

fn loc(name: &str) -> Vec<Value> {
    vec![json!("body"), json!(name)]
}

/// Returns the value of a JSON text for an error message.
fn shown_text(json: &str) -> Value {
    serde_json::from_str(json).map_or(Value::Null, |raw: &RawValue| shown(raw))
}

/// Returns a value for an error message. A long value is shortened to its beginning, as text.
fn shown(raw: &RawValue) -> Value {
    if raw.get().len() > INPUT_BYTES_MAX {
        return beginning(raw.get(), INPUT_BYTES_MAX).into();
    }
    value(raw)
}

/// Returns a scalar value, or an empty list or object for one with elements. Invalid values such as 1e999 become null.
fn scalar(raw: &RawValue) -> Value {
    match raw.get().as_bytes().first() {
        Some(b'[') => Value::Array(Vec::new()),
        Some(b'{') => Value::Object(serde_json::Map::new()),
        _ => value(raw),
    }
}

/// Returns a short value or a scalar. Invalid values such as 1e999 become null.
fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or(Value::Null)
}

/// Returns the position of an error in characters from the start of the text.
fn offset(body: &str, error: &serde_json::Error) -> usize {
    let lines: usize = body
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.chars().count())
        .sum();
    lines + error.column().saturating_sub(1)
}
