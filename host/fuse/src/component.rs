//! A parsed component: its definitions in order.
//!
//! Only definitions that refer to core instances are parsed. All others are copied verbatim, because they
//! have index spaces of their own that do not change.

use std::collections::HashMap;

use wasmparser::{
    BinaryReader, CanonicalFunction, CanonicalOption, ComponentAlias, ComponentExternalKind,
    ComponentOuterAliasKind, ComponentType, ComponentTypeRef, ExternalKind, FromReader, Instance, Parser,
    Payload, SectionLimited,
};

use crate::{Result, unsupported};

/// Section ids of the binary format.
pub(crate) mod section {
    pub(crate) const CUSTOM: u8 = 0;
    pub(crate) const CORE_MODULE: u8 = 1;
    pub(crate) const CORE_INSTANCE: u8 = 2;
    pub(crate) const COMPONENT: u8 = 4;
    pub(crate) const INSTANCE: u8 = 5;
    pub(crate) const ALIAS: u8 = 6;
    pub(crate) const TYPE: u8 = 7;
    pub(crate) const CANONICAL: u8 = 8;
    pub(crate) const IMPORT: u8 = 10;
    pub(crate) const EXPORT: u8 = 11;
}

/// Length of the preamble of a component.
pub(crate) const HEADER_BYTES: usize = 8;

/// Core index spaces of a component that are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Instance,
    Func,
    Table,
    Memory,
    Global,
}

impl Space {
    pub(crate) fn from_kind(kind: ExternalKind) -> Result<Self> {
        Ok(match kind {
            ExternalKind::Func => Self::Func,
            ExternalKind::Table => Self::Table,
            ExternalKind::Memory => Self::Memory,
            ExternalKind::Global => Self::Global,
            other => unsupported!("a module has an import or export of kind {other:?}"),
        })
    }
}

/// A definition in a core index space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Core {
    pub space: Space,
    pub index: u32,
}

