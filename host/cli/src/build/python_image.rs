//! The last touch to a Python component: nobody counts references to what is in it.
//!
//! A component's initial memory is one image that its instances share, page by page, until
//! one writes to a page. An interpreter writes to every object that it looks at, because
//! it counts references; unless the count is so high that the object can never be freed.
//! Nothing in the image is ever freed, so the counts of all objects in it are set that
//! high. The SDK (`_image.py`) leaves a list of them in the memory, which is taken out.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use wasm_encoder::{Component, ConstExpr, DataSection, Encode, Module, RawSection};
use wasmparser::{
    BinaryReader, DataKind, DataSectionReader, ExportSectionReader, ExternalKind, GlobalSectionReader,
    Operator,
};

use super::{python_heap, python_repeat};

/// What the list begins with. After it: how many addresses, the addresses, their sum.
const MARK: &[u8] = b"ROLLOUT-OBJECTS:";

/// The count at which CPython 3.14 leaves a reference uncounted where addresses have 32
/// bits, and the least at which it does not.
const UNCOUNTED: u32 = 5 << 28;
const UNCOUNTED_MIN: u32 = 1 << 30;

/// Bytes of zeros that are cheaper to keep than to begin a segment after.
const GAP_BYTES: usize = 32;

/// How many segments an image may have. A module with more than 100,000 is not valid, and those of
/// native packages come to these when the core modules are joined.
const SEGMENTS_MAX: usize = 80_000;

/// The most that a component's initial memory may be.
const IMAGE_BYTES_MAX: usize = 1 << 30;

/// Numbers that WebAssembly's binary format gives to sections.
const CORE_MODULE: u8 = 1;
const GLOBALS: u8 = 6;
const EXPORTS: u8 = 7;
const DATA: u8 = 11;
const DATA_COUNT: u8 = 12;

/// Bytes before the first section, of a component and of a module.
const HEADER_BYTES: usize = 8;

/// Gives back the component with the counts set, without the list and without what would be
/// another in the next build.
pub(super) fn settle(component: &[u8]) -> Result<Vec<u8>> {
    with_image(component, |image, module| {
        let places = Places::read(module)?;
        python_repeat::forget(image, &places)?;
        python_heap::take_free(image);
        let kept = python_heap::take_kept_objects(image, places.named("libpython3.14.so:memory_base")?);
        kept.context("the component's Python is not the one that this program knows")?;
        Ok(())
    })
}

/// Sets the counts, takes the list out and does whatever else is done to the image.
fn with_image(component: &[u8], change: impl FnOnce(&mut Image, &[u8]) -> Result<()>) -> Result<Vec<u8>> {
    let outer = sections(component)?;
    for (at, (id, range)) in outer.iter().enumerate() {
        if *id != CORE_MODULE {
            continue;
        }
        let module = &component[range.clone()];
        let inner = sections(module)?;
        let Some((_, data)) = inner.iter().find(|(id, _)| *id == DATA) else { continue };
        let mut image = Image::read(&module[data.clone()])?;
        let Some(list) = image.find_list() else { continue };
        image.count_no_more(&list.addresses);
        image.fill(list.place, 0);
        change(&mut image, module)?;
        let module = with_data(module, &inner, &image.segments());
        return Ok(with_module(component, &outer, at, &module));
    }
    bail!("the component's memory has no list of its objects; was it built by another SDK?")
}

/// The sections of a component or module: numbers, and where their contents are.
fn sections(bytes: &[u8]) -> Result<Vec<(u8, Range<usize>)>> {
    let mut reader = BinaryReader::new(bytes, 0);
    reader.read_bytes(HEADER_BYTES).context("not WebAssembly")?;
    let mut found = Vec::new();
    while !reader.eof() {
        let id = reader.read_u8()?;
        let size = reader.read_var_u32()? as usize;
        let begin = reader.original_position();
        reader.read_bytes(size)?;
        found.push((id, begin..begin + size));
    }
    Ok(found)
}

/// A memory as it is before anything runs.
#[derive(Clone, PartialEq)]
pub(super) struct Image(Vec<u8>);

