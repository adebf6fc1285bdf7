//! Resident memory of guest stacks.
//!
//! A guest's stack comes from the engine's pool and is not part of the guest's own memory, so no limit of the engine
//! counts how much of it the guest has written to: usually 12 KiB, but all of it for a guest that recurses and then
//! waits. The kernel knows which of its pages are resident.

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;

/// Number of pages that one system call queries. A waiting guest usually has a fifth of that.
const PAGES_AT_ONCE: usize = 16;

thread_local! {
    /// An address on the stack of the guest that this thread polls, or 0.
    static SEEN: Cell<usize> = const { Cell::new(0) };
}

/// Stores an address on the current stack. Host functions and the engine's epoch callback call it, because both run on
/// the guest's stack.
#[inline(never)]
pub(crate) fn note_place() {
    let here = 0_u8;
    SEEN.set(ptr::from_ref(&here).addr());
}

/// Clears the stored address before another guest is polled.
pub(crate) fn forget_place() {
    SEEN.set(0);
}

/// Returns the resident bytes of the stack whose address was stored on this thread since the last [`forget_place`], at
/// most `bytes_max`. Returns `None` if no address was stored or the kernel gives no answer.
///
/// A stack is contiguous and lies between guard pages, so its size is that of the run of resident pages around the
/// address.
pub(crate) fn resident_bytes(bytes_max: usize) -> Option<usize> {
    let address = SEEN.take();
    let page_bytes = reliable_page_bytes()?;
    if address == 0 {
        return None;
    }
    let page = address / page_bytes;
    let pages_max = bytes_max / page_bytes;
    let below = run_length(pages_max, |done| {
        let mut pages = resident(page.checked_sub(done + PAGES_AT_ONCE)?, page_bytes)?;
        pages.reverse();
        Some(pages)
    });
    let above = run_length(pages_max, |done| resident(page + 1 + done, page_bytes));
    Some((below + 1 + above).min(pages_max) * page_bytes)
}

/// Returns the length of a run of resident pages. `next` returns the pages that follow the given number of pages.
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

/// Returns which of the pages from `first` on are resident, or `None` if not all are mapped.
fn resident(first: usize, page_bytes: usize) -> Option<[bool; PAGES_AT_ONCE]> {
    let mut pages = [0_u8; PAGES_AT_ONCE];
    let start = ptr::without_provenance_mut(first * page_bytes);
    // SAFETY: the call reads no memory of the process, whatever lies at the address, and writes one byte a page into an
    // array of that length.
    let result = unsafe { libc::mincore(start, PAGES_AT_ONCE * page_bytes, pages.as_mut_ptr()) };
    (result == 0).then(|| pages.map(|page| page & 1 == 1))
}

/// Returns the size of a page in bytes, or `None` if the kernel does not report residency correctly: a sandbox's
/// replacement of Linux may report every page as resident.
fn reliable_page_bytes() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // SAFETY: the call takes no pointer.
        let page_bytes =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|bytes| *bytes > 0)?;
        let bytes = PAGES_AT_ONCE * page_bytes;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory. It is removed below.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the byte lies in the mapping, which is writable.
        unsafe { start.cast::<u8>().write_volatile(1) };
        let pages = resident(start.addr() / page_bytes, page_bytes);
        // SAFETY: the mapping was created above, and nothing refers to it.
        unsafe { libc::munmap(start, bytes) };
        let is_true = pages.is_some_and(|pages| pages[0] && !pages[1..].contains(&true));
        is_true.then_some(page_bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK_BYTES: usize = 1 << 20;

    /// Writes to the given number of bytes of the stack, then calls `then` on top of them.
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

    /// Runs a function on a new stack between guard pages, like a guest's. Other tests determine the mappings beside a usual
    /// thread's stack.
    fn on_a_stack<R: Send>(run: impl FnOnce() -> R + Send) -> R {
        extern "C" fn start<F: FnOnce()>(run: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: it is the function of `on_a_stack`, which is called once.
            unsafe { run.cast::<Option<F>>().as_mut() }.and_then(Option::take).expect("it is given")();
            ptr::null_mut()
        }
        fn create<F: FnOnce() + Send>(run: &mut Option<F>) {
            const GUARD_BYTES: usize = 64 << 10;
            let bytes = STACK_BYTES + 2 * GUARD_BYTES;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping overlaps no other memory. The thread ends before its stack, and before `run`.
            unsafe {
                let mapping = libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
                assert_ne!(mapping, libc::MAP_FAILED);
                let stack = mapping.byte_add(GUARD_BYTES);
                assert_eq!(libc::mprotect(stack, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE), 0);
                let mut attributes = std::mem::zeroed();
                assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
                assert_eq!(libc::pthread_attr_setstack(&raw mut attributes, stack, STACK_BYTES), 0);
                let mut thread = 0;
                let data = ptr::from_mut(run).cast();
                assert_eq!(libc::pthread_create(&raw mut thread, &raw const attributes, start::<F>, data), 0);
                assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
                libc::pthread_attr_destroy(&raw mut attributes);
                libc::munmap(mapping, bytes);
            }
        }
        let mut result = None;
        create(&mut Some(|| result = Some(run())));
        result.expect("the thread has ended")
    }

    #[test]
    fn pages_that_a_stack_wrote_to_count_after_it_returned() {
        let [shallow, deep, back] = on_a_stack(|| {
            forget_place();
            assert_eq!(resident_bytes(STACK_BYTES), None);
            note_place();
            let shallow = resident_bytes(STACK_BYTES).unwrap();
            assert_eq!(resident_bytes(STACK_BYTES), None, "an address is used once");
            let deep_bytes = deep(400 << 10, || {
                note_place();
                resident_bytes(STACK_BYTES).unwrap()
            });
            note_place();
            [shallow, deep_bytes, resident_bytes(STACK_BYTES).unwrap()]
        });
        assert!(shallow < 100 << 10, "{shallow}");
        assert!((400 << 10..700 << 10).contains(&deep), "{deep}");
        assert!(back >= deep, "{back} after {deep}");
    }

    #[test]
    fn no_more_than_the_size_of_a_stack_is_counted() {
        let measured = on_a_stack(|| {
            deep(400 << 10, || {
                note_place();
                resident_bytes(64 << 10)
            })
        });
        assert_eq!(measured, Some(64 << 10));
    }
}
