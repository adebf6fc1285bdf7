//! Text of guests in a form that is safe to display.

use std::fmt;
use std::time::Duration;

/// Returns the text with control characters escaped, so that it cannot control a terminal. Tabs and line breaks stay.
pub fn printable(text: &str) -> String {
    let drives = |c: char| c.is_control() && c != '\t' && c != '\n';
    if !text.contains(drives) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if drives(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// A writer of one line that cannot control a terminal: line breaks, control characters and characters that change
/// the writing direction are escaped. Tabs stay.
pub struct OneLine<W>(pub W);

impl<W: fmt::Write> fmt::Write for OneLine<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_escaped(*c)) {
            self.0.write_str(&text[plain..at])?;
            write!(self.0, "{}", c.escape_default())?;
            plain = at + c.len_utf8();
        }
        self.0.write_str(&text[plain..])
    }
}

fn is_escaped(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || matches!(c, '\u{2028}' | '\u{2029}') || c.is_control() && c != '\t'
}

/// Returns at most `bytes_max` bytes from the beginning, with the number of omitted bytes.
pub fn beginning(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}… ({} bytes more)", &text[..end], text.len() - end)
}

/// Returns at most `bytes_max` bytes from the beginning and the end, with the number of omitted bytes. Serves texts whose
/// last words matter, such as reasons.
pub fn both_ends(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let (mut end, mut start) = (bytes_max / 2, text.len() - bytes_max / 2);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    while !text.is_char_boundary(start) {
        start += 1;
    }
    format!("{}… ({} bytes more) …{}", &text[..end], start - end, &text[start..])
}

/// Returns a duration for display: `250 ms`, `1.5 s`.
pub fn time(time: Duration) -> String {
    let (secs, ms) = (time.as_secs_f64(), time.as_secs_f64() * 1e3);
    if time < Duration::from_secs(1) { format!("{} ms", rounded(ms)) } else { format!("{} s", rounded(secs)) }
}

/// Returns a number as JSON and Python write it, with a decimal: `30.0`.
pub fn decimal(number: f64) -> String {
    format!("{number:?}") // not shown as Rust's `Debug`, but in the form of JSON
}

/// Returns a number with at most two decimals and no trailing zeros.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Returns the message about an unknown name, with a suggestion.
pub fn no_such(name: &str, known: &[&str]) -> String {
    let near = known.iter().find(|known| is_near(name, known));
    match (near, known.is_empty()) {
        (Some(near), _) => format!("there is no such setting; did you mean {near}?"),
        (None, true) => "there is no such setting; there are none here".to_owned(),
        (None, false) => format!("there is no such setting; there are: {}", known.join(", ")),
    }
}

/// Returns whether two names differ by a letter or two, or by `-` for `_`.
fn is_near(a: &str, b: &str) -> bool {
    /// Maximum length of the compared beginnings, which bounds the time.
    const CHARS_MAX: usize = 64;
    let letters =
        |text: &str| text.to_lowercase().replace('-', "_").chars().take(CHARS_MAX).collect::<Vec<_>>();
    let (a, b) = (letters(a), letters(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()] <= if b.len() < 5 { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        fn check(text: &str, expected: &str) {
            assert_eq!(printable(text), expected);
        }
        check("plain\té\n", "plain\té\n");
        check("\u{1b}[2J\r", "\\u{1b}[2J\\r");
        check("\u{9b}1m", "\\u{9b}1m");
    }

    #[test]
    fn a_shortened_text_has_the_number_of_omitted_bytes() {
        assert_eq!(beginning("short", 5), "short");
        assert_eq!(beginning("aéb", 2), "a… (3 bytes more)");
        assert_eq!(both_ends("short", 5), "short");
        assert_eq!(both_ends("one éé two", 8), "one … (4 bytes more) … two");
        assert_eq!(both_ends("éé", 2), "… (4 bytes more) …");
    }

    #[test]
    fn a_time_has_its_unit() {
        assert_eq!(time(Duration::from_millis(250)), "250 ms");
        assert_eq!(time(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(time(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(time(Duration::from_secs(600)), "600 s");
        assert_eq!(time(Duration::ZERO), "0 ms");
    }

    #[test]
    fn the_message_about_an_unknown_name_suggests_a_similar_one() {
        let known = ["listen", "queue-max"];
        let near = "there is no such setting; did you mean queue-max?";
        assert_eq!(no_such("queue_mx", &known), near);
        assert_eq!(no_such("other", &known), "there is no such setting; there are: listen, queue-max");
        assert_eq!(no_such("other", &[]), "there is no such setting; there are none here");
    }

    #[test]
    fn a_typing_error_is_distinguished_from_another_word() {
        fn check(a: &str, b: &str, near: bool) {
            assert_eq!(is_near(a, b), near, "{a} {b}");
        }
        check("max_turn", "max_turns", true);
        check("max-turns", "max_turns", true);
        check("maxturns", "max_turns", true);
        check("temperture", "temperature", true);
        check("depth", "name", false);
        check("a", "b", true);
        check("", "model", false);
    }
}
