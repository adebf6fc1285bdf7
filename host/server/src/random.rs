//! Ids and tokens that nobody can guess.

use rollout_wire::digest::hex;

/// `N` bytes from the operating system.
fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness from the kernel nothing here could be kept apart safely.
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// An id where nobody gave one: 32 hex digits.
pub(crate) fn id() -> String {
    hex(&bytes::<16>())
}

/// A token: 32 random bytes as hex.
pub(crate) fn token() -> String {
    hex(&bytes::<32>())
}

/// A random UUID, version 4.
pub(crate) fn uuid4() -> String {
    let mut raw = bytes::<16>();
    raw[6] = raw[6] & 0x0f | 0x40;
    raw[8] = raw[8] & 0x3f | 0x80;
    let text = hex(&raw);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}
