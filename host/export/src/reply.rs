//! Parsing of replies of a model's server: the parts that a row needs.

use std::borrow::Cow;

use rollout_wire::stream::{Text, each, first};
use rollout_wire::tokens::{TokenLists, logprobs};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A reply of a model's server.
#[derive(Debug, Default)]
pub(crate) struct Reply<'a> {
    /// The unchanged message.
    pub message: Option<&'a RawValue>,
    /// The model's name, as the server reports it.
    pub model: Option<Cow<'a, str>>,
    pub finish_reason: Option<Cow<'a, str>>,
    pub prompt_tokens: Option<i64>,
    pub completion_tokens: Option<i64>,
    pub tokens: Tokens,
}

/// The tokens of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tokens {
    pub prompt_ids: Option<Vec<i64>>,
    pub completion_ids: Option<Vec<i64>>,
    /// Log-probabilities of the completion's tokens.
    pub logprobs: Option<Vec<f64>>,
}

impl Tokens {
    /// Returns these lists, with missing ones taken from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            prompt_ids: self.prompt_ids.or(other.prompt_ids),
            completion_ids: self.completion_ids.or(other.completion_ids),
            logprobs: self.logprobs.or(other.logprobs),
        }
    }
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
}

impl<'a> Reply<'a> {
    /// Parses a reply. Invalid parts are treated as missing.
    pub(crate) fn read(json: &'a str) -> Self {
        let Ok(body) = serde_json::from_str::<Body<'_>>(json) else { return Self::default() };
        let choice: Choice<'_> = body.choices.and_then(first).and_then(read).unwrap_or_default();
        let usage: TokenUsage = body.usage.and_then(read).unwrap_or_default();
        let lists = TokenLists::from_reply(json.as_bytes());
        let tokens = Tokens {
            prompt_ids: lists.prompt_ids.as_deref().and_then(ints),
            completion_ids: lists.completion_ids.as_deref().and_then(ints),
            logprobs: lists.logprobs.as_deref().and_then(numbers),
        };
        Self {
            message: choice.message,
            model: body.model.and_then(text),
            finish_reason: choice.finish_reason.and_then(text),
            prompt_tokens: usage.prompt_tokens.and_then(int),
            completion_tokens: usage.completion_tokens.and_then(int),
            tokens,
        }
    }
}

#[derive(Default, Deserialize)]
struct TokenUsage<'a> {
    #[serde(borrow, default)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion_tokens: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

/// Parses a text. Returns `None` for other JSON.
pub(crate) fn text(json: &RawValue) -> Option<Cow<'_, str>> {
    read(json).map(|Text(text)| text)
}

/// Parses an integer.
fn int(json: &RawValue) -> Option<i64> {
    json.get().parse().ok()
}

/// Parses a finite number. The standard library rounds correctly, unlike `serde_json`.
pub(crate) fn number(json: &RawValue) -> Option<f64> {
    json.get().parse().ok().filter(|number: &f64| number.is_finite())
}

/// Parses each element of a list. Returns `None` if one is invalid.
fn collect<'a, T>(list: &'a RawValue, mut parse: impl FnMut(&'a RawValue) -> Option<T>) -> Option<Vec<T>> {
    let mut found = Vec::new();
    let read = each(list.get(), |element: &RawValue| {
        found.push(parse(element).ok_or(())?);
        Ok::<(), ()>(())
    });
    read.ok().map(|()| found)
}

/// Parses a list of integers.
pub(crate) fn ints(list: &RawValue) -> Option<Vec<i64>> {
    collect(list, int)
}

/// Parses a list of finite numbers.
fn numbers(list: &RawValue) -> Option<Vec<f64>> {
    collect(list, number)
}

/// Parses log-probabilities in the forms that servers use: numbers, or objects that contain one.
pub(crate) fn logprob_numbers(json: &RawValue) -> Option<Vec<f64>> {
    numbers(&logprobs(json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_exactly() {
        let written = "-0.12345678901234567";
        let body = format!(r#"{{"choices":[{{"logprobs":[{written},-2.2250738585072014e-308]}}]}}"#);
        let read = Reply::read(&body).tokens.logprobs.unwrap();
        assert_eq!(read[0].to_bits(), written.parse::<f64>().unwrap().to_bits());
        assert_eq!(read[1].to_bits(), (-f64::MIN_POSITIVE).to_bits());
    }
}