/// A definition of a component.
pub(crate) enum Item<'a> {
    /// A core module.
    Module,
    /// A core instance.
    Instance(Instance<'a>),
    /// An alias of a core instance's export.
    Alias { space: Space, instance: u32, name: &'a str },
    /// A core function that the component model defines.
    Canonical(CanonicalFunction),
    /// A component function that a core function implements.
    Lift(CanonicalFunction),
    /// An element of a section whose other elements may refer to core definitions.
    Element { section: u8, bytes: &'a [u8] },
    /// A section that does not refer to core definitions.
    Section { section: u8, bytes: &'a [u8] },
}

/// Origin of a module's import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// An export of a core instance that instantiates a module.
    Instance { instance: u32, name: &'a str },
    /// A function that the component model defines.
    Canonical(Core),
}

/// A parsed component.
pub(crate) struct Component<'a> {
    pub items: Vec<Item<'a>>,
    /// Bytes of the core modules.
    pub modules: Vec<&'a [u8]>,
    /// Index of the item that contains each definition.
    definitions: HashMap<Core, usize>,
    counts: HashMap<Space, u32>,
}

impl<'a> Component<'a> {
    /// Parses a validated component.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut component = Self {
            items: Vec::new(),
            modules: Vec::new(),
            definitions: HashMap::new(),
            counts: HashMap::new(),
        };
        let mut reader = BinaryReader::new(bytes, 0);
        if !Parser::is_component(bytes) {
            unsupported!("the bytes are a module, not a component");
        }
        reader.read_bytes(HEADER_BYTES)?;
        while !reader.eof() {
            let id = reader.read_u8()?;
            let size = reader.read_var_u32()? as usize;
            let contents = reader.read_bytes(size)?;
            component.read_section(id, contents)?;
        }
        Ok(component)
    }

    /// Parses a section into items.
    fn read_section(&mut self, id: u8, bytes: &'a [u8]) -> Result<()> {
        match id {
            section::CORE_MODULE => {
                self.modules.push(bytes);
                self.items.push(Item::Module);
            }
            section::CORE_INSTANCE => {
                for instance in elements::<Instance>(bytes)? {
                    self.define(Space::Instance, Item::Instance(instance?.0));
                }
            }
            section::ALIAS => {
                for alias in elements(bytes)? {
                    self.read_alias(alias?)?;
                }
            }
            section::CANONICAL => {
                for function in elements(bytes)? {
                    self.read_canonical(function?.0)?;
                }
            }
            // The section refers to indices that change.
            section::CUSTOM if BinaryReader::new(bytes, 0).read_string()? == "component-name" => {}
            _ => {
                check_section(id, bytes)?;
                self.items.push(Item::Section { section: id, bytes });
            }
        }
        Ok(())
    }

    fn read_alias(&mut self, (alias, bytes): (ComponentAlias<'a>, &'a [u8])) -> Result<()> {
        match alias {
            ComponentAlias::CoreInstanceExport { kind, instance_index, name } => {
                let space = Space::from_kind(kind)?;
                self.define(space, Item::Alias { space, instance: instance_index, name });
            }
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. }
            | ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, .. } => {
                unsupported!("a core module is an alias from outside the component");
            }
            _ => self.items.push(Item::Element { section: section::ALIAS, bytes }),
        }
        Ok(())
    }

    fn read_canonical(&mut self, function: CanonicalFunction) -> Result<()> {
        match &function {
            CanonicalFunction::Lift { options, .. } => {
                check_options(options)?;
                self.items.push(Item::Lift(function));
            }
            CanonicalFunction::Lower { options, .. } => {
                check_options(options)?;
                self.define(Space::Func, Item::Canonical(function));
            }
            CanonicalFunction::ResourceNew { .. }
            | CanonicalFunction::ResourceDrop { .. }
            | CanonicalFunction::ResourceRep { .. } => self.define(Space::Func, Item::Canonical(function)),
            other => unsupported!("the component uses asynchronous functions or threads: {other:?}"),
        }
        Ok(())
    }

    /// Adds the item that defines the next index of a space.
    fn define(&mut self, space: Space, item: Item<'a>) {
        let next = self.counts.entry(space).or_default();
        self.definitions.insert(Core { space, index: *next }, self.items.len());
        *next += 1;
        self.items.push(item);
    }

    /// Returns the index of the item that contains a definition.
    pub(crate) fn definition(&self, core: Core) -> usize {
        self.definitions[&core]
    }

    /// Returns a core instance.
    pub(crate) fn instance(&self, index: u32) -> &Instance<'a> {
        match &self.items[self.definition(Core { space: Space::Instance, index })] {
            Item::Instance(instance) => instance,
            _ => unreachable!("an instance is defined by an instance"),
        }
    }

    /// Returns the origin of an instance's export.
    pub(crate) fn export(&self, instance: u32, space: Space, name: &'a str) -> Result<Source<'a>> {
        match self.instance(instance) {
            Instance::Instantiate { .. } => Ok(Source::Instance { instance, name }),
            Instance::FromExports(exports) => {
                for export in exports {
                    if export.name == name && Space::from_kind(export.kind)? == space {
                        return self.source(Core { space, index: export.index });
                    }
                }
                unsupported!("an instance has no export {name:?}")
            }
        }
    }

    /// Returns the origin of a definition.
    pub(crate) fn source(&self, core: Core) -> Result<Source<'a>> {
        match self.items[self.definition(core)] {
            Item::Alias { space, instance, name } => self.export(instance, space, name),
            _ => Ok(Source::Canonical(core)),
        }
    }
}

