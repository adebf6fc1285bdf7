//! The world of a component: the interfaces that it imports and exports.

use std::fmt::Write as _;

use anyhow::Result;
use wit_parser::{Resolve, WorldId};

/// Name of the world.
const NAME: &str = "javascript-program";

/// The parts of WASI that programs import. The engine itself imports complete interfaces of a later version, which
/// replace these when the component is linked.
const WASI: [(&str, &str); 3] = [
    (
        "wasi-io.wit",
        "package wasi:io@0.2.1;
         interface error { resource error; }
         interface streams {
             use error.{error};
             variant stream-error { last-operation-failed(error), closed }
             resource input-stream { blocking-read: func(len: u64) -> result<list<u8>, stream-error>; }
         }",
    ),
    (
        "wasi-cli.wit",
        "package wasi:cli@0.2.1;
         interface stdin { use wasi:io/streams@0.2.1.{input-stream}; get-stdin: func() -> input-stream; }",
    ),
    (
        "wasi-random.wit",
        "package wasi:random@0.2.1;
         interface random { get-random-bytes: func(len: u64) -> list<u8>; }",
    ),
];

/// Name by which programs import the rollout's random numbers.
pub const RANDOM: &str = "wasi:random/random@0.2.1";

/// Name by which programs import the input of an instance.
pub const STDIN: &str = "wasi:cli/stdin@0.2.1";

/// Interfaces of a contract, by their names in its package, such as `models`. [`RANDOM`] and [`STDIN`] can be imported, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Interfaces that the program imports.
    pub imports: Vec<String>,
    /// Interfaces that the program exports.
    pub exports: Vec<String>,
}

impl World {
    /// Parses the contract and adds this world to its package.
    pub(crate) fn resolve(&self, contract: &str) -> Result<(Resolve, WorldId)> {
        let mut text = format!("{contract}\nworld {NAME} {{\n");
        for (direction, interfaces) in [("import", &self.imports), ("export", &self.exports)] {
            for interface in interfaces {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "    {direction} {interface};");
            }
        }
        text.push_str("}\n");
        let mut resolve = Resolve::default();
        for (name, text) in WASI {
            resolve.push_source(name, text)?;
        }
        let package = resolve.push_source("contract.wit", &text)?;
        let world = resolve.select_world(&[package], Some(NAME))?;
        Ok((resolve, world))
    }
}
