//! Free places in a Python component's memory: they are taken, so that what a rollout
//! allocates goes to the end of the heap, all in one place.
//!
//! While modules were imported and the interpreter was made ready, places of all sizes were
//! freed everywhere. The SDK (`_image.py`) fills most of them, but what is freed after it,
//! by itself and by those who called it, nobody in the guest can fill. A rollout would get
//! those places first, and with each a page of its own. Here they are marked as used, for
//! good: they are in the image, which all instances share.
//!
//! The heap is that of wasi-libc, Doug Lea's `dlmalloc`: chunks one after another from its
//! least address to the topmost chunk, each beginning with its size and whether it and the
//! one before it are used; and lists and trees of free ones, by size. If chunks and lists do
//! not agree to the last one, it is another allocator or another version, and nothing is
//! touched.

use std::collections::BTreeSet;

use super::python_image::Image;

/// In the word of a chunk's size: whether the chunk before it is used, and whether it is.
const BEFORE_USED: u32 = 1;
const USED: u32 = 2;
const FLAGS: u32 = 7;

/// Chunks are multiples of this, at places that are so after these bytes of their beginning.
const ALIGNED_BYTES: u32 = 16;
const CHUNK_HEADER_BYTES: u32 = 8;

/// Lists of one size each, and trees of ranges of sizes.
const LISTS: u32 = 32;
const TREES: u32 = 32;

/// Members of `struct malloc_state`, at 32 bits.
const LISTS_THERE: u32 = 0;
const TREES_THERE: u32 = 4;
const VICTIM_SIZE: u32 = 8;
const TOP_SIZE: u32 = 12;
const LEAST_ADDRESS: u32 = 16;
const VICTIM: u32 = 20;
const TOP: u32 = 24;
const LIST_HEADS: u32 = 40;
const TREE_ROOTS: u32 = LIST_HEADS + 8 * (LISTS + 1);

/// Members of `struct malloc_chunk` and `struct malloc_tree_chunk`.
const HEAD: u32 = 4;
const NEXT: u32 = 8;
const PREVIOUS: u32 = 12;
const CHILDREN: [u32; 2] = [16, 20];

/// Where the interpreter keeps what it freed of some kinds of objects, to give it out again before it
/// asks for memory: the first one and how many there are, for each kind, in the memory of its library.
/// Those of the release of componentize-py that components are made with.
const KEPT_OBJECTS_AT: u32 = 0x0028_D938;
const KINDS: u32 = 40;
const KEPT_OF_A_KIND_MAX: u32 = 2000;

/// Takes the objects that the interpreter keeps to give them out again, which lie anywhere. Says how
/// many they were; nothing where not every list is as long as it should be.
pub(super) fn take_kept_objects(image: &mut Image, library: u32) -> Option<u32> {
    let lists = || (0..KINDS).map(|kind| library + KEPT_OBJECTS_AT + 8 * kind);
    let mut taken = 0;
    for list in lists() {
        let count = image.word_at(list + 4)?;
        let mut object = image.word_at(list)?;
        for _ in 0..count.min(KEPT_OF_A_KIND_MAX) {
            // Each begins with the next one's address.
            object = image.word_at(object).filter(|_| object != 0)?;
        }
        if object != 0 || count > KEPT_OF_A_KIND_MAX {
            return None;
        }
        taken += count;
    }
    for list in lists() {
        image.set_word(list, 0);
        image.set_word(list + 4, 0);
    }
    Some(taken)
}

/// Takes the free places of the heap, and says how many there were; nothing where no heap
/// was found that is understood in all its parts.
pub(super) fn take_free(image: &mut Image) -> Option<usize> {
    let (state, free) = find_heap(image)?;
    for (chunk, size) in &free {
        let head = image.word_at(chunk + HEAD)?;
        image.set_word(chunk + HEAD, head | USED);
        // What was there is in nobody's way, and may be another in every build.
        image.fill((chunk + NEXT) as usize..(chunk + size + HEAD) as usize, 0);
        let next = chunk + size + HEAD;
        let head = image.word_at(next)?;
        image.set_word(next, head | BEFORE_USED);
    }
    for list in 0..LISTS {
        let head = state + LIST_HEADS + 8 * list;
        image.set_word(head + NEXT, head);
        image.set_word(head + PREVIOUS, head);
    }
    for tree in 0..TREES {
        image.set_word(state + TREE_ROOTS + 4 * tree, 0);
    }
    for member in [LISTS_THERE, TREES_THERE, VICTIM_SIZE, VICTIM] {
        image.set_word(state + member, 0);
    }
    Some(free.len())
}

