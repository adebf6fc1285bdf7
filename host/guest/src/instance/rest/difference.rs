//! The difference between the private pages of a memory and the file that is mapped there.

use std::ops::Range;
use std::{ptr, slice};

use super::pages::{PageMap, give_back};

/// Number of pages that are copied, returned and compared together.
const PAGES_AT_ONCE: usize = 16;

/// Bytes of a part that is compared as a whole before its words are.
const PART_BYTES: usize = 64;

const WORD_BYTES: usize = 4;

/// Content of memory that differs from the mapped file: runs of words, each with its distance from the end of the
/// previous run, its number of bytes, and its bytes. The first distance is an address.
#[derive(Debug)]
pub(super) struct Difference {
    encoded: Box<[u8]>,
}

/// Buffers that are used for one guest after the other.
#[derive(Default)]
pub(super) struct Scratch {
    /// The private pages, in runs.
    pub(super) runs: Vec<Range<usize>>,
    copy: Vec<u8>,
    encoded: Vec<u8>,
    /// Address of the end of the last encoded run.
    end: usize,
}

/// Numbers of one [`Scratch::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// Number of pages that were returned to the kernel.
    pub(super) pages: usize,
    /// Number of private pages that stayed, because they have little in common with the mapped ones.
    pub(super) dense_pages: usize,
}

impl Scratch {
    /// Returns the pages in its runs to the kernel and keeps the difference. Stops early if `is_wanted` returns true or
    /// the kernel fails: then the remaining pages stay as they are.
    ///
    /// # Safety
    ///
    /// The addresses are private pages of writable mappings, in their order, and nothing else reads or writes them until
    /// [`Difference::restore`] has been called.
    pub(super) unsafe fn take(
        &mut self,
        pages: &PageMap,
        is_wanted: impl Fn() -> bool,
    ) -> (Difference, Taken) {
        let page_bytes = pages.page_bytes();
        let (runs, mut copy) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.copy));
        let mut taken = Taken::default();
        self.encoded.clear();
        self.end = 0;
        let batches = runs.iter().flat_map(|run| {
            let starts = run.clone().step_by(PAGES_AT_ONCE * page_bytes);
            starts.map(|start| start..run.end.min(start + PAGES_AT_ONCE * page_bytes))
        });
        for batch in batches {
            if is_wanted() {
                break;
            }
            copy.clear();
            // SAFETY: the caller guarantees it.
            copy.extend_from_slice(unsafe { memory(&batch) });
            // SAFETY: the caller guarantees it. All of the content is in the copy.
            let returned = unsafe { give_back(batch.clone()) };
            if let Err(error) = returned {
                // SAFETY: the caller guarantees it. Some of the pages may have been returned.
                unsafe { write(batch.start, &copy) };
                tracing::debug!(%error, "the kernel does not take back the memory of a waiting guest");
                break;
            }
            for (start, copy) in batch.step_by(page_bytes).zip(copy.chunks_exact(page_bytes)) {
                let (length, end) = (self.encoded.len(), self.end);
                // SAFETY: the caller guarantees it.
                self.add(start, copy, unsafe { memory(&(start..start + page_bytes)) });
                if self.encoded.len() - length > page_bytes / 4 * 3 {
                    self.encoded.truncate(length);
                    self.end = end;
                    // SAFETY: the caller guarantees it.
                    unsafe { write(start, copy) };
                    taken.dense_pages += 1;
                } else {
                    taken.pages += 1;
                }
            }
        }
        (self.runs, self.copy) = (runs, copy);
        (Difference { encoded: self.encoded.as_slice().into() }, taken)
    }

    /// Adds the words of a page that differ from the mapped ones.
    fn add(&mut self, start: usize, page: &[u8], mapped: &[u8]) {
        let mut run: Option<Range<usize>> = None;
        let parts = page.as_chunks::<PART_BYTES>().0.iter().zip(mapped.as_chunks::<PART_BYTES>().0);
        for (part, (own, other)) in parts.enumerate().filter(|(_, (own, other))| own != other) {
            let words = own.as_chunks::<WORD_BYTES>().0.iter().zip(other.as_chunks::<WORD_BYTES>().0);
            for (word, _) in words.enumerate().filter(|(_, (own, other))| own != other) {
                let at = part * PART_BYTES + word * WORD_BYTES;
                match run.as_mut().filter(|run| run.end == at) {
                    Some(run) => run.end += WORD_BYTES,
                    None => {
                        self.push(start, page, run.take());
                        run = Some(at..at + WORD_BYTES);
                    }
                }
            }
        }
        self.push(start, page, run);
    }

    fn push(&mut self, start: usize, page: &[u8], run: Option<Range<usize>>) {
        let Some(run) = run else { return };
        self.push_number(start + run.start - self.end);
        self.push_number(run.len());
        self.end = start + run.end;
        self.encoded.extend_from_slice(&page[run]);
    }

    /// Appends a number, 7 bits a byte, the lowest first.
    fn push_number(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.encoded.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.encoded.push(number as u8);
    }
}

impl Difference {
    /// Returns the size of the encoded difference in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.encoded.len()
    }

    /// Writes the difference back.
    ///
    /// # Safety
    ///
    /// The memory that it was [taken](Scratch::take) from is still mapped, and nothing else reads or writes it.
    pub(super) unsafe fn restore(self) {
        let mut rest = &*self.encoded;
        let mut address = 0;
        while !rest.is_empty() {
            address += number(&mut rest);
            let length = number(&mut rest);
            let (run, after) = rest.split_at(length);
            // SAFETY: the caller guarantees it; the run was read from this address.
            unsafe { write(address, run) };
            address += length;
            rest = after;
        }
    }
}

/// Reads a number that [`Scratch::push_number`] wrote.
fn number(from: &mut &[u8]) -> usize {
    let mut number = 0;
    let mut shift = 0;
    while let Some((byte, rest)) = from.split_first() {
        *from = rest;
        number |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// # Safety
///
/// The addresses are mapped and readable, and nothing writes them while the slice exists.
unsafe fn memory<'a>(addresses: &Range<usize>) -> &'a [u8] {
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(addresses.start), addresses.len()) }
}

/// # Safety
///
/// The addresses from `start` on are mapped and writable, and nothing else uses them.
unsafe fn write(start: usize, bytes: &[u8]) {
    // SAFETY: the caller guarantees it; a guest's memory does not overlap the host's.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::with_exposed_provenance_mut(start), bytes.len());
    }
}
