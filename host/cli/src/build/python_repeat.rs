//! Removes content that differs from build to build from a Python component's memory, so that builds are
//! reproducible.
//!
//! During a build, the interpreter runs with the builder's clock and random numbers, which leave traces: in
//! the state that libraries initialize at their start, on the stack, and in unused parts of objects. An
//! instance has the clock and random numbers of its rollout and never reads these traces. The SDK
//! (`_environment.py`) installs an allocator that clears Python's memory before use. It is removed here,
//! because an instance does not need it.

use anyhow::{Context, Result, ensure};

use super::python_image::{Image, Symbols};

/// Start of the SDK's record. The three original allocators and the clearing one follow.
const MARK: &[u8] = b"ROLLOUT-ALLOCATE";

/// Number of Python's memory domains, and the size of an allocator: a context and four functions.
const DOMAINS: usize = 3;
const ALLOCATOR_BYTES: usize = 20;

/// Value of the stack guard, which an overflow of a function's variables changes. Its zero byte and line ends
/// stop functions that copy text.
const GUARD: u32 = 0xFF0A_0D00;

/// Start of the state of mimalloc's random number generator.
const GENERATOR: &[u8] = b"expand 32-byte k";

/// Random numbers and times that libraries store at their start: the library, the offset in its memory, and
/// the number of bytes. They have no symbols; the offsets are those of the componentize-py release that
/// components are built with.
const START_STATE: [(&str, u32, u32); 5] = [
    // mimalloc, which is part of libpython but unused here: the cookies of its heap, and the generator's key
    // and last block, before and after its constant and its counter.
    ("libpython3.14.so", GENERATOR_AT - 12, 12),
    ("libpython3.14.so", GENERATOR_AT + 16, 32),
    ("libpython3.14.so", GENERATOR_AT + 64, 64),
    // The start time in milliseconds.
    ("libpython3.14.so", 0x002F_98F8, 8),
    // The start time of `process_time`.
    ("libwasi-emulated-process-clocks.so", 8, 16),
];
const GENERATOR_AT: u32 = 0x0027_62E8;

/// Removes content that differs from build to build.
pub(super) fn remove_variation(image: &mut Image, symbols: &Symbols) -> Result<()> {
    restore_allocators(image)?;
    let stack = symbols.address("__stack_low")? as usize..symbols.address("__stack_high")? as usize;
    image.fill(stack, 0);
    image.set_word(symbols.address("libc.so:__stack_chk_guard")?, GUARD);
    let base = |library: &str| symbols.address(&format!("{library}:memory_base"));
    let generator = base("libpython3.14.so")?.wrapping_add(GENERATOR_AT);
    ensure!(
        image.bytes_at(generator, GENERATOR.len()) == Some(GENERATOR),
        "the component's Python is not the release that this program supports"
    );
    for (library, at, bytes) in START_STATE {
        let begin = base(library)?.wrapping_add(at) as usize;
        image.fill(begin..begin + bytes as usize, 0);
    }
    Ok(())
}

/// Replaces the SDK's clearing allocator with Python's own. Allocators are adjacent in the interpreter's
/// state.
fn restore_allocators(image: &mut Image) -> Result<()> {
    let all = DOMAINS * ALLOCATOR_BYTES;
    let record = image.find(MARK).next().context("the component's memory has no record of its allocators")?;
    let content = image.bytes_at(record, MARK.len() + all + ALLOCATOR_BYTES).unwrap_or_default();
    let (original, clearing) = content.get(MARK.len()..).unwrap_or_default().split_at(all.min(content.len()));
    let (original, clearing) = (original.to_vec(), clearing.repeat(DOMAINS));
    let mut found = image.find(&clearing);
    let (address, other) = (found.next(), found.next());
    drop(found);
    let address = address
        .filter(|_| other.is_none())
        .context("the component's allocators are not where they are expected")?;
    image.write(address, &original);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: u32 = 0x100;
    const STATE: u32 = 0x400;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    const ORIGINAL: [u32; 15] = [0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 0, 5, 6, 7, 9];
    const CLEARING: [u32; 5] = [0, 21, 22, 23, 24];

    fn image() -> Image {
        let mut image = Image::zeroed(0x1000);
        image.write(RECORD, &[MARK, &words(&ORIGINAL), &words(&CLEARING)].concat());
        image.write(STATE, &words(&CLEARING.repeat(3)));
        image
    }

    #[test]
    fn the_interpreters_own_allocators_are_restored() {
        let mut image = image();

        restore_allocators(&mut image).unwrap();

        assert_eq!(image.bytes_at(STATE, 60), Some(&*words(&ORIGINAL)));
    }

    #[test]
    fn allocators_that_are_not_found_exactly_once_are_an_error() {
        let (mut twice, mut nowhere) = (image(), image());
        twice.write(0x800, &words(&CLEARING.repeat(3)));
        nowhere.write(STATE, &[0; 60]);
        for mut image in [twice, nowhere, Image::zeroed(0x1000)] {
            assert!(restore_allocators(&mut image).is_err());
        }
    }
}
