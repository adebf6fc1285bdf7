//! A row's metadata for both guests, without the ground truth for the workflow.
//!
//! Some callers can put the label of a row only into its metadata, usually as `ground_truth`. Every member of that name
//! is removed from the workflow's metadata: at any depth, in upper or lower case, with escapes in its name, and every
//! occurrence. All other parts stay unchanged.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Name of the members that only the grader may read.
const TRUTH: &str = "ground_truth";

/// A row's metadata, a JSON object. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RowMetadata {
    whole: Arc<RawValue>,
    public: Arc<RawValue>,
}

impl RowMetadata {
    /// Returns the whole metadata, for the grader and for records.
    pub fn whole(&self) -> &Arc<RawValue> {
        &self.whole
    }

    /// Returns the part for the workflow.
    pub fn public(&self) -> &Arc<RawValue> {
        &self.public
    }

    /// Returns whether a part of the metadata is hidden from the workflow.
    pub fn has_truth(&self) -> bool {
        !Arc::ptr_eq(&self.whole, &self.public)
    }

    /// Returns the row's ground truth: the text of the member `ground_truth`, or its JSON if it is not a text. Null
    /// counts as absent, and the last of several members counts.
    pub fn truth(&self) -> Option<String> {
        if !self.has_truth() {
            return None;
        }
        let truth = serde_json::Deserializer::from_str(self.whole.get());
        let truth: &RawValue = LastTruth.deserialize_from(truth)?;
        match truth.get() {
            "null" => None,
            text => Some(serde_json::from_str(text).unwrap_or_else(|_| text.to_owned())),
        }
    }

    /// Returns the allocated size in bytes.
    pub fn memory_bytes(&self) -> usize {
        let public = if self.has_truth() { self.public.get().len() } else { 0 };
        self.whole.get().len() + public
    }
}

impl From<Box<RawValue>> for RowMetadata {
    fn from(metadata: Box<RawValue>) -> Self {
        let public = without_truth(metadata.get()).and_then(|text| RawValue::from_string(text).ok());
        let whole: Arc<RawValue> = metadata.into();
        let public = public.map_or_else(|| whole.clone(), Into::into);
        Self { whole, public }
    }
}

/// Serializes the whole metadata unchanged. Deserialization derives the workflow's part again. JSON only.
impl Serialize for RowMetadata {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.whole.serialize(to)
    }
}

impl<'de> Deserialize<'de> for RowMetadata {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(from).map(Self::from)
    }
}

/// Reader of the last top-level member with the ground truth.
struct LastTruth;

impl LastTruth {
    fn deserialize_from<'a>(
        self,
        mut metadata: serde_json::Deserializer<serde_json::de::StrRead<'a>>,
    ) -> Option<&'a RawValue> {
        serde::Deserializer::deserialize_map(&mut metadata, self).ok().flatten()
    }
}

impl<'a> Visitor<'a> for LastTruth {
    type Value = Option<&'a RawValue>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut last = None;
        while let Some(is_truth) = members.next_key_seed(IsTruth)? {
            if is_truth {
                last = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(last)
    }
}

/// Reader of a member's name that returns whether the member holds the ground truth.
struct IsTruth;

impl<'a> DeserializeSeed<'a> for IsTruth {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'a>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for IsTruth {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(is_truth(name))
    }
}

fn is_truth(name: &str) -> bool {
    name.eq_ignore_ascii_case(TRUTH)
}

/// Returns valid JSON without the grader's members, or `None` if it has none of them. [`super::strict`] has bounded its
/// depth.
fn without_truth(json: &str) -> Option<String> {
    let mut walk = Walk { json, at: 0, kept: String::new(), left_out: false };
    walk.value(true);
    walk.left_out.then_some(walk.kept)
}

/// A single pass over valid JSON that copies the visible parts.
struct Walk<'a> {
    json: &'a str,
    at: usize,
    kept: String,
    left_out: bool,
}

