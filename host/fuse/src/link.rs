//! Linking: the mapping of the members' indices to the merged module, and the reachable functions.

use std::collections::HashMap;

use wasm_encoder::{Encode, Ieee32, Ieee64, Instruction};
use wasmparser::{
    ConstExpr, ElementItems, ElementKind, FuncType, GlobalType, MemoryType, Operator, TableInit, TableType,
    TypeRef,
};

use crate::component::{Component, Core, Item, Source, Space};
use crate::group::{Group, import_source};
use crate::module::{Module, space_of};
use crate::names::Names;
use crate::survey::{self, Survey};
use crate::{Result, unsupported};

/// A function of the merged module, before its index is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Func {
    /// A function that the component model defines.
    Imported(usize),
    /// A function of a member, as member and index of the body.
    Defined { member: usize, body: usize },
}

/// Initial value of a global or of a table element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    I32(i32),
    I64(i64),
    /// An encoded instruction that computes the value.
    Other(Vec<u8>),
    Null,
    Func(Func),
}

/// A global of a member.
pub(crate) struct Global {
    pub kind: GlobalType,
    pub value: Value,
    /// Whether the global can be written, or read from outside, so that it stays a variable.
    is_variable: bool,
    /// Index in the merged module, if the global is still needed.
    pub number: Option<u32>,
}

/// A table of a member.
pub(crate) struct Table {
    pub kind: TableType,
    /// Whether the table never changes after instantiation.
    is_fixed: bool,
    contents: HashMap<u32, Option<Func>>,
}

/// Mode of an element segment.
pub(crate) enum Mode {
    Active { table: u32, offset: i32 },
    Passive,
    Declared,
}

/// An element segment.
pub(crate) struct Segment {
    pub mode: Mode,
    pub functions: Vec<Option<Func>>,
}

/// A data segment; `offset` is `None` for a passive one.
pub(crate) struct Data<'a> {
    pub offset: Option<i32>,
    pub bytes: &'a [u8],
}

/// Mapping of a member's indices to the merged module.
#[derive(Default)]
pub(crate) struct IndexMap {
    pub types: Vec<u32>,
    pub funcs: Vec<Func>,
    pub tables: Vec<u32>,
    memories: Vec<u32>,
    pub globals: Vec<usize>,
    /// Indices of the member's first element segment and first data segment.
    pub elements: u32,
    pub data: u32,
}

/// A function that the merged module imports.
pub(crate) struct Import<'a> {
    pub core: Core,
    pub module: &'a str,
    pub name: &'a str,
    pub kind: u32,
}

/// An export of the merged module.
pub(crate) struct Export {
    pub space: Space,
    pub name: String,
    pub what: Exported,
}

#[derive(Clone, Copy)]
pub(crate) enum Exported {
    Func(Func),
    /// A table, memory or global, by its index among those of all members.
    Other(usize),
}

/// The linked module, before it is encoded.
pub(crate) struct Linked<'a, 'm> {
    pub modules: Vec<&'m Module<'a>>,
    pub maps: Vec<IndexMap>,
    pub types: Vec<FuncType>,
    pub imports: Vec<Import<'a>>,
    pub tables: Vec<Table>,
    pub memories: Vec<MemoryType>,
    pub globals: Vec<Global>,
    pub elements: Vec<Segment>,
    pub data: Vec<Data<'a>>,
    pub exports: Vec<Export>,
    /// Indices into `exports` by instance, index space and the member's own name.
    exported: HashMap<(u32, Space, &'a str), usize>,
    /// Trampolines, which only call another function through a table, each with the function that it calls.
    trampolines: HashMap<Func, Func>,
    /// The reachable functions in the order of their indices.
    numbered: Vec<Func>,
    numbers: HashMap<Func, u32>,
}

/// Links the members of a group.
pub(crate) fn link<'a, 'm>(
    component: &Component<'a>,
    modules: &'m [Module<'a>],
    group: &Group,
) -> Result<Linked<'a, 'm>> {
    let mut linked = Linked {
        modules: group.members.iter().map(|member| &modules[member.module]).collect(),
        maps: Vec::new(),
        types: Vec::new(),
        imports: Vec::new(),
        tables: Vec::new(),
        memories: Vec::new(),
        globals: Vec::new(),
        elements: Vec::new(),
        data: Vec::new(),
        exports: Vec::new(),
        exported: HashMap::new(),
        trampolines: HashMap::new(),
        numbered: Vec::new(),
        numbers: HashMap::new(),
    };
    for member in 0..group.members.len() {
        linked.add_member(component, group, member)?;
    }
    if linked.memories.len() != 1 {
        unsupported!("the modules have {} memories", linked.memories.len());
    }
    linked.add_exports(component, group)?;
    let surveys = linked.survey()?;
    linked.find_trampolines()?;
    linked.number(&surveys);
    Ok(linked)
}

