//! Keys, and how they are cut out of whatever comes back from where they were sent.
//!
//! A server that is given a key may repeat it: in a refusal that quotes the request's headers,
//! in a reply, in an address. It may write it in another form than it was given in. One search
//! finds all of them, for models, judges, callback addresses and host-provided tools alike.

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

/// What stands where a secret was.
const CUT: &[u8] = b"(secret)";

/// Shorter than this nothing is searched for in a reply: a placeholder such as `EMPTY` or
/// `test` protects nothing, and a reply is what a model is trained on.
const REPLY_SECRET_BYTES_MIN: usize = 8;

/// Shorter than this a secret is not searched for reversed or in another case, where it may be a word.
const RESPELLED_SECRET_BYTES_MIN: usize = 8;

/// Shorter than this a secret has no form in base64 or hex that means it and nothing else.
const ENCODED_SECRET_BYTES_MIN: usize = 6;

/// Parts of the names by which queries carry keys.
const SECRET_QUERIES: [&str; 5] = ["key", "token", "secret", "password", "sig"];

/// Backslashes in front of one character: JSON in a JSON string in a JSON string needs seven.
const BACKSLASHES_MAX: usize = 15;

/// A key. It shows itself to nobody but the header that carries it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key, for the header or for comparing.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What is cut out of answers.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    /// The secrets that are written in an address: its password, and what its query calls one.
    pub(crate) fn of_url(url: &Url) -> Self {
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
        // A longer secret may hold a shorter one, and has to go first.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    }

    /// The text without them: in an error message or a tool's result.
    pub(crate) fn cut_from(&self, text: String) -> String {
        match self.cut(text.as_bytes(), 1) {
            None => text,
            // What is cut out is whole characters, unless somebody's key is half of one.
            Some(cut) => String::from_utf8_lossy(&cut).into_owned(),
        }
    }

    /// A model's reply, or a caller's acknowledgement, without them where they are long enough
    /// to be secrets. Both are data, in which a key of one letter would leave holes.
    pub(crate) fn cut_from_reply(&self, body: Bytes) -> Bytes {
        self.cut(&body, REPLY_SECRET_BYTES_MIN).map_or(body, Bytes::from)
    }

    /// The bytes without secrets of this length and more; none where there are none in them.
    fn cut(&self, bytes: &[u8], secret_bytes_min: usize) -> Option<Vec<u8>> {
        let mut cut: Option<Vec<u8>> = None;
        for secret in self.0.iter().filter(|secret| secret.expose().len() >= secret_bytes_min) {
            let secret = secret.expose().as_bytes();
            cut = without_escaped(cut.as_deref().unwrap_or(bytes), secret).or(cut);
            // Of one that reads as an escape itself, what is written as it is may have been taken for one.
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

/// How a secret looks reversed, or where all of its letters were given one case.
fn respelled_forms(secret: &[u8]) -> Vec<Vec<u8>> {
    if secret.len() < RESPELLED_SECRET_BYTES_MIN {
        return Vec::new();
    }
    // Characters that take several bytes are reversed as characters.
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

/// The bytes without this; none where it is not in them.
fn without(bytes: &[u8], form: &[u8]) -> Option<Vec<u8>> {
    let mut kept: Option<Vec<u8>> = None;
    let mut from = 0;
    for at in memmem::find_iter(bytes, form) {
        let kept = kept.get_or_insert_default();
        kept.extend_from_slice(&bytes[from..at]);
        kept.extend_from_slice(CUT);
        from = at + form.len();
    }
    kept.map(|kept| [kept.as_slice(), &bytes[from..]].concat())
}

/// The bytes without the secret as it is within what was encoded as a whole; none where it is in none.
fn without_encoded(bytes: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    // Few replies have words that are long enough, and what those are compared with takes longer to make.
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

/// What consists of characters of base64 or hex alone and has at least so many of them.
fn words_of(bytes: &[u8], length_min: usize) -> impl Iterator<Item = &[u8]> {
    let is_of_a_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            // The last character that ends a word says where the next one may begin.
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

/// The bytes without the secret, each byte of it as it is, escaped as in JSON (in JSON in
/// JSON), or percent-encoded, in any mixture.
fn without_escaped(bytes: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let first = *secret.first()?;
    let mut kept: Option<Vec<u8>> = None;
    let (mut from, mut at) = (0, 0);
    while let Some(next) = memchr3(first, b'\\', b'%', &bytes[at..]) {
        at += next;
        match end_of(&bytes[at..], secret) {
            Some(length) => {
                let kept = kept.get_or_insert_default();
                kept.extend_from_slice(&bytes[from..at]);
                kept.extend_from_slice(CUT);
                at += length;
                from = at;
            }
            None => at += 1,
        }
    }
    kept.map(|kept| [kept.as_slice(), &bytes[from..]].concat())
}

/// How many bytes a secret takes that begins here, if one does.
fn end_of(bytes: &[u8], secret: &[u8]) -> Option<usize> {
    let (mut at, mut left) = (0, secret);
    while let Some(&wanted) = left.first() {
        // What is written as it is goes first. A secret with a backslash or a percent sign of
        // its own is also found where those are escaped.
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

/// Whether the bytes begin with an escape whose meaning is the next of the secret, and the
/// secret does not go on as the escape is written.
fn is_escape_of(bytes: &[u8], secret: &[u8]) -> bool {
    escape(bytes).is_some_and(|(length, text)| {
        secret.starts_with(text.as_bytes()) && !secret.starts_with(&bytes[..length])
    })
}

/// What bytes begin with.
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

/// The escape that bytes begin with, if they do: its length and what it means.
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
        // Escaped backslashes, and behind them something that is none.
        _ if backslashes % 2 == 0 => Some((backslashes, Unescaped::byte(b'\\'))),
        _ => None,
    }
}

/// The character whose code unit these four digits are, or these and those of a second escape.
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

/// How a secret looks inside of something that was encoded as a whole, such as the header of
/// basic authentication: in base64, where it may begin at any of three places, and in hex.
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

/// How long the shortest of these is.
fn encoded_bytes_min(secret: &[u8]) -> usize {
    (0..3).map(|shift| base64_place(secret, shift).len()).min().unwrap_or_default().max(1)
}

/// The characters that are the same whatever is in front of the secret, `shift` bytes behind a
/// multiple of three, and whatever is behind it.
fn base64_within(secret: &[u8], shift: usize, alphabet: &GeneralPurpose) -> Vec<u8> {
    let shifted: Cow<'_, [u8]> = [&[0; 3][..shift], secret].concat().into();
    let text = alphabet.encode(&shifted);
    text.as_bytes()[base64_place(secret, shift)].to_vec()
}

/// Where these are, counted from that multiple of three.
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
    fn a_secret_is_cut_out_in_every_form() {
        let mut secrets = Secrets::default();
        secrets.add("a\"b/c");
        secrets.add("a\"b/c-and-more");
        let text = r#"a"b/c-and-more a"b/c a%22b%2Fc a\"b/c fine"#.to_owned();
        assert_eq!(secrets.cut_from(text), "(secret) (secret) (secret) (secret) fine");
    }

    #[test]
    fn each_character_may_be_written_in_a_way_of_its_own() {
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
        // Its end reads as the beginning of an escape, with what is behind it.
        assert_eq!(cut("a%2", "a%25"), "(secret)5");
    }

    #[test]
    fn a_secret_is_found_within_what_was_encoded_as_a_whole() {
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
    fn a_secret_is_found_reversed_and_in_one_case() {
        let key = "sk-Key/1+2=é";
        for text in ["SK-KEY/1+2=é", "sk-key/1+2=é", "é=2+1/yeK-ks", "é=2+1/YEK-KS", "é=2+1/yek-ks"] {
            assert_eq!(cut(key, &format!("<{text}>{text}")), "<(secret)>(secret)", "{text}");
        }
        assert_eq!(cut("test", "TEST tset"), "TEST tset", "it may be a word");
        assert_eq!(respelled_forms(b"12344321").len(), 0, "it is the same in every way");
    }

    #[test]
    fn words_are_what_could_hold_an_encoded_secret() {
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
    fn what_an_address_carries_is_a_secret_too() {
        let url = Url::parse("https://user:p%2Fw@h/v1?api-key=k1&X-Sig=k2&api-version=2024-02-01").unwrap();
        let text = "p/w k1 k2 user 2024-02-01".to_owned();
        assert_eq!(Secrets::of_url(&url).cut_from(text), "(secret) (secret) (secret) user 2024-02-01");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in
            ["", "sk-Kez", r"\u0073\u006", r"\", "%", "%7", r"\ud83d\u0041 \ud83d", "sk-\u{fffd}", "\\\\\\"]
        {
            assert_eq!(cut("sk-Key", text), text);
        }
    }

    #[test]
    fn a_placeholder_is_not_searched_for_in_a_reply() {
        let mut secrets = Secrets::default();
        secrets.add("EMPTY");
        secrets.add("longer-key");
        let reply = Bytes::from_static(b"the set is EMPTY, longer-key");
        assert_eq!(secrets.cut_from_reply(reply.clone()), "the set is EMPTY, (secret)");
        let told = String::from_utf8(reply.to_vec()).unwrap();
        assert_eq!(secrets.cut_from(told), "the set is (secret), (secret)");
        let untouched = Bytes::from_static(b"nothing");
        assert_eq!(
            secrets.cut_from_reply(untouched.clone()).as_ptr(),
            untouched.as_ptr(),
            "it is not copied"
        );
    }
}
