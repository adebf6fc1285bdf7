//! Unique names.

use std::collections::HashSet;

/// The names in use.
#[derive(Default)]
pub(crate) struct Names(HashSet<String>);

impl Names {
    /// Returns the name, or a variant of it if the name is in use.
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
