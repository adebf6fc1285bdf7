//! What a model's server says of the tokens of a reply.
//!
//! | server | prompt | completion | log-probabilities |
//! |---|---|---|---|
//! | vLLM | `prompt_token_ids` | `choices[0].token_ids` | `choices[0].logprobs.content[].logprob` |
//! | vLLM, `return_tokens_as_token_ids` | | `choices[0].logprobs.content[].token`, as `token_id:7` | the same |
//! | SGLang | `choices[0].prompt_token_ids` | `choices[0].token_ids` | the same |
//! | SGLang, `sglext` | `sglext.input_ids` | `sglext.output_ids[0]` | the same |
//! | SGLang, `meta_info` | | `choices[0].meta_info.output_token_logprobs[][1]` | its `[][0]` |
//! | OpenAI | | | `choices[0].logprobs.content[].logprob` |
//!
//! A server that words it differently has said nothing, and no reply is unreadable for that.

use std::borrow::Cow;

use rollout_core::wire::stream::{Text, each};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A reply, as far as a row needs it.
#[derive(Debug, Default)]
pub(crate) struct Reply<'a> {
    /// The message, as it came.
    pub message: Option<&'a RawValue>,
    /// The model, as the server calls it.
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
    /// Of the completion's tokens.
    pub logprobs: Option<Vec<f64>>,
}

impl Tokens {
    /// These, and where there are none the others.
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
    #[serde(borrow, default)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sglext: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    meta_info: Option<&'a RawValue>,
}

