//! Random ids and tokens that cannot be guessed.

use rollout_wire::digest::hex;

/// Returns `N` random bytes of the operating system.
fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness, ids would collide and tokens could be guessed.
    getrandom::fill(&mut bytes).expect("the operating system provides random bytes");
    bytes
}

/// Returns an id for a request without one: 32 hex digits.
pub(crate) fn id() -> String {
    hex(&bytes::<16>())
}

/// Returns a token: 32 random bytes as 64 hex digits.
pub(crate) fn token() -> String {
    hex(&bytes::<32>())
}

/// Number of characters of a UUID.
pub(crate) const UUID_CHARS: usize = 36;

/// Returns a random UUID of version 4.
pub(crate) fn uuid4() -> String {
    let mut raw = bytes::<16>();
    raw[6] = raw[6] & 0x0f | 0x40;
    raw[8] = raw[8] & 0x3f | 0x80;
    let text = hex(&raw);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}
