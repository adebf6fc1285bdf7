//! Ids of rollouts and samples, parsed once when a request arrives.

use std::fmt::{self, Write};

/// Id of a rollout: a single path segment of at most `RolloutId::LEN_MAX` bytes.
///
/// Spaces, colons, control characters and any Unicode are allowed, because callers use them. [`RolloutId::dir_name`]
/// and `RolloutId::header_value` return forms that are safe elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct RolloutId(String);

/// Error of a text that is not a rollout id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRolloutId {
    /// It is empty.
    #[error("rollout_id is empty")]
    Empty,
    /// `.` or `..`.
    #[error("rollout_id must be a single path segment, not '.' or '..'")]
    Dots,
    /// It contains a path separator.
    #[error("rollout_id must be a single path segment without '/', '\\' or NUL")]
    Separator,
    /// It is too long.
    #[error("rollout_id is longer than {} bytes", RolloutId::LEN_MAX)]
    TooLong,
}

impl RolloutId {
    /// Maximum length of an id in bytes. An id is stored with the result, is in every log line and is sent as a header.
    pub const LEN_MAX: usize = 1024;

    /// Maximum length of a directory name in bytes, below the usual limit of 255.
    const DIR_NAME_LEN_MAX: usize = 200;

    /// Parses the text.
    pub fn parse(text: impl Into<String>) -> Result<Self, InvalidRolloutId> {
        let text = text.into();
        match text.as_str() {
            "" => Err(InvalidRolloutId::Empty),
            "." | ".." => Err(InvalidRolloutId::Dots),
            id if id.contains(['/', '\\', '\0']) => Err(InvalidRolloutId::Separator),
            id if id.len() > Self::LEN_MAX => Err(InvalidRolloutId::TooLong),
            _ => Ok(Self(text)),
        }
    }

    /// Returns the id as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the directory name of this id. It is the id itself, which evaluators look for, if that is a valid file
    /// name. A longer id is cut and gains a hash, so that two ids never share a directory.
    pub fn dir_name(&self) -> String {
        if self.0.len() <= Self::DIR_NAME_LEN_MAX && !self.ends_in_hash() {
            return self.0.clone();
        }
        let mut end = Self::DIR_NAME_LEN_MAX - 65;
        while !self.0.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}-{}", &self.0[..end], crate::digest::sha256_hex(self.0.as_bytes()))
    }

    /// Returns whether the id looks like the directory name of a longer id, and so needs a hash as well.
    fn ends_in_hash(&self) -> bool {
        // The cut is between two characters; the longest character has four bytes.
        if !(Self::DIR_NAME_LEN_MAX - 3..=Self::DIR_NAME_LEN_MAX).contains(&self.0.len()) {
            return false;
        }
        let hash = self.0.rsplit_once('-').map_or("", |(_, end)| end);
        hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// Returns the id as the value of a header. Bytes that a header cannot carry are percent-encoded.
    pub fn header_value(&self) -> String {
        if self.0.bytes().all(is_header_byte) && self.0.trim() == self.0 {
            return self.0.clone();
        }
        self.0
            .bytes()
            .map(|byte| match byte {
                b'%' => "%25".to_owned(),
                byte if byte.is_ascii_graphic() => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            })
            .collect()
    }
}

/// Returns whether every HTTP implementation carries this byte in a header value: visible ASCII and the space.
fn is_header_byte(byte: u8) -> bool {
    byte == b' ' || byte.is_ascii_graphic()
}

impl TryFrom<String> for RolloutId {
    type Error = InvalidRolloutId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(text)
    }
}