/// Addresses that the tool gives names to: of each library's memory, of the stack, of what
/// libraries share.
pub(super) struct Places(HashMap<String, u32>);

impl Places {
    /// Reads the names of a module's constant globals.
    fn read(module: &[u8]) -> Result<Self> {
        let (mut constants, mut named) = (Vec::new(), HashMap::new());
        for (id, range) in sections(module)? {
            let reader = BinaryReader::new(&module[range], 0);
            if id == GLOBALS {
                for global in GlobalSectionReader::new(reader)? {
                    let value = global?.init_expr.get_operators_reader().read()?;
                    constants.push(match value {
                        Operator::I32Const { value } => Some(value.cast_unsigned()),
                        _ => None,
                    });
                }
            } else if id == EXPORTS {
                // Sections are in order: the globals were read.
                for export in ExportSectionReader::new(reader)? {
                    let export = export?;
                    let value = constants.get(export.index as usize).copied().flatten();
                    if let (ExternalKind::Global, Some(value)) = (export.kind, value) {
                        named.insert(export.name.to_owned(), value);
                    }
                }
            }
        }
        Ok(Self(named))
    }

    pub(super) fn named(&self, name: &str) -> Result<u32> {
        let found = self.0.get(name).copied();
        found.with_context(|| {
            format!("the component's memory has no `{name}`; was it made by another componentize-py?")
        })
    }
}

/// The list of objects, and where it was.
struct List {
    place: Range<usize>,
    addresses: Vec<u32>,
}

impl Image {
    fn read(data: &[u8]) -> Result<Self> {
        let mut image = Vec::new();
        for segment in DataSectionReader::new(BinaryReader::new(data, 0))? {
            let segment = segment?;
            let DataKind::Active { memory_index: 0, offset_expr } = segment.kind else {
                bail!("a data segment is not of the initial memory");
            };
            let Operator::I32Const { value } = offset_expr.get_operators_reader().read()? else {
                bail!("a data segment's place is no constant");
            };
            let begin = value.cast_unsigned() as usize;
            let end = begin + segment.data.len();
            ensure!(end <= IMAGE_BYTES_MAX, "a data segment ends at {end} bytes");
            if image.len() < end {
                image.resize(end, 0);
            }
            image[begin..end].copy_from_slice(segment.data);
        }
        Ok(Self(image))
    }

    /// Sets these bytes, as far as they are in the image.
    pub(super) fn fill(&mut self, place: Range<usize>, with: u8) {
        let end = place.end.min(self.0.len());
        if let Some(bytes) = self.0.get_mut(place.start..end) {
            bytes.fill(with);
        }
    }

