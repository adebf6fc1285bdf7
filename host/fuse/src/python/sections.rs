//! The sections of components and modules that are needed to change the initial memory.

use std::ops::Range;

use wasm_encoder::{Component, ConstExpr, DataSection, Encode, Module, RawSection};
use wasmparser::BinaryReader;

use super::error::{ImageError, Result};

/// Section numbers of WebAssembly's binary format.
pub(super) const CORE_MODULE: u8 = 1;
pub(super) const TYPES: u8 = 1;
pub(super) const IMPORTS: u8 = 2;
pub(super) const FUNCTIONS: u8 = 3;
pub(super) const MEMORIES: u8 = 5;
pub(super) const GLOBALS: u8 = 6;
pub(super) const EXPORTS: u8 = 7;
pub(super) const START: u8 = 8;
pub(super) const ELEMENTS: u8 = 9;
pub(super) const CODE: u8 = 10;
pub(super) const DATA: u8 = 11;
pub(super) const DATA_COUNT: u8 = 12;

/// Number of bytes before the first section of a component or module.
const HEADER_BYTES: usize = 8;

/// Returns number and content range of each section of a component or module.
pub(super) fn sections(bytes: &[u8]) -> Result<Vec<(u8, Range<usize>)>> {
    let mut reader = BinaryReader::new(bytes, 0);
    reader.read_bytes(HEADER_BYTES).map_err(ImageError::NotWebAssembly)?;
    let mut found = Vec::new();
    while !reader.eof() {
        let id = reader.read_u8()?;
        let size = reader.read_var_u32()? as usize;
        let begin = reader.original_position();
        reader.read_bytes(size)?;
        found.push((id, begin..begin + size));
    }
    Ok(found)
}

/// Returns the module with other data segments.
pub(super) fn with_data(
    module: &[u8],
    sections: &[(u8, Range<usize>)],
    segments: &[(usize, &[u8])],
) -> Vec<u8> {
    let mut data = DataSection::new();
    for (at, bytes) in segments {
        // An address has 32 bits because an image has a maximum size.
        let at = u32::try_from(*at).unwrap_or(u32::MAX).cast_signed();
        data.active(0, &ConstExpr::i32_const(at), bytes.iter().copied());
    }
    let mut made = Module::new();
    for (id, range) in sections {
        match *id {
            DATA => made.section(&data),
            DATA_COUNT => {
                let mut count = Vec::new();
                segments.len().encode(&mut count);
                made.section(&RawSection { id: DATA_COUNT, data: &count })
            }
            id => made.section(&RawSection { id, data: &module[range.clone()] }),
        };
    }
    made.finish()
}

/// Returns the component with another module in the section with the index `place`.
pub(super) fn with_module(
    component: &[u8],
    sections: &[(u8, Range<usize>)],
    place: usize,
    module: &[u8],
) -> Vec<u8> {
    let mut made = Component::new();
    for (at, (id, range)) in sections.iter().enumerate() {
        let data = if at == place { module } else { &component[range.clone()] };
        made.section(&RawSection { id: *id, data });
    }
    made.finish()
}