impl Item<'_> {
    /// Returns the core definitions that this item refers to.
    pub(crate) fn uses(&self) -> Result<Vec<Core>> {
        let core = |space: Space| move |index: u32| Core { space, index };
        Ok(match self {
            Self::Instance(Instance::Instantiate { args, .. }) => {
                args.iter().map(|argument| core(Space::Instance)(argument.index)).collect()
            }
            Self::Instance(Instance::FromExports(exports)) => exports
                .iter()
                .map(|export| Ok(core(Space::from_kind(export.kind)?)(export.index)))
                .collect::<Result<_>>()?,
            Self::Alias { instance, .. } => vec![core(Space::Instance)(*instance)],
            Self::Canonical(function) | Self::Lift(function) => uses(function),
            Self::Module | Self::Element { .. } | Self::Section { .. } => Vec::new(),
        })
    }
}

fn uses(function: &CanonicalFunction) -> Vec<Core> {
    let (options, lifted): (&[CanonicalOption], _) = match function {
        CanonicalFunction::Lift { core_func_index, options, .. } => (options, Some(*core_func_index)),
        CanonicalFunction::Lower { options, .. } => (options, None),
        _ => (&[], None),
    };
    let lifted = lifted.map(|index| Core { space: Space::Func, index });
    let options = options.iter().filter_map(|option| match option {
        CanonicalOption::Memory(index) => Some(Core { space: Space::Memory, index: *index }),
        CanonicalOption::Realloc(index) | CanonicalOption::PostReturn(index) => {
            Some(Core { space: Space::Func, index: *index })
        }
        _ => None,
    });
    lifted.into_iter().chain(options).collect()
}

fn check_options(options: &[CanonicalOption]) -> Result<()> {
    for option in options {
        match option {
            CanonicalOption::UTF8
            | CanonicalOption::UTF16
            | CanonicalOption::CompactUTF16
            | CanonicalOption::Memory(_)
            | CanonicalOption::Realloc(_)
            | CanonicalOption::PostReturn(_) => {}
            other => unsupported!("a function has an unknown conversion option: {other:?}"),
        }
    }
    Ok(())
}

/// Parses the elements of a section together with the bytes of each.
fn elements<'a, T: FromReader<'a>>(bytes: &'a [u8]) -> Result<impl Iterator<Item = Result<(T, &'a [u8])>>> {
    let mut reader = BinaryReader::new(bytes, 0);
    let count = reader.read_var_u32()?;
    Ok((0..count).map(move |_| {
        let begin = reader.original_position();
        let element = reader.read()?;
        Ok((element, &bytes[begin..reader.original_position()]))
    }))
}

/// Checks that a section that is copied verbatim refers to no core definition.
fn check_section(id: u8, bytes: &[u8]) -> Result<()> {
    let reader = BinaryReader::new(bytes, 0);
    match id {
        section::COMPONENT => check_inner(bytes)?,
        section::INSTANCE => {
            for instance in SectionLimited::<wasmparser::ComponentInstance>::new(reader)? {
                let wasmparser::ComponentInstance::Instantiate { args, .. } = instance? else { continue };
                if args.iter().any(|argument| argument.kind == ComponentExternalKind::Module) {
                    unsupported!("a core module is passed to a nested component");
                }
            }
        }
        section::TYPE => {
            for kind in SectionLimited::<ComponentType>::new(reader)? {
                if let ComponentType::Resource { dtor: Some(_), .. } = kind? {
                    unsupported!("the component has a resource with a destructor");
                }
            }
        }
        section::IMPORT => {
            for import in SectionLimited::<wasmparser::ComponentImport>::new(reader)? {
                if let ComponentTypeRef::Module(_) = import?.ty {
                    unsupported!("the component imports a core module");
                }
            }
        }
        section::EXPORT => {
            for export in SectionLimited::<wasmparser::ComponentExport>::new(reader)? {
                if export?.kind == ComponentExternalKind::Module {
                    unsupported!("the component exports a core module");
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Checks that a nested component uses no module of the outer component.
fn check_inner(bytes: &[u8]) -> Result<()> {
    for payload in Parser::new(0).parse_all(bytes) {
        let Payload::ComponentAliasSection(aliases) = payload? else { continue };
        for alias in aliases {
            if let ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, .. } = alias? {
                unsupported!("a nested component uses a core module of the outer component");
            }
        }
    }
    Ok(())
}
