//! Selection of the core instances that are merged, and of the position of the merged instance.
//!
//! An instance joins the group if all its imports come from the group or are available before it: functions
//! of the component model that do not use the group's memory. The merged instance takes the position of the
//! last member. Items that depend on the group (functions converted through its memory, the module that puts
//! them into a table) follow it.

use std::collections::{HashMap, HashSet};

use wasmparser::{ElementKind, Instance};

use crate::component::{Component, Item, Source, Space};
use crate::module::{Module, space_of};
use crate::{Result, unsupported};

/// A core instance of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub instance: u32,
    pub module: usize,
    /// Index among the component's items.
    pub item: usize,
}

/// The instances that are merged.
pub(crate) struct Group {
    /// Members in the order of their instantiation.
    pub members: Vec<Member>,
    by_instance: HashMap<u32, usize>,
    /// For each item, whether it is a member or depends on one.
    pub dependent: Vec<bool>,
    /// For each item, whether the merged component needs it.
    pub live: Vec<bool>,
    /// Index of the item that the merged instance replaces.
    pub position: usize,
}

impl Group {
    /// Finds the group and checks that it can be merged.
    pub(crate) fn find(component: &Component<'_>, modules: &[Module<'_>]) -> Result<Self> {
        let mut group = Self {
            members: Vec::new(),
            by_instance: HashMap::new(),
            dependent: Vec::new(),
            live: Vec::new(),
            position: 0,
        };
        group.gather(component, modules)?;
        group.check_members(modules)?;
        group.check_others(component, modules)?;
        group.find_live(component)?;
        Ok(group)
    }

    /// Returns the member of a core instance.
    pub(crate) fn member(&self, instance: u32) -> Option<usize> {
        self.by_instance.get(&instance).copied()
    }

    /// Returns whether an item is a member.
    pub(crate) fn is_member(&self, item: usize) -> bool {
        self.members.iter().any(|member| member.item == item)
    }

    /// Collects the members in their order, and marks the items that depend on one.
    fn gather(&mut self, component: &Component<'_>, modules: &[Module<'_>]) -> Result<()> {
        let mut instance = 0;
        for (at, item) in component.items.iter().enumerate() {
            let joins = match item {
                Item::Instance(Instance::Instantiate { module_index, .. }) => {
                    self.can_join(component, &modules[*module_index as usize], instance)?
                }
                _ => false,
            };
            let uses = item.uses()?;
            let needs = uses.iter().any(|used| self.dependent[component.definition(*used)]);
            self.dependent.push(joins || needs);
            if let Item::Instance(definition) = item {
                if let (true, Instance::Instantiate { module_index, .. }) = (joins, definition) {
                    self.by_instance.insert(instance, self.members.len());
                    self.members.push(Member { instance, module: *module_index as usize, item: at });
                    self.position = at;
                }
                instance += 1;
            }
        }
        Ok(())
    }

    /// Returns whether all imports of an instance come from members or are functions that do not depend on one.
    fn can_join(&self, component: &Component<'_>, module: &Module<'_>, instance: u32) -> Result<bool> {
        for import in &module.imports {
            let joins = match import_source(component, import, instance)? {
                Source::Instance { instance, .. } => self.by_instance.contains_key(&instance),
                Source::Canonical(core) => !self.dependent[component.definition(core)],
            };
            if !joins {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks that the members have no effect at instantiation except for segments, and that two of them share a memory.
    fn check_members(&self, modules: &[Module<'_>]) -> Result<()> {
        let mut seen = HashSet::new();
        let mut with_memory = 0;
        for member in &self.members {
            let module = &modules[member.module];
            if !seen.insert(member.module) {
                unsupported!("a module is instantiated more than once");
            }
            if module.has_start {
                unsupported!("a module has a start function");
            }
            let memories = module.memories.len() + module.imported(Space::Memory);
            with_memory += usize::from(memories > 0);
        }
        if with_memory < 2 {
            unsupported!("the modules share no memory");
        }
        Ok(())
    }

    /// Checks that instances between the members behave the same when they are instantiated later.
    fn check_others(&self, component: &Component<'_>, modules: &[Module<'_>]) -> Result<()> {
        let mut instance = 0;
        for (at, item) in component.items[..self.position].iter().enumerate() {
            if let Item::Lift(_) = item
                && self.dependent[at]
            {
                unsupported!("the component exports a function before all its modules are instantiated");
            }
            let Item::Instance(definition) = item else { continue };
            if let Instance::Instantiate { module_index, .. } = definition
                && self.member(instance).is_none()
            {
                self.check_other(component, modules, instance, &modules[*module_index as usize], at)?;
            }
            instance += 1;
        }
        Ok(())
    }

    /// Checks one of these instances. Its module must have no start function, and must write to no memory and to no table
    /// that a later member writes to.
    fn check_other(
        &self,
        component: &Component<'_>,
        modules: &[Module<'_>],
        instance: u32,
        module: &Module<'_>,
        at: usize,
    ) -> Result<()> {
        if module.has_start || !module.data.is_empty() {
            unsupported!("a module in between has a start function or writes to memory");
        }
        let written = written_tables(component, modules, instance, module)?;
        for later in self.members.iter().filter(|member| member.item > at) {
            let tables = written_tables(component, modules, later.instance, &modules[later.module])?;
            if !written.is_disjoint(&tables) {
                unsupported!("a module in between writes to a table of the merged modules");
            }
        }
        Ok(())
    }

    /// Finds the items that remain: exported functions, instances outside of the group, and their
    /// dependencies. Imports of members are added later, when the reachable functions are known.
    fn find_live(&mut self, component: &Component<'_>) -> Result<()> {
        self.live = vec![false; component.items.len()];
        for (at, item) in component.items.iter().enumerate().rev() {
            let is_member = self.is_member(at);
            let root = match item {
                Item::Instance(Instance::Instantiate { args, .. }) => {
                    if !is_member && args.iter().any(|argument| self.member(argument.index).is_some()) {
                        unsupported!("a module outside of the group imports a whole instance of the group");
                    }
                    !is_member
                }
                Item::Instance(Instance::FromExports(_)) | Item::Alias { .. } | Item::Canonical(_) => false,
                Item::Module | Item::Lift(_) | Item::Element { .. } | Item::Section { .. } => true,
            };
            self.live[at] |= root;
            if self.live[at] && !is_member {
                for used in item.uses()? {
                    self.live[component.definition(used)] = true;
                }
            }
        }
        Ok(())
    }
}

/// Returns the definition of an instance's import.
pub(crate) fn import_source<'a>(
    component: &Component<'a>,
    import: &wasmparser::Import<'a>,
    instance: u32,
) -> Result<Source<'a>> {
    let Some(space) = space_of(import) else { unsupported!("a module has an import of an unknown kind") };
    let Instance::Instantiate { args, .. } = component.instance(instance) else {
        unsupported!("an instance without a module has imports")
    };
    match args.iter().find(|argument| argument.name == import.module) {
        Some(argument) => component.export(argument.index, space, import.name),
        None => unsupported!("an instance lacks the import {:?}", import.module),
    }
}

/// A table, as its instance and its index there.
type TableOf = (u32, u32);

/// Returns the tables that an instance writes to during instantiation.
fn written_tables(
    component: &Component<'_>,
    modules: &[Module<'_>],
    instance: u32,
    module: &Module<'_>,
) -> Result<HashSet<TableOf>> {
    let mut written = HashSet::new();
    for segment in &module.elements {
        if let ElementKind::Active { table_index, .. } = segment.kind {
            written.insert(table_of(component, modules, instance, table_index.unwrap_or(0))?);
        }
    }
    Ok(written)
}

/// Returns the table with an index in an instance.
fn table_of(
    component: &Component<'_>,
    modules: &[Module<'_>],
    mut instance: u32,
    mut table: u32,
) -> Result<TableOf> {
    loop {
        let module = module_of(component, modules, instance)?;
        let mut imported = module.imports.iter().filter(|import| space_of(import) == Some(Space::Table));
        let Some(import) = imported.nth(table as usize) else { return Ok((instance, table)) };
        let Source::Instance { instance: from, name } = import_source(component, import, instance)? else {
            unsupported!("a table belongs to no module")
        };
        table = module_of(component, modules, from)?.export(Space::Table, name)?;
        instance = from;
    }
}

fn module_of<'m, 'a>(
    component: &Component<'a>,
    modules: &'m [Module<'a>],
    instance: u32,
) -> Result<&'m Module<'a>> {
    match component.instance(instance) {
        Instance::Instantiate { module_index, .. } => Ok(&modules[*module_index as usize]),
        Instance::FromExports(_) => unsupported!("an instance has no module"),
    }
}
