//! `context`: the guest's view of its rollout.

use super::Imports;
use super::bindings::rollout::plugin::{context, types};
use super::gate::Import;

impl types::Host for Imports {}

impl context::Host for Imports {
    fn rollout_id(&mut self) -> wasmtime::Result<String> {
        self.enter(Import::ROLLOUT_ID)?;
        let (caller_id, id) = match self.run.ancestors(self.role).first() {
            Some(first) => (&first.caller_id, &first.id),
            None => (&self.run.caller_id, &self.run.rollout_id),
        };
        Ok(caller_id.as_deref().unwrap_or_else(|| id.as_str()).to_owned())
    }

    fn attempt(&mut self) -> wasmtime::Result<u32> {
        self.enter(Import::ATTEMPT)?;
        Ok(self.run.ancestors(self.role).first().map_or(self.run.attempt, |first| first.attempt))
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
