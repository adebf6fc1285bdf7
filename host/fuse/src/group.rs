//! Which of a component's core instances become one, and in whose place.
//!
//! An instance joins if all that it imports comes from the others of the group or can be
//! had before any of them: a function that the component model defines without memory of
//! the group. The last one's place is where the one instance comes. What needs the group
//! (functions converted by way of its memory, the module that puts those into a table)
//! comes after it.

use std::collections::{HashMap, HashSet};

use wasmparser::{ElementKind, Instance};

use crate::component::{Component, Item, Source, Space};
use crate::module::{Module, space_of};
use crate::{Result, left_alone};

/// One core instance of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub instance: u32,
    pub module: usize,
    /// Its place among the component's items.
    pub item: usize,
}

/// Instances that become one.
pub(crate) struct Group {
    /// In the order of their instantiation.
    pub members: Vec<Member>,
    by_instance: HashMap<u32, usize>,
    /// By item, whether it is a member or needs one.
    pub dependent: Vec<bool>,
    /// By item, whether what remains of the component needs it.
    pub live: Vec<bool>,
    /// The item in whose place the one instance comes.
    pub place: usize,
}

impl Group {
    /// Finds the group, and checks that it can be one instance.
    pub(crate) fn find(component: &Component<'_>, modules: &[Module<'_>]) -> Result<Self> {
        let mut group = Self {
            members: Vec::new(),
            by_instance: HashMap::new(),
            dependent: Vec::new(),
            live: Vec::new(),
            place: 0,
        };
        group.gather(component, modules)?;
        group.check_members(modules)?;
        group.check_others(component, modules)?;
        group.find_live(component)?;
        Ok(group)
    }

    /// Which member a core instance is, if it is one.
    pub(crate) fn member(&self, instance: u32) -> Option<usize> {
        self.by_instance.get(&instance).copied()
    }

    /// Whether an item is a member.
    pub(crate) fn is_member(&self, item: usize) -> bool {
        self.members.iter().any(|member| member.item == item)
    }

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
            if let Item::Instance(made) = item {
                if let (true, Instance::Instantiate { module_index, .. }) = (joins, made) {
                    self.by_instance.insert(instance, self.members.len());
                    self.members.push(Member { instance, module: *module_index as usize, item: at });
                    self.place = at;
                }
                instance += 1;
            }
        }
        Ok(())
    }

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

    fn check_members(&self, modules: &[Module<'_>]) -> Result<()> {
        let mut seen = HashSet::new();
        let mut with_memory = 0;
        for member in &self.members {
            let module = &modules[member.module];
            if !seen.insert(member.module) {
                left_alone!("a module is instantiated more than once");
            }
            if module.has_start {
                left_alone!("a module runs a function when it is instantiated");
            }
            let memories = module.memories.len() + module.imported(Space::Memory);
            with_memory += usize::from(memories > 0);
        }
        if with_memory < 2 {
            left_alone!("its modules share no memory");
        }
        Ok(())
    }

    /// That what is instantiated between members does the same when it comes after them.
    fn check_others(&self, component: &Component<'_>, modules: &[Module<'_>]) -> Result<()> {
        let mut instance = 0;
        for (at, item) in component.items[..self.place].iter().enumerate() {
            if let Item::Lift(_) = item
                && self.dependent[at]
            {
                left_alone!("it exports a function before its modules are all instantiated");
            }
            let Item::Instance(made) = item else { continue };
            if let Instance::Instantiate { module_index, .. } = made
                && self.member(instance).is_none()
            {
                self.check_other(component, modules, instance, &modules[*module_index as usize], at)?;
            }
            instance += 1;
        }
        Ok(())
    }

    fn check_other(
        &self,
        component: &Component<'_>,
        modules: &[Module<'_>],
        instance: u32,
        module: &Module<'_>,
        at: usize,
    ) -> Result<()> {
        if module.has_start || !module.data.is_empty() {
            left_alone!("between the modules is one that runs or writes into memory");
        }
        let written = written_tables(component, modules, instance, module)?;
        for later in self.members.iter().filter(|member| member.item > at) {
            let tables = written_tables(component, modules, later.instance, &modules[later.module])?;
            if !written.is_disjoint(&tables) {
                left_alone!("between the modules is one that writes into a table of theirs");
            }
        }
        Ok(())
    }

    /// What remains: functions for the outside, instances that are no members, and all that
    /// these need. Members' imports are added when it is known which are called.
    fn find_live(&mut self, component: &Component<'_>) -> Result<()> {
        self.live = vec![false; component.items.len()];
        for (at, item) in component.items.iter().enumerate().rev() {
            let is_member = self.is_member(at);
            let root = match item {
                Item::Instance(Instance::Instantiate { args, .. }) => {
                    if !is_member && args.iter().any(|argument| self.member(argument.index).is_some()) {
                        left_alone!("a module outside of the group is given a whole instance of it");
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

/// Where an instance's import comes from.
pub(crate) fn import_source<'a>(
    component: &Component<'a>,
    import: &wasmparser::Import<'a>,
    instance: u32,
) -> Result<Source<'a>> {
    let Some(space) = space_of(import) else { left_alone!("a module imports a thing of an unknown kind") };
    let Instance::Instantiate { args, .. } = component.instance(instance) else {
        left_alone!("an instance without a module imports something")
    };
    match args.iter().find(|argument| argument.name == import.module) {
        Some(argument) => component.export(argument.index, space, import.name),
        None => left_alone!("an instance is not given {:?}", import.module),
    }
}

/// A table, by the instance that it belongs to and its number there.
type TableOf = (u32, u32);

/// The tables that an instance writes into when it is made.
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

/// The table that has this number in an instance.
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
            left_alone!("a table is no module's")
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
        Instance::FromExports(_) => left_alone!("an instance has no module"),
    }
}
