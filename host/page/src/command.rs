//! Commands to copy.

use std::fmt::Write;

/// Returns a text as one word of a shell.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if text.chars().all(|c| c == ' ' || c.is_ascii_graphic() && c != '\'') {
        return format!("'{text}'");
    }
    // The form of bash and zsh in which every character can be written as an escape.
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric() => word.push(c),
            c => {
                // Writing to a text does not fail.
                let _ = write!(word, "\\U{:08x}", u32::from(c));
            }
        }
    }
    word.push('\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_word_of_a_shell() {
        fn check(text: &str, expected: &str) {
            assert_eq!(shell_word(text), expected);
        }
        check("row-00007-run-0", "row-00007-run-0");
        check("a b;rm -rf $HOME", "'a b;rm -rf $HOME'");
        check("it's", "$'it\\'s'");
        check("a\n\u{202e}é", "$'a\\U0000000a\\U0000202eé'");
        check("", "''");
    }
}
