//! Makes a fused component's code independent of its initial memory, so that components with the same code share what
//! the engine compiles.
//!
//! Two builds of a project differ, besides the contents of the memory, in its size and in the initial values of a few
//! variables outside of it. [`level`] rounds the size up and moves these values to the end of the memory, from which a
//! start function reads them.

use std::collections::BTreeSet;

use wasm_encoder::{Encode, Function, Instruction, MemArg};
use wasmparser::{
    BinaryReader, CodeSectionReader, DataKind, DataSectionReader, GlobalSectionReader, ImportSectionReader,
    MemorySectionReader, Operator, TypeRef, TypeSectionReader, ValType,
};

use super::error::Result;
use super::sections::{
    CODE, CORE_MODULE, DATA, DATA_COUNT, ELEMENTS, FUNCTIONS, GLOBALS, IMPORTS, MEMORIES, START, TYPES,
    sections, with_module,
};

const PAGE_BYTES: u64 = 1 << 16;

/// Number of pages of which the size of the memory is a multiple: 2 MiB. An edit changes the size by up to 1.3 MiB, and each
/// rollout is charged for its size.
const PAGES: u64 = 32;

/// Number of pages that components may add to their base before their code differs from that of the others: 8 MiB. Those of
/// small projects need some 2 MiB of it, and a dependency as large as pydantic or mpmath 5 MiB more.
const ROOM_PAGES: u64 = 128;

/// Returns the component with a memory of a rounded size, whose last page has the initial values of variables. A
/// component of another form than [`fuse`](crate::fuse) makes is returned as it is.
///
/// `base` is the component that it was made of, if there is one: its size decides where the first step is, so that an
/// edit of a small project never crosses it.
///
/// # Errors
///
/// Fails if a component is not WebAssembly.
pub fn level(component: &[u8], base: Option<&[u8]>) -> Result<Vec<u8>> {
    let least = base.map(memory_pages).transpose()?.map_or(0, |pages| pages + ROOM_PAGES);
    let outer = sections(component)?;
    let modules = outer.iter().enumerate().filter(|(_, (id, _))| *id == CORE_MODULE);
    let Some((at, (_, range))) = modules.max_by_key(|(_, (_, range))| range.len()) else {
        return Ok(component.to_vec());
    };
    let leveled = level_module(&component[range.clone()], least)?;
    Ok(leveled.map_or_else(|| component.to_vec(), |module| with_module(component, &outer, at, &module)))
}

/// Returns the number of pages of a component's largest memory.
fn memory_pages(component: &[u8]) -> Result<u64> {
    let mut most = 0;
    for (_, range) in sections(component)?.into_iter().filter(|(id, _)| *id == CORE_MODULE) {
        let module = &component[range];
        for (_, range) in sections(module)?.into_iter().filter(|(id, _)| *id == MEMORIES) {
            for memory in MemorySectionReader::new(BinaryReader::new(&module[range], 0))? {
                most = most.max(memory?.initial);
            }
        }
    }
    Ok(most)
}

/// The parts of a module that decide on its start function.
#[derive(Default)]
struct Survey {
    imported_functions: u32,
    functions: u32,
    /// Index of the type without parameters and results.
    nothing: Option<u32>,
    /// Minimum number of pages of its only memory.
    pages: Option<u64>,
    /// Globals with a constant value that the code sets.
    variables: Vec<(u32, i32)>,
    is_unfit: bool,
}

impl Survey {
    fn of(module: &[u8], sections: &[(u8, std::ops::Range<usize>)]) -> Result<Self> {
        let mut survey = Self::default();
        let (mut constants, mut set) = (Vec::new(), BTreeSet::new());
        for (id, range) in sections {
            let reader = BinaryReader::new(&module[range.clone()], 0);
            match *id {
                TYPES => survey.read_types(reader)?,
                IMPORTS => survey.read_imports(reader)?,
                FUNCTIONS => survey.functions = { reader }.read_var_u32()?,
                MEMORIES => survey.read_memories(reader)?,
                GLOBALS => constants = mutable_constants(reader)?,
                START => survey.is_unfit = true,
                CODE => set = survey.read_code(reader)?,
                DATA => survey.read_data(reader)?,
                _ => {}
            }
        }
        let is_set = |(number, _): &(u32, i32)| set.contains(number);
        survey.variables = constants.into_iter().filter(is_set).collect();
        Ok(survey)
    }

    fn read_types(&mut self, reader: BinaryReader<'_>) -> Result<()> {
        for (number, kind) in (0..).zip(TypeSectionReader::new(reader)?.into_iter_err_on_gc_types()) {
            let kind = kind?;
            if kind.params().is_empty() && kind.results().is_empty() {
                self.nothing.get_or_insert(number);
            }
        }
        Ok(())
    }

