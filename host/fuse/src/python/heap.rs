//! Marks the free chunks of a Python component's heap as used, so that all allocations of a rollout are together at the
//! end of the heap.
//!
//! Importing modules and preparing the interpreter frees chunks of all sizes in all parts of the heap. The SDK
//! (`_image.py`) fills most of them, but code of the guest cannot fill the chunks that the SDK and its callers free
//! afterwards. A rollout would get these chunks first, and would need its own copy of the page of each. Here they are
//! marked as used. They are never freed, because they are in the image, which all instances share.
//!
//! The heap is that of wasi-libc, Doug Lea's `dlmalloc`: segments of chunks one after another. A segment ends with the topmost
//! chunk of the heap, or, if another part of the component has grown the memory meanwhile, with a word that marks its end.
//! Each chunk begins with its size and two flags: whether it is used, and whether the chunk before it is used. Lists and
//! trees contain the free chunks, by size. If the chunks differ from the lists anywhere, the allocator is another
//! one or another version, and the image does not change.

use std::collections::BTreeSet;

use super::image::Image;

/// Flags in the word of a chunk's size: whether the chunk before it is used, and whether the chunk itself is used.
const BEFORE_USED: u32 = 1;
const USED: u32 = 2;
const FLAGS: u32 = 7;

/// Alignment of sizes and of addresses behind the header of a chunk.
const ALIGNED_BYTES: u32 = 16;
const CHUNK_HEADER_BYTES: u32 = 8;

/// Number of lists, each of chunks of one size, and of trees, each of chunks in a range of sizes.
const LISTS: u32 = 32;
const TREES: u32 = 32;

/// Offsets of the members of `struct malloc_state` on a 32-bit target.
const LISTS_THERE: u32 = 0;
const TREES_THERE: u32 = 4;
const VICTIM_SIZE: u32 = 8;
const TOP_SIZE: u32 = 12;
const VICTIM: u32 = 20;
const TOP: u32 = 24;
const LIST_HEADS: u32 = 40;
const TREE_ROOTS: u32 = LIST_HEADS + 8 * (LISTS + 1);
/// The newest segment. Four words about the size of the heap are between.
const SEGMENT: u32 = TREE_ROOTS + 4 * TREES + 16;

/// Offsets of the members of `struct malloc_segment`: the address of the segment, and the older segment's description.
const SEGMENT_BEGIN: u32 = 0;
const SEGMENT_NEXT: u32 = 8;

/// The word of a size that ends a segment.
const END_OF_SEGMENT: u32 = 7;

/// Maximum number of segments that are read. A heap has few, unless the words are not those of a heap.
const SEGMENTS_MAX: usize = 1000;

/// Members of `struct malloc_chunk` and `struct malloc_tree_chunk`.
const HEAD: u32 = 4;
const NEXT: u32 = 8;
const PREVIOUS: u32 = 12;
const CHILDREN: [u32; 2] = [16, 20];

/// Offset of the interpreter's lists of freed objects, which it uses again before it allocates memory: the first object
/// and the number of objects for each kind, in the memory of its library. The offset is that of the release of
/// componentize-py that builds the components.
const FREED_OBJECTS_AT: u32 = 0x0028_D938;
const KINDS: u32 = 40;
const FREED_OF_A_KIND_MAX: u32 = 2000;

