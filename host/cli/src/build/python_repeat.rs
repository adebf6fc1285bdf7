//! One source, one component: what differs from build to build is taken out of a Python
//! component's memory.
//!
//! While a component is built its interpreter runs with the builder's clock and random
//! numbers, and traces of both stay: where libraries keep what they drew and measured when
//! they began, on the stack, and in whatever an object does not use of its memory. An
//! instance has the clock and random numbers of its rollout, and none of those traces is
//! read in one. The SDK (`_environment.py`) has Python's memory be cleared before it is given
//! out, by an allocator that is taken out again here: an instance has no use for it.

use anyhow::{Context, Result, ensure};

use super::python_image::{Image, Places};

/// What the SDK's record begins with. After it: three allocators, and the one in front.
const MARK: &[u8] = b"ROLLOUT-ALLOCATE";

/// Python's kinds of memory, and what an allocator of one is: a context and four functions.
const DOMAINS: usize = 3;
const ALLOCATOR_BYTES: usize = 20;

/// What a guarded function finds changed when something wrote beyond its variables. A byte of
/// zeros and ends of lines stop whatever copies a text that far.
const GUARD: u32 = 0xFF0A_0D00;

/// What mimalloc's generator of random numbers begins with.
const GENERATOR: &[u8] = b"expand 32-byte k";

/// Where libraries keep what they drew and measured when they began: the library, how far into
/// its memory, and how many bytes. Nobody has names for these; they are those of the release of
/// componentize-py that components are made with.
const BEGUN: [(&str, u32, u32); 5] = [
    // mimalloc, which is in libpython and gives out nothing here: cookies of its heap and the
    // generator's key and last block, around its constant and its counter.
    ("libpython3.14.so", GENERATOR_AT - 12, 12),
    ("libpython3.14.so", GENERATOR_AT + 16, 32),
    ("libpython3.14.so", GENERATOR_AT + 64, 64),
    // The time in milliseconds at which it began.
    ("libpython3.14.so", 0x002F_98F8, 8),
    // The time from which `process_time` counts.
    ("libwasi-emulated-process-clocks.so", 8, 16),
];
const GENERATOR_AT: u32 = 0x0027_62E8;

/// Takes out what would be another in the next build.
pub(super) fn forget(image: &mut Image, places: &Places) -> Result<()> {
    put_allocators_back(image)?;
    let stack = places.named("__stack_low")? as usize..places.named("__stack_high")? as usize;
    image.fill(stack, 0);
    image.set_word(places.named("libc.so:__stack_chk_guard")?, GUARD);
    let base = |library: &str| places.named(&format!("{library}:memory_base"));
    let generator = base("libpython3.14.so")?.wrapping_add(GENERATOR_AT);
    ensure!(
        image.bytes_at(generator, GENERATOR.len()) == Some(GENERATOR),
        "the component's Python is not the one that this program knows"
    );
    for (library, at, bytes) in BEGUN {
        let begin = base(library)?.wrapping_add(at) as usize;
        image.fill(begin..begin + bytes as usize, 0);
    }
    Ok(())
}

/// Puts Python's allocators where the SDK's clearing one is. They are together in the
/// interpreter's state.
fn put_allocators_back(image: &mut Image) -> Result<()> {
    let all = DOMAINS * ALLOCATOR_BYTES;
    let record =
        image.find(MARK).next().context("the component's memory does not say which allocators it had")?;
    let content = image.bytes_at(record, MARK.len() + all + ALLOCATOR_BYTES).unwrap_or_default();
    let (before, in_front) = content.get(MARK.len()..).unwrap_or_default().split_at(all.min(content.len()));
    let (before, in_front) = (before.to_vec(), in_front.repeat(DOMAINS));
    let mut found = image.find(&in_front);
    let (place, other) = (found.next(), found.next());
    drop(found);
    let place = place
        .filter(|_| other.is_none())
        .context("the component's allocators are not where they should be")?;
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

        put_allocators_back(&mut image).unwrap();

        assert_eq!(image.bytes_at(STATE, 60), Some(&*words(&BEFORE)));
    }

    #[test]
    fn allocators_that_are_not_found_once_are_an_error() {
        let (mut twice, mut nowhere) = (image(), image());
        twice.write(0x800, &words(&IN_FRONT.repeat(3)));
        nowhere.write(STATE, &[0; 60]);
        for mut image in [twice, nowhere, Image::zeroed(0x1000)] {
            assert!(put_allocators_back(&mut image).is_err());
        }
    }
}
