//! A component as a list of what it defines, in order.
//!
//! Only what has to do with core instances is taken apart. Everything else is kept as the
//! bytes that it came as, because it has numbers of its own that do not change.

use std::collections::HashMap;

use wasmparser::{
    BinaryReader, CanonicalFunction, CanonicalOption, ComponentAlias, ComponentExternalKind,
    ComponentOuterAliasKind, ComponentType, ComponentTypeRef, ExternalKind, FromReader, Instance, Parser,
    Payload, SectionLimited,
};

use crate::{Result, left_alone};

/// Numbers that the binary format gives to a component's sections.
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

/// Bytes before a component's first section.
pub(crate) const HEADER_BYTES: usize = 8;

/// Kinds of things that core instances export and import, and the instances themselves.
/// Each kind is numbered for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Instance,
    Func,
    Table,
    Memory,
    Global,
}

impl Space {
    pub(crate) fn of(kind: ExternalKind) -> Result<Self> {
        Ok(match kind {
            ExternalKind::Func => Self::Func,
            ExternalKind::Table => Self::Table,
            ExternalKind::Memory => Self::Memory,
            ExternalKind::Global => Self::Global,
            other => left_alone!("a module has something of the kind {other:?}"),
        })
    }
}

/// Something in a component that has to do with core instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Core {
    pub space: Space,
    pub index: u32,
}

/// One definition of a component.
pub(crate) enum Item<'a> {
    /// A core module.
    Module,
    /// A core instance.
    Instance(Instance<'a>),
    /// A name for what a core instance exports.
    Alias { space: Space, instance: u32, name: &'a str },
    /// A function for the core that the component model defines.
    Canonical(CanonicalFunction),
    /// A function for the outside that a core function implements.
    Lift(CanonicalFunction),
    /// An element of a section in which others may name something of the core.
    Element { section: u8, bytes: &'a [u8] },
    /// A section in which nothing of the core is named.
    Section { section: u8, bytes: &'a [u8] },
}

/// Where something that a module imports comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// A core instance that is made of a module exports it by this name.
    Instance { instance: u32, name: &'a str },
    /// The component model defines it.
    Canonical(Core),
}

/// A component that was read.
pub(crate) struct Component<'a> {
    pub items: Vec<Item<'a>>,
    /// The core modules' bytes.
    pub modules: Vec<&'a [u8]>,
    /// Which item defines what.
    definitions: HashMap<Core, usize>,
    counts: HashMap<Space, u32>,
}

impl<'a> Component<'a> {
    /// Reads a component that was validated.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut component = Self {
            items: Vec::new(),
            modules: Vec::new(),
            definitions: HashMap::new(),
            counts: HashMap::new(),
        };
        let mut reader = BinaryReader::new(bytes, 0);
        if !Parser::is_component(bytes) {
            left_alone!("it is a module and no component");
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
            // Its names are of numbers that change.
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
                let space = Space::of(kind)?;
                self.define(space, Item::Alias { space, instance: instance_index, name });
            }
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. }
            | ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, .. } => {
                left_alone!("a module comes from elsewhere than the component");
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
            other => left_alone!("it has an asynchronous function or a thread: {other:?}"),
        }
        Ok(())
    }

    fn define(&mut self, space: Space, item: Item<'a>) {
        let next = self.counts.entry(space).or_default();
        self.definitions.insert(Core { space, index: *next }, self.items.len());
        *next += 1;
        self.items.push(item);
    }

    /// Which item defines this.
    pub(crate) fn definition(&self, core: Core) -> usize {
        self.definitions[&core]
    }

    /// What a core instance is made of.
    pub(crate) fn instance(&self, index: u32) -> &Instance<'a> {
        match &self.items[self.definition(Core { space: Space::Instance, index })] {
            Item::Instance(instance) => instance,
            _ => unreachable!("an instance is defined by an instance"),
        }
    }

    /// Where what an instance exports comes from.
    pub(crate) fn export(&self, instance: u32, space: Space, name: &'a str) -> Result<Source<'a>> {
        match self.instance(instance) {
            Instance::Instantiate { .. } => Ok(Source::Instance { instance, name }),
            Instance::FromExports(exports) => {
                for export in exports {
                    if export.name == name && Space::of(export.kind)? == space {
                        return self.source(Core { space, index: export.index });
                    }
                }
                left_alone!("an instance does not have the export {name:?}")
            }
        }
    }

    /// Where something comes from.
    pub(crate) fn source(&self, core: Core) -> Result<Source<'a>> {
        match self.items[self.definition(core)] {
            Item::Alias { space, instance, name } => self.export(instance, space, name),
            _ => Ok(Source::Canonical(core)),
        }
    }
}

impl Item<'_> {
    /// What of the core this names.
    pub(crate) fn uses(&self) -> Result<Vec<Core>> {
        let of = |space: Space| move |index: u32| Core { space, index };
        Ok(match self {
            Self::Instance(Instance::Instantiate { args, .. }) => {
                args.iter().map(|argument| of(Space::Instance)(argument.index)).collect()
            }
            Self::Instance(Instance::FromExports(exports)) => exports
                .iter()
                .map(|export| Ok(of(Space::of(export.kind)?)(export.index)))
                .collect::<Result<_>>()?,
            Self::Alias { instance, .. } => vec![of(Space::Instance)(*instance)],
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
            other => left_alone!("a function is converted in a way that is not known here: {other:?}"),
        }
    }
    Ok(())
}

/// Elements of a section with the bytes that each was read from.
fn elements<'a, T: FromReader<'a>>(bytes: &'a [u8]) -> Result<impl Iterator<Item = Result<(T, &'a [u8])>>> {
    let mut reader = BinaryReader::new(bytes, 0);
    let count = reader.read_var_u32()?;
    Ok((0..count).map(move |_| {
        let begin = reader.original_position();
        let element = reader.read()?;
        Ok((element, &bytes[begin..reader.original_position()]))
    }))
}

/// That a section which is kept as it is names nothing of the core.
fn check_section(id: u8, bytes: &[u8]) -> Result<()> {
    let reader = BinaryReader::new(bytes, 0);
    match id {
        section::COMPONENT => check_inner(bytes)?,
        section::INSTANCE => {
            for instance in SectionLimited::<wasmparser::ComponentInstance>::new(reader)? {
                let wasmparser::ComponentInstance::Instantiate { args, .. } = instance? else { continue };
                if args.iter().any(|argument| argument.kind == ComponentExternalKind::Module) {
                    left_alone!("a module is handed to a component");
                }
            }
        }
        section::TYPE => {
            for kind in SectionLimited::<ComponentType>::new(reader)? {
                if let ComponentType::Resource { dtor: Some(_), .. } = kind? {
                    left_alone!("it has a resource with a destructor");
                }
            }
        }
        section::IMPORT => {
            for import in SectionLimited::<wasmparser::ComponentImport>::new(reader)? {
                if let ComponentTypeRef::Module(_) = import?.ty {
                    left_alone!("it imports a module");
                }
            }
        }
        section::EXPORT => {
            for export in SectionLimited::<wasmparser::ComponentExport>::new(reader)? {
                if export?.kind == ComponentExternalKind::Module {
                    left_alone!("it exports a module");
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// That a component within the component takes no module from it.
fn check_inner(bytes: &[u8]) -> Result<()> {
    for payload in Parser::new(0).parse_all(bytes) {
        let Payload::ComponentAliasSection(aliases) = payload? else { continue };
        for alias in aliases {
            if let ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, .. } = alias? {
                left_alone!("a component within it takes a module from outside");
            }
        }
    }
    Ok(())
}
