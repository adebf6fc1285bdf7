//! Text that came from a guest, made fit for people's eyes.

/// The text with control characters escaped, so that it cannot drive the terminal of
/// whoever reads it. Tabs and line breaks stay.
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

/// At most so many bytes from the beginning, and how many were left out.
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
    fn a_long_text_says_how_much_is_missing() {
        assert_eq!(beginning("short", 5), "short");
        assert_eq!(beginning("aéb", 2), "a… (3 bytes more)");
    }
}
