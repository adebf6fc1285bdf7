//! `samples`: what a workflow registers for grading and training.

use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::rollout::plugin::samples::{self, OpenError, RecordError};
use super::record::{FIELD_BYTES, OverLimit, SampleRecord, message_bytes};
use super::{Imports, Role, clockwork};
use crate::digest::hex;
use crate::id::SampleId;
use crate::telemetry::Limit;
use crate::wire;
use crate::wire::messages::Messages;

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
    /// Checks messages one by one, which have so many before them and so many bytes, and gives
    /// them as they are kept. A guest's list may have millions of them, so each is gone before
    /// the next one is looked at.
    pub(super) fn checked(
        messages: impl ExactSizeIterator<Item = String>,
        from: usize,
        bytes: usize,
    ) -> Result<Messages, String> {
        let mut checked = Messages::with_capacity(bytes);
        for (at, text) in messages.enumerate() {
            match wire::object(&text) {
                Ok(raw) => checked.push(raw),
                Err(what) => return Err(format!("messages[{}] is {what}", from + at)),
            }
        }
        checked.shrink();
        Ok(checked)
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

    /// Keeps messages after those that are there, or in their place. They are charged before
    /// anything is copied; on replacing, both histories are for a moment, so that a refusal
    /// changes nothing.
    pub(super) fn keep(
        &mut self,
        sample: &Resource<OpenSample>,
        messages: Vec<String>,
        in_place: bool,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        let place = self.table.get(sample)?.place;
        if let Err(what) = self.check_messages(&messages) {
            return Ok(Err(RecordError::OverLimit(what)));
        }
        let charged = message_bytes(messages.iter().map(String::as_str));
        let mut kept = self.record.lock();
        kept.sample(place).map_err(wasmtime::Error::new)?;
        if let Err(over) = kept.charge(charged, &self.limits) {
            return Ok(Err(over.into()));
        }
        drop(kept);
        let bytes = messages.iter().map(String::len).sum();
        let checked = Self::checked(messages.into_iter(), 0, bytes);
        let mut kept = self.record.lock();
        let messages = match checked {
            Ok(messages) => messages,
            Err(what) => {
                kept.release(charged);
                return Ok(Err(RecordError::Invalid(what)));
            }
        };
        // White space around a message is not kept.
        let size = |messages: &Messages| message_bytes(messages.iter());
        kept.release(charged - size(&messages));
        if in_place {
            kept.replace_history(place, messages).map_err(wasmtime::Error::new)?;
        } else {
            kept.sample(place).map_err(wasmtime::Error::new)?.messages.append(messages);
        }
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
        kept.samples.push(SampleRecord::new(id.clone()));
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
        self.keep(&sample, messages, false)
    }

    fn replace(
        &mut self,
        sample: Resource<OpenSample>,
        messages: Vec<String>,
    ) -> wasmtime::Result<Result<(), RecordError>> {
        self.called()?;
        self.keep(&sample, messages, true)
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
        // A metric that is set again takes the place that it has.
        let is_new = !kept.sample(place).map_err(wasmtime::Error::new)?.metrics.contains_key(&name);
        let bytes = if is_new { name.len() + FIELD_BYTES } else { 0 };
        if let Err(over) = kept.charge(bytes, &self.limits) {
            return Ok(Err(over.into()));
        }
        kept.sample(place).map_err(wasmtime::Error::new)?.metrics.insert(name, value);
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
        let charged = name.len() + value.len() + FIELD_BYTES;
        let mut kept = self.record.lock();
        kept.sample(place).map_err(wasmtime::Error::new)?;
        if let Err(over) = kept.charge(charged, &self.limits) {
            return Ok(Err(over.into()));
        }
        drop(kept);
        let raw = match wire::value(&value) {
            Ok(raw) => raw.to_owned(),
            Err(what) => {
                self.record.lock().release(charged);
                return Ok(Err(RecordError::Invalid(format!("field '{}' is {what}", brief(&name)))));
            }
        };
        let mut kept = self.record.lock();
        let fields = Arc::make_mut(&mut kept.sample(place).map_err(wasmtime::Error::new)?.fields);
        let (name_bytes, unused) = (name.len(), value.len() - raw.get().len());
        let old = fields.insert(name, raw);
        kept.release(unused + old.map_or(0, |old| name_bytes + old.get().len() + FIELD_BYTES));
        Ok(Ok(()))
    }

    fn withdraw(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<()> {
        self.called()?;
        let place = self.table.get(&sample)?.place;
        self.record.lock().sample(place).map_err(wasmtime::Error::new)?.withdrawn = true;
        Ok(())
    }

    fn drop(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<()> {
        self.table.delete(sample)?;
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RolloutId;
    use crate::imports::bindings::rollout::plugin::samples::HostSample;
    use crate::imports::{Ended, Record, RunContext};
    use crate::limits::Limits;

    /// A guest that is stopped while the host works for it comes back to a record that was
    /// sealed meanwhile.
    #[test]
    fn a_call_of_a_rollout_that_is_over_ends_the_guest_and_nothing_else() {
        let run = RunContext {
            samples_max: 1,
            ..RunContext::of_no_rollout(RolloutId::parse("r").unwrap(), None, Arc::default())
        };
        let (record, limits) = (Arc::<Record>::default(), Arc::new(Limits::default()));
        let mut imports = Imports::bare(Role::Workflow, Arc::new(run), limits, None, record.clone());
        let number = imports.open(None).unwrap().unwrap().rep();
        let sample = || Resource::new_borrow(number);
        assert!(imports.push(sample(), vec!["{}".to_owned()]).unwrap().is_ok());

        record.seal();

        let ended = |result: wasmtime::Result<Result<(), RecordError>>| {
            assert!(matches!(result.unwrap_err().downcast_ref(), Some(Ended::Over)));
        };
        ended(imports.push(sample(), vec!["{}".to_owned()]));
        ended(imports.replace(sample(), vec!["{}".to_owned()]));
        ended(imports.set_metric(sample(), "m".to_owned(), 1.0));
        ended(imports.set_field(sample(), "f".to_owned(), "1".to_owned()));
        ended(imports.withdraw(sample()).map(Ok));
        assert_eq!(record.samples()[0].messages.len(), 1);
    }

    #[test]
    fn what_is_kept_is_charged_with_its_place_and_what_is_replaced_given_back() {
        let run = RunContext {
            samples_max: 1,
            ..RunContext::of_no_rollout(RolloutId::parse("r").unwrap(), None, Arc::default())
        };
        let (record, limits) = (Arc::<Record>::default(), Arc::new(Limits::default()));
        let mut imports = Imports::bare(Role::Workflow, Arc::new(run), limits, None, record.clone());
        let number = imports.open(None).unwrap().unwrap().rep();
        let sample = || Resource::new_borrow(number);
        let kept = || record.spent().record_bytes;
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();

        imports.push(sample(), texts(&["{}", " {} "])).unwrap().unwrap();
        assert_eq!(kept(), 2 * 34);
        imports.replace(sample(), texts(&["{\"a\":1}"])).unwrap().unwrap();
        assert_eq!(kept(), 39);
        assert!(imports.push(sample(), texts(&["{}", "{"])).unwrap().is_err());
        assert_eq!(kept(), 39, "of a refused list nothing is kept");
        for _ in 0..2 {
            imports.set_metric(sample(), "m".to_owned(), 1.0).unwrap().unwrap();
            imports.set_field(sample(), "f".to_owned(), " [1]".to_owned()).unwrap().unwrap();
        }
        assert_eq!(kept(), 39 + 129 + 132);
    }
}
