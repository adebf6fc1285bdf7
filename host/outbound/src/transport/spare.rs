//! A buffer that a thread sent a request from, for its next one: in memory that the processor has at hand,
//! where a new one of that size is mapped, and is in no cache.

use std::cell::Cell;

/// One that has more is given back. Each thread of the runtime keeps one.
const BYTES_MAX: usize = 256 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An empty buffer with room for so many bytes.
pub(super) fn take(bytes: usize) -> Vec<u8> {
    let spare = SPARE.take();
    if spare.capacity() < bytes { Vec::with_capacity(bytes) } else { spare }
}

/// Keeps a buffer for the next request, if it is the larger one.
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
    fn a_buffer_is_empty_and_used_again_unless_it_is_large() {
        let mut first = take(1000);
        first.extend_from_slice(b"a key");
        let place = first.as_ptr();
        give(first);
        give(Vec::new());
        let again = take(10);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        let other = take(10);
        assert_ne!(other.as_ptr(), place, "it is given to one at a time");
        give(again);
        assert!(take(2000).capacity() >= 2000);
        give(Vec::with_capacity(BYTES_MAX + 1));
        assert!(take(0).capacity() <= BYTES_MAX);
    }
}
