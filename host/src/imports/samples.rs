//! `samples`: what a workflow registers for grading and training.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use wasmtime::component::Resource;

use super::bindings::rollout::plugin::samples::{self, OpenError, RecordError};
use super::record::{OverLimit, SampleRecord};
use super::{Imports, Role, clockwork};
use crate::digest::hex;
use crate::id::SampleId;
use crate::telemetry::Limit;
use crate::wire;

/// A guest's handle on a sample: its place in the record.
pub struct OpenSample {
    pub(super) place: usize,
    pub(super) id: SampleId,
}

/// The longest name of a metric or field, in bytes.
const NAME_BYTES_MAX: usize = 256;

impl From<OverLimit> for RecordError {
    fn from(OverLimit(what): OverLimit) -> Self {
        Self::OverLimit(what)
    }
}

impl Imports {
    fn checked(&self, messages: &[String]) -> Result<Vec<Box<RawValue>>, RecordError> {
        messages
            .iter()
            .enumerate()
            .map(|(at, text)| {
                self.check_message(text)
                    .map_err(|what| RecordError::OverLimit(format!("messages[{at}] is {what}")))?;
                match wire::object(text) {
                    Ok(raw) => Ok(raw.to_owned()),
                    Err(what) => Err(RecordError::Invalid(format!("messages[{at}] is {what}"))),
                }
            })
            .collect()
    }

    /// Says what is wrong with the size of a message.
    pub(super) fn check_message(&self, text: &str) -> Result<(), String> {
        let max = self.limits.message_bytes_max;
        if text.len() <= max {
            return Ok(());
        }
        self.record.lock().fired.add_asked(Limit::MessageBytes, text.len());
        Err(format!("longer than message-bytes-max, {max} bytes; the operator can raise it"))
    }

    /// Keeps messages after those that are there, or in their place.
    fn keep(
        &mut self,
        sample: &Resource<OpenSample>,
        messages: &[String],
        in_place: bool,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        let place = self.table.get(sample)?.place;
        let messages = match self.checked(messages) {
            Ok(messages) => messages,
            Err(error) => return Ok(Err(error)),
        };
        let mut kept = self.record.lock();
        // On replacing, both histories are charged for a moment, so that a refusal
        // changes nothing.
        if let Err(over) = kept.charge(size(&messages), &self.limits) {
            return Ok(Err(over.into()));
        }
        if in_place {
            let old = std::mem::take(&mut kept.samples[place].messages);
            kept.release(size(&old));
        }
        kept.samples[place].messages.extend(messages);
        Ok(Ok(()))
    }

    /// An id for a sample that was given no name. The rollout decides it, so that a
    /// repeated run gives the same.
    fn made_up_id(&self, place: usize) -> SampleId {
        let seed = clockwork::seed_of(&self.run, Role::Workflow, &format!("sample {place}"));
        let text = hex(&seed[..16]);
        SampleId::parse(&text).unwrap_or_else(|_| unreachable!("hex digits travel as a header"))
    }
}

impl samples::Host for Imports {
    fn limit(&mut self) -> wasmtime::Result<u32> {
        self.called()?;
        self.only(Role::Workflow, "samples.limit")?;
        Ok(self.run.samples_max)
    }
}

impl samples::HostSample for Imports {
    fn open(&mut self, name: Option<String>) -> wasmtime::Result<Result<Resource<OpenSample>, OpenError>> {
        self.called()?;
        self.only(Role::Workflow, "samples.sample.open")?;
        let mut kept = self.record.lock();
        let place = kept.samples.len();
        if place >= self.run.samples_max as usize {
            kept.fired.add_asked(Limit::Samples, place + 1);
            return Ok(Err(OpenError::TooMany(self.run.samples_max)));
        }
        let id = match name {
            None => self.made_up_id(place),
            Some(name) => match SampleId::parse(&name) {
                Ok(id) => id,
                Err(why) => return Ok(Err(OpenError::Invalid(why))),
            },
        };
        if kept.samples.iter().any(|sample| sample.id == id) {
            return Ok(Err(OpenError::Taken(id.as_str().to_owned())));
        }
        kept.samples.push(SampleRecord {
            id: id.clone(),
            messages: Vec::new(),
            metrics: BTreeMap::new(),
            fields: BTreeMap::new(),
            withdrawn: false,
        });
        drop(kept);
        Ok(Ok(self.table.push(OpenSample { place, id })?))
    }

    fn id(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<String> {
        self.called()?;
        Ok(self.table.get(&sample)?.id.as_str().to_owned())
    }

    fn push(
        &mut self,
        sample: Resource<OpenSample>,
        messages: Vec<String>,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        self.called()?;
        self.keep(&sample, &messages, false)
    }

    fn replace(
        &mut self,
        sample: Resource<OpenSample>,
        messages: Vec<String>,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        self.called()?;
        self.keep(&sample, &messages, true)
    }

    fn set_metric(
        &mut self,
        sample: Resource<OpenSample>,
        name: String,
        value: f64,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        self.called()?;
        let place = self.table.get(&sample)?.place;
        if !value.is_finite() {
            return Ok(Err(RecordError::Invalid(format!(
                "metric '{}' is {value}, not a finite number",
                brief(&name)
            ))));
        }
        if let Err(error) = check_name(&name) {
            return Ok(Err(error));
        }
        let mut kept = self.record.lock();
        if let Err(over) = kept.charge(name.len() + size_of::<f64>(), &self.limits) {
            return Ok(Err(over.into()));
        }
        kept.samples[place].metrics.insert(name, value);
        Ok(Ok(()))
    }

    fn set_field(
        &mut self,
        sample: Resource<OpenSample>,
        name: String,
        value: String,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        self.called()?;
        let place = self.table.get(&sample)?.place;
        if let Err(error) = check_name(&name) {
            return Ok(Err(error));
        }
        let raw = match wire::value(&value) {
            Ok(raw) => raw.to_owned(),
            Err(what) => {
                return Ok(Err(RecordError::Invalid(format!("field '{}' is {what}", brief(&name)))));
            }
        };
        let mut kept = self.record.lock();
        if let Err(over) = kept.charge(name.len() + raw.get().len(), &self.limits) {
            return Ok(Err(over.into()));
        }
        kept.samples[place].fields.insert(name, raw);
        Ok(Ok(()))
    }

    fn withdraw(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<()> {
        self.called()?;
        let place = self.table.get(&sample)?.place;
        self.record.lock().samples[place].withdrawn = true;
        Ok(())
    }

    fn drop(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<()> {
        self.table.delete(sample)?;
        Ok(())
    }
}

fn size(messages: &[Box<RawValue>]) -> usize {
    messages.iter().map(|message| message.get().len() + size_of::<Box<RawValue>>()).sum()
}

fn check_name(name: &str) -> Result<(), RecordError> {
    match name.len() {
        0 => Err(RecordError::Invalid("a name is empty".to_owned())),
        1..=NAME_BYTES_MAX => Ok(()),
        long => Err(RecordError::Invalid(format!("a name has {long} bytes; {NAME_BYTES_MAX} are the most"))),
    }
}

/// The beginning of a guest's text, for an error message.
fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}
