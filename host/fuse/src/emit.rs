//! Encoding of the component around the merged module.

use std::collections::HashMap;

use wasm_encoder::{CanonicalOption, Encode};
use wasmparser::{CanonicalFunction, ExternalKind, Instance};

use crate::component::{Component, Core, HEADER_BYTES, Item, Space, section};
use crate::group::Group;
use crate::link::{Linked, number};
use crate::output::{EncodedModule, IMPORTS};

/// Encoder of sections that joins adjacent sections of the same kind.
#[derive(Default)]
struct Sections {
    bytes: Vec<u8>,
    open: Option<(u8, u32, Vec<u8>)>,
}

impl Sections {
    fn whole(&mut self, id: u8, contents: &[u8]) {
        self.close();
        self.bytes.push(id);
        contents.encode(&mut self.bytes);
    }

    /// Adds an element, which `write` encodes, to a section of elements.
    fn element(&mut self, id: u8, write: impl FnOnce(&mut Vec<u8>)) {
        if self.open.as_ref().is_some_and(|(open, ..)| *open != id) {
            self.close();
        }
        let (_, count, contents) = self.open.get_or_insert((id, 0, Vec::new()));
        *count += 1;
        write(contents);
    }

    fn close(&mut self) {
        let Some((id, count, contents)) = self.open.take() else { return };
        let mut counted = Vec::with_capacity(contents.len() + 5);
        count.encode(&mut counted);
        counted.extend_from_slice(&contents);
        self.bytes.push(id);
        counted.encode(&mut self.bytes);
    }
}

/// Encoder of a component with changed core indices.
struct Emitter<'c, 'a, 'm> {
    component: &'c Component<'a>,
    group: &'c Group,
    linked: &'c Linked<'a, 'm>,
    sections: Sections,
    numbers: HashMap<Core, u32>,
    counts: HashMap<Space, u32>,
    /// New indices of the modules that remain.
    modules: HashMap<usize, u32>,
    modules_count: u32,
    /// Index of the merged instance.
    merged: u32,
}

/// Encodes the component with the merged module.
pub(crate) fn component(
    component: &Component<'_>,
    group: &Group,
    linked: &Linked<'_, '_>,
    encoded: &EncodedModule,
) -> Vec<u8> {
    let mut emitter = Emitter {
        component,
        group,
        linked,
        sections: Sections::default(),
        numbers: HashMap::new(),
        counts: HashMap::new(),
        modules: HashMap::new(),
        modules_count: 0,
        merged: 0,
    };
    emitter.run(encoded);
    emitter.sections.close();
    let mut bytes = wasm_encoder::Component::HEADER.to_vec();
    debug_assert_eq!(bytes.len(), HEADER_BYTES);
    bytes.append(&mut emitter.sections.bytes);
    bytes
}