impl<'a> Reply<'a> {
    /// Reads a reply.
    pub(crate) fn read(json: &'a str) -> Self {
        let Ok(body) = serde_json::from_str::<Body<'_>>(json) else { return Self::default() };
        let choice: Choice<'_> = first(body.choices).and_then(read).unwrap_or_default();
        let usage: Usage = body.usage.and_then(read).unwrap_or_default();
        let extended: Extended<'_> = body.sglext.and_then(read).unwrap_or_default();
        let meta: MetaInfo<'_> = choice.meta_info.and_then(read).unwrap_or_default();
        let logprobs = choice.logprobs.or(body.logprobs);
        let sampled = meta.output_token_logprobs.and_then(sampled);
        let (sampled_logprobs, sampled_ids) = sampled.unzip();
        let tokens = Tokens {
            prompt_ids: [body.prompt_token_ids, choice.prompt_token_ids, extended.input_ids]
                .into_iter()
                .find_map(|list| ints(list?)),
            completion_ids: [choice.token_ids, body.token_ids, first(extended.output_ids)]
                .into_iter()
                .find_map(|list| ints(list?))
                .or(sampled_ids)
                .or_else(|| logprobs.and_then(named_ids)),
            logprobs: logprobs.and_then(numbers_of).or(sampled_logprobs),
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
struct Usage<'a> {
    #[serde(borrow, default)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion_tokens: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Extended<'a> {
    #[serde(borrow, default)]
    input_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_ids: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct MetaInfo<'a> {
    #[serde(borrow, default)]
    output_token_logprobs: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

/// A text; none where the JSON is something else.
pub(crate) fn text(json: &RawValue) -> Option<Cow<'_, str>> {
    read(json).map(|Text(text)| text)
}

/// A whole number.
fn int(json: &RawValue) -> Option<i64> {
    json.get().parse().ok()
}

/// A finite number, to its last bit: the standard library reads a double as it was meant, which `serde_json`
/// does only nearly.
pub(crate) fn number(json: &RawValue) -> Option<f64> {
    json.get().parse().ok().filter(|number: &f64| number.is_finite())
}

/// The first element of a list.
fn first(list: Option<&RawValue>) -> Option<&RawValue> {
    let mut found = None;
    // It ends at the first one, which is no failure.
    let _ = each(list?.get(), |element: &RawValue| {
        found = Some(element);
        Err(())
    });
    found
}

/// What `of` makes of each element; none where it makes nothing of one.
fn collect<'a, T>(list: &'a RawValue, mut of: impl FnMut(&'a RawValue) -> Option<T>) -> Option<Vec<T>> {
    let mut found = Vec::new();
    let read = each(list.get(), |element: &RawValue| {
        found.push(of(element).ok_or(())?);
        Ok::<(), ()>(())
    });
    read.ok().map(|()| found)
}

/// A list of whole numbers.
pub(crate) fn ints(list: &RawValue) -> Option<Vec<i64>> {
    collect(list, int)
}

/// An element of OpenAI's list of log-probabilities.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow, default)]
    logprob: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token: Option<&'a RawValue>,
}

/// The list of log-probabilities in `{"content": […]}`, or that itself.
fn entries(json: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Wrapped<'a> {
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    if json.get().starts_with('{') { read::<Wrapped<'_>>(json)?.content } else { Some(json) }
}

/// Log-probabilities: numbers, or objects that have one.
pub(crate) fn numbers_of(json: &RawValue) -> Option<Vec<f64>> {
    collect(entries(json)?, |entry| match entry.get().starts_with('{') {
        true => number(read::<Entry<'_>>(entry)?.logprob?),
        false => number(entry),
    })
}

/// The ids of tokens that are called `token_id:7`.
fn named_ids(json: &RawValue) -> Option<Vec<i64>> {
    let ids = collect(entries(json)?, |entry| {
        text(read::<Entry<'_>>(entry)?.token?)?.strip_prefix("token_id:")?.parse().ok()
    });
    ids.filter(|ids| !ids.is_empty())
}

/// The log-probabilities and ids of SGLang's `[[logprob, id, text]]`.
fn sampled(list: &RawValue) -> Option<(Vec<f64>, Vec<i64>)> {
    let pairs = collect(list, |entry| {
        let (logprob, id, _): (&RawValue, &RawValue, &RawValue) = read(entry)?;
        Some((number(logprob)?, int(id)?))
    })?;
    Some(pairs.into_iter().unzip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, prompt: Option<&[i64]>, completion: Option<&[i64]>, logprobs: Option<&[f64]>) {
        let tokens = Reply::read(json).tokens;
        assert_eq!(tokens.prompt_ids.as_deref(), prompt, "{json}");
        assert_eq!(tokens.completion_ids.as_deref(), completion, "{json}");
        assert_eq!(tokens.logprobs.as_deref(), logprobs, "{json}");
    }

    #[test]
    fn tokens_are_found_where_servers_put_them() {
        let (prompt, completion, logprobs): (&[i64], &[i64], &[f64]) = (&[1, 2], &[7, 8], &[-0.5, -1.0]);
        let content = r#""logprobs":{"content":[{"token":"a","logprob":-0.5},{"token":"b","logprob":-1}]}"#;
        // vLLM.
        let body = format!(r#"{{"prompt_token_ids":[1,2],"choices":[{{"token_ids":[7,8],{content}}}]}}"#);
        check(&body, Some(prompt), Some(completion), Some(logprobs));
        let named = content.replace("\"a\"", "\"token_id:7\"").replace("\"b\"", "\"token_id:8\"");
        check(&format!(r#"{{"choices":[{{{named}}}]}}"#), None, Some(completion), Some(logprobs));
        // SGLang, in its three ways.
        let body = format!(r#"{{"choices":[{{"prompt_token_ids":[1,2],"token_ids":[7,8],{content}}}]}}"#);
        check(&body, Some(prompt), Some(completion), Some(logprobs));
        let body =
            format!(r#"{{"choices":[{{{content}}}],"sglext":{{"input_ids":[1,2],"output_ids":[[7,8]]}}}}"#);
        check(&body, Some(prompt), Some(completion), Some(logprobs));
        let body = r#"{"choices":[{"meta_info":{"output_token_logprobs":[[-0.5,7,null],[-1,8,"b"]]}}]}"#;
        check(body, None, Some(completion), Some(logprobs));
        // OpenAI, and a server that says nothing.
        check(&format!(r#"{{"choices":[{{{content}}}]}}"#), None, None, Some(logprobs));
        check(r#"{"choices":[{"message":{}}]}"#, None, None, None);
        check("null", None, None, None);
    }

    #[test]
    fn what_is_no_list_of_numbers_is_not_taken_for_one() {
        check(
            r#"{"prompt_token_ids":[1.5],"choices":[{"token_ids":["7"],"logprobs":{"content":[{}]}}]}"#,
            None,
            None,
            None,
        );
        check(r#"{"prompt_token_ids":"1","choices":[{"logprobs":[-1e999]}]}"#, None, None, None);
        check(r#"{"choices":7,"usage":[],"sglext":1}"#, None, None, None);
    }

    #[test]
    fn a_number_is_the_one_that_was_written_to_the_last_bit() {
        let written = "-0.12345678901234567";
        let body = format!(r#"{{"choices":[{{"logprobs":[{written},-2.2250738585072014e-308]}}]}}"#);
        let read = Reply::read(&body).tokens.logprobs.unwrap();
        assert_eq!(read[0].to_bits(), written.parse::<f64>().unwrap().to_bits());
        assert_eq!(read[1].to_bits(), (-f64::MIN_POSITIVE).to_bits());
    }
}
