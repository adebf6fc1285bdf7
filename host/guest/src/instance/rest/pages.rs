//! Private pages of the process: those that differ, or may differ, from the file that is mapped.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr;

/// Number of pages that one system call queries.
const PAGES_AT_ONCE: usize = 4096;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;

/// The kernel's list of the process's pages.
pub(super) struct PageMap {
    file: File,
    page_bytes: usize,
}

impl PageMap {
    /// Opens the list. Returns `None` where the kernel does not report private pages correctly, or does not restore a
    /// mapping whose pages are returned: in a sandbox that replaces Linux, or in a process whose memory is locked.
    pub(super) fn open() -> Option<Self> {
        // SAFETY: the call takes no pointer.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let pages = Self { file: File::open("/proc/self/pagemap").ok()?, page_bytes: page_bytes.max(1) };
        pages.is_reliable().then_some(pages)
    }

    /// Returns the size of a page in bytes.
    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Appends the addresses of the private pages in a range of addresses, in runs of together at most `pages_max` pages.
    /// The kernel's page of zeros, which is mapped where memory was only read, is among them.
    pub(super) fn private(
        &self,
        addresses: Range<usize>,
        pages_max: usize,
        runs: &mut Vec<Range<usize>>,
    ) -> std::io::Result<()> {
        let mut page = addresses.start.div_ceil(self.page_bytes);
        let end = addresses.end / self.page_bytes;
        let mut entries = [0; PAGES_AT_ONCE * 8];
        let mut count: usize = runs.iter().map(|run| run.len() / self.page_bytes).sum();
        while page < end {
            let entries = &mut entries[..(end - page).min(PAGES_AT_ONCE) * 8];
            self.file.read_exact_at(entries, page as u64 * 8)?;
            for entry in entries.as_chunks().0 {
                let entry = u64::from_ne_bytes(*entry);
                if count == pages_max {
                    return Ok(());
                }
                if entry & (PRESENT | SWAPPED) != 0 && entry & OF_A_FILE == 0 {
                    count += 1;
                    let start = page * self.page_bytes;
                    match runs.last_mut().filter(|run| run.end == start) {
                        Some(run) => run.end += self.page_bytes,
                        None => runs.push(start..start + self.page_bytes),
                    }
                }
                page += 1;
            }
        }
        Ok(())
    }

    /// Tries a mapping of two pages, of which one is written to and returned.
    fn is_reliable(&self) -> bool {
        let bytes = 2 * self.page_bytes;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory. It is removed below.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return false;
        }
        let first = start.cast::<u8>();
        let pages = || {
            let mut runs = Vec::new();
            self.private(start.addr()..start.addr() + bytes, bytes, &mut runs).ok()?;
            Some(runs)
        };
        // SAFETY: the byte lies in the mapping, which is writable.
        unsafe { first.write_volatile(1) };
        let page = start.addr()..start.addr() + self.page_bytes;
        let written = pages().as_deref() == Some(std::slice::from_ref(&page));
        // SAFETY: nothing refers to the mapping.
        let returned = unsafe { give_back(start.addr()..start.addr() + bytes) }.is_ok();
        let empty = pages() == Some(Vec::new());
        // SAFETY: the byte lies in the mapping.
        let restored = unsafe { first.read_volatile() } == 0;
        // SAFETY: the mapping was created above, and nothing refers to it.
        unsafe { libc::munmap(start, bytes) };
        written && returned && empty && restored
    }
}

/// Returns private pages to the kernel, so that they have the content of the mapped file again, or zeros.
///
/// # Safety
///
/// The addresses belong to a private mapping that nothing else uses, and whose content nothing relies on.
pub(super) unsafe fn give_back(addresses: Range<usize>) -> std::io::Result<()> {
    let start = ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: the caller guarantees it.
    match unsafe { libc::madvise(start, addresses.len(), libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