impl From<RolloutId> for String {
    fn from(id: RolloutId) -> Self {
        id.0
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a sample within its rollout: 1 to `SampleId::LEN_MAX` visible ASCII characters, which a header carries
/// unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SampleId(String);

impl SampleId {
    /// Maximum length of an id in bytes.
    pub const LEN_MAX: usize = 128;

    /// Parses an id from a guest. The error says why it is invalid.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err("it is empty".to_owned());
        }
        if name.len() > Self::LEN_MAX {
            return Err(format!("it is longer than {} bytes", Self::LEN_MAX));
        }
        match name.char_indices().find(|(_, c)| !c.is_ascii_graphic()) {
            Some((at, c)) => Err(format!(
                "{c:?} at byte {at} cannot be sent in a header; use visible ASCII characters without spaces"
            )),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a unique part of a file name for this id. Letters, digits, `.`, `_` and `-` stay; all other characters
    /// and a leading dot are percent-encoded. A part that is too long is cut and gains a hash after `%-`, which is not
    /// the beginning of an encoded byte.
    pub fn file_part(&self) -> String {
        let mut part = String::with_capacity(self.0.len());
        for (at, c) in self.0.char_indices() {
            if c.is_ascii_alphanumeric() || "_-".contains(c) || c == '.' && at > 0 {
                part.push(c);
            } else {
                let _ = write!(part, "%{:02X}", u32::from(c));
            }
        }
        if part.len() > Self::FILE_PART_LEN_MAX {
            part.truncate(Self::FILE_PART_LEN_MAX - 66);
            part += "%-";
            part += &crate::digest::sha256_hex(self.0.as_bytes());
        }
        part
    }

    /// Maximum length of a part of a file name in bytes, below the usual limit of 255.
    const FILE_PART_LEN_MAX: usize = 200;
}

impl TryFrom<String> for SampleId {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::parse(&name)
    }
}

impl From<SampleId> for String {
    fn from(id: SampleId) -> Self {
        id.0
    }
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_id_is_one_path_segment() {
        fn check(text: &str, expected: Result<(), InvalidRolloutId>) {
            assert_eq!(RolloutId::parse(text).map(drop), expected, "{text:?}");
        }
        check("r1", Ok(()));
        check("a b:c%d\u{7}é", Ok(()));
        check("...", Ok(()));
        check("", Err(InvalidRolloutId::Empty));
        check(".", Err(InvalidRolloutId::Dots));
        check("..", Err(InvalidRolloutId::Dots));
        check("a/b", Err(InvalidRolloutId::Separator));
        check("a\\b", Err(InvalidRolloutId::Separator));
        check("a\0", Err(InvalidRolloutId::Separator));
        check(&"x".repeat(1024), Ok(()));
        check(&"x".repeat(1025), Err(InvalidRolloutId::TooLong));
    }

    #[test]
    fn an_id_in_a_header_is_itself_or_percent_encoded() {
        fn check(text: &str, expected: &str) {
            assert_eq!(RolloutId::parse(text).unwrap().header_value(), expected);
        }
        check("row-1 run%2", "row-1 run%2");
        check("a\r\nx-evil: 1", "a%0D%0Ax-evil:%201");
        check("é%", "%C3%A9%25");
        check(" a", "%20a");
    }

    #[test]
    fn two_long_ids_have_two_directories() {
        let a = RolloutId::parse("é".repeat(300)).unwrap();
        let b = RolloutId::parse(format!("{}x", "é".repeat(300))).unwrap();
        assert_ne!(a.dir_name(), b.dir_name());
        assert!(a.dir_name().len() <= 255);
        assert_eq!(RolloutId::parse("plain").unwrap().dir_name(), "plain");
        let crafted = RolloutId::parse(a.dir_name()).unwrap();
        assert_ne!(crafted.dir_name(), a.dir_name(), "an id that equals the directory name of another id");
    }

    #[test]
    fn every_sample_has_a_file_name_of_its_own() {
        fn check(name: &str, expected: &str) {
            assert_eq!(SampleId::parse(name).unwrap().file_part(), expected);
        }
        check("main", "main");
        check("a_b", "a_b");
        check("a/b", "a%2Fb");
        check("a%2Fb", "a%252Fb");
        check("..", "%2E.");
        let long = SampleId::parse(&"/".repeat(128)).unwrap().file_part();
        assert!(long.len() <= 200 && long.contains("%-"), "{long}");
        assert_ne!(SampleId::parse(&"/".repeat(127)).unwrap().file_part(), long);
    }

    #[test]
    fn a_sample_id_can_be_sent_in_a_header() {
        fn check(name: &str, valid: bool) {
            assert_eq!(SampleId::parse(name).is_ok(), valid, "{name:?}");
        }
        check("main", true);
        check("a:b/c", true);
        check("", false);
        check("two words", false);
        check("a\r\nx: 1", false);
        check("é", false);
        check(&"x".repeat(129), false);
    }
}
