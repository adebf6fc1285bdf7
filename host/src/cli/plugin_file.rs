//! A component on disk.

use std::path::Path;

use anyhow::{Context, Result};

use super::PluginFault;
use crate::engine::Engine;
use crate::plugin::Plugin;

/// The largest component in bytes; a Python guest has 20 MB.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;

/// Reads a component's bytes.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let about = || format!("cannot read {}", path.display());
    let size = std::fs::metadata(path).with_context(about)?.len();
    if size > COMPONENT_BYTES_MAX {
        anyhow::bail!(
            "{} has {size} bytes; a component has {COMPONENT_BYTES_MAX} at the most",
            path.display()
        );
    }
    std::fs::read(path).with_context(about)
}

/// Reads, checks and compiles a component.
pub(super) fn load(engine: &Engine, path: &Path) -> Result<Plugin> {
    let bytes = read(path)?;
    engine.load(&bytes).map_err(|error| {
        let error = anyhow::Error::new(error);
        PluginFault(format!("{}: {error:#}", path.display())).into()
    })
}
