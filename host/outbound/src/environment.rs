//! Secrets that the operator keeps in environment variables, put where they are needed.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::secrets::Secrets;

/// Text with `${VARIABLE}` in it, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretText(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Variable(String),
}

impl SecretText {
    /// Reads the text. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((literal, after)) = rest.split_once("${") {
            let Some((name, after)) = after.split_once('}') else {
                return Err("'${' without its '}'".to_owned());
            };
            if !is_variable(name) {
                return Err(format!("'{name}' is no name of an environment variable"));
            }
            parts.extend([Part::Literal(literal.to_owned()), Part::Variable(name.to_owned())]);
            rest = after;
        }
        parts.push(Part::Literal(rest.to_owned()));
        Ok(Self(parts))
    }

    /// The text with the variables' values in it. Every value is also added to the
    /// secrets; the error names what is not set.
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

/// Whether a name can be that of an environment variable.
pub fn is_variable(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_part)
}

/// The value of an environment variable; the error names it.
#[expect(clippy::disallowed_methods, reason = "the room in which what the operator named is read")]
pub(super) fn variable(name: &str) -> Result<String, String> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => Err(format!("the environment variable {name} is not set")),
    }
}

/// Every byte that could mean something in a URL.
const MEANINGFUL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The text as one part of a URL: every byte that could mean something is encoded.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, MEANINGFUL).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_told_from_text() {
        fn check(text: &str, expected: Result<usize, &str>) {
            let parts = SecretText::parse(text).map(|text| text.0.len());
            assert_eq!(parts, expected.map_err(str::to_owned), "{text}");
        }
        check("plain $5 {x}", Ok(1));
        check("Bearer ${TOKEN}", Ok(3));
        check("${A}${B_2}", Ok(5));
        check("${A", Err("'${' without its '}'"));
        check("${a b}", Err("'a b' is no name of an environment variable"));
        check("${}", Err("'' is no name of an environment variable"));
    }

    #[test]
    fn what_is_not_set_is_named() {
        let text = SecretText::parse("x ${ROLLOUT_TEST_NOT_SET}").unwrap();
        let error = text.resolve(&mut Secrets::default()).unwrap_err();
        assert_eq!(error, "the environment variable ROLLOUT_TEST_NOT_SET is not set");
    }

    #[test]
    fn what_could_mean_something_in_a_url_is_encoded() {
        assert_eq!(encoded("aZ-._~09"), "aZ-._~09");
        assert_eq!(encoded("a/b?é%"), "a%2Fb%3F%C3%A9%25");
    }
}
