//! Maps positions in a bundle to the author's files and lines.

use serde::{Deserialize, Serialize};

/// A source map of version 3.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct SourceMap {
    sources: Vec<String>,
    mappings: String,
}

/// A column in a line of the bundle, with its source and the line there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Segment {
    column: i64,
    source: i64,
    line: i64,
}

impl SourceMap {
    pub(super) fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Renames the sources.
    pub(super) fn with_sources(self, rename: impl Fn(&str) -> String) -> Self {
        Self { sources: self.sources.iter().map(|source| rename(source)).collect(), ..self }
    }

    /// Returns the map as JSON, which is an expression of JavaScript as well.
    pub(super) fn to_json(&self) -> String {
        // Strings always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns file and line of a position in the bundle. All numbers begin at 1.
    pub(super) fn place(&self, line: usize, column: i64) -> Option<(&str, i64)> {
        let segments = self.segments(line.checked_sub(1)?)?;
        let segment = segments.iter().rfind(|segment| segment.column < column).or(segments.first())?;
        let source = self.sources.get(usize::try_from(segment.source).ok()?)?;
        Some((source, segment.line + 1))
    }

    /// Decodes the segments of a line.
    fn segments(&self, line: usize) -> Option<Vec<Segment>> {
        let mut last = Segment::default();
        for (index, text) in self.mappings.split(';').enumerate() {
            last.column = 0;
            let mut segments = Vec::new();
            for segment in text.split(',').filter(|segment| !segment.is_empty()) {
                let numbers = decode(segment)?;
                last.column += numbers.first()?;
                if let [_, source, line, ..] = numbers[..] {
                    last.source += source;
                    last.line += line;
                    segments.push(last);
                }
            }
            if index == line {
                return Some(segments);
            }
        }
        None
    }
}

/// Decodes numbers of base 64, each of digits of 5 bits with the least significant first.
fn decode(segment: &str) -> Option<Vec<i64>> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const MORE: i64 = 32;
    let mut numbers = Vec::new();
    let (mut value, mut shift) = (0_i64, 0);
    for character in segment.chars() {
        let digit = i64::try_from(DIGITS.find(character)?).ok()?;
        value = value.checked_add((digit & (MORE - 1)).checked_shl(shift)?)?;
        shift += 5;
        if digit & MORE == 0 {
            numbers.push(if value & 1 == 1 { -(value >> 1) } else { value >> 1 });
            (value, shift) = (0, 0);
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_in_the_last_segment_before_it() {
        // Line 1: column 0 is a.ts:1, column 8 is b.ts:3. Line 2 has none. Line 3: column 4 is b.ts:2.
        let json = r#"{"version": 3, "sources": ["a.ts", "b.ts"], "mappings": "AAAA,QCEA;;IADA"}"#;
        let map = SourceMap::parse(json).unwrap();

        assert_eq!(map.place(1, 1), Some(("a.ts", 1)));
        assert_eq!(map.place(1, 8), Some(("a.ts", 1)));
        assert_eq!(map.place(1, 9), Some(("b.ts", 3)));
        assert_eq!(map.place(2, 1), None);
        assert_eq!(map.place(3, 1), Some(("b.ts", 2)));
        assert_eq!(map.place(4, 1), None);
        assert_eq!(map.place(0, 1), None);
    }

    #[test]
    fn numbers_are_signed_and_of_any_length() {
        assert_eq!(decode("ACDgB"), Some(vec![0, 1, -1, 16]));
        assert_eq!(decode("A!"), None);
    }

    #[test]
    fn sources_are_renamed() {
        let map = SourceMap::parse(r#"{"sources": ["../x.ts"], "mappings": "AAAA"}"#).unwrap();
        let map = map.with_sources(|source| source.replace("../", ""));

        assert_eq!(map.to_json(), r#"{"sources":["x.ts"],"mappings":"AAAA"}"#);
    }
}
