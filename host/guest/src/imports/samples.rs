//! `samples`: the samples that a workflow registers for grading and training.

use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::rollout::plugin::samples::{self, OpenError, RecordError};
use super::gate::{Import, SampleOpenError, SampleRecordError};
use super::record::{FIELD_BYTES, OverLimit};
use super::{ContractViolation, Imports, Role, virtual_clock};
use rollout_core::budget::Use;
use rollout_core::telemetry::Limit;
use rollout_transcript::{SampleRecord, message_bytes};
use rollout_wire as wire;
use rollout_wire::digest::hex;
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;

/// A guest's handle on a sample: its index in the record.
#[expect(unreachable_pub, reason = "the generated code names it as public")]
pub struct OpenSample {
    pub(super) place: usize,
    pub(super) id: SampleId,
}

/// Number of bytes that a text for a guest takes besides its content: its `String` and the allocator's
/// minimum.
const TEXT_BYTES: usize = size_of::<String>() + 16;

/// Maximum length of a metric's or field's name in bytes.
const NAME_BYTES_MAX: usize = 256;

impl From<OverLimit> for SampleRecordError {
    fn from(OverLimit(what): OverLimit) -> Self {
        RecordError::OverLimit(what).into()
    }
}

impl Imports {
    /// Checks messages one by one and returns them in stored form. `from` is the index of the first in the
    /// guest's list, `bytes` the size of all. A list may have millions of messages, so each is dropped before
    /// the next one is checked.
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

    /// Checks the size of a message; the error describes the violation.
    pub(super) fn check_message(&self, text: &str) -> Result<(), String> {
        let max = self.limits.message_bytes_max;
        if text.len() <= max {
            return Ok(());
        }
        self.record.lock().hits.add_requested(Limit::MessageBytes, text.len());
        Err(format!("longer than message-bytes-max, {max} bytes; the operator can raise it"))
    }

    /// Appends messages to a sample's history, or replaces the history with them. They are charged before
    /// they are copied. During a replacement both histories are charged, so that a refusal changes nothing.
    pub(super) fn keep(
        &mut self,
        sample: &Resource<OpenSample>,
        messages: Vec<String>,
        in_place: bool,
    ) -> Result<(), SampleRecordError> {
        let place = self.table.get(sample)?.place;
        self.check_messages(&messages).map_err(RecordError::OverLimit)?;
        let charged = message_bytes(messages.iter().map(String::as_str));
        let mut kept = self.record.lock();
        kept.sample(place)?;
        kept.charge(charged, &self.limits)?;
        drop(kept);
        let bytes = messages.iter().map(String::len).sum();
        let checked = Self::checked(messages.into_iter(), 0, bytes);
        let mut kept = self.record.lock();
        let messages = checked.map_err(|what| {
            kept.release(charged);
            RecordError::Invalid(what)
        })?;
        // White space around a message is not stored.
        kept.release(charged - message_bytes(messages.iter()));
        if in_place {
            kept.replace_history(place, messages)?;
        } else {
            kept.sample(place)?.messages.append(messages);
        }
        Ok(())
    }

    /// Generates the id of an unnamed sample from the rollout, so that a repeated run gets the same id.
    fn made_up_id(&self, place: usize) -> SampleId {
        let seed = virtual_clock::seed_of(&self.run, 0, Role::Workflow, &format!("sample {place}"));
        let text = hex(&seed[..16]);
        SampleId::parse(&text).unwrap_or_else(|_| unreachable!("hex digits travel as a header"))
    }
}

impl samples::Host for Imports {
    fn convert_open_error(&mut self, refused: SampleOpenError) -> wasmtime::Result<OpenError> {
        refused.for_guest()
    }

    fn convert_record_error(&mut self, refused: SampleRecordError) -> wasmtime::Result<RecordError> {
        refused.for_guest()
    }

    fn limit(&mut self) -> wasmtime::Result<u32> {
        self.enter(Import::SAMPLE_LIMIT)?;
        Ok(self.run.samples_max)
    }
}