impl Emitter<'_, '_, '_> {
    /// Encodes all items. Items that depend on the group wait until the merged instance is encoded.
    fn run(&mut self, encoded: &EncodedModule) {
        let defined = self.defined_cores();
        let imported: Vec<usize> =
            self.linked.imported().map(|import| self.component.definition(import.core)).collect();
        let mut waiting = Vec::new();
        let mut module = 0;
        for (at, item) in self.component.items.iter().enumerate() {
            if let Item::Module = item {
                self.keep_module(module);
                module += 1;
            } else if at == self.group.position {
                self.instantiate(encoded);
                for (item, core) in std::mem::take(&mut waiting) {
                    self.item(item, core);
                }
            } else if self.group.is_member(at) || !(self.group.live[at] || imported.contains(&at)) {
            } else if self.group.dependent[at] && at < self.group.position {
                waiting.push((item, defined[at]));
            } else {
                self.item(item, defined[at]);
            }
        }
    }

    /// Returns for each item the core definition that it adds.
    fn defined_cores(&self) -> Vec<Option<Core>> {
        let mut counts: HashMap<Space, u32> = HashMap::new();
        let mut next = |space| {
            let count = counts.entry(space).or_default();
            *count += 1;
            Some(Core { space, index: *count - 1 })
        };
        let items = self.component.items.iter();
        items
            .map(|item| match item {
                Item::Instance(_) => next(Space::Instance),
                Item::Alias { space, .. } => next(*space),
                Item::Canonical(_) => next(Space::Func),
                Item::Module | Item::Lift(_) | Item::Element { .. } | Item::Section { .. } => None,
            })
            .collect()
    }

    fn keep_module(&mut self, module: usize) {
        if self.group.members.iter().all(|member| member.module != module) {
            self.modules.insert(module, self.modules_count);
            self.module(self.component.modules[module]);
        }
    }

    fn module(&mut self, bytes: &[u8]) {
        self.sections.close();
        self.sections.whole(section::CORE_MODULE, bytes);
        self.modules_count += 1;
    }

    fn next(&mut self, space: Space) -> u32 {
        let count = self.counts.entry(space).or_default();
        *count += 1;
        *count - 1
    }

    /// Emits the merged module, its imports and its instance.
    fn instantiate(&mut self, encoded: &EncodedModule) {
        let module = self.modules_count;
        self.module(&encoded.bytes);
        let imports: Vec<(&String, u32)> = encoded
            .import_names
            .iter()
            .zip(self.linked.imported())
            .map(|(name, import)| (name, self.numbers[&import.core]))
            .collect();
        self.sections.element(section::CORE_INSTANCE, |bytes| {
            bytes.push(FROM_EXPORTS);
            number(imports.len()).encode(bytes);
            for (name, function) in imports {
                name.as_str().encode(bytes);
                bytes.push(sort(Space::Func));
                function.encode(bytes);
            }
        });
        let options = self.next(Space::Instance);
        self.sections.element(section::CORE_INSTANCE, |bytes| {
            bytes.push(INSTANTIATE);
            module.encode(bytes);
            1_u32.encode(bytes);
            IMPORTS.encode(bytes);
            bytes.push(sort(Space::Instance));
            options.encode(bytes);
        });
        self.merged = self.next(Space::Instance);
    }

    fn item(&mut self, item: &Item<'_>, defines: Option<Core>) {
        match item {
            Item::Module => {}
            Item::Instance(instance) => self.instance(instance),
            Item::Alias { space, instance, name } => self.alias(*space, *instance, name),
            Item::Canonical(function) | Item::Lift(function) => self.canonical(function),
            Item::Element { section, bytes } => {
                self.sections.element(*section, |contents| contents.extend_from_slice(bytes));
            }
            Item::Section { section, bytes } => self.sections.whole(*section, bytes),
        }
        if let Some(core) = defines {
            let number = self.next(core.space);
            self.numbers.insert(core, number);
        }
    }

    fn instance(&mut self, instance: &Instance<'_>) {
        let (numbers, modules) = (&self.numbers, &self.modules);
        self.sections.element(section::CORE_INSTANCE, |bytes| match instance {
            Instance::Instantiate { module_index, args } => {
                bytes.push(INSTANTIATE);
                modules[&(*module_index as usize)].encode(bytes);
                number(args.len()).encode(bytes);
                for argument in args {
                    argument.name.encode(bytes);
                    bytes.push(sort(Space::Instance));
                    numbers[&Core { space: Space::Instance, index: argument.index }].encode(bytes);
                }
            }
            Instance::FromExports(exports) => {
                bytes.push(FROM_EXPORTS);
                number(exports.len()).encode(bytes);
                for export in exports {
                    let space = space(export.kind);
                    export.name.encode(bytes);
                    bytes.push(sort(space));
                    numbers[&Core { space, index: export.index }].encode(bytes);
                }
            }
        });
    }

    fn alias(&mut self, space: Space, instance: u32, name: &str) {
        let (instance, name) = match self.group.member(instance) {
            Some(_) => (self.merged, self.linked.export_name(instance, space, name)),
            None => (self.numbers[&Core { space: Space::Instance, index: instance }], name),
        };
        self.sections.element(section::ALIAS, |bytes| {
            bytes.extend_from_slice(&[CORE_SORT, sort(space), CORE_EXPORT]);
            instance.encode(bytes);
            name.encode(bytes);
        });
    }

    fn canonical(&mut self, function: &CanonicalFunction) {
        let mut section = wasm_encoder::CanonicalFunctionSection::new();
        let func = |index: u32| self.numbers[&Core { space: Space::Func, index }];
        let memory = |index: u32| self.numbers[&Core { space: Space::Memory, index }];
        let options = |options: &[wasmparser::CanonicalOption]| -> Vec<CanonicalOption> {
            let option = |option: &wasmparser::CanonicalOption| match option {
                wasmparser::CanonicalOption::UTF8 => CanonicalOption::UTF8,
                wasmparser::CanonicalOption::UTF16 => CanonicalOption::UTF16,
                wasmparser::CanonicalOption::CompactUTF16 => CanonicalOption::CompactUTF16,
                wasmparser::CanonicalOption::Memory(index) => CanonicalOption::Memory(memory(*index)),
                wasmparser::CanonicalOption::Realloc(index) => CanonicalOption::Realloc(func(*index)),
                wasmparser::CanonicalOption::PostReturn(index) => CanonicalOption::PostReturn(func(*index)),
                other => unreachable!("{other:?} is rejected when the component is parsed"),
            };
            options.iter().map(option).collect()
        };
        match function {
            CanonicalFunction::Lift { core_func_index, type_index, options: lifted } => {
                section.lift(func(*core_func_index), *type_index, options(lifted));
            }
            CanonicalFunction::Lower { func_index, options: lifted } => {
                section.lower(*func_index, options(lifted));
            }
            CanonicalFunction::ResourceNew { resource } => {
                section.resource_new(*resource);
            }
            CanonicalFunction::ResourceDrop { resource } => {
                section.resource_drop(*resource);
            }
            CanonicalFunction::ResourceRep { resource } => {
                section.resource_rep(*resource);
            }
            other => unreachable!("{other:?} is rejected when the component is parsed"),
        }
        // The section has one element, after its size and its count.
        let mut encoded = Vec::new();
        section.encode(&mut encoded);
        let element = element_of(&encoded);
        self.sections.element(section::CANONICAL, |bytes| bytes.extend_from_slice(element));
    }
}

/// Returns the only element of an encoded section.
fn element_of(section: &[u8]) -> &[u8] {
    let mut reader = wasmparser::BinaryReader::new(section, 0);
    // The section was encoded above, so it can be parsed.
    let _ = reader.read_var_u32();
    let _ = reader.read_var_u32();
    &section[reader.original_position()..]
}

const INSTANTIATE: u8 = 0x00;
const FROM_EXPORTS: u8 = 0x01;
const CORE_SORT: u8 = 0x00;
const CORE_EXPORT: u8 = 0x01;

/// Returns the binary format's code of an index space.
fn sort(space: Space) -> u8 {
    match space {
        Space::Func => 0x00,
        Space::Table => 0x01,
        Space::Memory => 0x02,
        Space::Global => 0x03,
        Space::Instance => 0x12,
    }
}

fn space(kind: ExternalKind) -> Space {
    match kind {
        ExternalKind::Table => Space::Table,
        ExternalKind::Memory => Space::Memory,
        ExternalKind::Global => Space::Global,
        _ => Space::Func,
    }
}
