//! Texts of others in a form that a page can show.

use std::fmt::Write;

use crate::format::bytes;

/// The beginning of a text, with the number of bytes that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The part that is shown.
    pub shown: String,
    /// Number of bytes of the text that are left out.
    pub left_out: usize,
}

impl Text {
    /// Returns at most `bytes_max` bytes of a text.
    pub fn beginning(text: &str, bytes_max: usize) -> Self {
        let mut end = text.len().min(bytes_max);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self { shown: visible(&text[..end]), left_out: text.len() - end }
    }

    /// Returns the number of bytes that are left out, for people.
    pub fn left_out_shown(&self) -> String {
        bytes(self.left_out as u64)
    }

    /// Returns whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.left_out == 0
    }
}

/// The number of bytes that a page has left for texts of others. When they are used up, texts are shortened to their
/// beginnings, so that the size of a page is limited whatever the size of a conversation.
#[derive(Debug)]
pub(crate) struct Room {
    left: usize,
}

impl Room {
    /// Bytes of all texts of a page, besides their beginnings.
    const BYTES: usize = 1 << 20;

    /// Maximum number of bytes of one text.
    const TEXT_BYTES_MAX: usize = 16 << 10;

    /// Number of bytes of a text on a page without room.
    const BEGINNING_BYTES: usize = 200;

    pub(crate) fn new() -> Self {
        Self { left: Self::BYTES }
    }

    /// Takes room for a text and returns the part that fits.
    pub(crate) fn take(&mut self, text: &str) -> Text {
        let bytes_max = Self::TEXT_BYTES_MAX.min(self.left).max(Self::BEGINNING_BYTES);
        let taken = Text::beginning(text, bytes_max);
        self.left = self.left.saturating_sub(taken.shown.len());
        taken
    }
}

/// Returns a text with control characters and characters that change the writing direction as escapes. Tabs and line breaks
/// stay.
pub fn visible(text: &str) -> String {
    if !text.contains(is_invisible) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            c if is_invisible(c) => {
                // Writing to a text does not fail.
                let _ = write!(out, "{}", c.escape_default());
            }
            c => out.push(c),
        }
    }
    out
}

/// Returns whether a character is invisible and changes the text around it.
fn is_invisible(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hides = matches!(c, '\u{200b}' | '\u{2060}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    turns || hides || matches!(c, '\u{2028}' | '\u{2029}') || c.is_control() && c != '\t' && c != '\n'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_drive_the_text_are_shown_as_escapes() {
        fn check(text: &str, expected: &str) {
            assert_eq!(visible(text), expected, "{text:?}");
        }
        check("plain\ttext\nשלום", "plain\ttext\nשלום");
        check("a\r\nb\rc", "a\nb\\rc");
        check("\u{202e}evil\u{2066}", "\\u{202e}evil\\u{2066}");
        check("\u{1b}[2J\u{0}\u{85}", "\\u{1b}[2J\\u{0}\\u{85}");
        check("a\u{200b}b\u{e0041}", "a\\u{200b}b\\u{e0041}");
    }

    #[test]
    fn a_text_is_cut_between_characters_and_a_page_has_a_size() {
        assert_eq!(Text::beginning("ééé", 3), Text { shown: "é".into(), left_out: 4 });
        let (mut room, text) = (Room::new(), "x".repeat(Room::TEXT_BYTES_MAX + 1));
        assert_eq!(room.take(&text).left_out, 1);
        let shown: usize = (0..1000).map(|_| room.take(&text).shown.len()).sum();
        assert!(shown <= Room::BYTES + 1000 * Room::BEGINNING_BYTES, "{shown}");
        assert_eq!(room.take(&text).shown.len(), Room::BEGINNING_BYTES);
    }
}
