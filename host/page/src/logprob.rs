//! Log-probabilities of a reply's tokens, as shades.

use serde::Deserialize;

use crate::text::{Room, visible};

/// Maximum number of tokens of a reply that are shown.
const TOKENS_MAX: usize = 2000;

/// Lowest probabilities of the shades, the lightest first. Less likely tokens have the darkest shade.
const SHADES: [f64; 4] = [0.9, 0.6, 0.3, 0.1];

/// A token with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadedToken {
    /// Its text.
    pub text: String,
    /// The word for the style sheet.
    pub shade: &'static str,
    /// Its log-probability, for people.
    pub title: String,
}

/// The tokens of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShadedTokens {
    /// The tokens.
    pub tokens: Vec<ShadedToken>,
    /// Number of tokens that are left out.
    pub left_out: usize,
    /// Mean of all log-probabilities, for people.
    pub mean: String,
}

/// Reads the tokens of a reply, if the model's server sent their texts and log-probabilities.
pub(crate) fn shaded_tokens(body: &[u8], room: &mut Room) -> Option<ShadedTokens> {
    #[derive(Deserialize)]
    struct Body {
        choices: Vec<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        #[serde(default)]
        logprobs: Option<Logprobs>,
    }
    #[derive(Deserialize)]
    struct Logprobs {
        #[serde(default)]
        content: Option<Vec<Token>>,
    }
    #[derive(Deserialize)]
    struct Token {
        token: String,
        logprob: f64,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    let tokens = body.choices.into_iter().next()?.logprobs?.content?;
    if tokens.is_empty() {
        return None;
    }
    let mean = tokens.iter().map(|token| token.logprob).sum::<f64>() / tokens.len() as f64;
    let (mut shown, count) = (Vec::new(), tokens.len());
    for Token { token, logprob } in tokens.into_iter().take(TOKENS_MAX) {
        let text = room.take(&token);
        if text.left_out > 0 {
            break;
        }
        const NAMES: [&str; 5] = ["p0", "p1", "p2", "p3", "p4"];
        let probability = logprob.exp();
        let at = SHADES.iter().position(|lowest| probability >= *lowest).unwrap_or(SHADES.len());
        let title = format!("{logprob:.3} ({:.1} %)", probability * 100.0);
        shown.push(ShadedToken { text: visible(&token), shade: NAMES[at], title });
    }
    Some(ShadedTokens { left_out: count - shown.len(), tokens: shown, mean: format!("{mean:.3}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_likely_tokens_are_darker() {
        let token = |text: &str, logprob: f64| format!(r#"{{"token":"{text}","logprob":{logprob}}}"#);
        let tokens = [token("a", 0.0), token("\\u202e", -0.7), token("c", -9999.0)].join(",");
        let body = format!(r#"{{"choices":[{{"logprobs":{{"content":[{tokens}]}}}}]}}"#);
        let shaded = shaded_tokens(body.as_bytes(), &mut Room::new()).unwrap();
        let found: Vec<_> = shaded.tokens.iter().map(|token| (&*token.text, token.shade)).collect();
        assert_eq!(found, [("a", "p0"), ("\\u{202e}", "p2"), ("c", "p4")]);
        assert_eq!(shaded.tokens[1].title, "-0.700 (49.7 %)");
        for without in
            ["{}", r#"{"choices":[{"logprobs":null}]}"#, r#"{"choices":[{"logprobs":{"content":[]}}]}"#]
        {
            assert_eq!(shaded_tokens(without.as_bytes(), &mut Room::new()), None);
        }
    }
}
