//! The world of a component: the interfaces that it imports and exports.

use std::fmt::Write as _;

use anyhow::Result;
use wit_parser::{Resolve, WorldId};

/// Name of the world.
const NAME: &str = "javascript-program";

/// Interfaces of a contract, by their names in its package, such as `models`.
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
        let package = resolve.push_source("contract.wit", &text)?;
        let world = resolve.select_world(&[package], Some(NAME))?;
        Ok((resolve, world))
    }
}
