//! Names that are there once.

use std::collections::HashSet;

/// Names that were given.
#[derive(Default)]
pub(crate) struct Names(HashSet<String>);

impl Names {
    /// This name, or if it was given before, one like it.
    pub(crate) fn unique(&mut self, name: &str) -> String {
        let mut unique = name.to_owned();
        let mut more = 1;
        while !self.0.insert(unique.clone()) {
            more += 1;
            unique = format!("{name}~{more}");
        }
        unique
    }
}
