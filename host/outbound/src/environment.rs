//! Values of environment variables in configured texts.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::secrets::Secrets;

/// A text of the operator that may contain `${VARIABLE}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretText(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Variable(String),
}

impl SecretText {
    /// Parses the text. The error describes the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((literal, after)) = rest.split_once("${") {
            let Some((name, after)) = after.split_once('}') else {
                return Err("'${' without its '}'".to_owned());
            };
            if !is_variable(name) {
                return Err(format!("'{name}' is not the name of an environment variable"));
            }
            parts.extend([Part::Literal(literal.to_owned()), Part::Variable(name.to_owned())]);
            rest = after;
        }
        parts.push(Part::Literal(rest.to_owned()));
        Ok(Self(parts))
    }

    /// Returns the text with the variables' values, which are also added to `secrets`. The error names a variable that
    /// is not set.
    pub fn resolve(&self, secrets: &mut Secrets) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Literal(literal) => text += literal,
                Part::Variable(name) => {
                    let value = variable(name)?;
                    secrets.add(&value);
                    text += &value;
                }
            }
        }
        Ok(text)
    }
}

/// Returns whether a name is valid for an environment variable.
pub fn is_variable(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_part)
}

/// Returns the value of an environment variable. The error names it.
#[expect(clippy::disallowed_methods, reason = "the only place that reads variables which the operator named")]
pub(super) fn variable(name: &str) -> Result<String, String> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => Err(format!("the environment variable {name} is not set")),
    }
}

/// All bytes that may have a meaning in a URL.
const MEANINGFUL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a text as one part of a URL: every byte that may have a meaning is encoded.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, MEANINGFUL).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_distinguished_from_text() {
        fn check(text: &str, expected: Result<usize, &str>) {
            let parts = SecretText::parse(text).map(|text| text.0.len());
            assert_eq!(parts, expected.map_err(str::to_owned), "{text}");
        }
        check("plain $5 {x}", Ok(1));
        check("Bearer ${TOKEN}", Ok(3));
        check("${A}${B_2}", Ok(5));
        check("${A", Err("'${' without its '}'"));
        check("${a b}", Err("'a b' is not the name of an environment variable"));
        check("${}", Err("'' is not the name of an environment variable"));
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let text = SecretText::parse("x ${ROLLOUT_TEST_NOT_SET}").unwrap();
        let error = text.resolve(&mut Secrets::default()).unwrap_err();
        assert_eq!(error, "the environment variable ROLLOUT_TEST_NOT_SET is not set");
    }

    #[test]
    fn bytes_with_a_meaning_in_urls_are_encoded() {
        assert_eq!(encoded("aZ-._~09"), "aZ-._~09");
        assert_eq!(encoded("a/b?é%"), "a%2Fb%3F%C3%A9%25");
    }
}
