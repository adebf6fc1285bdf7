//! Token ids and log-probabilities in a model server's reply.
//!
//! | server | prompt | completion | log-probabilities |
//! |---|---|---|---|
//! | vLLM | `prompt_token_ids` | `choices[0].token_ids` | `choices[0].logprobs.content[].logprob` |
//! | vLLM, `return_tokens_as_token_ids` | | `choices[0].logprobs.content[].token`, as `token_id:7` | the same |
//! | SGLang | `choices[0].prompt_token_ids` | `choices[0].token_ids` | the same |
//! | SGLang, `sglext` | `sglext.input_ids` | `sglext.output_ids[0]` | the same |
//! | SGLang, `meta_info` | | `choices[0].meta_info.output_token_logprobs[][1]` | its `[][0]` |
//! | NeMo Gym | `choices[0].message.prompt_token_ids` | `choices[0].message.generation_token_ids` | `choices[0].message.generation_log_probs` |
//! | OpenAI | | | `choices[0].logprobs.content[].logprob` |
//!
//! Tokens in other forms are ignored. They never make a reply invalid.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::stream::{Text, each, first};

/// The tokens of one call of a model, as lists in JSON whose numbers are as the server wrote them.
#[derive(Clone, Debug, Default)]
pub struct TokenLists<'a> {
    /// Token ids of the request: whole numbers.
    pub prompt_ids: Option<Cow<'a, RawValue>>,
    /// Token ids of the reply: whole numbers.
    pub completion_ids: Option<Cow<'a, RawValue>>,
    /// Log-probabilities of the reply's tokens: finite numbers.
    pub logprobs: Option<Cow<'a, RawValue>>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    choices: Option<&'a RawValue>,
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
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    meta_info: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct GymMessage<'a> {
    #[serde(borrow, default)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    generation_token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    generation_log_probs: Option<&'a RawValue>,
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

impl<'a> TokenLists<'a> {
    /// Reads the body of a reply.
    pub fn from_reply(body: &'a [u8]) -> Self {
        let Ok(body) = serde_json::from_slice::<Body<'_>>(body) else { return Self::default() };
        let choice: Choice<'_> = body.choices.and_then(first).and_then(read).unwrap_or_default();
        let extended: Extended<'_> = body.sglext.and_then(read).unwrap_or_default();
        let meta: MetaInfo<'_> = choice.meta_info.and_then(read).unwrap_or_default();
        let gym: GymMessage<'_> = choice.message.and_then(read).unwrap_or_default();
        let logprobs = choice.logprobs.or(body.logprobs).or(gym.generation_log_probs);
        let sampled = meta.output_token_logprobs;
        Self {
            prompt_ids: [
                body.prompt_token_ids,
                choice.prompt_token_ids,
                extended.input_ids,
                gym.prompt_token_ids,
            ]
            .into_iter()
            .find_map(|list| ids(list?)),
            completion_ids: [
                choice.token_ids,
                body.token_ids,
                extended.output_ids.and_then(first),
                gym.generation_token_ids,
            ]
            .into_iter()
            .find_map(|list| ids(list?))
            .or_else(|| {
                collect(sampled?, |entry| Some(read::<Sampled<'_>>(entry)?.1.get().into()).filter(is_id))
            })
            .or_else(|| named_ids(logprobs?)),
            logprobs: logprobs.and_then(self::logprobs).or_else(|| {
                collect(sampled?, |entry| Some(read::<Sampled<'_>>(entry)?.0.get().into()).filter(is_finite))
            }),
        }
    }
}

/// An element of SGLang's `output_token_logprobs`: log-probability, id, text.
type Sampled<'a> = (&'a RawValue, &'a RawValue, &'a RawValue);

fn read<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

/// Returns a list of the texts that `of` returns for the elements, or `None` if it returns `None` for one of them.
fn collect<'a>(
    list: &'a RawValue,
    mut of: impl FnMut(&'a RawValue) -> Option<Cow<'a, str>>,
) -> Option<Cow<'a, RawValue>> {
    let mut text = String::from("[");
    let read = each(list.get(), |element: &RawValue| {
        let element = of(element).ok_or(())?;
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&element);
        Ok::<(), ()>(())
    });
    text.push(']');
    read.ok()?;
    RawValue::from_string(text).ok().map(Cow::Owned)
}

#[expect(clippy::ptr_arg, reason = "`Option::filter` passes this type")]
fn is_id(text: &Cow<'_, str>) -> bool {
    text.parse::<i64>().is_ok()
}

// A JSON number that is too large for a double is read as infinite.
#[expect(clippy::ptr_arg, reason = "`Option::filter` passes this type")]
fn is_finite(text: &Cow<'_, str>) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Returns the list itself, if all its elements are whole numbers.
fn ids(list: &RawValue) -> Option<Cow<'_, RawValue>> {
    super::stream::is_list_of::<i64>(list.get()).then_some(Cow::Borrowed(list))
}

/// An element of OpenAI's list of log-probabilities.
#[derive(Deserialize)]
struct TokenEntry<'a> {
    #[serde(borrow, default)]
    logprob: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token: Option<&'a RawValue>,
}

/// Returns the list in `{"content": […]}`, or the list itself.
fn entries(json: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Wrapped<'a> {
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    if json.get().starts_with('{') { read::<Wrapped<'_>>(json)?.content } else { Some(json) }
}

/// Returns the numbers of a list of log-probabilities, whose elements are numbers or objects with one.
pub fn logprobs(json: &RawValue) -> Option<Cow<'_, RawValue>> {
    collect(entries(json)?, |entry| {
        let number =
            if entry.get().starts_with('{') { read::<TokenEntry<'_>>(entry)?.logprob? } else { entry };
        Some(number.get().into()).filter(is_finite)
    })
}

/// Returns the ids of tokens with names such as `token_id:7`.
fn named_ids(json: &RawValue) -> Option<Cow<'_, RawValue>> {
    let ids = collect(entries(json)?, |entry| {
        let Text(token) = read(read::<TokenEntry<'_>>(entry)?.token?)?;
        Some(token.strip_prefix("token_id:")?.to_owned().into()).filter(is_id)
    });
    ids.filter(|ids| ids.get() != "[]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, prompt: Option<&str>, completion: Option<&str>, logprobs: Option<&str>) {
        let tokens = TokenLists::from_reply(json.as_bytes());
        let text = |list: &Option<Cow<'_, RawValue>>| list.as_ref().map(|list| list.get().to_owned());
        assert_eq!(text(&tokens.prompt_ids).as_deref(), prompt, "{json}");
        assert_eq!(text(&tokens.completion_ids).as_deref(), completion, "{json}");
        assert_eq!(text(&tokens.logprobs).as_deref(), logprobs, "{json}");
    }

    #[test]
    fn tokens_are_found_where_servers_put_them() {
        let (prompt, completion, logprobs) = ("[1,2]", "[7,8]", "[-0.5,-1]");
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
        // OpenAI, and a server that reports no tokens.
        check(&format!(r#"{{"choices":[{{{content}}}]}}"#), None, None, Some(logprobs));
        check(r#"{"choices":[{"message":{}}]}"#, None, None, None);
        check("null", None, None, None);
    }

    #[test]
    fn a_list_of_other_values_is_ignored() {
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
    fn the_notation_of_numbers_is_preserved() {
        let written = "-0.12345678901234567";
        let body = format!(r#"{{"choices":[{{"logprobs":[{written},-2.2250738585072014e-308]}}]}}"#);
        check(&body, None, None, Some(&format!("[{written},-2.2250738585072014e-308]")));
    }
}
