//! Secrets, and their removal from responses.
//!
//! A server may repeat the key that it was sent: in an error that quotes the request's headers, in a reply, or in a
//! URL. It may write it in another form. One search finds all forms, for models, judges, callback addresses and
//! host-provided tools.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use memchr::{memchr3, memmem};
use percent_encoding::percent_decode_str;
use reqwest::Url;

/// Replacement of a secret.
const CUT: &[u8] = b"(secret)";

/// Minimum length of a secret that is removed from replies: a placeholder such as `EMPTY` or `test` protects nothing,
/// and models are trained on replies.
const REPLY_SECRET_BYTES_MIN: usize = 8;

/// Minimum length of a secret that is searched for reversed or in another case. A shorter one may be a word.
const RESPELLED_SECRET_BYTES_MIN: usize = 8;

/// Minimum length of a secret that is searched for in base64 or hex. A shorter one would match other text.
const ENCODED_SECRET_BYTES_MIN: usize = 6;

/// Parts of the names of query parameters that carry secrets.
const SECRET_QUERIES: [&str; 5] = ["key", "token", "secret", "password", "sig"];

/// Maximum number of backslashes before one character: a JSON text in a JSON text in a JSON text needs seven.
const BACKSLASHES_MAX: usize = 15;

/// A secret. Its debug output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// Returns the secret, for the header or for a comparison.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A set of secrets to remove from responses.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    /// Returns the secrets in a URL: its password, and query parameters with the name of a secret.
    pub(crate) fn from_url(url: &Url) -> Self {
        let mut secrets = Self::default();
        if let Some(password) = url.password() {
            secrets.add(&percent_decode_str(password).decode_utf8_lossy());
        }
        for (name, value) in url.query_pairs() {
            let name = name.to_ascii_lowercase();
            if SECRET_QUERIES.iter().any(|part| name.contains(part)) {
                secrets.add(&value);
            }
        }
        secrets
    }

    /// Adds a secret.
    pub(crate) fn add(&mut self, secret: &str) {
        let secret = Secret::new(secret);
        if !secret.expose().is_empty() && !self.0.contains(&secret) {
            self.0.push(secret);
        }
        // A longer secret may contain a shorter one and must be removed first.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    }

    /// Removes the secrets from a text, such as an error message or a tool's result.
    pub(crate) fn cut_from(&self, text: String) -> String {
        match self.cut(text.as_bytes(), 1) {
            None => text,
            // Removal keeps whole characters, unless a secret is a part of one.
            Some(cut) => String::from_utf8_lossy(&cut).into_owned(),
        }
    }

    /// Removes the secrets from a model's reply or a caller's response, if they are long enough. Both are data, and the
    /// removal of a key of one letter would corrupt them.
    pub(crate) fn cut_from_reply(&self, body: Bytes) -> Bytes {
        self.cut(&body, REPLY_SECRET_BYTES_MIN).map_or(body, Bytes::from)
    }

    /// Removes the secrets of at least this length. Returns `None` if the bytes contain none.
    fn cut(&self, bytes: &[u8], secret_bytes_min: usize) -> Option<Vec<u8>> {
        let mut cut: Option<Vec<u8>> = None;
        for secret in self.0.iter().filter(|secret| secret.expose().len() >= secret_bytes_min) {
            let secret = secret.expose().as_bytes();
            cut = without_escaped(cut.as_deref().unwrap_or(bytes), secret).or(cut);
            // The escaped search may miss the literal form of a secret that contains an escape itself.
            if secret.iter().any(|byte| matches!(byte, b'%' | b'\\')) {
                cut = without(cut.as_deref().unwrap_or(bytes), secret).or(cut);
            }
            for form in respelled_forms(secret) {
                cut = without(cut.as_deref().unwrap_or(bytes), &form).or(cut);
            }
            cut = without_encoded(cut.as_deref().unwrap_or(bytes), secret).or(cut);
        }
        cut
    }
}

