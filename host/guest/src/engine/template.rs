//! Compiled code that components share: a component is compiled with a placeholder in place of its initial memory.
//!
//! The compiler copies the initial memory of a module to one section of its output, and nothing else in the output depends
//! on it. So components with the same code have the same [`Template`], whose output is compiled and cached once and
//! [completed](Template::complete) with the memory of each. An edit of a Python file changes only the memory.

use std::ops::Range;

use memchr::memmem;
use wasmparser::{
    BinaryReader, Data, DataKind, DataSectionReader, ImportSectionReader, MemorySectionReader, Operator,
    TypeRef,
};

use super::plan::IMAGE_BYTES_MAX;
use rollout_wire::digest::sha256;

/// Minimum size of the data in a module that gets a placeholder. The code of a module with less data is rarely shared.
const DATA_BYTES_MIN: usize = 1 << 20;

/// Multiple to which the size of the initial memory is rounded up, so that slightly different memories have one template.
const IMAGE_STEP_BYTES: usize = 1 << 16;

/// Number of bytes before the first section of a component or module.
const HEADER_BYTES: usize = 8;

/// Number of bytes by which a placeholder is found before it is compared.
const PREFIX_BYTES: usize = 16;

/// Section numbers of WebAssembly's binary format.
const CORE_MODULE: u8 = 1;
const IMPORTS: u8 = 2;
const MEMORIES: u8 = 5;
const DATA: u8 = 11;
const DATA_COUNT: u8 = 12;

/// Name of the section of the output with the initial memory, as of wasmtime's `obj::ELF_WASM_DATA`.
const MEMORY_SECTION: &[u8] = b".rodata.wasm";

/// A component with placeholders, and the initial memories that they stand for.
pub(super) struct Template {
    component: Vec<u8>,
    images: Vec<Vec<u8>>,
}

/// The initial memory of a module.
struct Image {
    start: u32,
    bytes: Vec<u8>,
}

impl Template {
    /// Returns the template of a component. `None` if no module of it has a large initial memory that is known before it
    /// runs.
    pub(super) fn of(component: &[u8]) -> Option<Self> {
        let mut template = Self { component: component.get(..HEADER_BYTES)?.to_vec(), images: Vec::new() };
        for (id, range) in sections(component)? {
            let content = &component[range];
            let module = (id == CORE_MODULE).then(|| template.with_placeholder(content)).flatten();
            put(&mut template.component, id, module.as_deref().unwrap_or(content))?;
        }
        (!template.images.is_empty()).then_some(template)
    }

    /// Returns the component to be compiled.
    pub(super) fn component(&self) -> &[u8] {
        &self.component
    }

    /// Returns the module with a placeholder instead of its initial memory.
    fn with_placeholder(&mut self, module: &[u8]) -> Option<Vec<u8>> {
        let inner = sections(module)?;
        let image = Image::read(module, &inner)?;
        let mut made = module[..HEADER_BYTES].to_vec();
        for (id, range) in inner {
            if id != DATA {
                put(&mut made, id, &module[range])?;
                continue;
            }
            // One active segment at a constant address.
            let mut data = vec![1, 0, 0x41];
            put_signed(&mut data, image.start.cast_signed());
            data.push(0x0b);
            put_number(&mut data, u32::try_from(image.bytes.len()).ok()?);
            data.append(&mut placeholder(self.images.len(), image.bytes.len()));
            put(&mut made, DATA, &data)?;
        }
        self.images.push(image.bytes);
        Some(made)
    }

    /// Puts the component's initial memories into the compiler's output for the template. Returns `None` unless each
    /// placeholder occurs exactly once in the section for initial memory.
    pub(super) fn complete(&self, mut code: Vec<u8>) -> Option<Vec<u8>> {
        let section = memory_section(&code)?;
        for (number, image) in self.images.iter().enumerate() {
            let wanted = placeholder(number, image.len());
            let mut found = memmem::find_iter(&code[section.clone()], &wanted[..PREFIX_BYTES]);
            let at = section.start + found.next()?;
            let place = at..at.checked_add(image.len())?;
            if found.next().is_some() || place.end > section.end || code[place.clone()] != wanted {
                return None;
            }
            code[place].copy_from_slice(image);
        }
        Some(code)
    }
}

