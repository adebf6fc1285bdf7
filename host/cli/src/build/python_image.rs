//! Makes the objects in a Python component's initial memory immortal.
//!
//! A component's initial memory is one image that its instances share, page by page, until one writes to a
//! page. The interpreter writes to every object that it uses, because it counts references, unless the object
//! is immortal: its count is so high that it is never changed. No object in the image is ever freed, so all
//! of them are made immortal. The SDK (`_image.py`) leaves a list of the objects in the memory, which is
//! removed.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use wasm_encoder::{Component, ConstExpr, DataSection, Encode, Module, RawSection};
use wasmparser::{
    BinaryReader, DataKind, DataSectionReader, ExportSectionReader, ExternalKind, GlobalSectionReader,
    Operator,
};

use super::{python_heap, python_repeat};

/// Start of the list. The number of addresses, the addresses and their sum follow.
const MARK: &[u8] = b"ROLLOUT-OBJECTS:";

/// Reference count of an immortal object in CPython 3.14 with 32-bit addresses, and the least count that
/// CPython treats as immortal.
const IMMORTAL: u32 = 5 << 28;
const IMMORTAL_MIN: u32 = 1 << 30;

/// Maximum number of zeros between two ranges that are cheaper to store than another segment.
const GAP_BYTES: usize = 32;

/// Maximum number of segments of an image. A module may have 100,000, and joining the core modules adds the
/// segments of native packages.
const SEGMENTS_MAX: usize = 80_000;

/// Maximum size of a component's initial memory.
const IMAGE_BYTES_MAX: usize = 1 << 30;

/// Section ids of WebAssembly's binary format.
const CORE_MODULE: u8 = 1;
const GLOBALS: u8 = 6;
const EXPORTS: u8 = 7;
const DATA: u8 = 11;
const DATA_COUNT: u8 = 12;

/// Number of bytes before the first section of a component or module.
const HEADER_BYTES: usize = 8;

/// Returns the component with immortal objects, without their list and without content that differs between
/// builds.
pub(super) fn finalize(component: &[u8]) -> Result<Vec<u8>> {
    with_image(component, |image, module| {
        let symbols = Symbols::read(module)?;
        python_repeat::remove_variation(image, &symbols)?;
        python_heap::use_free_chunks(image);
        let emptied = python_heap::empty_free_lists(image, symbols.address("libpython3.14.so:memory_base")?);
        emptied.context("the component's Python is not the release that this program supports")?;
        Ok(())
    })
}

/// Makes the objects immortal, removes their list and applies `change` to the image.
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
        image.make_immortal(&list.addresses);
        image.fill(list.range, 0);
        change(&mut image, module)?;
        let module = with_data(module, &inner, &image.segments());
        return Ok(with_module(component, &outer, at, &module));
    }
    bail!("the component's memory has no list of its objects; was it built by another SDK?")
}

/// Returns the sections of a component or module: their ids and the ranges of their contents.
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

/// The initial content of a memory.
#[derive(Clone, PartialEq)]
pub(super) struct Image(Vec<u8>);

/// Named addresses: of each library's memory, of the stack, of symbols that libraries share.
pub(super) struct Symbols(HashMap<String, u32>);

impl Symbols {
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
                // The section of globals precedes that of exports.
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

    pub(super) fn address(&self, name: &str) -> Result<u32> {
        let found = self.0.get(name).copied();
        found.with_context(|| {
            format!("the component's memory has no `{name}`; was it created by another componentize-py?")
        })
    }
}

/// The list of objects and its range in the image.
struct ObjectList {
    range: Range<usize>,
    addresses: Vec<u32>,
}

