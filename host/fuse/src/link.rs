//! What each member's numbers mean in the one module, and which of its functions are needed.

use std::collections::HashMap;

use wasm_encoder::{Encode, Ieee32, Ieee64, Instruction};
use wasmparser::{
    ConstExpr, ElementItems, ElementKind, FuncType, GlobalType, MemoryType, Operator, TableInit, TableType,
    TypeRef,
};

use crate::bodies::{self, Survey};
use crate::component::{Component, Core, Item, Source, Space};
use crate::group::{Group, import_source};
use crate::module::{Module, space_of};
use crate::names::Names;
use crate::{Result, left_alone};

/// A function of the one module, before it has a number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Func {
    /// One that the component model defines.
    Imported(usize),
    /// A member's, by the number of its body there.
    Defined { member: usize, body: usize },
}

/// What a global or an element is at the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    I32(i32),
    I64(i64),
    /// An instruction that gives it, as it is encoded.
    Other(Vec<u8>),
    Null,
    Func(Func),
}

/// A global variable of some member.
pub(crate) struct Global {
    pub kind: GlobalType,
    pub value: Value,
    /// Somebody may write to it or read it from outside, so it is a variable.
    varies: bool,
    /// Its number in the one module, if it has one.
    pub number: Option<u32>,
}

/// A table of some member.
pub(crate) struct Table {
    pub kind: TableType,
    /// Nobody writes to it after it was filled.
    fixed: bool,
    contents: HashMap<u32, Option<Func>>,
}

/// Where a segment of elements goes.
pub(crate) enum Mode {
    Active { table: u32, offset: i32 },
    Passive,
    Declared,
}

/// A segment of elements.
pub(crate) struct Segment {
    pub mode: Mode,
    pub functions: Vec<Option<Func>>,
}

/// A segment of data: where it goes if somewhere, and its bytes.
pub(crate) struct Data<'a> {
    pub offset: Option<i32>,
    pub bytes: &'a [u8],
}

/// What a member's numbers mean.
#[derive(Default)]
pub(crate) struct Map {
    pub types: Vec<u32>,
    pub funcs: Vec<Func>,
    pub tables: Vec<u32>,
    memories: Vec<u32>,
    pub globals: Vec<usize>,
    /// The numbers of its first segments of elements and of data.
    pub elements: u32,
    pub data: u32,
}

/// A function that the one module imports.
pub(crate) struct Import<'a> {
    pub core: Core,
    pub module: &'a str,
    pub name: &'a str,
    pub kind: u32,
}

/// Something that the one module exports, by the name that it has there.
pub(crate) struct Export {
    pub space: Space,
    pub name: String,
    pub what: Exported,
}

#[derive(Clone, Copy)]
pub(crate) enum Exported {
    Func(Func),
    /// A table, memory or global, by its number among those of all members.
    Other(usize),
}

/// All of the one module.
pub(crate) struct Linked<'a, 'm> {
    pub modules: Vec<&'m Module<'a>>,
    pub maps: Vec<Map>,
    pub types: Vec<FuncType>,
    pub imports: Vec<Import<'a>>,
    pub tables: Vec<Table>,
    pub memories: Vec<MemoryType>,
    pub globals: Vec<Global>,
    pub elements: Vec<Segment>,
    pub data: Vec<Data<'a>>,
    pub exports: Vec<Export>,
    /// Names of exports by what is named outside: instance, kind and the member's own name.
    exported: HashMap<(u32, Space, &'a str), usize>,
    /// Functions that do nothing but call another by way of a table, and that other.
    instead: HashMap<Func, Func>,
    /// Functions that are needed, in the order of their numbers.
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
        instead: HashMap::new(),
        numbered: Vec::new(),
        numbers: HashMap::new(),
    };
    for member in 0..group.members.len() {
        linked.add_member(component, group, member)?;
    }
    if linked.memories.len() != 1 {
        left_alone!("its modules have {} memories", linked.memories.len());
    }
    linked.add_exports(component, group)?;
    let surveys = linked.survey()?;
    linked.find_detours()?;
    linked.number(&surveys);
    Ok(linked)
}