/// Returns the reversed secret, and both in upper and lower case.
fn respelled_forms(secret: &[u8]) -> Vec<Vec<u8>> {
    if secret.len() < RESPELLED_SECRET_BYTES_MIN {
        return Vec::new();
    }
    // Multi-byte characters are reversed as characters.
    let reversed = match std::str::from_utf8(secret) {
        Ok(text) => text.chars().rev().collect::<String>().into_bytes(),
        Err(_) => secret.iter().rev().copied().collect(),
    };
    let mut forms = Vec::with_capacity(5);
    for form in [secret, &reversed] {
        for form in [form.to_vec(), form.to_ascii_uppercase(), form.to_ascii_lowercase()] {
            if form != secret && !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms
}

/// Removes all occurrences of `form`. Returns `None` if there are none.
fn without(bytes: &[u8], form: &[u8]) -> Option<Vec<u8>> {
    let mut rest: Option<Vec<u8>> = None;
    let mut from = 0;
    for at in memmem::find_iter(bytes, form) {
        let rest = rest.get_or_insert_default();
        rest.extend_from_slice(&bytes[from..at]);
        rest.extend_from_slice(CUT);
        from = at + form.len();
    }
    rest.map(|rest| [rest.as_slice(), &bytes[from..]].concat())
}

/// Removes the secret where it is part of encoded data. Returns `None` if there is none.
fn without_encoded(bytes: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    // Few replies have words that are long enough, and computing the encoded forms takes longer than this search.
    let mut words = words_of(bytes, encoded_bytes_min(secret)).peekable();
    words.peek()?;
    let forms = encoded_forms(secret);
    words.find(|word| forms.iter().any(|form| memmem::find(word, form).is_some()))?;
    let mut cut: Option<Vec<u8>> = None;
    for form in forms {
        cut = without(cut.as_deref().unwrap_or(bytes), &form).or(cut);
    }
    cut
}

/// Iterates over the words of at least `length_min` characters of base64 or hex.
fn words_of(bytes: &[u8], length_min: usize) -> impl Iterator<Item = &[u8]> {
    let is_of_a_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            // The last character outside the alphabet determines where the next word may start.
            match bytes.get(from..from + length_min)?.iter().rposition(|byte| !is_of_a_word(byte)) {
                Some(at) => from += at + 1,
                None => {
                    let rest = &bytes[from..];
                    let word =
                        &rest[..rest.iter().position(|byte| !is_of_a_word(byte)).unwrap_or(rest.len())];
                    from += word.len();
                    return Some(word);
                }
            }
        }
    })
}

/// Removes the secret. Each byte of it may be literal, escaped as in JSON (also as in nested JSON texts), or
/// percent-encoded, in any mixture.
fn without_escaped(bytes: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let first = *secret.first()?;
    let mut rest: Option<Vec<u8>> = None;
    let (mut from, mut at) = (0, 0);
    while let Some(next) = memchr3(first, b'\\', b'%', &bytes[at..]) {
        at += next;
        match end_of(&bytes[at..], secret) {
            Some(length) => {
                let rest = rest.get_or_insert_default();
                rest.extend_from_slice(&bytes[from..at]);
                rest.extend_from_slice(CUT);
                at += length;
                from = at;
            }
            None => at += 1,
        }
    }
    rest.map(|rest| [rest.as_slice(), &bytes[from..]].concat())
}

/// Returns the length of the secret's occurrence at the start of the bytes, if there is one.
fn end_of(bytes: &[u8], secret: &[u8]) -> Option<usize> {
    let (mut at, mut left) = (0, secret);
    while let Some(&wanted) = left.first() {
        // A literal byte has precedence. A secret that contains a backslash or a percent sign is found in escaped form,
        // too.
        if bytes.get(at) == Some(&wanted)
            && !(matches!(wanted, b'\\' | b'%') && is_escape_of(&bytes[at..], left))
        {
            (at, left) = (at + 1, &left[1..]);
            continue;
        }
        let (length, text) = escape(&bytes[at..])?;
        left = left.strip_prefix(text.as_bytes())?;
        at += length;
    }
    Some(at)
}

/// Returns whether the bytes start with an escape that means the next part of the secret, and are not the literal
/// secret.
fn is_escape_of(bytes: &[u8], secret: &[u8]) -> bool {
    escape(bytes).is_some_and(|(length, text)| {
        secret.starts_with(text.as_bytes()) && !secret.starts_with(&bytes[..length])
    })
}

/// The unescaped bytes of an escape, and their number.
struct Unescaped([u8; 4], usize);

impl Unescaped {
    fn of(c: char) -> Self {
        let mut bytes = [0; 4];
        let length = c.encode_utf8(&mut bytes).len();
        Self(bytes, length)
    }