impl Image {
    /// Reads the initial memory of a module if the module defines it, it is large, and the code refers to no part of it.
    fn read(module: &[u8], sections: &[(u8, Range<usize>)]) -> Option<Self> {
        let content = |wanted: u8| {
            let range = sections.iter().find(|(id, _)| *id == wanted).map(|(_, range)| range.clone());
            range.map(|range| BinaryReader::new(&module[range], 0))
        };
        if content(DATA_COUNT).is_some() {
            return None;
        }
        if let Some(imports) = content(IMPORTS) {
            let mut imports = ImportSectionReader::new(imports).ok()?.into_imports();
            let is_memory = |kind| matches!(kind, TypeRef::Memory(_));
            if imports.any(|import| import.map_or(true, |import| is_memory(import.ty))) {
                return None;
            }
        }
        let mut memories = MemorySectionReader::new(content(MEMORIES)?).ok()?.into_iter();
        let memory = memories.next()?.ok()?;
        let is_plain = !memory.memory64 && !memory.shared && memory.page_size_log2.is_none();
        if !is_plain || memories.next().is_some() {
            return None;
        }
        let memory_bytes = usize::try_from(memory.initial.checked_mul(1 << 16)?).ok()?;
        Self::of_segments(&segments(content(DATA)?)?, memory_bytes)
    }

    fn of_segments(segments: &[(u32, &[u8])], memory_bytes: usize) -> Option<Self> {
        let bytes: usize = segments.iter().map(|(_, data)| data.len()).sum();
        let used = segments.iter().filter(|(_, data)| !data.is_empty());
        let start = used.clone().map(|(start, _)| *start).min()?;
        let mut end = 0;
        for (start, data) in used.clone() {
            end = end.max((*start as usize).checked_add(data.len())?);
        }
        let rounded = end.checked_next_multiple_of(IMAGE_STEP_BYTES)?;
        let size = rounded - start as usize;
        // The engine keeps larger memories in parts.
        if bytes < DATA_BYTES_MIN || rounded > memory_bytes || size as u64 >= IMAGE_BYTES_MAX {
            return None;
        }
        let mut image = vec![0; size];
        for (at, data) in used {
            let at = (*at - start) as usize;
            image[at..at + data.len()].copy_from_slice(data);
        }
        Some(Self { start, bytes: image })
    }
}

/// Returns the address and content of each data segment, if all are written to the only memory before any code runs.
fn segments(data: BinaryReader<'_>) -> Option<Vec<(u32, &[u8])>> {
    DataSectionReader::new(data).ok()?.into_iter().map(segment).collect()
}

fn segment(segment: wasmparser::Result<Data<'_>>) -> Option<(u32, &[u8])> {
    let segment = segment.ok()?;
    let DataKind::Active { memory_index: 0, offset_expr } = segment.kind else { return None };
    let mut operators = offset_expr.get_operators_reader();
    match (operators.read().ok()?, operators.read().ok()?) {
        (Operator::I32Const { value }, Operator::End) => Some((value.cast_unsigned(), segment.data)),
        _ => None,
    }
}

/// Returns number and content range of each section of a component or module.
fn sections(bytes: &[u8]) -> Option<Vec<(u8, Range<usize>)>> {
    let mut reader = BinaryReader::new(bytes, 0);
    reader.read_bytes(HEADER_BYTES).ok()?;
    let mut found = Vec::new();
    while !reader.eof() {
        let id = reader.read_u8().ok()?;
        let size = reader.read_var_u32().ok()? as usize;
        let begin = reader.original_position();
        reader.read_bytes(size).ok()?;
        found.push((id, begin..begin + size));
    }
    Some(found)
}

fn put(bytes: &mut Vec<u8>, id: u8, content: &[u8]) -> Option<()> {
    bytes.push(id);
    put_number(bytes, u32::try_from(content.len()).ok()?);
    bytes.extend_from_slice(content);
    Some(())
}

