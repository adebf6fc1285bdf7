//! The mock's reply: a tool call, an answer, or a statement that it only knows arithmetic.
//!
//! [`answer`] is a function of the conversation and of the mistake to make. It knows no HTTP, no clock and no
//! randomness.

use serde_json::{Map, Value, json};

use super::arithmetic::{self, Expression, Rational};
use super::request::Calculator;

/// Reply to a message without an expression.
pub(super) const NOTHING_TO_DO: &str = "I am a stand-in, not a model. I only know arithmetic, \
     and I find no arithmetic in your message.";
/// Words that mark a tool's result as an error.
const ERROR_WORDS: [&str; 6] = ["error", "exception", "traceback", "invalid", "failed", "malformed"];

/// An assistant message and its finish reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reply {
    pub(super) message: Map<String, Value>,
    pub(super) finish_reason: String,
}

/// The part of a conversation that determines the reply.
pub(super) struct Turn<'a> {
    /// The last user message.
    pub(super) text: &'a str,
    pub(super) calculator: Option<Calculator>,
    /// Result of the tool call after that message, if there was one.
    pub(super) tool_result: Option<String>,
    /// Id for the tool call, if the reply makes one.
    pub(super) call_id: String,
}

/// A mistake to make in this reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slip {
    /// Selects one of the mistakes that are possible here.
    pub(super) kind: u64,
    /// Selects the size of the mistake.
    pub(super) size: u64,
    /// Whether this call repeats an earlier one, in which case malformed JSON is not sent again.
    pub(super) repeated: bool,
}

/// Answers one turn, with a slip if one is passed and the turn allows it.
pub(super) fn answer(turn: Turn<'_>, slip: Option<Slip>) -> Reply {
    let expression = arithmetic::find(turn.text);
    match (turn.tool_result, expression, turn.calculator) {
        (Some(result), expression, _) => match (read_result(&result), expression) {
            (Some(result), _) => stop(format_answer(&result, slip)),
            // The tool reported an error, so this attempt is correct.
            (None, Some(expression)) => stop(answer_directly(&expression, None)),
            (None, None) => stop(NOTHING_TO_DO.to_owned()),
        },
        (None, Some(expression), Some(tool)) => call(&expression, tool, turn.call_id, slip),
        (None, Some(expression), None) => stop(answer_directly(&expression, slip)),
        (None, None, _) => stop(NOTHING_TO_DO.to_owned()),
    }
}

fn stop(content: String) -> Reply {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), content.into());
    Reply { message, finish_reason: "stop".to_owned() }
}

/// Calls the calculator. A slip changes the expression or truncates the arguments.
fn call(expression: &Expression, tool: Calculator, id: String, slip: Option<Slip>) -> Reply {
    let text = match slip {
        Some(slip) if !is_malformed(slip) => arithmetic::corrupted(expression, slip.size),
        _ => expression.text.clone(),
    };
    let mut arguments = Map::new();
    arguments.insert(tool.property, text.into());
    arguments.extend(tool.placeholders);
    let mut arguments = Value::Object(arguments).to_string();
    if slip.is_some_and(is_malformed) {
        // The end is cut off, as when a model runs out of tokens.
        arguments.truncate(arguments.len() - 2);
    }
    let message = json!({
        "role": "assistant",
        "content": null,
        "tool_calls": [{
            "id": id,
            "type": "function",
            "function": {"name": tool.name, "arguments": arguments},
        }],
    });
    let Value::Object(message) = message else { unreachable!("the literal above is an object") };
    Reply { message, finish_reason: "tool_calls".to_owned() }
}

/// Returns whether the slip is malformed JSON: one in three, and only at the first attempt.
fn is_malformed(slip: Slip) -> bool {
    !slip.repeated && slip.kind.is_multiple_of(3)
}

fn answer_directly(expression: &Expression, slip: Option<Slip>) -> String {
    match expression.value {
        Ok(value) => format_answer(&value.to_string(), slip),
        Err(error) => format!("I cannot calculate {}: {error}.", expression.text),
    }
}

/// Formats the answer as the task requires. One slip in three omits the marker; the others change the number.
fn format_answer(result: &str, slip: Option<Slip>) -> String {
    let wrong =
        slip.filter(|slip| !slip.kind.is_multiple_of(3)).and_then(|slip| off_by_a_little(result, slip.size));
    match (slip, wrong) {
        (None, _) => format!("The result is {result}.\n#### {result}"),
        (Some(_), Some(wrong)) => format!("The result is {wrong}.\n#### {wrong}"),
        (Some(_), None) => format!("The result is {result}."),
    }
}

/// Adds a small number to a result. Returns `None` if the result is not a number.
fn off_by_a_little(result: &str, size: u64) -> Option<String> {
    let amount = i128::from(1 + size % 9);
    let amount = if size & 16 == 0 { amount } else { -amount };
    let value = arithmetic::evaluate(result).ok()?;
    Some(value.plus(Rational::whole(amount)).ok()?.to_string())
}

