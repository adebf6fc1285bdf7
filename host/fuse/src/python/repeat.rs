//! Removes bytes of a Python component's memory that differ from build to build, so that builds of the same source give
//! the same component.
//!
//! While a component is built, its interpreter runs with the builder's clock and random numbers. Traces of them stay in
//! three places: where libraries store the random numbers and times from their start, on the stack, and in unused
//! memory of objects. An instance has the clock and the random numbers of its rollout and reads none of these traces.
//! The SDK (`_environment.py`) installs an allocator that clears Python's memory when it is allocated. This allocator
//! is removed here because an instance does not need it.

use super::UNKNOWN_PYTHON;
use super::error::{Result, unknown};
use super::image::{Image, Places};

/// Beginning of the SDK's record. It is followed by Python's three allocators and the allocator of the SDK.
const MARK: &[u8] = b"ROLLOUT-ALLOCATE";

/// Number of Python's kinds of memory, and size of an allocator: a context and four functions.
const DOMAINS: usize = 3;
const ALLOCATOR_BYTES: usize = 20;

/// Guard behind the variables of a function. If a write goes beyond the variables, the function finds the guard
/// changed. The guard's zero byte and its line breaks stop functions that copy a text.
const GUARD: u32 = 0xFF0A_0D00;

/// Beginning of mimalloc's generator of random numbers.
const GENERATOR: &[u8] = b"expand 32-byte k";

/// Random numbers and times that libraries store at their start: library, offset in its memory, number of bytes. They
/// have no names; the offsets are those of the release of componentize-py that builds the components.
const BEGUN: [(&str, u32, u32); 5] = [
    // mimalloc, which is in libpython and allocates nothing here: cookies of its heap, and the generator's key and last
    // block, which are around its constant and its counter.
    ("libpython3.14.so", GENERATOR_AT - 12, 12),
    ("libpython3.14.so", GENERATOR_AT + 16, 32),
    ("libpython3.14.so", GENERATOR_AT + 64, 64),
    // The time of mimalloc's start in milliseconds.
    ("libpython3.14.so", 0x002F_98F8, 8),
    // The time at which `process_time` is zero.
    ("libwasi-emulated-process-clocks.so", 8, 16),
];
const GENERATOR_AT: u32 = 0x0027_62E8;

/// Removes the bytes that differ from build to build.
pub(super) fn forget(image: &mut Image, places: &Places) -> Result<()> {
    restore_allocators(image)?;
    let stack = places.named("__stack_low")? as usize..places.named("__stack_high")? as usize;
    image.fill(stack, 0);
    image.set_word(places.named("libc.so:__stack_chk_guard")?, GUARD);
    let base = |library: &str| places.named(&format!("{library}:memory_base"));
    let generator = base("libpython3.14.so")?.wrapping_add(GENERATOR_AT);
    if image.bytes_at(generator, GENERATOR.len()) != Some(GENERATOR) {
        return Err(unknown(UNKNOWN_PYTHON));
    }
    for (library, at, bytes) in BEGUN {
        let begin = base(library)?.wrapping_add(at) as usize;
        image.fill(begin..begin + bytes as usize, 0);
    }
    Ok(())
}

/// Replaces the SDK's allocator by Python's own allocators, which are together in the interpreter's state.
fn restore_allocators(image: &mut Image) -> Result<()> {
    let all = DOMAINS * ALLOCATOR_BYTES;
    let record = image.find(MARK).next();
    let record =
        record.ok_or_else(|| unknown("the component's memory does not say which allocators it had"))?;
    let content = image.bytes_at(record, MARK.len() + all + ALLOCATOR_BYTES).unwrap_or_default();
    let (before, in_front) = content.get(MARK.len()..).unwrap_or_default().split_at(all.min(content.len()));
    let (before, in_front) = (before.to_vec(), in_front.repeat(DOMAINS));
    let mut found = image.find(&in_front);
    let (place, other) = (found.next(), found.next());
    drop(found);
    let place = place
        .filter(|_| other.is_none())
        .ok_or_else(|| unknown("the component's allocators are not where they should be"))?;
    image.write(place, &before);
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

    const BEFORE: [u32; 15] = [0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 0, 5, 6, 7, 9];
    const IN_FRONT: [u32; 5] = [0, 21, 22, 23, 24];

    fn image() -> Image {
        let mut image = Image::zeroed(0x1000);
        image.write(RECORD, &[MARK, &words(&BEFORE), &words(&IN_FRONT)].concat());
        image.write(STATE, &words(&IN_FRONT.repeat(3)));
        image
    }

    #[test]
    fn an_instance_has_the_interpreters_own_allocators() {
        let mut image = image();

        restore_allocators(&mut image).unwrap();

        assert_eq!(image.bytes_at(STATE, 60), Some(&*words(&BEFORE)));
    }

    #[test]
    fn allocators_that_are_not_found_once_are_an_error() {
        let (mut twice, mut nowhere) = (image(), image());
        twice.write(0x800, &words(&IN_FRONT.repeat(3)));
        nowhere.write(STATE, &[0; 60]);
        for mut image in [twice, nowhere, Image::zeroed(0x1000)] {
            assert!(restore_allocators(&mut image).is_err());
        }
    }
}