/// The allocator's state and its free chunks: the one place that looks like a state, whose
/// chunks are those that its lists have. Lists of sizes that no chunk has begin and end at
/// themselves.
fn find_heap(image: &Image) -> Option<(u32, BTreeSet<(u32, u32)>)> {
    let is_empty = |state: u32, list: u32| {
        let head = state + LIST_HEADS + 8 * list;
        image.word_at(head + NEXT) == Some(head) && image.word_at(head + PREVIOUS) == Some(head)
    };
    let end = image.len().saturating_sub(TREE_ROOTS + 4 * TREES);
    let states = (4..end).step_by(4).filter(|state| is_empty(*state, 0) && is_empty(*state, 1));
    let mut heaps = states.filter_map(|state| {
        let free = free_chunks(image, state)?;
        (listed_chunks(image, state)? == free).then_some((state, free))
    });
    let heap = heaps.next()?;
    heaps.next().is_none().then_some(heap)
}

/// The topmost chunk, from which all is taken that no free one is right for.
fn top_of(image: &Image, state: u32) -> Option<u32> {
    let top = image.word_at(state + TOP)?;
    let size = image.word_at(state + TOP_SIZE)?;
    (top > 0 && size > 0 && image.word_at(top.checked_add(HEAD)?)? == size | BEFORE_USED).then_some(top)
}

/// Free chunks and their sizes by walking over all chunks.
fn free_chunks(image: &Image, state: u32) -> Option<BTreeSet<(u32, u32)>> {
    let top = top_of(image, state)?;
    let least = image.word_at(state + LEAST_ADDRESS)?;
    let mut chunk =
        least.checked_add(CHUNK_HEADER_BYTES)?.checked_next_multiple_of(ALIGNED_BYTES)? - CHUNK_HEADER_BYTES;
    let mut free = BTreeSet::new();
    let mut before_used = true;
    while chunk < top {
        let head = image.word_at(chunk + HEAD)?;
        let size = head & !FLAGS;
        let is_sound = size >= ALIGNED_BYTES && size.is_multiple_of(ALIGNED_BYTES);
        if !is_sound || (head & BEFORE_USED != 0) != before_used {
            return None;
        }
        before_used = head & USED != 0;
        if !before_used {
            free.insert((chunk, size));
        }
        chunk = chunk.checked_add(size)?;
    }
    (chunk == top && before_used).then_some(free)
}