impl Image {
    fn read(data: &[u8]) -> Result<Self> {
        let mut image = Vec::new();
        for segment in DataSectionReader::new(BinaryReader::new(data, 0))? {
            let segment = segment?;
            let DataKind::Active { memory_index: 0, offset_expr } = segment.kind else {
                bail!("a data segment does not belong to the initial memory");
            };
            let Operator::I32Const { value } = offset_expr.get_operators_reader().read()? else {
                bail!("a data segment's offset is not constant");
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

    /// Fills a range of bytes, as far as it is in the image.
    pub(super) fn fill(&mut self, range: Range<usize>, with: u8) {
        let end = range.end.min(self.0.len());
        if let Some(bytes) = self.0.get_mut(range.start..end) {
            bytes.fill(with);
        }
    }

    /// Writes bytes to an address. Does nothing if they are not within the image.
    pub(super) fn write(&mut self, address: u32, bytes: &[u8]) {
        let at = address as usize;
        if let Some(there) = self.0.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// Returns the bytes at an address, if they are in the image.
    pub(super) fn bytes_at(&self, address: u32, count: usize) -> Option<&[u8]> {
        let at = address as usize;
        self.0.get(at..at.checked_add(count)?)
    }

    /// Returns the word-aligned addresses of these bytes.
    pub(super) fn find(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let starts = (0..self.len()).step_by(4);
        starts.filter(move |at| self.0[*at as usize..].starts_with(bytes))
    }

    #[cfg(test)]
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// Returns the image's size, whose maximum fits into 32 bits.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Returns the word at an address, if it is in the image.
    pub(super) fn word_at(&self, address: u32) -> Option<u32> {
        self.word(address as usize)
    }

    /// Writes a word to an address. Does nothing if it is not within the image.
    pub(super) fn set_word(&mut self, address: u32, word: u32) {
        self.write(address, &word.to_le_bytes());
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Finds the list of objects: a mark followed by addresses with a correct sum.
    fn find_list(&self) -> Option<ObjectList> {
        (0..self.0.len()).step_by(4).find_map(|mark| {
            self.0[mark..].strip_prefix(MARK)?;
            let count = self.word(mark + MARK.len())? as usize;
            let begin = mark + MARK.len() + 4;
            let end = begin.checked_add(count.checked_mul(4)?)?;
            let addresses: Vec<u32> =
                (begin..end).step_by(4).map(|at| self.word(at)).collect::<Option<_>>()?;
            let sum = addresses.iter().fold(0, |sum: u32, address| sum.wrapping_add(*address));
            (count > 0 && self.word(end)? == sum).then_some(ObjectList { range: mark..end + 4, addresses })
        })
    }

    /// Makes the objects that still exist immortal.
    ///
    /// An object begins with its reference count and the address of its type. An object that was freed after
    /// it was listed has a count of zero, or the address of another freed object instead, or no type.
    fn make_immortal(&mut self, addresses: &[u32]) {
        let objects: HashSet<u32> = addresses.iter().copied().collect();
        let Some(first) = addresses.iter().copied().min() else { return };
        for address in addresses {
            let at = *address as usize;
            let (Some(count), Some(kind)) = (self.word(at), self.word(at + 4)) else { continue };
            let counted = 0 < count && count < first.min(IMMORTAL_MIN);
            if counted && objects.contains(&kind) {
                self.0[at..at + 4].copy_from_slice(&IMMORTAL.to_le_bytes());
            }
        }
    }

    /// Returns the content that is not zero and its offsets, in as many segments as a module may have.
    fn segments(&self) -> Vec<(usize, &[u8])> {
        self.segments_at_most(SEGMENTS_MAX)
    }

    /// Returns the content that is not zero and its offsets. If there are more than `count_max` segments,
    /// those with the fewest zeros between them are joined.
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

/// Extends the last range to the end of this one if at most `gap` bytes are between them.
fn join_or_push(ranges: &mut Vec<Range<usize>>, range: Range<usize>, gap: usize) {
    match ranges.last_mut() {
        Some(last) if range.start - last.end <= gap => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Returns the module with other data.
fn with_data(module: &[u8], sections: &[(u8, Range<usize>)], segments: &[(usize, &[u8])]) -> Vec<u8> {
    let mut data = DataSection::new();
    for (at, bytes) in segments {
        // The maximum size of an image fits into 32 bits.
        let at = u32::try_from(*at).unwrap_or(u32::MAX).cast_signed();
        data.active(0, &ConstExpr::i32_const(at), bytes.iter().copied());
    }
    let mut result = Module::new();
    for (id, range) in sections {
        match *id {
            DATA => result.section(&data),
            DATA_COUNT => {
                let mut count = Vec::new();
                segments.len().encode(&mut count);
                result.section(&RawSection { id: DATA_COUNT, data: &count })
            }
            id => result.section(&RawSection { id, data: &module[range.clone()] }),
        };
    }
    result.finish()
}

/// Returns the component with another module in the section at this index.
fn with_module(component: &[u8], sections: &[(u8, Range<usize>)], index: usize, module: &[u8]) -> Vec<u8> {
    let mut result = Component::new();
    for (at, (id, range)) in sections.iter().enumerate() {
        let data = if at == index { module } else { &component[range.clone()] };
        result.section(&RawSection { id: *id, data });
    }
    result.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: u32 = 0x1000;

    /// Returns a component with a module whose memory has these words at these addresses.
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
    fn objects_become_immortal_and_freed_ones_are_not_changed() {
        const ALIVE: u32 = 0x2000;
        const FREED: u32 = 0x2010;
        const IN_FREE_LIST: u32 = 0x2020;
        const NO_OBJECT: u32 = 0x2030;
        const ALREADY_IMMORTAL: u32 = 0x2040;
        let objects = [TYPE, ALIVE, FREED, IN_FREE_LIST, NO_OBJECT, ALREADY_IMMORTAL, 0x00FF_0000];
        let before = component(&[
            (TYPE, &[7, TYPE]),
            (ALIVE, &[3, TYPE, 42]),
            (FREED, &[0, TYPE]),
            (IN_FREE_LIST, &[FREED, TYPE]),
            (NO_OBJECT, &[3, 0x2004]),
            (ALREADY_IMMORTAL, &[IMMORTAL_MIN + 5, TYPE]),
            (0x4000, &list(&objects)),
            (0x5000, &[0x4F4C_4C4F]),
        ]);

        let after = with_image(&before, |_, _| Ok(())).unwrap();

        wasmparser::Validator::new().validate_all(&after).unwrap();
        let image = image(&after);
        let words = |at: u32| [image.word(at as usize).unwrap(), image.word(at as usize + 4).unwrap()];
        assert_eq!(words(TYPE), [IMMORTAL, TYPE]);
        assert_eq!(words(ALIVE), [IMMORTAL, TYPE]);
        assert_eq!(image.word(ALIVE as usize + 8), Some(42));
        assert_eq!(words(FREED), [0, TYPE]);
        assert_eq!(words(IN_FREE_LIST), [FREED, TYPE]);
        assert_eq!(words(NO_OBJECT), [3, 0x2004]);
        assert_eq!(words(ALREADY_IMMORTAL), [IMMORTAL_MIN + 5, TYPE]);
        assert_eq!(image.word(0x5000), Some(0x4F4C_4C4F));
        assert!(image.0[0x4000..0x5000].iter().all(|byte| *byte == 0), "the list is still there");
    }

    #[test]
    fn segments_with_the_smallest_gaps_are_joined_until_there_are_few_enough() {
        let mut image = Image(vec![0; 2000]);
        for (at, length) in [(0, 3), (100, 1), (140, 2), (200, 5), (1000, 4)] {
            image.fill(at..at + length, 7);
        }
        let segments = |count_max| -> Vec<_> {
            image.segments_at_most(count_max).iter().map(|(at, bytes)| (*at, bytes.len())).collect()
        };

        assert_eq!(segments(5), [(0, 3), (100, 1), (140, 2), (200, 5), (1000, 4)]);
        assert_eq!(segments(4), [(0, 3), (100, 42), (200, 5), (1000, 4)]);
        assert_eq!(segments(2), [(0, 205), (1000, 4)]);
        assert_eq!(segments(1), [(0, 1004)]);
        for (at, bytes) in image.segments_at_most(1) {
            assert_eq!(bytes, &image.0[at..at + bytes.len()]);
        }
    }

    #[test]
    fn a_list_of_objects_with_a_wrong_sum_is_an_error() {
        let mut broken = list(&[TYPE]);
        *broken.last_mut().unwrap() += 1;
        for words in [broken, vec![1, 2, 3]] {
            let error = finalize(&component(&[(0x4000, &words)])).unwrap_err().to_string();

            assert!(error.contains("no list of its objects"), "{error}");
        }
        assert!(finalize(b"\0asm").is_err());
    }
}