impl<'a> Linked<'a, '_> {
    /// Returns the index of a reachable function in the merged module.
    pub(crate) fn function(&self, func: Func) -> u32 {
        self.numbers[&self.resolve(func)]
    }

    /// Returns the imported functions in the order of their indices.
    pub(crate) fn imported(&self) -> impl Iterator<Item = &Import<'a>> {
        self.numbered.iter().filter_map(|func| match func {
            Func::Imported(at) => Some(&self.imports[*at]),
            Func::Defined { .. } => None,
        })
    }

    /// Returns the defined functions in the order of their indices, as member and index of the body.
    pub(crate) fn defined(&self) -> impl Iterator<Item = (usize, usize)> {
        self.numbered.iter().filter_map(|func| match func {
            Func::Imported(_) => None,
            Func::Defined { member, body } => Some((*member, *body)),
        })
    }

    pub(crate) fn import_count(&self) -> usize {
        self.imported().count()
    }

    pub(crate) fn defined_count(&self) -> usize {
        self.defined().count()
    }

    /// Returns the name under which the merged module exports an export of a member.
    pub(crate) fn export_name(&self, instance: u32, space: Space, name: &str) -> &str {
        &self.exports[self.exported[&(instance, space, name)]].name
    }

    /// Returns the type of a defined function, by its index in the merged module.
    pub(crate) fn type_of(&self, member: usize, body: usize) -> u32 {
        self.maps[member].types[self.modules[member].functions[body] as usize]
    }

    /// Adds the definitions of a member. Its imports come from earlier members or from the component.
    fn add_member(&mut self, component: &Component<'a>, group: &Group, member: usize) -> Result<()> {
        let module = self.modules[member];
        let types = module.types.iter().map(|kind| self.type_number(kind)).collect();
        self.maps.push(IndexMap { types, ..IndexMap::default() });
        for import in &module.imports {
            self.add_import(component, group, member, import)?;
        }
        let funcs = (0..module.functions.len()).map(|body| Func::Defined { member, body });
        self.maps[member].funcs.extend(funcs);
        for table in &module.tables {
            let TableInit::RefNull = table.init else { unsupported!("a table has an initial value") };
            if !table.ty.element_type.is_func_ref() {
                unsupported!("a table does not hold functions");
            }
            self.maps[member].tables.push(number(self.tables.len()));
            self.tables.push(Table { kind: table.ty, is_fixed: true, contents: HashMap::new() });
        }
        for memory in &module.memories {
            self.maps[member].memories.push(number(self.memories.len()));
            self.memories.push(*memory);
        }
        for global in &module.globals {
            let value = self.evaluate(member, &global.init_expr)?;
            self.maps[member].globals.push(self.globals.len());
            self.globals.push(Global { kind: global.ty, value, is_variable: false, number: None });
        }
        self.maps[member].elements = number(self.elements.len());
        self.maps[member].data = number(self.data.len());
        self.add_segments(member)
    }

    /// Maps an import to the definition of an earlier member, or to an import of the merged module.
    fn add_import(
        &mut self,
        component: &Component<'a>,
        group: &Group,
        member: usize,
        import: &wasmparser::Import<'a>,
    ) -> Result<()> {
        let source = import_source(component, import, group.members[member].instance)?;
        match (source, import.ty) {
            (Source::Canonical(core), TypeRef::Func(kind)) => {
                let kind = self.maps[member].types[kind as usize];
                let known = self.imports.iter().position(|known| known.core == core);
                let at = known.unwrap_or_else(|| {
                    self.imports.push(Import { core, module: import.module, name: import.name, kind });
                    self.imports.len() - 1
                });
                self.maps[member].funcs.push(Func::Imported(at));
            }
            (Source::Canonical(_), _) => {
                unsupported!("a module imports a memory, table or global that belongs to no module")
            }
            (Source::Instance { instance, name }, _) => {
                let (Some(from), Some(space)) = (group.member(instance), space_of(import)) else {
                    unsupported!("a module imports from a module outside of the group")
                };
                let index = self.modules[from].export(space, name)? as usize;
                let (theirs, ours) = self.pair(from, member);
                match space {
                    Space::Func => ours.funcs.push(theirs.funcs[index]),
                    Space::Table => ours.tables.push(theirs.tables[index]),
                    Space::Memory => ours.memories.push(theirs.memories[index]),
                    Space::Global => ours.globals.push(theirs.globals[index]),
                    Space::Instance => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the mapping of an earlier member, and a mutable reference to the mapping of a later one.
    fn pair(&mut self, earlier: usize, later: usize) -> (&IndexMap, &mut IndexMap) {
        let (before, after) = self.maps.split_at_mut(later);
        (&before[earlier], &mut after[0])
    }

    /// Adds a member's segments, and the table entries that its active segments write.
    fn add_segments(&mut self, member: usize) -> Result<()> {
        let module = self.modules[member];
        for segment in &module.elements {
            let functions = self.read_elements(member, &segment.items)?;
            let mode = match &segment.kind {
                ElementKind::Passive => Mode::Passive,
                ElementKind::Declared => Mode::Declared,
                ElementKind::Active { table_index, offset_expr } => {
                    let table = self.maps[member].tables[table_index.unwrap_or(0) as usize];
                    let offset = self.offset(member, offset_expr)?;
                    let places = (offset.cast_unsigned()..).zip(&functions);
                    self.tables[table as usize].contents.extend(places.map(|(at, func)| (at, *func)));
                    Mode::Active { table, offset }
                }
            };
            self.elements.push(Segment { mode, functions });
        }
        for segment in &module.data {
            let offset = match &segment.kind {
                wasmparser::DataKind::Passive => None,
                wasmparser::DataKind::Active { offset_expr, .. } => Some(self.offset(member, offset_expr)?),
            };
            self.data.push(Data { offset, bytes: segment.data });
        }
        Ok(())
    }

    /// Returns the functions of an element segment; `None` for a null entry.
    fn read_elements(&self, member: usize, items: &ElementItems<'_>) -> Result<Vec<Option<Func>>> {
        let funcs = &self.maps[member].funcs;
        match items {
            ElementItems::Functions(indices) => {
                indices.clone().into_iter().map(|index| Ok(Some(funcs[index? as usize]))).collect()
            }
            ElementItems::Expressions(kind, expressions) if kind.is_func_ref() => {
                let mut functions = Vec::new();
                for expression in expressions.clone() {
                    functions.push(match self.evaluate(member, &expression?)? {
                        Value::Func(func) => Some(func),
                        Value::Null => None,
                        _ => unsupported!("an element is not a function"),
                    });
                }
                Ok(functions)
            }
            ElementItems::Expressions(..) => unsupported!("a segment does not hold functions"),
        }
    }

    /// Returns the offset of an active segment.
    fn offset(&self, member: usize, expression: &ConstExpr<'_>) -> Result<i32> {
        match self.evaluate(member, expression)? {
            Value::I32(offset) => Ok(offset),
            _ => unsupported!("a segment's offset is not a 32-bit number"),
        }
    }

    /// Evaluates a constant expression.
    fn evaluate(&self, member: usize, expression: &ConstExpr<'_>) -> Result<Value> {
        let map = &self.maps[member];
        let mut stack: Vec<Value> = Vec::new();
        let mut operators = expression.get_operators_reader();
        loop {
            let value = match operators.read()? {
                Operator::End => break,
                Operator::I32Const { value } => Value::I32(value),
                Operator::I64Const { value } => Value::I64(value),
                Operator::F32Const { value } => other(&Instruction::F32Const(Ieee32::new(value.bits()))),
                Operator::F64Const { value } => other(&Instruction::F64Const(Ieee64::new(value.bits()))),
                Operator::V128Const { value } => other(&Instruction::V128Const(value.i128())),
                Operator::RefNull { .. } => Value::Null,
                Operator::RefFunc { function_index } => Value::Func(map.funcs[function_index as usize]),
                // The validator checked that the global is immutable.
                Operator::GlobalGet { global_index } => {
                    self.globals[map.globals[global_index as usize]].value.clone()
                }
                operator => match (operator, stack.pop(), stack.pop()) {
                    (Operator::I32Add, Some(Value::I32(b)), Some(Value::I32(a))) => {
                        Value::I32(a.wrapping_add(b))
                    }
                    (Operator::I32Sub, Some(Value::I32(b)), Some(Value::I32(a))) => {
                        Value::I32(a.wrapping_sub(b))
                    }
                    (Operator::I32Mul, Some(Value::I32(b)), Some(Value::I32(a))) => {
                        Value::I32(a.wrapping_mul(b))
                    }
                    (Operator::I64Add, Some(Value::I64(b)), Some(Value::I64(a))) => {
                        Value::I64(a.wrapping_add(b))
                    }
                    (Operator::I64Sub, Some(Value::I64(b)), Some(Value::I64(a))) => {
                        Value::I64(a.wrapping_sub(b))
                    }
                    (Operator::I64Mul, Some(Value::I64(b)), Some(Value::I64(a))) => {
                        Value::I64(a.wrapping_mul(b))
                    }
                    (operator, ..) => unsupported!("a constant expression uses {operator:?}"),
                },
            };
            stack.push(value);
        }
        match stack.pop() {
            Some(value) => Ok(value),
            None => unsupported!("a constant expression is empty"),
        }
    }

    fn type_number(&mut self, kind: &FuncType) -> u32 {
        // A member has at most a few hundred types.
        let known = self.types.iter().position(|known| known == kind);
        number(known.unwrap_or_else(|| {
            self.types.push(kind.clone());
            self.types.len() - 1
        }))
    }

    /// Adds the exports of members that the rest of the component refers to.
    fn add_exports(&mut self, component: &Component<'a>, group: &Group) -> Result<()> {
        let mut names = Names::default();
        for (item, live) in component.items.iter().zip(&group.live) {
            let (Item::Alias { space, instance, name }, true) = (item, live) else { continue };
            let Some(member) = group.member(*instance) else { continue };
            let key = (*instance, *space, *name);
            if self.exported.contains_key(&key) {
                continue;
            }
            let index = self.modules[member].export(*space, name)? as usize;
            let map = &self.maps[member];
            let what = match space {
                Space::Func => Exported::Func(map.funcs[index]),
                Space::Table => Exported::Other(map.tables[index] as usize),
                Space::Memory => Exported::Other(map.memories[index] as usize),
                Space::Global => Exported::Other(map.globals[index]),
                Space::Instance => continue,
            };
            match (space, what) {
                (Space::Table, Exported::Other(table)) => self.tables[table].is_fixed = false,
                (Space::Global, Exported::Other(global)) => self.globals[global].is_variable = true,
                _ => {}
            }
            self.exported.insert(key, self.exports.len());
            self.exports.push(Export { space: *space, name: names.unique(name), what });
        }
        Ok(())
    }

    /// Collects the references and the writes in all function bodies.
    fn survey(&mut self) -> Result<Vec<Vec<Survey>>> {
        let mut surveys = Vec::new();
        for (module, map) in self.modules.iter().zip(&self.maps) {
            let mut of_member = Vec::new();
            for body in &module.bodies {
                let survey = survey::survey(body)?;
                for global in &survey.globals_set {
                    self.globals[map.globals[*global as usize]].is_variable = true;
                }
                for table in &survey.tables_written {
                    self.tables[map.tables[*table as usize] as usize].is_fixed = false;
                }
                of_member.push(survey);
            }
            surveys.push(of_member);
        }
        let mut next = 0;
        for global in &mut self.globals {
            // A global with a function reference is immutable.
            let is_number = !matches!(global.value, Value::Func(_) | Value::Null);
            if global.is_variable || !is_number {
                global.number = Some(next);
                next += 1;
            }
        }
        Ok(surveys)
    }

    /// Finds the trampolines: functions that only call a constant entry of a table. A linker uses them to let
    /// a library call one that is instantiated later.
    fn find_trampolines(&mut self) -> Result<()> {
        for (member, module) in self.modules.iter().enumerate() {
            let map = &self.maps[member];
            for (body, function) in module.bodies.iter().enumerate() {
                let kind = &module.types[module.functions[body] as usize];
                let Some(trampoline) = survey::trampoline(function, kind.params().len())? else { continue };
                let table = &self.tables[map.tables[trampoline.table as usize] as usize];
                if !table.is_fixed {
                    continue;
                }
                let Some(Some(target)) = table.contents.get(&trampoline.entry) else { continue };
                let called = map.types[trampoline.kind as usize];
                if called == self.type_of(member, body) && called == self.type_of_func(*target) {
                    self.trampolines.insert(Func::Defined { member, body }, *target);
                }
            }
        }
        Ok(())
    }

    fn type_of_func(&self, func: Func) -> u32 {
        match func {
            Func::Imported(at) => self.imports[at].kind,
            Func::Defined { member, body } => self.type_of(member, body),
        }
    }

    /// Follows trampolines to the function that is eventually called.
    fn resolve(&self, func: Func) -> Func {
        let mut settled = func;
        for _ in 0..self.trampolines.len() {
            match self.trampolines.get(&settled) {
                Some(next) => settled = *next,
                None => return settled,
            }
        }
        // The trampolines form a cycle, so the call stays as it is.
        if self.trampolines.contains_key(&settled) { func } else { settled }
    }

    /// Assigns indices to the reachable functions.
    fn number(&mut self, surveys: &[Vec<Survey>]) {
        let mut reached: HashMap<Func, ()> = HashMap::new();
        let mut to_do: Vec<Func> = Vec::new();
        to_do.extend(self.exports.iter().filter_map(|export| match export.what {
            Exported::Func(func) => Some(func),
            Exported::Other(_) => None,
        }));
        to_do.extend(self.elements.iter().flat_map(|segment| segment.functions.iter().flatten()));
        to_do.extend(self.globals.iter().filter_map(|global| match global.value {
            Value::Func(func) => Some(func),
            _ => None,
        }));
        while let Some(func) = to_do.pop() {
            let func = self.resolve(func);
            if reached.insert(func, ()).is_some() {
                continue;
            }
            let Func::Defined { member, body } = func else { continue };
            let called = surveys[member][body].functions.iter();
            to_do.extend(called.map(|index| self.maps[member].funcs[*index as usize]));
        }
        let imports = (0..self.imports.len()).map(Func::Imported);
        let bodies = self.modules.iter().enumerate().flat_map(|(member, module)| {
            (0..module.bodies.len()).map(move |body| Func::Defined { member, body })
        });
        self.numbered = imports.chain(bodies).filter(|func| reached.contains_key(func)).collect();
        self.numbers = self.numbered.iter().enumerate().map(|(at, func)| (*func, number(at))).collect();
    }
}

fn other(instruction: &Instruction<'_>) -> Value {
    let mut bytes = Vec::new();
    instruction.encode(&mut bytes);
    Value::Other(bytes)
}

/// Converts a count to an index. The validator has limited the counts to 32 bits.
pub(crate) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
