//! Names of tenants, plugins and secrets.

use std::fmt;
use std::ops::Deref;

/// Name of a tenant, plugin or secret: a part of URLs that people type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Error of parsing a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid name '{0}': a name has 1 to 64 lower-case letters, digits, '-' and '_' and begins with a letter or digit"
)]
pub struct InvalidName(String);

impl Name {
    /// Maximum length, in bytes.
    pub const LEN_MAX: usize = 64;

    /// Parses a name.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let valid = name.len() <= Self::LEN_MAX
            && name.bytes().next().is_some_and(plain)
            && name.bytes().all(|byte| plain(byte) || matches!(byte, b'-' | b'_'));
        if valid { Ok(Self(name)) } else { Err(InvalidName(quoted(&name))) }
    }
}

/// Returns the text as an error message quotes it: escaped and truncated.
fn quoted(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl std::str::FromStr for Name {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_only_characters_that_urls_take_unescaped() {
        for name in ["a", "7", "calc", "team-a", "a-", "my_agent", "a_", &"a".repeat(64)] {
            assert_eq!(Name::new(name).as_deref(), Ok(name));
        }
        for text in ["", "-a", "_a", "A", "a.b", "a/b", "ä", "a b", "..", &"a".repeat(65)] {
            let error = Name::new(text).unwrap_err().to_string();
            assert!(error.contains("1 to 64 lower-case letters, digits, '-' and '_'"), "{error}");
        }
        let error = Name::new("a\nb".repeat(1000)).unwrap_err().to_string();
        assert!(error.starts_with("invalid name 'a\\nba\\n") && error.len() < 400, "{error}");
    }
}
