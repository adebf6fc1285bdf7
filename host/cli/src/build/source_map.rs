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

impl Segment {
    /// Advances to the next segment of a mapping, and returns it if it has a source.
    fn next(&mut self, text: &str) -> Option<Self> {
        let numbers = decode(text)?;
        self.column += numbers.first()?;
        let [_, source, line, ..] = numbers[..] else { return None };
        self.source += source;
        self.line += line;
        Some(*self)
    }
}

impl SourceMap {
    pub(super) fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Renames the sources.
    pub(super) fn with_sources(self, rename: impl Fn(&str) -> String) -> Self {
        Self { sources: self.sources.iter().map(|source| rename(source)).collect(), ..self }
    }

    /// Returns a smaller map that still names files and lines: without columns in the sources, and without lines in
    /// hidden sources.
    pub(super) fn reduced(self, is_hidden: impl Fn(&str) -> bool) -> Self {
        let hidden: Vec<bool> = self.sources.iter().map(|source| is_hidden(source)).collect();
        let is_hidden = |segment: &Segment| {
            usize::try_from(segment.source)
                .ok()
                .and_then(|source| hidden.get(source))
                .copied()
                .unwrap_or(false)
        };
        let (mut mappings, mut last) = (String::with_capacity(self.mappings.len()), Segment::default());
        let mut previous = Segment::default();
        for (index, text) in self.mappings.split(';').enumerate() {
            if index > 0 {
                mappings.push(';');
            }
            last.column = 0;
            previous.column = 0;
            let mut written: Option<Segment> = None;
            for text in text.split(',') {
                let Some(segment) = last.next(text) else { continue };
                let is_same = |written: Segment| {
                    written.source == segment.source && written.line == segment.line
                        || is_hidden(&written) && is_hidden(&segment)
                };
                if written.is_some_and(is_same) {
                    continue;
                }
                let shown = if is_hidden(&segment) { Segment { line: 0, ..segment } } else { segment };
                if written.is_some() {
                    mappings.push(',');
                }
                let numbers = [
                    shown.column - previous.column,
                    shown.source - previous.source,
                    shown.line - previous.line,
                    0,
                ];
                numbers.iter().for_each(|number| encode(*number, &mut mappings));
                (previous, written) = (shown, Some(shown));
            }
        }
        Self { mappings, ..self }
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
            let segments = text.split(',').filter_map(|segment| last.next(segment)).collect();
            if index == line {
                return Some(segments);
            }
        }
        None
    }
}

const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes a number of base 64; see [`decode`].
fn encode(number: i64, text: &mut String) {
    let mut rest = number.unsigned_abs() << 1 | u64::from(number < 0);
    loop {
        let more = if rest >= 32 { 32 } else { 0 };
        let digit = usize::try_from(rest & 31 | more).unwrap_or_default();
        text.push_str(&DIGITS[digit..=digit]);
        rest >>= 5;
        if rest == 0 {
            return;
        }
    }
}

/// Decodes numbers of base 64, each of digits of 5 bits with the least significant first.
fn decode(segment: &str) -> Option<Vec<i64>> {
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
    fn a_reduced_map_names_the_same_files_and_lines() {
        // Line 1: a.ts:1 at columns 0 and 4, a.ts:2 at 8, sdk.js:1 at 12, sdk.js:9 at 16, a.ts:3 at 20. Line 3:
        // sdk.js:2 at 0.
        let mut mappings = String::new();
        let mut last = [0; 4];
        let segments: [(i64, i64, i64); 6] =
            [(0, 0, 0), (4, 0, 0), (8, 0, 1), (12, 1, 0), (16, 1, 8), (20, 0, 2)];
        for (column, source, line) in segments {
            let next = [column, source, line, 7];
            next.iter().zip(last).for_each(|(next, last)| encode(next - last, &mut mappings));
            mappings.push(',');
            last = next;
        }
        mappings += ";;";
        [0, 1, -1, -7].iter().for_each(|number| encode(*number, &mut mappings));
        let map = || SourceMap {
            sources: vec!["a.ts".to_owned(), "sdk.js".to_owned()],
            mappings: mappings.clone(),
        };

        let reduced = map().reduced(|source| source == "sdk.js");

        assert_eq!(reduced.mappings.split([',', ';']).filter(|segment| !segment.is_empty()).count(), 5);
        for (line, column) in
            [(1, 1), (1, 5), (1, 9), (1, 10), (1, 13), (1, 17), (1, 21), (1, 99), (2, 1), (3, 1)]
        {
            let (full, found) = (map(), reduced.place(line, column));
            let expected = full.place(line, column);
            assert_eq!(found.map(|(file, _)| file), expected.map(|(file, _)| file), "{line}:{column}");
            if found.is_some_and(|(file, _)| file == "a.ts") {
                assert_eq!(found, expected, "{line}:{column}");
            }
        }
    }

    #[test]
    fn numbers_are_signed_and_of_any_length() {
        for number in [0, 1, -1, 15, 16, -16, 31, 32, 1023, -123_456_789] {
            let mut text = String::new();
            encode(number, &mut text);
            assert_eq!(decode(&text), Some(vec![number]));
        }
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