impl samples::HostSample for Imports {
    fn open(&mut self, name: Option<String>) -> Result<Resource<OpenSample>, SampleOpenError> {
        self.enter(Import::SAMPLE_OPEN)?;
        let mut kept = self.record.lock();
        let place = kept.transcript.samples.len();
        if place >= self.run.samples_max as usize {
            kept.hits.add_requested(Limit::Samples, place + 1);
            return Err(OpenError::TooMany(self.run.samples_max).into());
        }
        let id = match name {
            None => self.made_up_id(place),
            Some(name) => SampleId::parse(&name).map_err(OpenError::Invalid)?,
        };
        if kept.transcript.samples.iter().any(|sample| sample.id == id) {
            return Err(OpenError::Taken(id.as_str().to_owned()).into());
        }
        kept.transcript.samples.push(SampleRecord::new(id.clone()));
        drop(kept);
        Ok(self.table.push(OpenSample { place, id })?)
    }

    fn id(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<String> {
        self.enter(Import::SAMPLE_ID)?;
        Ok(self.table.get(&sample)?.id.as_str().to_owned())
    }

    fn push(&mut self, sample: Resource<OpenSample>, messages: Vec<String>) -> Result<(), SampleRecordError> {
        self.enter(Import::SAMPLE_PUSH)?;
        self.keep(&sample, messages, false)
    }

    fn replace(
        &mut self,
        sample: Resource<OpenSample>,
        messages: Vec<String>,
    ) -> Result<(), SampleRecordError> {
        self.enter(Import::SAMPLE_REPLACE)?;
        self.keep(&sample, messages, true)
    }

    fn history(
        &mut self,
        sample: Resource<OpenSample>,
        first: u32,
        count: u32,
    ) -> wasmtime::Result<Vec<String>> {
        self.enter(Import::SAMPLE_HISTORY)?;
        let place = self.table.get(&sample)?.place;
        let mut kept = self.record.lock();
        let messages = kept.sample(place)?.messages.clone();
        drop(kept);
        let first = messages.len().min(first as usize);
        let end = messages.len().min(first.saturating_add(count as usize));
        let bytes = messages.text_bytes_of(first, end) + (end - first) * TEXT_BYTES;
        let max = self.limits.memory_bytes_max;
        if bytes > max {
            return Err(wasmtime::Error::new(ContractViolation::LongHistory { bytes, max }));
        }
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        if let Some(charge) = &mut charge {
            charge.grow(bytes).map_err(wasmtime::Error::new)?;
        }
        Ok((first..end).filter_map(|at| messages.get(at)).map(ToOwned::to_owned).collect())
    }

    fn set_metric(
        &mut self,
        sample: Resource<OpenSample>,
        name: String,
        value: f64,
    ) -> Result<(), SampleRecordError> {
        self.enter(Import::SAMPLE_SET_METRIC)?;
        let place = self.table.get(&sample)?.place;
        if !value.is_finite() {
            let why = format!("metric '{}' is {value}, not a finite number", brief(&name));
            return Err(RecordError::Invalid(why).into());
        }
        check_name(&name)?;
        let mut kept = self.record.lock();
        // A metric that is set again takes no further space.
        let is_new = !kept.sample(place)?.metrics.contains_key(&name);
        let bytes = if is_new { name.len() + FIELD_BYTES } else { 0 };
        kept.charge(bytes, &self.limits)?;
        kept.sample(place)?.metrics.insert(name, value);
        Ok(())
    }

    fn set_field(
        &mut self,
        sample: Resource<OpenSample>,
        name: String,
        value: String,
    ) -> Result<(), SampleRecordError> {
        self.enter(Import::SAMPLE_SET_FIELD)?;
        let place = self.table.get(&sample)?.place;
        check_name(&name)?;
        let charged = name.len() + value.len() + FIELD_BYTES;
        let mut kept = self.record.lock();
        kept.sample(place)?;
        kept.charge(charged, &self.limits)?;
        drop(kept);
        let raw = wire::value(&value).map(ToOwned::to_owned).map_err(|what| {
            self.record.lock().release(charged);
            RecordError::Invalid(format!("field '{}' is {what}", brief(&name)))
        })?;
        let mut kept = self.record.lock();
        let fields = Arc::make_mut(&mut kept.sample(place)?.fields);
        let (name_bytes, unused) = (name.len(), value.len() - raw.get().len());
        let old = fields.insert(name, raw);
        kept.release(unused + old.map_or(0, |old| name_bytes + old.get().len() + FIELD_BYTES));
        Ok(())
    }

    fn withdraw(&mut self, sample: Resource<OpenSample>) -> wasmtime::Result<()> {
        self.enter(Import::SAMPLE_WITHDRAW)?;
        let place = self.table.get(&sample)?.place;
        self.record.lock().sample(place)?.withdrawn = true;
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

/// Returns the beginning of a guest's text, for an error message.
fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::bindings::rollout::plugin::samples::HostSample;
    use crate::imports::gate::CallError;
    use crate::imports::{ContractViolation, Live, Record, RunContext};
    use rollout_core::limits::Limits;
    use rollout_wire::id::RolloutId;

    /// Returns the imports of a workflow with an open sample, their record, and the sample's handle.
    fn with_a_sample() -> (Imports, Arc<Record>, u32) {
        let run = RunContext {
            samples_max: 1,
            ..RunContext::without_rollout(RolloutId::parse("r").unwrap(), None, Arc::default())
        };
        let (record, limits) = (Arc::<Record>::default(), Arc::new(Limits::default()));
        let mut imports =
            Imports::new(Role::Workflow, Arc::new(run), limits, Live::default(), record.clone());
        let number = imports.open(None).unwrap().rep();
        (imports, record, number)
    }

    /// A guest that is stopped during a call of the host may finish this call after its record was sealed.
    #[test]
    fn a_call_of_a_rollout_that_is_over_ends_the_guest_and_nothing_else() {
        let (mut imports, record, number) = with_a_sample();
        let sample = || Resource::new_borrow(number);
        imports.push(sample(), vec!["{}".to_owned()]).unwrap();

        record.seal();

        let ended = |result: Result<(), SampleRecordError>| {
            let Err(CallError::Fatal(error)) = result else { panic!("{result:?}") };
            assert!(matches!(error.downcast_ref(), Some(ContractViolation::RolloutOver)));
        };
        ended(imports.push(sample(), vec!["{}".to_owned()]));
        ended(imports.replace(sample(), vec!["{}".to_owned()]));
        ended(imports.set_metric(sample(), "m".to_owned(), 1.0));
        ended(imports.set_field(sample(), "f".to_owned(), "1".to_owned()));
        ended(imports.withdraw(sample()).map_err(CallError::Fatal));
        assert_eq!(record.samples()[0].messages.len(), 1);
    }

    #[test]
    fn what_is_kept_is_charged_with_its_place_and_what_is_replaced_given_back() {
        let (mut imports, record, number) = with_a_sample();
        let sample = || Resource::new_borrow(number);
        let kept = || record.usage().record_bytes;
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();

        imports.push(sample(), texts(&["{}", " {} "])).unwrap();
        assert_eq!(kept(), 2 * 34);
        imports.replace(sample(), texts(&["{\"a\":1}"])).unwrap();
        assert_eq!(kept(), 39);
        assert!(imports.push(sample(), texts(&["{}", "{"])).is_err());
        assert_eq!(kept(), 39, "of a refused list nothing is kept");
        for _ in 0..2 {
            imports.set_metric(sample(), "m".to_owned(), 1.0).unwrap();
            imports.set_field(sample(), "f".to_owned(), " [1]".to_owned()).unwrap();
        }
        assert_eq!(kept(), 39 + 129 + 132);
    }
}
