//! Extraction of answers from a model's text.
//!
//! All functions are pure. An ambiguous text gives `None`, because a grader that guesses trains the wrong
//! behaviour.

/// Returns the text after the last `marker` on its line, trimmed. Returns `None` if there is no marker or
/// nothing follows it.
///
/// ```
/// use rollout_sdk::answer_after;
///
/// assert_eq!(answer_after("6 * 7 is 42.\n#### 42\n", "####"), Some("42"));
/// assert_eq!(answer_after("42", "####"), None);
/// ```
pub fn answer_after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    let (_, after) = text.rsplit_once(marker)?;
    let line = after.trim_start().lines().next()?.trim();
    Some(line).filter(|line| !line.is_empty())
}

/// Parses a number and ignores its formatting: surrounding white space, `*`, `` ` `` and `$`, commas or
/// spaces as separators of thousands, a full stop at the end, and the sign before or after the `$`. Returns
/// `None` for any other text and for infinite numbers.
///
/// ```
/// use rollout_sdk::parse_number;
///
/// assert_eq!(parse_number(" $1,234.50 "), Some(1234.5));
/// assert_eq!(parse_number("about 12"), None);
/// ```
pub fn parse_number(text: &str) -> Option<f64> {
    let around = |c: char| c.is_whitespace() || matches!(c, '*' | '`' | '$');
    let text = text.trim_matches(around).trim_end_matches('.');
    let text = text.trim_matches(around);
    let (negative, digits) = match text.strip_prefix(['-', '\u{2212}']) {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = join_thousands(digits.trim_start_matches(around))?;
    // `f64` also parses words such as `inf`, which are not answers.
    let plain = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    let value: f64 = plain.then(|| digits.parse().ok())??;
    value.is_finite().then_some(if negative { -value } else { value })
}

/// Returns whether two texts are the same number, up to formatting and the rounding of double precision. A
/// text that is not a number equals nothing.
pub fn same_number(a: &str, b: &str) -> bool {
    let (Some(a), Some(b)) = (parse_number(a), parse_number(b)) else {
        return false;
    };
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Removes separators of thousands. Returns `None` if a comma or a space occurs elsewhere, because `1, 2` is
/// not 12 and `1,5` may mean one and a half.
fn join_thousands(text: &str) -> Option<String> {
    let separator = |c: char| matches!(c, ',' | ' ' | '\u{a0}' | '\u{2009}' | '\u{202f}');
    let (whole, rest) = match text.find(['.', 'e', 'E']) {
        Some(end) => text.split_at(end),
        None => (text, ""),
    };
    let mut groups = whole.split(separator);
    let first = groups.next()?;
    let mut joined = first.to_owned();
    for group in groups {
        let of_three = group.len() == 3 && group.bytes().all(|b| b.is_ascii_digit());
        if !of_three || !(1..=3).contains(&first.len()) {
            return None;
        }
        joined.push_str(group);
    }
    joined.push_str(rest);
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_the_last_marker_on_its_line() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(answer_after(text, "####"), expected, "{text:?}");
        };

        check("#### 42", Some("42"));
        check("#### 1\nno, wait\n####2\nThat is it.", Some("2"));
        check("####\n 7 \n", Some("7"));
        check("nothing", None);
        check("####   ", None);
        check("", None);
    }

    #[test]
    fn numbers_are_parsed_whatever_their_formatting() {
        let check = |text: &str, expected: Option<f64>| {
            assert_eq!(parse_number(text), expected, "{text:?}");
        };

        check("42", Some(42.0));
        check(" -4,659 ", Some(-4659.0));
        check("\u{2212}5", Some(-5.0));
        check("- 5", Some(-5.0));
        check("+5", Some(5.0));
        check("$1,234.50", Some(1234.5));
        check("-$3", Some(-3.0));
        check("$-3", Some(-3.0));
        check("1 000 000", Some(1_000_000.0));
        check("**12**.", Some(12.0));
        check("42.", Some(42.0));
        check(".5", Some(0.5));
        check("1e3", Some(1000.0));
        check("1, 2", None);
        check("1,5", None);
        check("1234,567", None);
        check("1 2", None);
        check("1e999", None);
        check("inf", None);
        check("nan", None);
        check("42 apples", None);
        check("--4", None);
        check("", None);
        check(".", None);
        check("-", None);
    }

    #[test]
    fn numbers_are_compared_by_value() {
        assert!(same_number("1,000", "1000.0"));
        assert!(same_number("0", "-0"));
        assert!(!same_number("1000", "1001"));
        assert!(!same_number("none", "none"));
    }
}