impl Walk<'_> {
    fn byte(&self) -> u8 {
        self.json.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn white_space(&mut self) {
        while self.byte().is_ascii_whitespace() {
            self.at += 1;
        }
    }

    fn keep(&mut self, from: usize) {
        self.kept.push_str(&self.json[from..self.at]);
    }

    /// Skips a string with its quotes.
    fn string(&mut self) -> &str {
        let start = self.at;
        self.at += 1;
        while !matches!(self.byte(), b'"' | 0) {
            self.at += if self.byte() == b'\\' { 2 } else { 1 };
        }
        self.at = (self.at + 1).min(self.json.len());
        &self.json[start..self.at]
    }

    /// Reads a value and copies it if it is visible.
    fn value(&mut self, is_kept: bool) {
        match self.byte() {
            b'{' => self.members(is_kept, b'}'),
            b'[' => self.members(is_kept, b']'),
            b'"' => {
                let start = self.at;
                self.string();
                if is_kept {
                    self.keep(start);
                }
            }
            _ => {
                let start = self.at;
                while !matches!(self.byte(), b',' | b']' | b'}' | 0) && !self.byte().is_ascii_whitespace() {
                    self.at += 1;
                }
                if is_kept {
                    self.keep(start);
                }
            }
        }
    }

    /// Reads an object or an array. Text between two visible parts belongs to the later part. Text after the opening
    /// bracket stays.
    fn members(&mut self, is_kept: bool, end: u8) {
        let mut between = self.at;
        self.at += 1;
        if is_kept {
            self.keep(between);
        }
        between = self.at;
        self.white_space();
        let beginning = (between, self.at);
        let mut has_kept = false;
        while self.byte() != end && self.at < self.json.len() {
            let start = self.at;
            let is_truth = end == b'}' && self.name_is_truth();
            self.left_out |= is_truth && is_kept;
            let is_member_kept = is_kept && !is_truth;
            if is_member_kept {
                let (from, to) = if has_kept { (between, start) } else { beginning };
                self.kept.push_str(&self.json[from..to]);
                self.keep(start);
                has_kept = true;
            }
            self.value(is_member_kept);
            between = self.at;
            self.white_space();
            if self.byte() == b',' {
                self.at += 1;
                self.white_space();
            }
        }
        self.at = (self.at + 1).min(self.json.len());
        if is_kept {
            self.keep(between);
        }
    }

    /// Reads a member's name up to its value. Returns whether the member holds the ground truth.
    fn name_is_truth(&mut self) -> bool {
        let name = self.string();
        let name = match name.contains('\\') {
            true => Cow::Owned(serde_json::from_str::<String>(name).unwrap_or_default()),
            false => Cow::Borrowed(name.trim_matches('"')),
        };
        let is_truth = is_truth(&name);
        self.white_space();
        self.at += 1;
        self.white_space();
        is_truth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(text: &str) -> RowMetadata {
        super::super::object(text).expect("the text is an object").to_owned().into()
    }

    #[test]
    fn only_the_ground_truth_is_removed() {
        fn check(text: &str, public: &str) {
            let metadata = metadata(text);
            assert_eq!(metadata.public().get(), public);
            assert_eq!(metadata.whole().get(), text);
            assert_eq!(metadata.has_truth(), public != text);
        }
        for untouched in [
            "{}",
            r#"{ "a" : 1.10 , "b":[ {} , [ ] ,"ground_truth"] }"#,
            r#"{"truth":"\"ground_truth\":1","é\\\"":{"ground":{"truth":1}}}"#,
        ] {
            check(untouched, untouched);
        }
        check(r#"{"ground_truth":"42"}"#, "{}");
        check(r#"{ "ground_truth" : "42" }"#, "{ }");
        check(r#"{"ground_truth": 1, "a": 1.10, "b": [1,  2]}"#, r#"{"a": 1.10, "b": [1,  2]}"#);
        check(r#"{"a": 1, "ground_truth": {"x": [1, "}"]}, "b": 2}"#, r#"{"a": 1, "b": 2}"#);
        check(r#"{"a":1,"ground_truth":"}]\"\\"}"#, r#"{"a":1}"#);
        check("{\n  \"a\": 1,\n  \"ground_truth\": 2\n}", "{\n  \"a\": 1\n}");
        // The name occurs twice, escaped, in capitals, and nested.
        check(r#"{"ground_truth":1,"a":2,"ground_truth":3}"#, r#"{"a":2}"#);
        check(r#"{"ground\u005ftruth":1,"\u0067round_truth":2,"a":3}"#, r#"{"a":3}"#);
        check(r#"{"Ground_Truth":1,"a":3}"#, r#"{"a":3}"#);
        check(r#"{"rm":{"style":"rule","ground_truth":"4"},"a":3}"#, r#"{"rm":{"style":"rule"},"a":3}"#);
        check(r#"{"rows":[{"ground_truth":1},[{"ground_truth":2,"b":1}]]}"#, r#"{"rows":[{},[{"b":1}]]}"#);
    }

    #[test]
    fn the_ground_truth_is_the_text_or_json_of_its_last_member() {
        fn check(text: &str, truth: Option<&str>) {
            assert_eq!(metadata(text).truth().as_deref(), truth, "{text}");
        }
        check(r#"{"ground_truth":"4\u0032"}"#, Some("42"));
        check(r#"{"ground_truth":42}"#, Some("42"));
        check(r#"{"ground_truth":{"a": 1}}"#, Some(r#"{"a": 1}"#));
        check(r#"{"ground_truth":null}"#, None);
        check(r#"{"ground_truth":1,"ground\u005ftruth":"2"}"#, Some("2"));
        check(r#"{"row":{"ground_truth":1}}"#, None);
        check("{}", None);
    }
}
