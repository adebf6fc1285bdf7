//! `context`: what a guest is told about its rollout.

use super::Imports;
use super::bindings::rollout::plugin::{context, types};
use super::gate::Import;

impl types::Host for Imports {}

impl context::Host for Imports {
    fn rollout_id(&mut self) -> wasmtime::Result<String> {
        self.enter(Import::ROLLOUT_ID)?;
        let id = self.run.caller_id.as_deref().unwrap_or_else(|| self.run.rollout_id.as_str());
        Ok(id.to_owned())
    }

    fn attempt(&mut self) -> wasmtime::Result<u32> {
        self.enter(Import::ATTEMPT)?;
        Ok(self.run.attempt)
    }

    fn config(&mut self) -> wasmtime::Result<Option<String>> {
        self.enter(Import::CONFIG)?;
        Ok(self.run.config.as_ref().map(|config| config.get().to_owned()))
    }

    fn metadata(&mut self) -> wasmtime::Result<Option<String>> {
        self.enter(Import::METADATA)?;
        Ok(self.run.metadata.as_ref().map(|metadata| metadata.get().to_owned()))
    }

    fn time_left_ms(&mut self) -> wasmtime::Result<Option<u64>> {
        self.enter(Import::TIME_LEFT)?;
        let left = self.boundary.time_left(|| self.outside.time_left())?;
        Ok(left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)))
    }
}
