//! A parsed core module.

use std::collections::HashMap;

use wasmparser::{
    Data, Element, Export, FuncType, FunctionBody, Global, Import, KnownCustom, MemoryType, Name, Parser,
    Payload, Table,
};

use crate::component::Space;
use crate::{Result, unsupported};

/// A parsed core module.
#[derive(Default)]
pub(crate) struct Module<'a> {
    pub types: Vec<FuncType>,
    pub imports: Vec<Import<'a>>,
    /// Type index of each function that the module defines.
    pub functions: Vec<u32>,
    pub tables: Vec<Table<'a>>,
    pub memories: Vec<MemoryType>,
    pub globals: Vec<Global<'a>>,
    exports: HashMap<&'a str, Export<'a>>,
    pub has_start: bool,
    pub elements: Vec<Element<'a>>,
    pub data: Vec<Data<'a>>,
    pub bodies: Vec<FunctionBody<'a>>,
    /// Names of functions by index.
    pub names: HashMap<u32, &'a str>,
}

impl<'a> Module<'a> {
    /// Parses a validated module.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut module = Self::default();
        for payload in Parser::new(0).parse_all(bytes) {
            module.read_payload(payload?)?;
        }
        Ok(module)
    }

    fn read_payload(&mut self, payload: Payload<'a>) -> Result<()> {
        match payload {
            Payload::TypeSection(types) => {
                for kind in types.into_iter_err_on_gc_types() {
                    self.types.push(kind?);
                }
            }
            Payload::ImportSection(imports) => {
                self.imports = imports.into_imports().collect::<Result<_, _>>()?;
            }
            Payload::FunctionSection(section) => {
                self.functions = section.into_iter().collect::<Result<_, _>>()?;
            }
            Payload::TableSection(section) => self.tables = section.into_iter().collect::<Result<_, _>>()?,
            Payload::MemorySection(section) => {
                self.memories = section.into_iter().collect::<Result<_, _>>()?;
            }
            Payload::GlobalSection(section) => {
                self.globals = section.into_iter().collect::<Result<_, _>>()?;
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    self.exports.insert(export.name, export);
                }
            }
            Payload::StartSection { .. } => self.has_start = true,
            Payload::ElementSection(section) => {
                self.elements = section.into_iter().collect::<Result<_, _>>()?;
            }
            Payload::DataSection(section) => self.data = section.into_iter().collect::<Result<_, _>>()?,
            Payload::CodeSectionEntry(body) => self.bodies.push(body),
            Payload::TagSection(_) => unsupported!("a module uses exceptions"),
            Payload::CustomSection(section) => {
                if let KnownCustom::Name(names) = section.as_known() {
                    // Names only help people, so a malformed name section is ignored.
                    let _ = self.read_names(names);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_names(
        &mut self,
        names: wasmparser::NameSectionReader<'a>,
    ) -> Result<(), wasmparser::BinaryReaderError> {
        for name in names {
            let Name::Function(functions) = name? else { continue };
            for function in functions {
                let function = function?;
                self.names.insert(function.index, function.name);
            }
        }
        Ok(())
    }

    /// Returns the index of an export.
    pub(crate) fn export(&self, space: Space, name: &str) -> Result<u32> {
        match self.exports.get(name) {
            Some(export) if Space::from_kind(export.kind)? == space => Ok(export.index),
            _ => unsupported!("a module has no export {name:?}"),
        }
    }

    /// Returns the number of imports in an index space.
    pub(crate) fn imported(&self, space: Space) -> usize {
        self.imports.iter().filter(|import| space_of(import) == Some(space)).count()
    }
}

/// Returns the index space of an import.
pub(crate) fn space_of(import: &Import<'_>) -> Option<Space> {
    match import.ty {
        wasmparser::TypeRef::Func(_) => Some(Space::Func),
        wasmparser::TypeRef::Table(_) => Some(Space::Table),
        wasmparser::TypeRef::Memory(_) => Some(Space::Memory),
        wasmparser::TypeRef::Global(_) => Some(Space::Global),
        _ => None,
    }
}