/// Empties the interpreter's lists of freed objects, which can be anywhere in the memory. Returns the number of
/// objects, or `None` if the length of a list differs from its recorded number.
pub(super) fn take_freed_objects(image: &mut Image, library: u32) -> Option<u32> {
    let lists = || (0..KINDS).map(|kind| library + FREED_OBJECTS_AT + 8 * kind);
    let mut taken = 0;
    for list in lists() {
        let count = image.word_at(list + 4)?;
        let mut object = image.word_at(list)?;
        for _ in 0..count.min(FREED_OF_A_KIND_MAX) {
            // An object begins with the address of the next one.
            object = image.word_at(object).filter(|_| object != 0)?;
        }
        if object != 0 || count > FREED_OF_A_KIND_MAX {
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

/// Takes the free chunks of the heap and returns their number, or `None` if no heap is found in which chunks and lists
/// agree.
pub(super) fn take_free(image: &mut Image) -> Option<usize> {
    let (state, free) = find_heap(image)?;
    for (chunk, size) in &free {
        let head = image.word_at(chunk + HEAD)?;
        image.set_word(chunk + HEAD, head | USED);
        // The content is unused and may differ from build to build.
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

/// Returns the address of the allocator's state and its free chunks. The state is at the only address at which the
/// memory has the form of a state and the free chunks are those in its lists. An empty list begins and ends at itself.
fn find_heap(image: &Image) -> Option<(u32, BTreeSet<(u32, u32)>)> {
    let is_empty = |state: u32, list: u32| {
        let head = state + LIST_HEADS + 8 * list;
        image.word_at(head + NEXT) == Some(head) && image.word_at(head + PREVIOUS) == Some(head)
    };
    let end = image.len().saturating_sub(SEGMENT + SEGMENT_NEXT + 4);
    let states = (4..end).step_by(4).filter(|state| is_empty(*state, 0) && is_empty(*state, 1));
    let mut heaps = states.filter_map(|state| {
        let free = free_chunks(image, state)?;
        (listed_chunks(image, state)? == free).then_some((state, free))
    });
    let heap = heaps.next()?;
    heaps.next().is_none().then_some(heap)
}

/// Returns the topmost chunk. Allocations that fit no free chunk come from it.
fn top_of(image: &Image, state: u32) -> Option<u32> {
    let top = image.word_at(state + TOP)?;
    let size = image.word_at(state + TOP_SIZE)?;
    (top > 0 && size > 0 && image.word_at(top.checked_add(HEAD)?)? == size | BEFORE_USED).then_some(top)
}

/// Returns the free chunks and their sizes, found among all chunks.
fn free_chunks(image: &Image, state: u32) -> Option<BTreeSet<(u32, u32)>> {
    let top = top_of(image, state)?;
    let mut free = BTreeSet::new();
    let mut has_top = false;
    let mut segment = state + SEGMENT;
    for _ in 0..SEGMENTS_MAX {
        let begin = image.word_at(segment + SEGMENT_BEGIN)?;
        has_top |= add_free_chunks(image, begin, top, &mut free)?;
        segment = image.word_at(segment + SEGMENT_NEXT)?;
        if segment == 0 {
            return has_top.then_some(free);
        }
    }
    None
}

/// Adds the free chunks of the segment that begins at an address. Returns whether it ends with the topmost chunk.
fn add_free_chunks(image: &Image, begin: u32, top: u32, free: &mut BTreeSet<(u32, u32)>) -> Option<bool> {
    let mut chunk =
        begin.checked_add(CHUNK_HEADER_BYTES)?.checked_next_multiple_of(ALIGNED_BYTES)? - CHUNK_HEADER_BYTES;
    let mut before_used = true;
    while chunk != top {
        let head = image.word_at(chunk.checked_add(HEAD)?)?;
        if head == END_OF_SEGMENT {
            return before_used.then_some(false);
        }
        let size = head & !FLAGS;
        let is_sound = size >= ALIGNED_BYTES && size.is_multiple_of(ALIGNED_BYTES);
        if !is_sound || (head & BEFORE_USED != 0) != before_used {
            return None;
        }
        before_used = head & USED != 0;
        if !before_used && !free.insert((chunk, size)) {
            return None;
        }
        chunk = chunk.checked_add(size)?;
    }
    before_used.then_some(true)
}

/// Returns the free chunks and their sizes, found in the allocator's lists, trees and the chunk that it uses first.
fn listed_chunks(image: &Image, state: u32) -> Option<BTreeSet<(u32, u32)>> {
    let size_of = |chunk: u32| Some(image.word_at(chunk.checked_add(HEAD)?)? & !FLAGS);
    let mut listed = BTreeSet::new();
    // The head of a list still refers to its last chunk after this chunk was allocated.
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
        // The neighbours of a node have its size and no children.
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

    /// Returns a heap of chunks of these sizes, some of them free, and a topmost chunk. Small free chunks are in lists,
    /// a chunk of 592 bytes is in a tree, and the last chunk of 48 bytes is used first.
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
        set(&mut image, SEGMENT + SEGMENT_BEGIN, HEAP);
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
    fn free_chunks_are_used_afterwards_and_in_no_list() {
        let mut image = heap(&[CHUNKS.as_slice(), &[(48, false), (16, true)]].concat());

        assert_eq!(take_free(&mut image), Some(5));

        assert_eq!(free_chunks(&image, STATE), Some(BTreeSet::new()));
        assert_eq!(listed_chunks(&image, STATE), Some(BTreeSet::new()));
        assert_eq!(image.word_at(STATE + VICTIM_SIZE), Some(0));
        assert_eq!(take_free(&mut image), Some(0));
    }

    #[test]
    fn free_chunks_of_an_older_segment_are_used_afterwards() {
        const OLDER: u32 = 0x1800;
        let mut image = heap(&CHUNKS);
        // The older segment has a used chunk, a free one of 48 bytes, and a used one with the segment's description.
        let (free, last) = (OLDER + 8 + 32, OLDER + 8 + 32 + 48);
        for (at, head) in [
            (OLDER + 8, 32 | USED | BEFORE_USED),
            (free, 48 | BEFORE_USED),
            (last, 32 | USED),
            (last + 32, END_OF_SEGMENT),
        ] {
            image.set_word(at + HEAD, head);
        }
        image.set_word(STATE + SEGMENT + SEGMENT_NEXT, last + 8);
        image.set_word(last + 8 + SEGMENT_BEGIN, OLDER);
        image.set_word(STATE + VICTIM, free);
        image.set_word(STATE + VICTIM_SIZE, 48);
        let mut unlisted = image.clone();
        unlisted.set_word(STATE + VICTIM, 0);

        assert_eq!(take_free(&mut unlisted), None);
        assert_eq!(take_free(&mut image), Some(5));

        assert_eq!(free_chunks(&image, STATE), Some(BTreeSet::new()));
        assert_eq!(image.word_at(last + HEAD), Some(32 | USED | BEFORE_USED));
    }

    #[test]
    fn a_heap_with_any_chunk_that_disagrees_is_left_alone() {
        let sound = heap(&CHUNKS);
        let broken = [
            // A free chunk in no list, a used chunk in a list, a size that leads to no chunk, a topmost chunk of another
            // size.
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

    /// Returns a memory with lists of two freed objects of one kind and one of another.
    fn with_freed_objects() -> Image {
        let mut image = Image::zeroed(0x0030_0000);
        let list = |kind: u32| LIBRARY + FREED_OBJECTS_AT + 8 * kind;
        for (at, word) in
            [(list(2), 0x200), (list(2) + 4, 2), (0x200, 0x240), (list(20), 0x280), (list(20) + 4, 1)]
        {
            image.set_word(at, word);
        }
        image
    }

    #[test]
    fn lists_of_freed_objects_are_emptied() {
        let mut image = with_freed_objects();

        assert_eq!(take_freed_objects(&mut image, LIBRARY), Some(3));

        assert_eq!(image.word_at(0x200), Some(0x240), "an object was touched");
        assert_eq!(take_freed_objects(&mut image, LIBRARY), Some(0));
    }

    #[test]
    fn lists_of_freed_objects_of_another_length_are_left_alone() {
        let first = LIBRARY + FREED_OBJECTS_AT;
        // A number that is too high, one that is too low, a list that leads out of the memory, and a list in a circle.
        let broken = [(first + 8 * 2 + 4, 3), (first + 8 * 2 + 4, 1), (0x240, 0x7000_0000), (0x240, 0x200)];
        for (at, word) in broken {
            let mut image = with_freed_objects();
            image.set_word(at, word);
            let before = image.clone();

            assert_eq!(take_freed_objects(&mut image, LIBRARY), None, "{at:#x}: {word:#x}");

            assert!(image == before, "{at:#x}: {word:#x} was touched");
        }
    }
}