/// Free chunks and their sizes by the allocator's lists, trees and the one that it takes
/// from first.
fn listed_chunks(image: &Image, state: u32) -> Option<BTreeSet<(u32, u32)>> {
    let size_of = |chunk: u32| Some(image.word_at(chunk.checked_add(HEAD)?)? & !FLAGS);
    let mut listed = BTreeSet::new();
    // The head of a list whose last chunk was taken still names that one.
    let there = image.word_at(state + LISTS_THERE)?;
    for list in (0..LISTS).filter(|list| there & (1 << list) != 0) {
        let head = state + LIST_HEADS + 8 * list;
        let mut chunk = image.word_at(head + NEXT)?;
        while chunk != head {
            if !listed.insert((chunk, size_of(chunk)?)) {
                return None;
            }
            chunk = image.word_at(chunk + NEXT)?;
        }
    }
    let roots = (0..TREES).map(|tree| image.word_at(state + TREE_ROOTS + 4 * tree));
    let mut to_do: Vec<u32> = roots.collect::<Option<_>>()?;
    while let Some(node) = to_do.pop() {
        if node == 0 {
            continue;
        }
        // A node's neighbours are as large as it is, and have no children.
        let mut chunk = node;
        loop {
            if !listed.insert((chunk, size_of(chunk)?)) {
                return None;
            }
            chunk = image.word_at(chunk + NEXT)?;
            if chunk == node {
                break;
            }
        }
        for child in CHILDREN {
            to_do.push(image.word_at(node + child)?);
        }
    }
    let victim = image.word_at(state + VICTIM)?;
    if victim != 0 {
        let size = size_of(victim)?;
        if size != image.word_at(state + VICTIM_SIZE)? || !listed.insert((victim, size)) {
            return None;
        }
    }
    Some(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: u32 = 0x100;
    const HEAP: u32 = 0x400;

    /// A heap of chunks of these sizes, of which some are free, and a topmost one. Small free
    /// ones are in lists, one of 592 bytes is in a tree, and the last of 48 is taken from first.
    fn heap(chunks: &[(u32, bool)]) -> Image {
        let mut image = Image::zeroed(0x2000);
        let set = |image: &mut Image, member: u32, value: u32| image.set_word(STATE + member, value);
        let head_of = |list: u32| STATE + LIST_HEADS + 8 * list;
        for list in 0..LISTS {
            let head = head_of(list);
            image.set_word(head + NEXT, head);
            image.set_word(head + PREVIOUS, head);
        }
        let (mut at, mut before) = (HEAP + 8, BEFORE_USED);
        set(&mut image, LEAST_ADDRESS, HEAP);
        for (size, used) in chunks {
            image.set_word(at + HEAD, size | before | if *used { USED } else { 0 });
            before = if *used { BEFORE_USED } else { 0 };
            match (*used, *size) {
                (true, _) => {}
                (false, 592) => {
                    image.set_word(at + NEXT, at);
                    image.set_word(at + PREVIOUS, at);
                    set(&mut image, TREE_ROOTS + 4 * 2, at);
                    set(&mut image, TREES_THERE, 1 << 2);
                }
                (false, 48) => {
                    set(&mut image, VICTIM, at);
                    set(&mut image, VICTIM_SIZE, 48);
                }
                (false, size) => {
                    let head = head_of(size / 8);
                    let there = image.word_at(STATE + LISTS_THERE).unwrap();
                    set(&mut image, LISTS_THERE, there | 1 << (size / 8));
                    let first = image.word_at(head + NEXT).unwrap();
                    image.set_word(at + NEXT, first);
                    image.set_word(at + PREVIOUS, head);
                    image.set_word(first + PREVIOUS, at);
                    image.set_word(head + NEXT, at);
                }
            }
            at += size;
        }
        image.set_word(at + HEAD, 0x800 | before);
        set(&mut image, TOP, at);
        set(&mut image, TOP_SIZE, 0x800);
        image
    }

    const CHUNKS: [(u32, bool); 9] = [
        (32, true),
        (16, false),
        (64, true),
        (32, false),
        (32, true),
        (32, false),
        (16, true),
        (592, false),
        (128, true),
    ];

    #[test]
    fn free_places_are_used_afterwards_and_in_no_list() {
        let mut image = heap(&[CHUNKS.as_slice(), &[(48, false), (16, true)]].concat());

        assert_eq!(take_free(&mut image), Some(5));

        assert_eq!(free_chunks(&image, STATE), Some(BTreeSet::new()));
        assert_eq!(listed_chunks(&image, STATE), Some(BTreeSet::new()));
        assert_eq!(image.word_at(STATE + VICTIM_SIZE), Some(0));
        assert_eq!(take_free(&mut image), Some(0));
    }

    #[test]
    fn what_is_not_understood_to_the_last_chunk_is_left_alone() {
        let sound = heap(&CHUNKS);
        let broken = [
            // A free chunk that no list has, a used one that one has, a size that leads nowhere,
            // a topmost chunk of another size.
            (HEAP + 8 + HEAD, 32 | BEFORE_USED),
            (HEAP + 8 + 32 + HEAD, 16 | BEFORE_USED | USED),
            (HEAP + 8 + HEAD, 40 | BEFORE_USED | USED),
            (STATE + TOP_SIZE, 0x700),
            (STATE + LIST_HEADS + NEXT, 0),
        ];
        for (at, word) in broken {
            let mut image = sound.clone();
            image.set_word(at, word);
            let before = image.clone();

            assert_eq!(take_free(&mut image), None, "{at:#x}");

            assert!(image == before, "{at:#x} was touched");
        }
    }

    const LIBRARY: u32 = 0x1000;

    /// Memory in which two objects of one kind and one of another are kept.
    fn with_kept_objects() -> Image {
        let mut image = Image::zeroed(0x0030_0000);
        let list = |kind: u32| LIBRARY + KEPT_OBJECTS_AT + 8 * kind;
        for (at, word) in
            [(list(2), 0x200), (list(2) + 4, 2), (0x200, 0x240), (list(20), 0x280), (list(20) + 4, 1)]
        {
            image.set_word(at, word);
        }
        image
    }

    #[test]
    fn objects_that_are_kept_to_be_given_out_again_are_so_no_more() {
        let mut image = with_kept_objects();

        assert_eq!(take_kept_objects(&mut image, LIBRARY), Some(3));

        assert_eq!(image.word_at(0x200), Some(0x240), "an object was touched");
        assert_eq!(take_kept_objects(&mut image, LIBRARY), Some(0));
    }

    #[test]
    fn kept_objects_that_are_not_as_many_as_they_should_be_are_left_alone() {
        let first = LIBRARY + KEPT_OBJECTS_AT;
        // One more and one less than there are, a list that leads out of the memory, and one in a circle.
        let broken = [(first + 8 * 2 + 4, 3), (first + 8 * 2 + 4, 1), (0x240, 0x7000_0000), (0x240, 0x200)];
        for (at, word) in broken {
            let mut image = with_kept_objects();
            image.set_word(at, word);
            let before = image.clone();

            assert_eq!(take_kept_objects(&mut image, LIBRARY), None, "{at:#x}: {word:#x}");

            assert!(image == before, "{at:#x}: {word:#x} was touched");
        }
    }
}