/// Extracts the number from a tool's result: the whole result, one of its fields, or the last word of its
/// text. Returns `None` if the tool reports an error.
fn read_result(result: &str) -> Option<String> {
    let result = result.trim();
    match serde_json::from_str(result) {
        Ok(Value::Object(fields)) => {
            let error = fields.get("error").is_some_and(|error| !error.is_null());
            let value = ["result", "value", "answer", "output"]
                .iter()
                .find_map(|key| fields.get(*key))
                .filter(|_| !error)?;
            match value {
                Value::String(text) => read_text(text),
                Value::Number(number) => read_text(&number.to_string()),
                _ => None,
            }
        }
        Ok(Value::String(text)) => read_text(&text),
        _ => read_text(result),
    }
}

fn read_text(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    if ERROR_WORDS.iter().any(|word| lower.contains(word)) {
        return None;
    }
    let number = text
        .split(|c: char| c.is_whitespace() || "=:,;`'\"()[]$*".contains(c))
        .map(|word| word.trim_end_matches('.'))
        .rfind(|word| word.parse::<f64>().is_ok_and(f64::is_finite))?;
    // A tool that computes with floats returns -4659.0; a model would drop the fraction.
    Some(match arithmetic::evaluate(number) {
        Ok(value) => value.to_string(),
        Err(_) => number.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calculator() -> Calculator {
        Calculator {
            name: "calculator".to_owned(),
            property: "expression".to_owned(),
            placeholders: Map::new(),
        }
    }

    fn reply(text: &str, tool: bool, result: Option<&str>, slip: Option<Slip>) -> Reply {
        let turn = Turn {
            text,
            calculator: tool.then(calculator),
            tool_result: result.map(str::to_owned),
            call_id: "call_1".to_owned(),
        };
        answer(turn, slip)
    }

    fn content(reply: &Reply) -> &str {
        reply.message["content"].as_str().expect("text")
    }

    fn arguments(reply: &Reply) -> &str {
        reply.message["tool_calls"][0]["function"]["arguments"].as_str().expect("arguments")
    }

    fn slip(kind: u64, size: u64) -> Option<Slip> {
        Some(Slip { kind, size, repeated: false })
    }

    #[test]
    fn without_a_tool_the_answer_is_immediate() {
        let reply = reply("What is 6 * 7?", false, None, None);
        assert_eq!(content(&reply), "The result is 42.\n#### 42");
        assert_eq!(reply.finish_reason, "stop");
    }

    #[test]
    fn with_a_tool_the_expression_is_passed_to_it_first() {
        let reply = reply("What is 6 * 7?", true, None, None);
        assert_eq!(
            Value::Object(reply.message),
            json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": "call_1", "type": "function",
                "function": {"name": "calculator", "arguments": r#"{"expression":"6 * 7"}"#},
            }]})
        );
        assert_eq!(reply.finish_reason, "tool_calls");
    }

    #[test]
    fn a_tools_result_becomes_the_answer_unless_it_is_an_error() {
        let check = |result: &str, expected: &str| {
            let reply = reply("What is 6 * 7?", true, Some(result), None);
            let expected = format!("The result is {expected}.\n#### {expected}");
            assert_eq!(content(&reply), expected, "{result}");
        };
        check("41", "41");
        check(" -4659.0 ", "-4659");
        check("The result of 6 * 7 is 43.", "43");
        check("6 * 7 = 44", "44");
        check(r#"{"result": 45}"#, "45");
        check(r#"{"error": null, "value": "46"}"#, "46");
        check(r#""47""#, "47");
        check("1e30", "1e30");
        check("Error: line 3 is invalid", "42");
        check(r#"{"error": "no 5", "result": 1}"#, "42");
        check(r#"{"temperature": 20}"#, "42");
        check("done", "42");
        check("", "42");
        check("NaN", "42");
    }

    #[test]
    fn a_question_that_cannot_be_calculated_gets_an_explanation() {
        let check = |prose: &str, expected: &str| {
            let reply = reply(prose, false, None, None);
            assert_eq!(content(&reply), expected, "{prose}");
        };
        check("Tell me a joke.", NOTHING_TO_DO);
        check("1 / 0", "I cannot calculate 1 / 0: division by zero.");
        let refused = reply("Tell me a joke.", true, Some("error"), None);
        assert_eq!(content(&refused), NOTHING_TO_DO);
    }

    #[test]
    fn a_slip_makes_the_answer_wrong_or_unmarked() {
        for size in 0..40 {
            let unmarked = reply("6 * 7", false, None, slip(0, size));
            assert_eq!(content(&unmarked), "The result is 42.");
            let wrong = reply("6 * 7", true, Some("42"), slip(1, size));
            assert!(content(&wrong).contains("#### "));
            assert!(!content(&wrong).contains("#### 42"));
        }
    }

    #[test]
    fn a_slip_in_a_tool_call_is_malformed_once_or_another_expression() {
        let malformed = reply("6 * 7", true, None, slip(0, 0));
        assert_eq!(arguments(&malformed), r#"{"expression":"6 * 7"#);
        let wrong = reply("6 * 7", true, None, slip(1, 0));
        assert_eq!(arguments(&wrong), r#"{"expression":"6 + 7"}"#);
        let repeated = Some(Slip { kind: 0, size: 0, repeated: true });
        let again = reply("6 * 7", true, None, repeated);
        assert_eq!(arguments(&again), r#"{"expression":"6 + 7"}"#);
        let recovered = reply("6 * 7", true, Some("error: bad JSON"), slip(1, 0));
        assert_eq!(content(&recovered), "The result is 42.\n#### 42");
    }
}