    fn byte(byte: u8) -> Self {
        Self([byte, 0, 0, 0], 1)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

/// Parses the escape at the start of the bytes. Returns its length and its meaning.
fn escape(bytes: &[u8]) -> Option<(usize, Unescaped)> {
    if let [b'%', high, low, ..] = bytes {
        let byte = hex(&[*high, *low])?;
        return Some((3, Unescaped::byte(u8::try_from(byte).ok()?)));
    }
    let backslashes = bytes.iter().take(BACKSLASHES_MAX + 1).take_while(|byte| **byte == b'\\').count();
    if !(1..=BACKSLASHES_MAX).contains(&backslashes) {
        return None;
    }
    let plain = |byte| Some((backslashes + 1, Unescaped::byte(byte)));
    match bytes.get(backslashes) {
        Some(b'u') => unicode_escape(&bytes[backslashes + 1..])
            .map(|(length, c)| (backslashes + 1 + length, Unescaped::of(c))),
        Some(b'n') => plain(b'\n'),
        Some(b't') => plain(b'\t'),
        Some(byte @ (b'"' | b'/' | b'\'')) => plain(*byte),
        // Escaped backslashes, followed by another character.
        _ if backslashes % 2 == 0 => Some((backslashes, Unescaped::byte(b'\\'))),
        _ => None,
    }
}

/// Parses four hex digits as a character, or as the first half of a surrogate pair with a second escape.
fn unicode_escape(digits: &[u8]) -> Option<(usize, char)> {
    let unit = hex(digits.get(..4)?)?;
    if let Some(c) = char::from_u32(unit) {
        return Some((4, c));
    }
    let rest = &digits[4..];
    let backslashes = rest.iter().take(BACKSLASHES_MAX).take_while(|byte| **byte == b'\\').count();
    let low = rest[backslashes..].strip_prefix(b"u")?;
    let units = [u16::try_from(unit).ok()?, u16::try_from(hex(low.get(..4)?)?).ok()?];
    let c = char::decode_utf16(units).next()?.ok()?;
    Some((4 + backslashes + 5, c))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}

/// Returns the forms of a secret inside encoded data, such as a header of basic authentication: in base64 at each of
/// three alignments, and in hex.
fn encoded_forms(secret: &[u8]) -> Vec<Vec<u8>> {
    if secret.len() < ENCODED_SECRET_BYTES_MIN {
        return Vec::new();
    }
    let bases = (0..3).flat_map(|shift| {
        let standard = base64_within(secret, shift, &STANDARD_NO_PAD);
        let url_safe = Some(base64_within(secret, shift, &URL_SAFE_NO_PAD)).filter(|form| *form != standard);
        [Some(standard), url_safe].into_iter().flatten()
    });
    let lower: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let upper = Some(lower.to_uppercase()).filter(|upper| *upper != lower);
    bases.chain([Some(lower.into_bytes()), upper.map(String::into_bytes)].into_iter().flatten()).collect()
}

/// Returns the length of the shortest encoded form.
fn encoded_bytes_min(secret: &[u8]) -> usize {
    (0..3).map(|shift| base64_place(secret, shift).len()).min().unwrap_or_default().max(1)
}

/// Returns the base64 characters that do not depend on the bytes around the secret, if the secret starts `shift` bytes
/// after a multiple of three.
fn base64_within(secret: &[u8], shift: usize, alphabet: &GeneralPurpose) -> Vec<u8> {
    let shifted: Cow<'_, [u8]> = [&[0; 3][..shift], secret].concat().into();
    let text = alphabet.encode(&shifted);
    text.as_bytes()[base64_place(secret, shift)].to_vec()
}

/// Returns the range of the base64 characters that do not depend on the bytes around the secret. It is counted from the
/// multiple of three before the secret.
fn base64_place(secret: &[u8], shift: usize) -> Range<usize> {
    (shift * 8).div_ceil(6)..(shift + secret.len()) * 8 / 6
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};

    use super::*;

    fn cut(secret: &str, text: &str) -> String {
        let mut secrets = Secrets::default();
        secrets.add(secret);
        secrets.cut_from(text.to_owned())
    }

    #[test]
    fn a_secret_is_removed_in_every_form() {
        let mut secrets = Secrets::default();
        secrets.add("a\"b/c");
        secrets.add("a\"b/c-and-more");
        let text = r#"a"b/c-and-more a"b/c a%22b%2Fc a\"b/c fine"#.to_owned();
        assert_eq!(secrets.cut_from(text), "(secret) (secret) (secret) (secret) fine");
    }

    #[test]
    fn each_character_may_be_escaped_separately() {
        fn check(secret: &str, text: &str) {
            assert_eq!(cut(secret, &format!("<{text}>")), "<(secret)>", "{secret} in {text}");
        }
        let key = "sk-Key/1+2=";
        check(key, key);
        check(key, r"\u0073\u006B\u002d\u004bey\/1\u002B2=");
        check(key, r"\\u0073k-Key\\/1+2\\\u003d");
        check(key, r"%73k%2DKey%2f1%2B2%3D");
        check(key, r"sk-Key\u002F1%2b2=");
        check("é\u{1f600}x", r"\u00e9\ud83d\ude00x");
        check("é\u{1f600}x", r"%C3%A9\\ud83d\\uDE00x");
        check("%41b", "%41b");
        check("%41b", "%2541b");
        check("100%", "100%25");
        check(r"a\b", r"a\b");
        check(r"a\b", r"a\\b");
        check(r"a\b", r"a\\\\b");
        check("a\tb", r"a\tb");
        // The end of the secret looks like the start of an escape.
        assert_eq!(cut("a%2", "a%25"), "(secret)5");
    }

    #[test]
    fn a_secret_is_found_inside_encoded_data() {
        let key = "sk-A?>key~ÿ123456";
        for prefix in ["", "x", "Bearer ", "user:", "ab"] {
            for suffix in ["", "y", "zz", "zzz"] {
                let whole = format!("{prefix}{key}{suffix}");
                for encoded in [
                    BASE64_STANDARD.encode(&whole),
                    BASE64_URL_SAFE_NO_PAD.encode(&whole),
                    whole.bytes().map(|byte| format!("{byte:02x}")).collect(),
                    whole.bytes().map(|byte| format!("{byte:02X}")).collect(),
                ] {
                    let cut = cut(key, &encoded);
                    assert!(cut.contains("(secret)"), "{encoded}: {cut}");
                    let rest_max = 2 * (prefix.len() + suffix.len()) + 8;
                    assert!(cut.len() <= "(secret)".len() + rest_max, "{encoded}: {cut}");
                }
            }
        }
    }

    #[test]
    fn a_secret_is_found_reversed_and_in_upper_or_lower_case() {
        let key = "sk-Key/1+2=é";
        for text in ["SK-KEY/1+2=é", "sk-key/1+2=é", "é=2+1/yeK-ks", "é=2+1/YEK-KS", "é=2+1/yek-ks"] {
            assert_eq!(cut(key, &format!("<{text}>{text}")), "<(secret)>(secret)", "{text}");
        }
        assert_eq!(cut("test", "TEST tset"), "TEST tset", "it may be a word");
        assert_eq!(respelled_forms(b"12344321").len(), 0, "all forms are equal");
    }

    #[test]
    fn words_are_the_parts_that_may_contain_an_encoded_secret() {
        fn words(text: &str, length_min: usize) -> Vec<&str> {
            let words = words_of(text.as_bytes(), length_min);
            words.map(|word| std::str::from_utf8(word).unwrap()).collect()
        }
        assert_eq!(words("", 4), [""; 0]);
        assert_eq!(words("abc abcd\"ab-cd_e+/=abcd", 4), ["abcd", "ab-cd_e+/", "abcd"]);
        assert_eq!(words("abcd", 4), ["abcd"]);
        assert_eq!(words("abcd,abc", 4), ["abcd"]);
        assert_eq!(words("a b c d e f", 1), ["a", "b", "c", "d", "e", "f"]);
        for length in 6..40 {
            let secret = vec![b'k'; length];
            let shortest = encoded_forms(&secret).iter().map(Vec::len).min();
            assert_eq!(Some(encoded_bytes_min(&secret)), shortest, "{length}");
        }
    }

    #[test]
    fn secrets_in_a_url_are_removed() {
        let url = Url::parse("https://user:p%2Fw@h/v1?api-key=k1&X-Sig=k2&api-version=2024-02-01").unwrap();
        let text = "p/w k1 k2 user 2024-02-01".to_owned();
        assert_eq!(Secrets::from_url(&url).cut_from(text), "(secret) (secret) (secret) user 2024-02-01");
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in
            ["", "sk-Kez", r"\u0073\u006", r"\", "%", "%7", r"\ud83d\u0041 \ud83d", "sk-\u{fffd}", "\\\\\\"]
        {
            assert_eq!(cut("sk-Key", text), text);
        }
    }

    #[test]
    fn a_placeholder_is_not_removed_from_a_reply() {
        let mut secrets = Secrets::default();
        secrets.add("EMPTY");
        secrets.add("longer-key");
        let reply = Bytes::from_static(b"the set is EMPTY, longer-key");
        assert_eq!(secrets.cut_from_reply(reply.clone()), "the set is EMPTY, (secret)");
        let message = String::from_utf8(reply.to_vec()).unwrap();
        assert_eq!(secrets.cut_from(message), "the set is (secret), (secret)");
        let untouched = Bytes::from_static(b"nothing");
        assert_eq!(
            secrets.cut_from_reply(untouched.clone()).as_ptr(),
            untouched.as_ptr(),
            "it is not copied"
        );
    }
}
