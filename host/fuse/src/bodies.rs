//! Rewriting of function bodies with new indices.
//!
//! The rewriting covers every instruction of [`crate::FEATURES`] that refers to an index of its module.
//! Memory indices need no rewriting because there is a single memory.

use wasm_encoder::{BlockType, Encode, Instruction};
use wasmparser::{FunctionBody, Operator};

use crate::Result;
use crate::link::{Linked, Value};

/// Rewrites a member's function with the indices of the merged module.
pub(crate) fn rewrite(linked: &Linked<'_, '_>, member: usize, body: &FunctionBody<'_>) -> Result<Vec<u8>> {
    let bytes = body.as_bytes();
    let begin = body.range().start;
    let mut code = Vec::with_capacity(bytes.len() + bytes.len() / 8);
    let mut copied = 0;
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        let at = operators.original_position() - begin;
        let operator = operators.read()?;
        if let Some(instruction) = renumber(linked, member, &operator) {
            code.extend_from_slice(&bytes[copied..at]);
            match instruction {
                Renumbered::Instruction(instruction) => instruction.encode(&mut code),
                Renumbered::Bytes(bytes) => code.extend_from_slice(&bytes),
            }
            copied = operators.original_position() - begin;
        }
    }
    code.extend_from_slice(&bytes[copied..]);
    Ok(code)
}

enum Renumbered {
    Instruction(Instruction<'static>),
    Bytes(Vec<u8>),
}

/// Returns the instruction with new indices, if it has any.
fn renumber(linked: &Linked<'_, '_>, member: usize, operator: &Operator<'_>) -> Option<Renumbered> {
    let map = &linked.maps[member];
    let function = |index: &u32| linked.function(map.funcs[*index as usize]);
    let kind = |index: &u32| map.types[*index as usize];
    let table = |index: &u32| map.tables[*index as usize];
    let block = |block: &wasmparser::BlockType| match block {
        wasmparser::BlockType::FuncType(index) => Some(BlockType::FunctionType(kind(index))),
        wasmparser::BlockType::Empty | wasmparser::BlockType::Type(_) => None,
    };
    Some(Renumbered::Instruction(match operator {
        Operator::Block { blockty } => Instruction::Block(block(blockty)?),
        Operator::Loop { blockty } => Instruction::Loop(block(blockty)?),
        Operator::If { blockty } => Instruction::If(block(blockty)?),
        Operator::Call { function_index } => Instruction::Call(function(function_index)),
        Operator::ReturnCall { function_index } => Instruction::ReturnCall(function(function_index)),
        Operator::RefFunc { function_index } => Instruction::RefFunc(function(function_index)),
        Operator::CallIndirect { type_index, table_index } => {
            Instruction::CallIndirect { type_index: kind(type_index), table_index: table(table_index) }
        }
        Operator::ReturnCallIndirect { type_index, table_index } => {
            Instruction::ReturnCallIndirect { type_index: kind(type_index), table_index: table(table_index) }
        }
        Operator::GlobalGet { global_index } => {
            let global = &linked.globals[map.globals[*global_index as usize]];
            match (global.number, &global.value) {
                (Some(number), _) => Instruction::GlobalGet(number),
                (None, Value::I32(value)) => Instruction::I32Const(*value),
                (None, Value::I64(value)) => Instruction::I64Const(*value),
                (None, Value::Other(bytes)) => return Some(Renumbered::Bytes(bytes.clone())),
                (None, Value::Null | Value::Func(_)) => unreachable!("references have numbers"),
            }
        }
        Operator::GlobalSet { global_index } => {
            let number = linked.globals[map.globals[*global_index as usize]].number;
            Instruction::GlobalSet(
                number.unwrap_or_else(|| unreachable!("a global that is set has a number")),
            )
        }
        Operator::TableGet { table: index } => Instruction::TableGet(table(index)),
        Operator::TableSet { table: index } => Instruction::TableSet(table(index)),
        Operator::TableSize { table: index } => Instruction::TableSize(table(index)),
        Operator::TableGrow { table: index } => Instruction::TableGrow(table(index)),
        Operator::TableFill { table: index } => Instruction::TableFill(table(index)),
        Operator::TableCopy { dst_table, src_table } => {
            Instruction::TableCopy { dst_table: table(dst_table), src_table: table(src_table) }
        }
        Operator::TableInit { elem_index, table: index } => {
            Instruction::TableInit { elem_index: map.elements + elem_index, table: table(index) }
        }
        Operator::ElemDrop { elem_index } => Instruction::ElemDrop(map.elements + elem_index),
        Operator::MemoryInit { data_index, mem } => {
            Instruction::MemoryInit { data_index: map.data + data_index, mem: *mem }
        }
        Operator::DataDrop { data_index } => Instruction::DataDrop(map.data + data_index),
        _ => return None,
    }))
}