impl<'a> Linked<'a, '_> {
    /// A function's number in the one module. Only of those that are needed.
    pub(crate) fn function(&self, func: Func) -> u32 {
        self.numbers[&self.settle(func)]
    }

    /// The functions that it imports, in the order of their numbers.
    pub(crate) fn imported(&self) -> impl Iterator<Item = &Import<'a>> {
        self.numbered.iter().filter_map(|func| match func {
            Func::Imported(at) => Some(&self.imports[*at]),
            Func::Defined { .. } => None,
        })
    }

    /// The functions that it defines, in the order of their numbers: member, and body there.
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

    /// By what name it exports what a member exports by this one.
    pub(crate) fn export_name(&self, instance: u32, space: Space, name: &str) -> &str {
        &self.exports[self.exported[&(instance, space, name)]].name
    }

    /// The type of a function that is defined, by its number in the one module.
    pub(crate) fn type_of(&self, member: usize, body: usize) -> u32 {
        self.maps[member].types[self.modules[member].functions[body] as usize]
    }

    fn add_member(&mut self, component: &Component<'a>, group: &Group, member: usize) -> Result<()> {
        let module = self.modules[member];
        let types = module.types.iter().map(|kind| self.type_number(kind)).collect();
        self.maps.push(Map { types, ..Map::default() });
        for import in &module.imports {
            self.add_import(component, group, member, import)?;
        }
        let funcs = (0..module.functions.len()).map(|body| Func::Defined { member, body });
        self.maps[member].funcs.extend(funcs);
        for table in &module.tables {
            let TableInit::RefNull = table.init else { left_alone!("a table is filled when it is made") };
            if !table.ty.element_type.is_func_ref() {
                left_alone!("a table has no functions in it");
            }
            self.maps[member].tables.push(number(self.tables.len()));
            self.tables.push(Table { kind: table.ty, fixed: true, contents: HashMap::new() });
        }
        for memory in &module.memories {
            self.maps[member].memories.push(number(self.memories.len()));
            self.memories.push(*memory);
        }
        for global in &module.globals {
            let value = self.evaluate(member, &global.init_expr)?;
            self.maps[member].globals.push(self.globals.len());
            self.globals.push(Global { kind: global.ty, value, varies: false, number: None });
        }
        self.maps[member].elements = number(self.elements.len());
        self.maps[member].data = number(self.data.len());
        self.add_segments(member)
    }

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
            (Source::Canonical(_), _) => left_alone!("a module imports what is no module's"),
            (Source::Instance { instance, name }, _) => {
                let (Some(from), Some(space)) = (group.member(instance), space_of(import)) else {
                    left_alone!("a module imports from one that is not of the group")
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

    /// The map of an earlier member, and that of a later one.
    fn pair(&mut self, earlier: usize, later: usize) -> (&Map, &mut Map) {
        let (before, after) = self.maps.split_at_mut(later);
        (&before[earlier], &mut after[0])
    }

    fn add_segments(&mut self, member: usize) -> Result<()> {
        let module = self.modules[member];
        for segment in &module.elements {
            let functions = self.read_elements(member, &segment.items)?;
            let mode = match &segment.kind {
                ElementKind::Passive => Mode::Passive,
                ElementKind::Declared => Mode::Declared,
                ElementKind::Active { table_index, offset_expr } => {
                    let table = self.maps[member].tables[table_index.unwrap_or(0) as usize];
                    let offset = self.place(member, offset_expr)?;
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
                wasmparser::DataKind::Active { offset_expr, .. } => Some(self.place(member, offset_expr)?),
            };
            self.data.push(Data { offset, bytes: segment.data });
        }
        Ok(())
    }

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
                        _ => left_alone!("an element is no function"),
                    });
                }
                Ok(functions)
            }
            ElementItems::Expressions(..) => left_alone!("a segment has no functions in it"),
        }
    }

    /// Where an active segment goes.
    fn place(&self, member: usize, expression: &ConstExpr<'_>) -> Result<i32> {
        match self.evaluate(member, expression)? {
            Value::I32(offset) => Ok(offset),
            _ => left_alone!("a segment's place is no number of 32 bits"),
        }
    }

    /// What a constant expression gives.
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
                // The validator saw that it never changes.
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
                    (operator, ..) => left_alone!("a constant is made by {operator:?}"),
                },
            };
            stack.push(value);
        }
        match stack.pop() {
            Some(value) => Ok(value),
            None => left_alone!("a constant is made of nothing"),
        }
    }

    fn type_number(&mut self, kind: &FuncType) -> u32 {
        // A member has at most a few hundred.
        let known = self.types.iter().position(|known| known == kind);
        number(known.unwrap_or_else(|| {
            self.types.push(kind.clone());
            self.types.len() - 1
        }))
    }

    /// What the rest of the component names of the members.
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
                (Space::Table, Exported::Other(table)) => self.tables[table].fixed = false,
                (Space::Global, Exported::Other(global)) => self.globals[global].varies = true,
                _ => {}
            }
            self.exported.insert(key, self.exports.len());
            self.exports.push(Export { space: *space, name: names.unique(name), what });
        }
        Ok(())
    }

    /// Looks through all code for what it names and what it changes.
    fn survey(&mut self) -> Result<Vec<Vec<Survey>>> {
        let mut surveys = Vec::new();
        for (module, map) in self.modules.iter().zip(&self.maps) {
            let mut of_member = Vec::new();
            for body in &module.bodies {
                let survey = bodies::survey(body)?;
                for global in &survey.globals_set {
                    self.globals[map.globals[*global as usize]].varies = true;
                }
                for table in &survey.tables_written {
                    self.tables[map.tables[*table as usize] as usize].fixed = false;
                }
                of_member.push(survey);
            }
            surveys.push(of_member);
        }
        let mut next = 0;
        for global in &mut self.globals {
            // A reference to a function is a constant that code cannot write.
            let is_number = !matches!(global.value, Value::Func(_) | Value::Null);
            if global.varies || !is_number {
                global.number = Some(next);
                next += 1;
            }
        }
        Ok(surveys)
    }

    /// Finds the functions that only call what is at a fixed place of a table: how a linker
    /// lets a library call one that is instantiated later.
    fn find_detours(&mut self) -> Result<()> {
        for (member, module) in self.modules.iter().enumerate() {
            let map = &self.maps[member];
            for (body, function) in module.bodies.iter().enumerate() {
                let kind = &module.types[module.functions[body] as usize];
                let Some(detour) = bodies::detour(function, kind.params().len())? else { continue };
                let table = &self.tables[map.tables[detour.table as usize] as usize];
                if !table.fixed {
                    continue;
                }
                let Some(Some(target)) = table.contents.get(&detour.entry) else { continue };
                let called = map.types[detour.kind as usize];
                if called == self.type_of(member, body) && called == self.type_of_func(*target) {
                    self.instead.insert(Func::Defined { member, body }, *target);
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

    /// The function that is called in the end when this one is.
    fn settle(&self, func: Func) -> Func {
        let mut settled = func;
        for _ in 0..self.instead.len() {
            match self.instead.get(&settled) {
                Some(next) => settled = *next,
                None => return settled,
            }
        }
        // Round in a circle: then it is as it was written.
        if self.instead.contains_key(&settled) { func } else { settled }
    }

    /// Gives numbers to the functions that can be reached.
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
            let func = self.settle(func);
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

/// A number in a module: the binary format has 32 bits for it, and so the validator
/// counted what the members have together.
pub(crate) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
