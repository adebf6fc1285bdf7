//! Encoding of the merged module.

use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, DataSegment, DataSegmentMode, ElementMode,
    ElementSection, ElementSegment, Elements, EntityType, ExportKind, ExportSection, FunctionSection,
    GlobalSection, GlobalType, ImportSection, MemorySection, MemoryType, NameMap, NameSection, RefType,
    TableSection, TableType, TypeSection, ValType,
};

use crate::component::Space;
use crate::link::{Exported, Linked, Mode, Value, number};
use crate::names::Names;
use crate::{Result, bodies, unsupported};

/// Module name of all imports.
pub(crate) const IMPORTS: &str = "component";

/// The encoded module and the names of its imports.
pub(crate) struct EncodedModule {
    pub bytes: Vec<u8>,
    /// Names in the order of [`Linked::imported`].
    pub import_names: Vec<String>,
}

/// Encodes the merged module.
pub(crate) fn module(linked: &Linked<'_, '_>) -> Result<EncodedModule> {
    let mut names = Names::default();
    let import_names: Vec<String> =
        linked.imported().map(|import| names.unique(&format!("{}#{}", import.module, import.name))).collect();
    let mut imports = ImportSection::new();
    for (import, name) in linked.imported().zip(&import_names) {
        imports.import(IMPORTS, name, EntityType::Function(import.kind));
    }
    let mut functions = FunctionSection::new();
    let mut code = CodeSection::new();
    for (member, body) in linked.defined() {
        functions.function(linked.type_of(member, body));
        code.raw(&bodies::rewrite(linked, member, &linked.modules[member].bodies[body])?);
    }
    let mut encoded = wasm_encoder::Module::new();
    encoded.section(&types(linked)?).section(&imports).section(&functions);
    encoded.section(&tables(linked)?).section(&memories(linked)).section(&globals(linked)?);
    encoded.section(&exports(linked)).section(&elements(linked));
    encoded.section(&DataCountSection { count: number(linked.data.len()) });
    encoded.section(&code).section(&data(linked)).section(&function_names(linked));
    Ok(EncodedModule { bytes: encoded.finish(), import_names })
}

fn types(linked: &Linked<'_, '_>) -> Result<TypeSection> {
    let mut section = TypeSection::new();
    for kind in &linked.types {
        let types =
            |types: &[wasmparser::ValType]| types.iter().map(|kind| value(*kind)).collect::<Result<Vec<_>>>();
        section.ty().function(types(kind.params())?, types(kind.results())?);
    }
    Ok(section)
}

fn value(kind: wasmparser::ValType) -> Result<ValType> {
    Ok(match kind {
        wasmparser::ValType::I32 => ValType::I32,
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        wasmparser::ValType::V128 => ValType::V128,
        wasmparser::ValType::Ref(kind) if kind.is_func_ref() => ValType::Ref(RefType::FUNCREF),
        other => unsupported!("a value has the type {other}"),
    })
}

fn tables(linked: &Linked<'_, '_>) -> Result<TableSection> {
    let mut section = TableSection::new();
    for table in &linked.tables {
        if table.kind.table64 || table.kind.shared {
            unsupported!("a table is shared or too large");
        }
        section.table(TableType {
            element_type: RefType::FUNCREF,
            table64: false,
            minimum: table.kind.initial,
            maximum: table.kind.maximum,
            shared: false,
        });
    }
    Ok(section)
}

fn memories(linked: &Linked<'_, '_>) -> MemorySection {
    let mut section = MemorySection::new();
    for memory in &linked.memories {
        section.memory(MemoryType {
            minimum: memory.initial,
            maximum: memory.maximum,
            memory64: memory.memory64,
            shared: memory.shared,
            page_size_log2: memory.page_size_log2,
        });
    }
    section
}

fn globals(linked: &Linked<'_, '_>) -> Result<GlobalSection> {
    let mut section = GlobalSection::new();
    for global in linked.globals.iter().filter(|global| global.number.is_some()) {
        let init = match &global.value {
            Value::I32(value) => ConstExpr::i32_const(*value),
            Value::I64(value) => ConstExpr::i64_const(*value),
            Value::Other(bytes) => ConstExpr::raw(bytes.iter().copied()),
            Value::Null => ConstExpr::ref_null(wasm_encoder::HeapType::FUNC),
            Value::Func(func) => ConstExpr::ref_func(linked.function(*func)),
        };
        let kind = GlobalType {
            val_type: value(global.kind.content_type)?,
            mutable: global.kind.mutable,
            shared: global.kind.shared,
        };
        section.global(kind, &init);
    }
    Ok(section)
}

fn exports(linked: &Linked<'_, '_>) -> ExportSection {
    let mut section = ExportSection::new();
    for export in &linked.exports {
        let kind = match export.space {
            Space::Func | Space::Instance => ExportKind::Func,
            Space::Table => ExportKind::Table,
            Space::Memory => ExportKind::Memory,
            Space::Global => ExportKind::Global,
        };
        let index = match (export.space, export.what) {
            (_, Exported::Func(func)) => linked.function(func),
            (Space::Global, Exported::Other(global)) => linked.globals[global].number.unwrap_or_default(),
            (_, Exported::Other(index)) => number(index),
        };
        section.export(&export.name, kind, index);
    }
    section
}

fn elements(linked: &Linked<'_, '_>) -> ElementSection {
    let mut section = ElementSection::new();
    for segment in &linked.elements {
        let functions: Option<Vec<u32>> =
            segment.functions.iter().map(|func| func.map(|func| linked.function(func))).collect();
        let expressions: Vec<ConstExpr> = match &functions {
            // The engine fills tables lazily only from lists of functions.
            Some(_) => Vec::new(),
            None => segment.functions.iter().map(|func| expression(linked, *func)).collect(),
        };
        let elements = match functions {
            Some(functions) => Elements::Functions(functions.into()),
            None => Elements::Expressions(RefType::FUNCREF, expressions.into()),
        };
        let offset;
        let mode = match &segment.mode {
            Mode::Active { table, offset: start } => {
                offset = ConstExpr::i32_const(*start);
                ElementMode::Active { table: (*table > 0).then_some(*table), offset: &offset }
            }
            Mode::Passive => ElementMode::Passive,
            Mode::Declared => ElementMode::Declared,
        };
        section.segment(ElementSegment { mode, elements });
    }
    section
}

fn expression(linked: &Linked<'_, '_>, func: Option<crate::link::Func>) -> ConstExpr {
    match func {
        Some(func) => ConstExpr::ref_func(linked.function(func)),
        None => ConstExpr::ref_null(wasm_encoder::HeapType::FUNC),
    }
}

fn data(linked: &Linked<'_, '_>) -> DataSection {
    let mut section = DataSection::new();
    for segment in &linked.data {
        let bytes = segment.bytes.iter().copied();
        let offset;
        let mode = match segment.offset {
            Some(start) => {
                offset = ConstExpr::i32_const(start);
                DataSegmentMode::Active { memory_index: 0, offset: &offset }
            }
            None => DataSegmentMode::Passive,
        };
        section.segment(DataSegment { mode, data: bytes });
    }
    section
}

/// Names functions for the backtraces of traps.
fn function_names(linked: &Linked<'_, '_>) -> NameSection {
    let mut names = NameMap::new();
    let first = number(linked.import_count());
    for (at, (member, body)) in (first..).zip(linked.defined()) {
        let module = linked.modules[member];
        let theirs = number(module.imported(Space::Func) + body);
        if let Some(name) = module.names.get(&theirs) {
            names.append(at, name);
        }
    }
    let mut section = NameSection::new();
    section.functions(&names);
    section
}