    /// Writes bytes to an address of the image.
    pub(super) fn write(&mut self, address: u32, bytes: &[u8]) {
        let at = address as usize;
        if let Some(there) = self.0.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// The bytes at an address of the image.
    pub(super) fn bytes_at(&self, address: u32, count: usize) -> Option<&[u8]> {
        let at = address as usize;
        self.0.get(at..at.checked_add(count)?)
    }

    /// Where these bytes are, at addresses of whole words.
    pub(super) fn find(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let starts = (0..self.len()).step_by(4);
        starts.filter(move |at| self.0[*at as usize..].starts_with(bytes))
    }

    #[cfg(test)]
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// How long it is. Its addresses have 32 bits, by the size that an image may have.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// The word at this address, if it is in the image.
    pub(super) fn word_at(&self, address: u32) -> Option<u32> {
        self.word(address as usize)
    }

    /// Writes a word at an address of the image. What is beyond it stays zero.
    pub(super) fn set_word(&mut self, address: u32, word: u32) {
        self.write(address, &word.to_le_bytes());
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The one place with the mark where what follows adds up.
    fn find_list(&self) -> Option<List> {
        (0..self.0.len()).step_by(4).find_map(|mark| {
            self.0[mark..].strip_prefix(MARK)?;
            let count = self.word(mark + MARK.len())? as usize;
            let begin = mark + MARK.len() + 4;
            let end = begin.checked_add(count.checked_mul(4)?)?;
            let addresses: Vec<u32> =
                (begin..end).step_by(4).map(|at| self.word(at)).collect::<Option<_>>()?;
            let sum = addresses.iter().fold(0, |sum: u32, address| sum.wrapping_add(*address));
            (count > 0 && self.word(end)? == sum).then_some(List { place: mark..end + 4, addresses })
        })
    }

    /// Sets the counts of the objects that are still there. An object begins with its count
    /// and the address of its type. What was freed after it was listed has a count of zero,
    /// or another freed object's address in its place, or no type.
    fn count_no_more(&mut self, addresses: &[u32]) {
        let objects: HashSet<u32> = addresses.iter().copied().collect();
        let Some(first) = addresses.iter().copied().min() else { return };
        for address in addresses {
            let at = *address as usize;
            let (Some(count), Some(kind)) = (self.word(at), self.word(at + 4)) else { continue };
            let counted = 0 < count && count < first.min(UNCOUNTED_MIN);
            if counted && objects.contains(&kind) {
                self.0[at..at + 4].copy_from_slice(&UNCOUNTED.to_le_bytes());
            }
        }
    }

    /// What is not zero, and where, in as many segments as a module may have.
    fn segments(&self) -> Vec<(usize, &[u8])> {
        self.segments_at_most(SEGMENTS_MAX)
    }

    /// What is not zero, and where. If there are more segments than `count_max`, those with the least zeros between
    /// them become one.
    fn segments_at_most(&self, count_max: usize) -> Vec<(usize, &[u8])> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (at, _) in self.0.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            join_or_push(&mut found, at..at + 1, GAP_BYTES);
        }
        if let Some(excess) = found.len().checked_sub(count_max).filter(|excess| *excess > 0) {
            let mut gaps: Vec<usize> = found.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
            let (_, widest, _) = gaps.select_nth_unstable(excess - 1);
            let widest = *widest;
            let mut joined = Vec::new();
            found.into_iter().for_each(|range| join_or_push(&mut joined, range, widest));
            found = joined;
        }
        found.into_iter().map(|range| (range.start, &self.0[range])).collect()
    }
}

