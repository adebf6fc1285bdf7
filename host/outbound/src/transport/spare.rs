//! A spare buffer per thread, for the next request. Its memory is in the processor's cache, while a new buffer of that
//! size has to be mapped first.

use std::cell::Cell;

/// Maximum size of a spare buffer; a larger one is freed. Each thread of the runtime has one.
const BYTES_MAX: usize = 256 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns an empty buffer with room for `bytes` bytes.
pub(super) fn take(bytes: usize) -> Vec<u8> {
    let spare = SPARE.take();
    if spare.capacity() < bytes { Vec::with_capacity(bytes) } else { spare }
}

/// Stores a buffer for the next request if it is larger than the spare one.
pub(super) fn give(mut used: Vec<u8>) {
    let spare = SPARE.take();
    let is_kept = (spare.capacity()..=BYTES_MAX).contains(&used.capacity());
    used.clear();
    SPARE.set(if is_kept { used } else { spare });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_reused_empty_unless_it_is_large() {
        let mut first = take(1000);
        first.extend_from_slice(b"a key");
        let address = first.as_ptr();
        give(first);
        give(Vec::new());
        let again = take(10);
        assert_eq!((again.as_ptr(), again.len()), (address, 0));
        let other = take(10);
        assert_ne!(other.as_ptr(), address, "a buffer has one user at a time");
        give(again);
        assert!(take(2000).capacity() >= 2000);
        give(Vec::with_capacity(BYTES_MAX + 1));
        assert!(take(0).capacity() <= BYTES_MAX);
    }
}
