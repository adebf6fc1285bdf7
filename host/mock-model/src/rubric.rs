//! The mock as a judge: a rating if a schema asks for one.
//!
//! The mock ignores the rubric. The candidate gets the highest score if it contains the words of the ground
//! truth, and the lowest otherwise.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::reply::Reply;

/// Returns the range of scores in the schema of a rating, or `None` for other schemas.
pub(super) fn requested_range(response_format: Option<&RawValue>) -> Option<(f64, f64)> {
    #[derive(Deserialize)]
    struct Format {
        json_schema: Schema,
    }
    #[derive(Deserialize)]
    struct Schema {
        schema: Value,
    }
    let format: Format = serde_json::from_str(response_format?.get()).ok()?;
    let properties = format.json_schema.schema.get("properties")?;
    properties.get("explanation")?;
    let score = properties.get("score")?;
    let bound = |key: &str, default| score.get(key).and_then(Value::as_f64).unwrap_or(default);
    Some((bound("minimum", 0.0), bound("maximum", 1.0)))
}

/// Rates the candidate in the last user message. A slip gives the opposite score.
pub(super) fn rate(text: &str, (low, high): (f64, f64), slip: bool) -> Reply {
    let candidate = text_between(text, "CANDIDATE").unwrap_or_default();
    let (good, why) = match text_between(text, "GROUND_TRUTH") {
        Some(truth) if contains_words(candidate, truth) => (true, "the ground truth is in the answer"),
        Some(_) => (false, "the ground truth is not in the answer"),
        None => (!candidate.is_empty(), "there is no ground truth, so any answer is as good as another"),
    };
    let score = if good != slip { high } else { low };
    let rating = json!({"score": score, "explanation": format!("A stand-in, not a judge: {why}.")});
    let message = json!({"role": "assistant", "content": rating.to_string()});
    let Value::Object(message) = message else { unreachable!("the literal above is an object") };
    Reply { message, finish_reason: "stop".to_owned() }
}

fn text_between<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<<<BEGIN_{name}>>>"))?;
    let (inside, _) = rest.split_once(&format!("<<<END_{name}>>>"))?;
    Some(inside.trim())
}

/// Returns whether the words occur in the text in a row, whatever separates them.
fn contains_words(text: &str, words: &str) -> bool {
    let split = |text: &str| -> Vec<String> {
        let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        parts.map(str::to_lowercase).collect()
    };
    let (text, words) = (split(text), split(words));
    !words.is_empty() && text.windows(words.len()).any(|window| window == words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(candidate: &str, truth: Option<&str>, slip: bool) -> f64 {
        let truth = truth.map(|truth| format!("<<<BEGIN_GROUND_TRUTH>>>\n{truth}\n<<<END_GROUND_TRUTH>>>\n"));
        let text =
            format!("{}<<<BEGIN_CANDIDATE>>>\n{candidate}\n<<<END_CANDIDATE>>>", truth.unwrap_or_default());
        let reply = rate(&text, (1.0, 5.0), slip);
        let rating: Value = serde_json::from_str(reply.message["content"].as_str().unwrap()).unwrap();
        assert!(!rating["explanation"].as_str().unwrap().is_empty());
        rating["score"].as_f64().unwrap()
    }

    #[test]
    fn an_answer_with_the_truth_gets_the_highest_score() {
        assert_eq!(score("It is Paris, of course.", Some("paris"), false), 5.0);
        assert_eq!(score("It is Parisian.", Some("Paris"), false), 1.0);
        assert_eq!(score("New York City", Some("new-york"), false), 5.0);
        assert_eq!(score("anything", None, false), 5.0);
        assert_eq!(score("", None, false), 1.0);
        assert_eq!(score("It is Paris.", Some("Paris"), true), 1.0);
    }

    #[test]
    fn only_the_schema_of_a_rating_has_a_range() {
        let check = |format: Value, expected: Option<(f64, f64)>| {
            let raw = serde_json::value::to_raw_value(&format).unwrap();
            assert_eq!(requested_range(Some(&raw)), expected, "{format}");
        };
        let schema = |properties: Value| json!({"json_schema": {"schema": {"properties": properties}}});
        check(schema(json!({"score": {"minimum": 0, "maximum": 10}, "explanation": {}})), Some((0.0, 10.0)));
        check(schema(json!({"score": {}, "explanation": {}})), Some((0.0, 1.0)));
        check(schema(json!({"score": {}})), None);
        check(json!({"type": "json_object"}), None);
        assert_eq!(requested_range(None), None);
    }
}
