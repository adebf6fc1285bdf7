//! The memory of guests' stacks.
//!
//! A guest has its stack from the engine's pool. It is no memory that the guest asks for, so no limit of the engine sees
//! how much of it the guest wrote to: 12 KiB usually, and the whole of it for a guest that recurses and then waits. The
//! kernel knows which of its pages are resident.

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;

/// Pages that the kernel is asked about at once. A guest that waits usually has a fifth of it.
const PAGES_AT_ONCE: usize = 16;

thread_local! {
    /// An address on the stack of the guest that this thread polls, or 0.
    static SEEN: Cell<usize> = const { Cell::new(0) };
}

/// Notes where the stack is on which this is called. Host functions call it, and a tick of the engine, because both run
/// on the guest's stack.
#[inline(never)]
pub(crate) fn note_place() {
    let here = 0_u8;
    SEEN.set(ptr::from_ref(&here).addr());
}

/// Forgets the noted place, before another guest is polled.
pub(crate) fn forget_place() {
    SEEN.set(0);
}

/// Resident bytes of the stack whose place was noted on this thread since the last [`forget_place`], at most `bytes_max`.
/// `None` if no place was noted or the kernel does not say.
///
/// A stack grows in one direction and lies between pages that no program can touch, so it is the run of resident pages
/// around the place.
pub(crate) fn resident_bytes(bytes_max: usize) -> Option<usize> {
    let place = SEEN.take();
    let page_bytes = reliable_page_bytes()?;
    if place == 0 {
        return None;
    }
    let page = place / page_bytes;
    let pages_max = bytes_max / page_bytes;
    let below = run_length(pages_max, |done| {
        let mut pages = resident(page.checked_sub(done + PAGES_AT_ONCE)?, page_bytes)?;
        pages.reverse();
        Some(pages)
    });
    let above = run_length(pages_max, |done| resident(page + 1 + done, page_bytes));
    Some((below + 1 + above).min(pages_max) * page_bytes)
}

/// Length of a run of resident pages. `next` gives those that follow so many.
fn run_length(pages_max: usize, next: impl Fn(usize) -> Option<[bool; PAGES_AT_ONCE]>) -> usize {
    let mut length = 0;
    while length < pages_max {
        let Some(pages) = next(length) else { break };
        let more = pages.iter().take_while(|page| **page).count();
        length += more;
        if more < PAGES_AT_ONCE {
            break;
        }
    }
    length
}

/// Which of the pages from `first` on are resident. `None` if they are not all mapped.
fn resident(first: usize, page_bytes: usize) -> Option<[bool; PAGES_AT_ONCE]> {
    let mut pages = [0_u8; PAGES_AT_ONCE];
    let start = ptr::without_provenance_mut(first * page_bytes);
    // SAFETY: The call reads no memory of the process, whatever lies at the address, and writes one byte for each page
    // into an array that has as many.
    let result = unsafe { libc::mincore(start, PAGES_AT_ONCE * page_bytes, pages.as_mut_ptr()) };
    (result == 0).then(|| pages.map(|page| page & 1 == 1))
}

/// Bytes of a page. `None` where the kernel does not say the truth about pages: one that stands in for Linux in a sandbox
/// may call each of them resident.
fn reliable_page_bytes() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // SAFETY: The call takes no memory.
        let page_bytes =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|bytes| *bytes > 0)?;
        let bytes = PAGES_AT_ONCE * page_bytes;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: A new mapping at a place that the kernel chooses overlaps no other memory. It is removed below.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: The byte lies in the mapping, which can be written to.
        unsafe { start.cast::<u8>().write_volatile(1) };
        let pages = resident(start.addr() / page_bytes, page_bytes);
        // SAFETY: The mapping was made above, and nothing refers to it.
        unsafe { libc::munmap(start, bytes) };
        let is_true = pages.is_some_and(|pages| pages[0] && !pages[1..].contains(&true));
        is_true.then_some(page_bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK_BYTES: usize = 1 << 20;

    /// Writes to so many bytes of the stack and then does something on top of them.
    fn deep<R>(bytes: usize, then: impl FnOnce() -> R) -> R {
        fn recurse<R>(left: usize, then: impl FnOnce() -> R) -> R {
            let mut frame = [0_u8; 4096];
            std::hint::black_box(&mut frame);
            let result = if left == 0 { then() } else { recurse(left - 1, then) };
            std::hint::black_box(&frame);
            result
        }
        recurse(bytes / 4096, then)
    }

    #[test]
    fn the_pages_that_a_stack_wrote_to_are_counted_after_it_came_back_too() {
        // The thread's own stack is a fresh one, as a guest's is.
        let measured = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(|| {
            forget_place();
            assert_eq!(resident_bytes(STACK_BYTES), None);
            note_place();
            let shallow = resident_bytes(STACK_BYTES).unwrap();
            assert_eq!(resident_bytes(STACK_BYTES), None, "a place is used once");
            let deep_bytes = deep(400 << 10, || {
                note_place();
                resident_bytes(STACK_BYTES).unwrap()
            });
            note_place();
            [shallow, deep_bytes, resident_bytes(STACK_BYTES).unwrap()]
        });
        let [shallow, deep, back] = measured.unwrap().join().unwrap();
        assert!(shallow < 100 << 10, "{shallow}");
        assert!((400 << 10..700 << 10).contains(&deep), "{deep}");
        assert!(back >= deep, "{back} after {deep}");
    }

    #[test]
    fn no_more_is_counted_than_a_stack_has() {
        let measured = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(|| {
            deep(400 << 10, || {
                note_place();
                resident_bytes(64 << 10)
            })
        });
        assert_eq!(measured.unwrap().join().unwrap(), Some(64 << 10));
    }
}