/// Appends a number in LEB128.
fn put_number(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Appends a signed number in LEB128.
fn put_signed(bytes: &mut Vec<u8>, mut number: i32) {
    loop {
        let byte = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        let is_last = number == if byte & 0x40 == 0 { 0 } else { -1 };
        bytes.push(if is_last { byte } else { byte | 0x80 });
        if is_last {
            return;
        }
    }
}

/// Returns the placeholder of the initial memory with this number and size: blocks with a counter and a digest, each of them
/// different. No page of it is zero, so the compiler keeps its size.
fn placeholder(number: usize, size: usize) -> Vec<u8> {
    let digest = sha256(format!("initial memory {number}").as_bytes());
    let mut block = digest.map(|byte| byte | 1);
    let mut made = vec![0; size];
    for (counter, place) in (0_u64..).zip(made.chunks_mut(block.len())) {
        block[..8].copy_from_slice(&(counter << 1 | 1).to_le_bytes());
        place.copy_from_slice(&block[..place.len()]);
    }
    made
}

/// Returns the range of the section with initial memory in an ELF file of 64 bits.
fn memory_section(elf: &[u8]) -> Option<Range<usize>> {
    let number = |at: usize, size: usize| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(elf.get(at..at.checked_add(size)?)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (headers, header_bytes) = (number(0x28, 8)?, number(0x3a, 2)?);
    let (count, names) = (number(0x3c, 2)?, number(0x3e, 2)?);
    let header = |index: usize| index.checked_mul(header_bytes)?.checked_add(headers);
    let content = |index: usize| {
        let at = header(index)?;
        let begin = number(at.checked_add(0x18)?, 8)?;
        let end = begin.checked_add(number(at.checked_add(0x20)?, 8)?)?;
        (end <= elf.len()).then_some(begin..end)
    };
    let names = &elf[content(names)?];
    let is_it = |index: &usize| {
        let name = header(*index).and_then(|at| number(at, 4)).and_then(|at| names.get(at..));
        name.is_some_and(|name| {
            name.strip_prefix(MEMORY_SECTION).is_some_and(|rest| rest.first() == Some(&0))
        })
    };
    content((0..count).find(is_it)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MemoryPlan;
    use crate::engine::compile::compile;

    /// Returns a component whose module has an initial memory of this letter, and code that returns a number.
    fn component(letter: &str, number: u32, more: &str) -> Vec<u8> {
        let data = letter.repeat(24 * IMAGE_STEP_BYTES);
        let text = format!(
            r#"(component
                (core module $m
                    (memory (export "memory") 40)
                    (func (export "number") (result i32) (i32.const {number}))
                    (data (i32.const 65536) "{data}")
                    {more})
                (core instance $i (instantiate $m))
                (func (export "number") (result u32) (canon lift (core func $i "number"))))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn a_completed_template_is_the_compilers_output_for_the_component() {
        let (one, other) = (component("x", 1, ""), component("y", 1, ""));
        let [first, second] = [&one, &other].map(|bytes| Template::of(bytes).unwrap());
        assert_eq!(first.component(), second.component());
        for plan in [MemoryPlan::Pooled, MemoryPlan::PooledEager, MemoryPlan::OnDemand] {
            let code = compile(plan, first.component()).unwrap();
            assert!(first.complete(code.clone()).unwrap() == compile(plan, &one).unwrap(), "{plan:?}");
            assert!(second.complete(code).unwrap() == compile(plan, &other).unwrap(), "{plan:?}");
        }
        assert_ne!(Template::of(&component("x", 2, "")).unwrap().component(), first.component());
    }

    #[test]
    fn memories_of_slightly_different_sizes_and_parts_have_one_template() {
        let bytes = [7; DATA_BYTES_MIN];
        let image = |segments: &[(u32, &[u8])]| Image::of_segments(segments, 64 << 16).unwrap();
        let (one, other) =
            (image(&[(16, &bytes)]), image(&[(16, &bytes), (DATA_BYTES_MIN as u32 + 90, b"more")]));
        assert_eq!((one.start, one.bytes.len()), (other.start, other.bytes.len()));
        assert_ne!(one.bytes, other.bytes);
        assert!(Image::of_segments(&[(16, &bytes)], 16 << 16).is_none(), "the memory is too small");
        assert!(Image::of_segments(&[(16, &bytes[1..])], 64 << 16).is_none(), "few data are not worth it");
    }

    #[test]
    fn a_component_whose_code_refers_to_its_data_has_no_template() {
        assert!(Template::of(&component("x", 1, "(func (data.drop 0))")).is_none());
        assert!(Template::of(&component("x", 1, r#"(data "passive")"#)).is_none());
        assert!(Template::of(b"no component").is_none());
    }

    #[test]
    fn a_placeholder_that_is_not_unique_in_the_output_is_not_replaced() {
        let prefix: String =
            placeholder(0, PREFIX_BYTES).iter().map(|byte| format!("\\{byte:02x}")).collect();
        let text = format!(r#"(core module (memory 1) (data (i32.const 0) "{prefix}"))"#);
        let data = "x".repeat(24 * IMAGE_STEP_BYTES);
        let whole = format!(r#"(component (core module (memory 40) (data (i32.const 0) "{data}")) {text})"#);
        let hostile = wat::parse_str(whole).unwrap();
        let template = Template::of(&hostile).unwrap();
        let code = compile(MemoryPlan::Pooled, template.component()).unwrap();
        assert!(template.complete(code.clone()).is_none());
        assert!(template.complete(code[..100].to_vec()).is_none() && template.complete(Vec::new()).is_none());
    }
}