/// Extends the last range to the end of this one if no more than `gap` bytes are between them.
fn join_or_push(ranges: &mut Vec<Range<usize>>, range: Range<usize>, gap: usize) {
    match ranges.last_mut() {
        Some(last) if range.start - last.end <= gap => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// The module with other data.
fn with_data(module: &[u8], sections: &[(u8, Range<usize>)], segments: &[(usize, &[u8])]) -> Vec<u8> {
    let mut data = DataSection::new();
    for (at, bytes) in segments {
        // An address of 32 bits, by the size that an image may have.
        let at = u32::try_from(*at).unwrap_or(u32::MAX).cast_signed();
        data.active(0, &ConstExpr::i32_const(at), bytes.iter().copied());
    }
    let mut made = Module::new();
    for (id, range) in sections {
        match *id {
            DATA => made.section(&data),
            DATA_COUNT => {
                let mut count = Vec::new();
                segments.len().encode(&mut count);
                made.section(&RawSection { id: DATA_COUNT, data: &count })
            }
            id => made.section(&RawSection { id, data: &module[range.clone()] }),
        };
    }
    made.finish()
}

/// The component with another module in this section.
fn with_module(component: &[u8], sections: &[(u8, Range<usize>)], place: usize, module: &[u8]) -> Vec<u8> {
    let mut made = Component::new();
    for (at, (id, range)) in sections.iter().enumerate() {
        let data = if at == place { module } else { &component[range.clone()] };
        made.section(&RawSection { id: *id, data });
    }
    made.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: u32 = 0x1000;

    /// A component with a module whose memory has these words at these places.
    fn component(words: &[(u32, &[u32])]) -> Vec<u8> {
        let mut data = DataSection::new();
        for (at, words) in words {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            data.active(0, &ConstExpr::i32_const(at.cast_signed()), bytes);
        }
        let mut module = Module::new();
        let mut memories = wasm_encoder::MemorySection::new();
        memories.memory(wasm_encoder::MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        module.section(&memories).section(&data);
        let mut component = Component::new();
        component.section(&RawSection { id: CORE_MODULE, data: &module.finish() });
        component.finish()
    }

    fn list(addresses: &[u32]) -> Vec<u32> {
        let mark = MARK.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let sum = addresses.iter().sum();
        let count = u32::try_from(addresses.len()).unwrap();
        mark.chain([count]).chain(addresses.iter().copied()).chain([sum]).collect()
    }

    fn image(component: &[u8]) -> Image {
        let (_, module) = sections(component).unwrap().remove(0);
        let module = &component[module];
        let data = sections(module).unwrap().into_iter().find(|(id, _)| *id == DATA).unwrap().1;
        Image::read(&module[data]).unwrap()
    }

    #[test]
    fn objects_are_counted_no_more_and_what_was_freed_is_left_alone() {
        const ALIVE: u32 = 0x2000;
        const GONE: u32 = 0x2010;
        const IN_FREE_LIST: u32 = 0x2020;
        const NO_OBJECT: u32 = 0x2030;
        const SETTLED: u32 = 0x2040;
        let objects = [TYPE, ALIVE, GONE, IN_FREE_LIST, NO_OBJECT, SETTLED, 0x00FF_0000];
        let before = component(&[
            (TYPE, &[7, TYPE]),
            (ALIVE, &[3, TYPE, 42]),
            (GONE, &[0, TYPE]),
            (IN_FREE_LIST, &[GONE, TYPE]),
            (NO_OBJECT, &[3, 0x2004]),
            (SETTLED, &[UNCOUNTED_MIN + 5, TYPE]),
            (0x4000, &list(&objects)),
            (0x5000, &[0x4F4C_4C4F]),
        ]);

        let after = with_image(&before, |_, _| Ok(())).unwrap();

        wasmparser::Validator::new().validate_all(&after).unwrap();
        let image = image(&after);
        let words = |at: u32| [image.word(at as usize).unwrap(), image.word(at as usize + 4).unwrap()];
        assert_eq!(words(TYPE), [UNCOUNTED, TYPE]);
        assert_eq!(words(ALIVE), [UNCOUNTED, TYPE]);
        assert_eq!(image.word(ALIVE as usize + 8), Some(42));
        assert_eq!(words(GONE), [0, TYPE]);
        assert_eq!(words(IN_FREE_LIST), [GONE, TYPE]);
        assert_eq!(words(NO_OBJECT), [3, 0x2004]);
        assert_eq!(words(SETTLED), [UNCOUNTED_MIN + 5, TYPE]);
        assert_eq!(image.word(0x5000), Some(0x4F4C_4C4F));
        assert!(image.0[0x4000..0x5000].iter().all(|byte| *byte == 0), "the list is still there");
    }

    #[test]
    fn segments_with_the_least_between_them_are_joined_until_there_are_few_enough() {
        let mut image = Image(vec![0; 2000]);
        for (at, length) in [(0, 3), (100, 1), (140, 2), (200, 5), (1000, 4)] {
            image.fill(at..at + length, 7);
        }
        let places = |count_max| -> Vec<_> {
            image.segments_at_most(count_max).iter().map(|(at, bytes)| (*at, bytes.len())).collect()
        };

        assert_eq!(places(5), [(0, 3), (100, 1), (140, 2), (200, 5), (1000, 4)]);
        assert_eq!(places(4), [(0, 3), (100, 42), (200, 5), (1000, 4)]);
        assert_eq!(places(2), [(0, 205), (1000, 4)]);
        assert_eq!(places(1), [(0, 1004)]);
        for (at, bytes) in image.segments_at_most(1) {
            assert_eq!(bytes, &image.0[at..at + bytes.len()]);
        }
    }

    #[test]
    fn without_a_list_that_adds_up_nothing_is_touched() {
        let mut broken = list(&[TYPE]);
        *broken.last_mut().unwrap() += 1;
        for words in [broken, vec![1, 2, 3]] {
            let error = settle(&component(&[(0x4000, &words)])).unwrap_err().to_string();

            assert!(error.contains("no list of its objects"), "{error}");
        }
        assert!(settle(b"\0asm").is_err());
    }
}