    fn read_imports(&mut self, reader: BinaryReader<'_>) -> Result<()> {
        for import in ImportSectionReader::new(reader)?.into_imports() {
            match import?.ty {
                TypeRef::Func(_) => self.imported_functions += 1,
                _ => self.is_unfit = true,
            }
        }
        Ok(())
    }

    fn read_memories(&mut self, reader: BinaryReader<'_>) -> Result<()> {
        for memory in MemorySectionReader::new(reader)? {
            let memory = memory?;
            let is_plain = !memory.memory64 && !memory.shared && memory.page_size_log2.is_none();
            self.is_unfit |= self.pages.is_some() || !is_plain || memory.maximum.is_some();
            self.pages = Some(memory.initial);
        }
        Ok(())
    }

    /// Returns the globals that the code sets.
    fn read_code(&mut self, reader: BinaryReader<'_>) -> Result<BTreeSet<u32>> {
        let mut set = BTreeSet::new();
        for body in CodeSectionReader::new(reader)? {
            for operator in body?.get_operators_reader()? {
                match operator? {
                    Operator::GlobalSet { global_index } => drop(set.insert(global_index)),
                    Operator::MemoryInit { .. } | Operator::DataDrop { .. } => self.is_unfit = true,
                    _ => {}
                }
            }
        }
        Ok(set)
    }

    fn read_data(&mut self, reader: BinaryReader<'_>) -> Result<()> {
        for segment in DataSectionReader::new(reader)? {
            self.is_unfit |= !matches!(segment?.kind, DataKind::Active { memory_index: 0, .. });
        }
        Ok(())
    }
}

/// Returns the mutable globals of 32 bits with constant values. All globals are the module's own.
fn mutable_constants(reader: BinaryReader<'_>) -> Result<Vec<(u32, i32)>> {
    let mut found = Vec::new();
    for (number, global) in (0..).zip(GlobalSectionReader::new(reader)?) {
        let global = global?;
        if global.ty.mutable
            && global.ty.content_type == ValType::I32
            && let Operator::I32Const { value } = global.init_expr.get_operators_reader().read()?
        {
            found.push((number, value));
        }
    }
    Ok(found)
}

/// Levels a module. Its memory has at least this number of pages afterwards.
fn level_module(module: &[u8], least_pages: u64) -> Result<Option<Vec<u8>>> {
    let inner = sections(module)?;
    let survey = Survey::of(module, &inner)?;
    let (Some(pages), Some(nothing)) = (survey.pages, survey.nothing) else { return Ok(None) };
    let pages = (pages + 1).max(least_pages).next_multiple_of(PAGES);
    // An address has 32 bits.
    let Ok(values_at) = u32::try_from((pages - 1) * PAGE_BYTES) else { return Ok(None) };
    let has_room = survey.variables.len() as u64 * 4 <= PAGE_BYTES;
    if survey.is_unfit || survey.variables.is_empty() || !has_room {
        return Ok(None);
    }
    let mut made = module[..8].to_vec();
    let mut is_started = false;
    for (id, range) in &inner {
        let content = &module[range.clone()];
        if !is_started && matches!(*id, ELEMENTS | DATA_COUNT | CODE) {
            let mut start = Vec::new();
            (survey.imported_functions + survey.functions).encode(&mut start);
            put(&mut made, START, &start);
            is_started = true;
        }
        match *id {
            FUNCTIONS => {
                let mut more = Vec::new();
                nothing.encode(&mut more);
                put(&mut made, FUNCTIONS, &extended(content, &more)?);
            }
            MEMORIES => put(&mut made, MEMORIES, &memory_of(pages)),
            GLOBALS => put(&mut made, GLOBALS, &without_values(content, &survey.variables)?),
            CODE => put(&mut made, CODE, &extended(content, &start_function(&survey.variables, values_at))?),
            DATA => put(&mut made, DATA, &extended(content, &values(&survey.variables, values_at))?),
            // No instruction refers to a segment.
            DATA_COUNT => {}
            id => put(&mut made, id, content),
        }
    }
    Ok(Some(made))
}

fn put(module: &mut Vec<u8>, id: u8, content: &[u8]) {
    module.push(id);
    content.encode(module);
}

/// Returns the content of a section with one more item.
fn extended(content: &[u8], item: &[u8]) -> Result<Vec<u8>> {
    let mut reader = BinaryReader::new(content, 0);
    let count = reader.read_var_u32()?;
    let mut made = Vec::with_capacity(content.len() + item.len() + 1);
    (count + 1).encode(&mut made);
    made.extend_from_slice(&content[reader.original_position()..]);
    made.extend_from_slice(item);
    Ok(made)
}

