//! Detection of the generation of a `POST /rollout`.
//!
//! Requests of D never have a `completion_callback_url`, those of B and C always do. Only requests of C have an
//! `llm_api_key`, even null, or lack a `rollout_id`. All others are of B or of an early C, which send the same fields: such a
//! caller gets responses and callbacks in a form that both accept, and only the number of samples depends on the form of the
//! addresses.

use reqwest::Url;

use super::fields::Fields;
pub(super) use rollout_assembly::config::OsmosisGeneration;

/// The generation of a request, as far as it can be detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// Callbacks, a map of samples.
    B,
    /// Callbacks, one sample.
    C,
    /// B or C.
    BOrC {
        /// Whether the addresses look like C's. A controller of C would lose a second sample.
        one_sample: bool,
    },
    /// Polling.
    D,
}

impl Generation {
    /// Detects the generation of a request, unless the operator has set it.
    pub(crate) fn of(fields: &Fields<'_>, configured: OsmosisGeneration) -> Self {
        match configured {
            OsmosisGeneration::B => Self::B,
            OsmosisGeneration::C => Self::C,
            OsmosisGeneration::D => Self::D,
            OsmosisGeneration::Auto if !fields.has("completion_callback_url") => Self::D,
            OsmosisGeneration::Auto if fields.has("llm_api_key") || !fields.is_given("rollout_id") => Self::C,
            OsmosisGeneration::Auto => Self::BOrC { one_sample: looks_like_c(fields) },
        }
    }
}

/// Returns whether the rollout's id is a path segment of an address, as at C's controllers, and the addresses do not have the
/// form of B's controllers.
fn looks_like_c(fields: &Fields<'_>) -> bool {
    let url = |name| fields.peek_text(name).and_then(|url| Url::parse(&url).ok());
    let Some(id) = fields.peek_text("rollout_id") else { return false };
    let chat = url("chat_completions_url");
    let (completion, grader) = (url("completion_callback_url"), url("grader_callback_url"));
    let ends = |url: &Option<Url>, end| url.as_ref().is_some_and(|url| url.path().ends_with(end));
    let is_named = |url: &Option<Url>| url.as_ref().is_some_and(|url| has_segment(url, &id));
    let looks_like_b = ends(&completion, "/v1/rollout/completed")
        && (grader.is_none() || ends(&grader, "/v1/grader/completed"))
        && !is_named(&chat);
    !looks_like_b && [&chat, &completion, &grader].into_iter().any(is_named)
}

fn has_segment(url: &Url, id: &str) -> bool {
    url.path_segments().is_some_and(|mut segments| segments.any(|segment| decoded(segment) == id.as_bytes()))
}

/// Returns a path segment without percent-encoding.
fn decoded(segment: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [byte, after @ ..] = rest {
        let encoded = match rest {
            [b'%', high, low, ..] => hex_byte(*high, *low),
            _ => None,
        };
        decoded.push(encoded.unwrap_or(*byte));
        rest = if encoded.is_some() { &after[2..] } else { after };
    }
    decoded
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn recognized(changes: Value, configured: OsmosisGeneration) -> Generation {
        let mut body = json!({
            "rollout_id": "r 1",
            "chat_completions_url": "http://c/v1",
            "completion_callback_url": "http://c/done",
            "grader_callback_url": "http://c/graded",
        });
        let changes = changes.as_object().expect("changes are an object").clone();
        for (name, value) in changes {
            match value.as_str() {
                Some("absent") => body.as_object_mut().and_then(|body| body.remove(&name)),
                _ => body.as_object_mut().and_then(|body| body.insert(name, value)),
            };
        }
        let body = body.to_string();
        Generation::of(&Fields::of(body.as_bytes(), true).expect("the body is an object"), configured)
    }

    #[test]
    fn a_generation_is_detected_by_its_own_fields() {
        fn check(changes: Value, expected: Generation) {
            assert_eq!(recognized(changes.clone(), OsmosisGeneration::Auto), expected, "{changes}");
        }
        let either = Generation::BOrC { one_sample: false };
        let like_c = Generation::BOrC { one_sample: true };
        check(json!({}), either);
        check(json!({"completion_callback_url": "absent"}), Generation::D);
        check(json!({"completion_callback_url": null}), either);
        check(json!({"llm_api_key": null}), Generation::C);
        check(json!({"llm_api_key": "k"}), Generation::C);
        check(json!({"rollout_id": null}), Generation::C);
        check(json!({"rollout_id": "absent"}), Generation::C);
        check(json!({"chat_completions_url": "http://c/rollouts/r%201/v1"}), like_c);
        check(json!({"chat_completions_url": "http://c/rollouts/r%2012/v1"}), either);
        check(json!({"grader_callback_url": "http://c/v1/rollouts/r 1/grader"}), like_c);
        check(json!({"grader_callback_url": null, "completion_callback_url": "http://c/r%201"}), like_c);
        let (done, graded) = ("http://c/v1/rollout/completed", "http://c/v1/grader/completed");
        check(json!({"completion_callback_url": done, "grader_callback_url": graded}), either);
        let below = "http://c/r%201/v1/rollout/completed";
        check(json!({"completion_callback_url": below, "grader_callback_url": graded}), either);
        check(json!({"completion_callback_url": below, "chat_completions_url": "http://c/r%201"}), like_c);
    }

    #[test]
    fn a_configured_generation_takes_precedence_over_detection() {
        for (configured, expected) in [
            (OsmosisGeneration::B, Generation::B),
            (OsmosisGeneration::C, Generation::C),
            (OsmosisGeneration::D, Generation::D),
        ] {
            assert_eq!(recognized(json!({"llm_api_key": "k"}), configured), expected);
            assert_eq!(recognized(json!({"completion_callback_url": "absent"}), configured), expected);
        }
    }

    #[test]
    fn a_path_segment_is_percent_decoded() {
        fn check(segment: &str, expected: &str) {
            assert_eq!(decoded(segment), expected.as_bytes(), "{segment}");
        }
        check("plain", "plain");
        check("a%20b%2Fc", "a b/c");
        check("100%", "100%");
        check("%4", "%4");
        check("%zz%41", "%zzA");
    }
}
