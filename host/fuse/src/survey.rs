//! References in function bodies.

use wasmparser::{FunctionBody, Operator};

use crate::Result;

/// References of a function, as indices of its module.
#[derive(Default)]
pub(crate) struct Survey {
    /// Functions that the function calls or refers to.
    pub functions: Vec<u32>,
    pub globals_set: Vec<u32>,
    pub tables_written: Vec<u32>,
}

/// Collects the references of a function.
pub(crate) fn survey(body: &FunctionBody<'_>) -> Result<Survey> {
    let mut survey = Survey::default();
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        match operators.read()? {
            Operator::Call { function_index }
            | Operator::ReturnCall { function_index }
            | Operator::RefFunc { function_index } => survey.functions.push(function_index),
            Operator::GlobalSet { global_index } => survey.globals_set.push(global_index),
            Operator::TableSet { table }
            | Operator::TableGrow { table }
            | Operator::TableFill { table }
            | Operator::TableInit { table, .. }
            | Operator::TableCopy { dst_table: table, .. } => survey.tables_written.push(table),
            _ => {}
        }
    }
    Ok(survey)
}

/// Target of a trampoline: a constant entry of a table.
pub(crate) struct Trampoline {
    pub table: u32,
    pub entry: u32,
    pub kind: u32,
}

/// Returns the target if the function only passes its parameters to a table entry.
pub(crate) fn trampoline(body: &FunctionBody<'_>, parameters: usize) -> Result<Option<Trampoline>> {
    let mut operators = body.get_operators_reader()?;
    for parameter in 0..parameters {
        match operators.read()? {
            Operator::LocalGet { local_index } if local_index as usize == parameter => {}
            _ => return Ok(None),
        }
    }
    let Operator::I32Const { value } = operators.read()? else { return Ok(None) };
    let Operator::CallIndirect { type_index, table_index } = operators.read()? else { return Ok(None) };
    let Operator::End = operators.read()? else { return Ok(None) };
    let trampoline = Trampoline { table: table_index, entry: value.cast_unsigned(), kind: type_index };
    Ok(operators.eof().then_some(trampoline))
}