/// Returns a section with one memory of this size.
fn memory_of(pages: u64) -> Vec<u8> {
    let mut section = vec![1, 0];
    pages.encode(&mut section);
    section
}

/// Returns the section of globals in which these have the value 0.
fn without_values(content: &[u8], variables: &[(u32, i32)]) -> Result<Vec<u8>> {
    let reader = GlobalSectionReader::new(BinaryReader::new(content, 0))?;
    let mut made = Vec::with_capacity(content.len());
    reader.count().encode(&mut made);
    let begins: Vec<usize> =
        reader.into_iter_with_offsets().map(|global| Ok(global?.0)).collect::<Result<_>>()?;
    let ends = begins.iter().skip(1).copied().chain([content.len()]);
    for ((number, begin), end) in (0..).zip(begins.iter().copied()).zip(ends) {
        match variables.iter().any(|(variable, _)| *variable == number) {
            // A mutable global of 32 bits, and the constant 0.
            true => made.extend_from_slice(&[0x7f, 1, 0x41, 0, 0x0b]),
            false => made.extend_from_slice(&content[begin..end]),
        }
    }
    Ok(made)
}

/// Returns the function that sets the variables from the memory at an address.
fn start_function(variables: &[(u32, i32)], values_at: u32) -> Vec<u8> {
    let mut function = Function::new([]);
    for ((number, _), offset) in variables.iter().zip((0..).step_by(4)) {
        function.instruction(&Instruction::I32Const(values_at.cast_signed()));
        function.instruction(&Instruction::I32Load(MemArg { offset, align: 2, memory_index: 0 }));
        function.instruction(&Instruction::GlobalSet(*number));
    }
    function.instruction(&Instruction::End);
    let mut made = Vec::new();
    function.encode(&mut made);
    made
}

/// Returns the data segment with the values of the variables.
fn values(variables: &[(u32, i32)], values_at: u32) -> Vec<u8> {
    let bytes: Vec<u8> = variables.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
    // Active, in the first memory, at a constant address.
    let mut segment = vec![0, 0x41];
    values_at.cast_signed().encode(&mut segment);
    segment.push(0x0b);
    bytes[..].encode(&mut segment);
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = r#"(module
        (type (func)) (type (func (result i32)))
        (import "a" "b" (func))
        (memory 3)
        (global (mut i32) (i32.const 7)) (global i32 (i32.const 8)) (global (mut i32) (i32.const 9))
        (export "get" (func 1))
        (func (result i32) (global.set 2 (i32.const 1)) (global.get 0))
        (data (i32.const 16) "text"))"#;

    #[test]
    fn modules_that_differ_in_variables_and_memory_have_the_same_code() {
        let level = |text: &str| level_module(&wat::parse_str(text).unwrap(), 0).unwrap().unwrap();
        let (one, other) =
            (level(MODULE), level(&MODULE.replace("9)", "1000)").replace("memory 3", "memory 5")));
        wasmparser::validate(&one).unwrap();
        wasmparser::validate(&other).unwrap();
        let without_data = |module: &[u8]| -> Vec<(u8, Vec<u8>)> {
            let all = sections(module).unwrap().into_iter();
            all.filter(|(id, _)| *id != DATA).map(|(id, range)| (id, module[range].to_vec())).collect()
        };
        assert_ne!(one, other);
        assert_eq!(without_data(&one), without_data(&other));
        let again = level_module(&one, 0).unwrap();
        assert!(again.is_none(), "a module with a start function is left as it is");
    }

    #[test]
    fn components_of_a_base_have_the_same_code_while_they_add_less_than_the_room() {
        let component = |pages: u64| {
            let module =
                MODULE.replace("memory 3", &format!("memory {pages}")).replacen("(module", "(core module", 1);
            wat::parse_str(format!("(component {module})")).unwrap()
        };
        let base = component(PAGES - 3);
        let pages = |pages: u64| memory_pages(&level(&component(pages), Some(&base)).unwrap()).unwrap();
        assert_eq!(memory_pages(&base).unwrap(), PAGES - 3);
        let all = (PAGES - 3 + ROOM_PAGES).next_multiple_of(PAGES);
        for added in 0..ROOM_PAGES {
            assert_eq!(pages(PAGES - 3 + added), all, "{added} pages more");
        }
        assert_eq!(pages(all), all + PAGES);
    }

    #[test]
    fn a_module_whose_code_refers_to_segments_is_left_as_it_is() {
        for code in ["(data.drop 0)", "(memory.init 0 (i32.const 0) (i32.const 0) (i32.const 0))"] {
            let text = MODULE.replace("(global.get 0))", &format!("{code} (global.get 0))"));
            assert!(level_module(&wat::parse_str(&text).unwrap(), 0).unwrap().is_none(), "{code}");
        }
    }
}
