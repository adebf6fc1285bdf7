//! The record of a rollout, which outlives the rollout's guests.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::ContractViolation;
use super::meter::Meter;
use super::refused::{KIND_BYTES, RefusedKind, RefusedUses};
use rollout_core::budget::{Charge, Holder, Use};
use rollout_core::error::Fault;
use rollout_core::limits::Limits;
use rollout_core::storage::{StorageAccount, StorageCharge};
use rollout_core::telemetry::{Limit, LimitHits, RolloutTrace};
use rollout_transcript::{SampleRecord, Transcript};
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;

/// Number of bytes that a log entry takes besides its text.
const LOG_ENTRY_BYTES: usize = size_of::<LogEntry>();

/// Number of bytes that a field or a metric of a sample takes besides its name and value.
pub(super) const FIELD_BYTES: usize = 128;

/// Failure of the judge that explains a failure of the grader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgeFailure {
    /// The party at fault.
    pub fault: Fault,
    /// Description of the failure.
    pub reason: String,
}

/// A file of the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFile {
    /// Name of the file, path segments joined by `/`.
    pub name: String,
    /// Content of the file.
    pub content: Bytes,
}

/// Severity of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Details for debugging.
    Debug,
    /// Normal operation.
    Info,
    /// An unusual condition.
    Warn,
    /// An error.
    Error,
}

/// A line or an event of a guest.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum LogEntry {
    /// A line of text.
    Line {
        /// The line's severity.
        level: LogLevel,
        /// The text, control characters escaped.
        text: String,
    },
    /// A named value.
    Event {
        /// The event's name, control characters escaped.
        event: String,
        /// The event's value.
        data: Box<RawValue>,
    },
}

/// Data that a rollout's guests left, taken out of the record after both guests have ended.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The samples and calls.
    pub transcript: Transcript,
    /// The files, sorted by name.
    pub artifacts: Vec<ArtifactFile>,
    /// The log.
    pub log: Vec<LogEntry>,
    /// Number of log entries that were dropped at the limit.
    pub log_dropped: u64,
    /// The memory charge for all of this data. Dropping it releases the memory.
    pub charge: Option<Charge>,
}

/// View of the data that a rollout's guests left, while it is in the record.
#[derive(Clone, Copy)]
pub struct Remains<'a> {
    /// The samples and calls.
    pub transcript: &'a Transcript,
    /// The files, by name.
    pub artifacts: &'a BTreeMap<String, Bytes>,
    /// The log.
    pub log: &'a [LogEntry],
    /// Number of log entries that were dropped at the limit.
    pub log_dropped: u64,
}

/// Reads a stored log, a list of entries.
pub fn read_log(text: &[u8]) -> Result<Vec<LogEntry>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct StoredLine<'a> {
        level: Option<LogLevel>,
        #[serde(borrow)]
        text: Option<Cow<'a, str>>,
        #[serde(borrow)]
        event: Option<Cow<'a, str>>,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    let lines: Vec<StoredLine<'_>> = serde_json::from_slice(text)?;
    let entry = |line| match line {
        StoredLine { event: Some(event), data, .. } => {
            LogEntry::Event { event: event.into_owned(), data: data.unwrap_or(RawValue::NULL).to_owned() }
        }
        StoredLine { level, text, .. } => LogEntry::Line {
            level: level.unwrap_or(LogLevel::Info),
            text: text.unwrap_or_default().into_owned(),
        },
    };
    Ok(lines.into_iter().map(entry).collect())
}

/// Resources that a rollout has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RolloutUsage {
    /// Number of model calls, not counting retries.
    pub chat_calls: u64,
    /// Number of model calls that had a reply.
    pub chat_replies: u64,
    /// Number of retries of finished calls.
    pub chat_retries: u64,
    /// Duration of the calls that had a reply, retries included.
    pub chat_time: Duration,
    /// Number of tool calls: those of host-provided tools, refused ones included, and, once the rollout is
    /// over, those of the plugin's own tools whose results are in its samples.
    pub tool_calls: u64,
    /// Number of prompt tokens that the server reported.
    pub prompt_tokens: u64,
    /// Number of completion tokens that the server reported.
    pub completion_tokens: u64,
    /// Bytes of all requests to models, not counting retries.
    pub sent_bytes: u64,
    /// Number of judge calls, not counting retries.
    pub judge_calls: u64,
    /// Number of tokens of requests to the judge and of its replies, as its server reported.
    pub judge_tokens: u64,
    /// CPU time of both guests, including the host's work within their calls.
    pub guest_cpu: Duration,
    /// Peak memory of the larger of the two instances, in bytes.
    pub memory_bytes_peak: usize,
    /// Number of calls of the contract's imports by both guests.
    pub host_calls: u64,
    /// Wall time for which instances were alive, one after the other.
    pub guest_wall: Duration,
    /// Duration of all model calls, summed, although calls may overlap.
    pub model_time: Duration,
    /// Number of opened samples.
    pub samples: usize,
    /// Bytes of stored messages, fields and exchanges.
    pub record_bytes: usize,
    /// Number of stored artifacts.
    pub artifacts: usize,
    /// Bytes of stored artifacts.
    pub artifact_bytes: usize,
    /// Number of stored log entries.
    pub log_lines: usize,
    /// Bytes of stored log entries.
    pub log_bytes: usize,
    /// Number of uses that the guests' own runtimes or the host refused, except alarms.
    #[serde(default)]
    pub refused_uses: u64,
}

impl RolloutUsage {
    /// Returns the time for which guests were alive and idle: waiting for the model, for tools, or for a processor.
    pub fn waited(&self) -> Duration {
        self.guest_wall.saturating_sub(self.guest_cpu)
    }
}

/// The record of one rollout, shared by its two stores, one after the other.
#[derive(Debug, Default)]
pub struct Record {
    kept: Mutex<RecordState>,
    /// The final state once the record is sealed. Boxed, because a running rollout has none.
    sealed: OnceLock<Box<Mutex<RecordState>>>,
    meter: Meter,
    trace: RolloutTrace,
    /// Holder of the memory of the record and of its guests; without one, nothing is charged.
    holder: Option<Holder>,
}

type ShowEntry = dyn Fn(&LogEntry) + Send + Sync;

/// Callback that shows each log entry when it is stored.
#[derive(Default)]
struct LogWatch(Option<Box<ShowEntry>>);

impl std::fmt::Debug for LogWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LogWatch").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug, Default)]
pub(super) struct RecordState {
    pub transcript: Transcript,
    /// Number of calls of each host-provided tool, by the tool's index.
    pub tool_calls_made: BTreeMap<usize, u32>,
    pub artifacts: BTreeMap<String, Bytes>,
    pub artifact_bytes: usize,
    pub log: Vec<LogEntry>,
    log_bytes: usize,
    log_dropped: u64,
    log_watch: LogWatch,
    refused: RefusedUses,
    /// The kinds of refused uses that only the host has reported so far.
    refused_by_host: BTreeSet<RefusedKind>,
    /// Bytes of messages, fields and exchanges.
    bytes: usize,
    /// The charge for all stored data, artifacts and log included; `None` if nothing is charged.
    charge: Option<Charge>,
    /// The charge of the same data to the tenant's quota of stored bytes, until the data is written.
    storage: Option<StorageCharge>,
    /// Whether the record refuses further data.
    closed: bool,
    /// Number of tokens of all finished model calls.
    pub chat_tokens: u64,
    /// Number of retries of all finished model calls.
    pub chat_retries: u64,
    /// Bytes of all requests to models.
    pub sent_bytes: u64,
    /// Number of tokens of all finished judge calls.
    pub judge_tokens: u64,
    /// Failure of the judge that would explain a failure of the grader, and the number of judge calls when it
    /// happened.
    pub judge_failure: Option<(JudgeFailure, usize)>,
    /// Number of times that each limit was hit.
    pub hits: LimitHits,
    /// The party at fault if the workflow's last finished model call failed.
    pub model_failed: Option<Fault>,
}

/// Error of a request that exceeds a limit of the record. The text names the limit and its value.
#[derive(Debug)]
pub(super) struct OverLimit(pub String);

impl RecordState {
    /// Charges bytes that the record stores for as long as the rollout lives.
    pub(super) fn charge(&mut self, bytes: usize, limits: &Limits) -> Result<(), OverLimit> {
        let total = self.bytes.saturating_add(bytes);
        if total > limits.record_bytes_max {
            self.hits.add_requested(Limit::RecordBytes, total);
            let max = limits.record_bytes_max;
            return Err(OverLimit(format!(
                "record-bytes-max of {max} bytes: {bytes} more would make {total}; the operator can raise it"
            )));
        }
        self.hold(bytes)?;
        self.bytes = total;
        Ok(())
    }

    /// Returns the sample at this index. Fails once the rollout is over: a guest that was stopped within a
    /// call may finish that call afterwards.
    pub(super) fn sample(&mut self, place: usize) -> Result<&mut SampleRecord, ContractViolation> {
        self.transcript.samples.get_mut(place).ok_or(ContractViolation::RolloutOver)
    }

    /// Replaces a sample's history. Requests that carried the old history keep it.
    pub(super) fn replace_history(
        &mut self,
        place: usize,
        messages: Messages,
    ) -> Result<(), ContractViolation> {
        let free = self.transcript.replace_history(place, messages).ok_or(ContractViolation::RolloutOver)?;
        self.release(free);
        Ok(())
    }

    /// Releases bytes that were charged to the record.
    pub(super) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.release_held(bytes);
    }

    /// Charges bytes to the host's memory budget and to the tenant's quota of stored bytes. If the budget is exhausted,
    /// the host ends a rollout, possibly this one; if the quota is, this one.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), OverLimit> {
        if self.closed {
            return Err(OverLimit("the rollout is over".to_owned()));
        }
        if let Some(storage) = &mut self.storage
            && storage.grow(bytes).is_err()
        {
            return Err(OverLimit("the quota of stored bytes is used up".to_owned()));
        }
        let Some(charge) = &mut self.charge else { return Ok(()) };
        let charged = charge.grow(bytes).map_err(|over| {
            self.hits.note_requested(Limit::MemoryBudget, over.used.saturating_add(over.asked));
            OverLimit(over.to_string())
        });
        if let (Err(_), Some(storage)) = (&charged, &mut self.storage) {
            storage.shrink(bytes);
        }
        charged
    }

    /// Releases bytes that are no longer held.
    pub(super) fn release_held(&mut self, bytes: usize) {
        if let Some(charge) = &mut self.charge {
            charge.shrink_to(charge.bytes().saturating_sub(bytes));
        }
        if let Some(storage) = &mut self.storage {
            storage.shrink(bytes);
        }
    }

    /// Stores a log entry, or counts it as dropped if a limit is reached. `entry` is called only if the log has room
    /// for `text_bytes`, the size of the text from which it creates the entry.
    pub(super) fn log(&mut self, text_bytes: usize, limits: &Limits, entry: impl FnOnce() -> LogEntry) {
        if !self.has_room_for_log(text_bytes, limits) {
            return;
        }
        let entry = entry();
        let bytes = match &entry {
            LogEntry::Line { text, .. } => text.len(),
            LogEntry::Event { event, data } => event.len() + data.get().len(),
        };
        // Escaping may have made the text longer.
        if !self.has_room_for_log(bytes, limits) {
            return;
        }
        if self.hold(LOG_ENTRY_BYTES + bytes).is_err() {
            self.log_dropped += 1;
            return;
        }
        self.log_bytes += bytes;
        if let Some(show) = &self.log_watch.0 {
            show(&entry);
        }
        self.log.push(entry);
    }

    /// Counts uses that a guest's own runtime refused. If there is no memory for the location, the uses are
    /// counted without it.
    pub(super) fn refused(&mut self, kind: RefusedKind, count: u32, place: &str) {
        if self.closed || count == 0 {
            return;
        }
        if self.refused_by_host.remove(&kind) {
            // The guest's runtime reports the same uses, with its own locations.
            self.refused.clear(kind);
        }
        self.add_refused(kind, count, place);
    }

    /// Counts a use that the host itself refused, unless the guest's own runtime reports uses of this kind.
    pub(super) fn refused_by_host(&mut self, kind: RefusedKind, place: &str) {
        if self.closed || (self.refused.has(kind) && !self.refused_by_host.contains(&kind)) {
            return;
        }
        self.refused_by_host.insert(kind);
        self.add_refused(kind, 1, place);
    }

    fn add_refused(&mut self, kind: RefusedKind, count: u32, place: &str) {
        let has_room = self.refused.has(kind) || self.hold(KIND_BYTES).is_ok();
        self.refused.add(kind, count, if has_room { place } else { "" });
    }

    fn has_room_for_log(&mut self, bytes: usize, limits: &Limits) -> bool {
        let total = self.log_bytes.saturating_add(bytes);
        if self.log.len() >= limits.log_lines_max {
            self.hits.add_requested(Limit::LogLines, self.log.len() + 1);
        } else if total > limits.log_bytes_max {
            self.hits.add_requested(Limit::LogBytes, total);
        } else {
            return true;
        }
        self.log_dropped += 1;
        false
    }
}

impl Record {
    /// Creates the record of a traced rollout, charged to `holder`.
    pub fn for_rollout(trace: RolloutTrace, holder: Holder) -> Self {
        Self { trace, ..Self::without_rollout(holder) }
    }

    /// Creates the record of an instance that belongs to no rollout.
    pub fn without_rollout(holder: Holder) -> Self {
        let kept = RecordState { charge: Some(holder.nothing(Use::Record)), ..RecordState::default() };
        Self { kept: kept.into(), holder: Some(holder), ..Self::default() }
    }

    /// Charges the record's data to the tenant's quota of stored bytes, too. To be called before the rollout runs.
    pub fn charge_storage(&self, account: &Arc<StorageAccount>) {
        self.lock().storage = Some(account.nothing());
    }

    /// Ends the charge to the tenant's quota of stored bytes when the data is written, because written data counts by
    /// itself.
    pub fn end_storage_charge(&self) {
        drop(self.read().storage.take());
    }

    /// Charges data that a guest returned, before it is stored. The error names the limit.
    pub fn charge(&self, bytes: usize, limits: &Limits) -> Result<(), String> {
        self.read().charge(bytes, limits).map_err(|over| over.0)
    }

    /// Returns the holder of the record's memory, if the record is charged.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Returns the rollout's trace.
    pub fn trace(&self) -> &RolloutTrace {
        &self.trace
    }

    /// Locks the state that guests write to.
    pub(super) fn lock(&self) -> MutexGuard<'_, RecordState> {
        // The state is plain data, so it is still readable after a panic elsewhere in this rollout.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state that the rollout reads: the sealed state if the record is sealed.
    pub(super) fn read(&self) -> MutexGuard<'_, RecordState> {
        self.sealed.get().map_or(&self.kept, |sealed| sealed).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals the record: later actions of a guest do not change it. A guest that was stopped while it ran may
    /// finish its current call a moment after its rollout is over.
    pub fn seal(&self) {
        let closed = RecordState { closed: true, ..RecordState::default() };
        self.sealed.get_or_init(|| Box::new(Mutex::new(std::mem::replace(&mut *self.lock(), closed))));
    }

    /// Returns the meter of the guests' use of the machine.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns the resources used so far.
    pub fn usage(&self) -> RolloutUsage {
        let kept = self.read();
        let mut used = RolloutUsage {
            chat_calls: kept.transcript.policy.exchanges().len() as u64,
            chat_retries: kept.chat_retries,
            tool_calls: kept.transcript.tools.len() as u64,
            judge_calls: kept.transcript.judge.exchanges().len() as u64,
            judge_tokens: kept.judge_tokens,
            sent_bytes: kept.sent_bytes,
            guest_cpu: Duration::from_nanos(self.meter.cpu_nanos.load(Ordering::Relaxed)),
            memory_bytes_peak: self.meter.memory_bytes_peak.load(Ordering::Relaxed),
            host_calls: self.meter.host_calls.load(Ordering::Relaxed),
            guest_wall: self.meter.wall(),
            samples: kept.transcript.samples.len(),
            record_bytes: kept.bytes,
            artifacts: kept.artifacts.len(),
            artifact_bytes: kept.artifact_bytes,
            log_lines: kept.log.len(),
            log_bytes: kept.log_bytes,
            refused_uses: kept.refused.failures(),
            ..RolloutUsage::default()
        };
        for exchange in kept.transcript.policy.exchanges() {
            used.model_time = used.model_time.saturating_add(exchange.duration);
            let Some(completion) = exchange.completion() else { continue };
            used.chat_replies += 1;
            used.chat_time = used.chat_time.saturating_add(exchange.duration);
            if let Some(usage) = &completion.usage {
                // The model server reports these numbers, so they may be arbitrarily large.
                used.prompt_tokens = used.prompt_tokens.saturating_add(usage.prompt_tokens);
                used.completion_tokens = used.completion_tokens.saturating_add(usage.completion_tokens);
            }
        }
        used
    }

    /// Returns the guests' events so far: names and values.
    pub fn events(&self) -> Vec<(String, Box<RawValue>)> {
        let event = |entry: &LogEntry| match entry {
            LogEntry::Event { event, data } => Some((event.clone(), data.clone())),
            LogEntry::Line { .. } => None,
        };
        self.read().log.iter().filter_map(event).collect()
    }

    /// Returns the party at fault if the workflow's last finished model call failed.
    pub fn model_failure(&self) -> Option<Fault> {
        self.read().model_failed
    }

    /// Returns the judge's failure that explains a failure of the grader, if there is one.
    pub fn judge_failure(&self) -> Option<JudgeFailure> {
        self.lock().judge_failure.as_ref().map(|(failure, _)| failure.clone())
    }

    /// Returns the location and message of the last panic that a guest printed.
    pub fn last_panic(&self) -> Option<String> {
        let kept = self.read();
        let lines: Vec<&str> = kept
            .log
            .iter()
            .filter_map(|entry| match entry {
                LogEntry::Line { text, .. } => Some(text.as_str()),
                LogEntry::Event { .. } => None,
            })
            .collect();
        let at = lines.iter().rposition(|line| line.contains("panicked at "))?;
        let (_, place) = lines[at].split_once("panicked at ")?;
        let message = lines.get(at + 1).copied().unwrap_or("");
        Some(format!("panicked at {place} {message}").trim_end().to_owned())
    }

    /// Returns the current samples.
    pub fn samples(&self) -> Vec<SampleRecord> {
        self.read().transcript.samples.clone()
    }

    /// Returns the samples for which the model received a request.
    pub fn samples_with_request(&self) -> HashSet<SampleId> {
        self.read()
            .transcript
            .policy
            .exchanges()
            .iter()
            .filter_map(|exchange| exchange.sample.clone())
            .collect()
    }

    /// Returns the samples that the model replied to.
    pub fn samples_with_reply(&self) -> HashSet<SampleId> {
        let kept = self.read();
        let replied =
            kept.transcript.policy.exchanges().iter().filter(|exchange| exchange.completion().is_some());
        replied.filter_map(|exchange| exchange.sample.clone()).collect()
    }

    /// Returns a keyed hash of the id of each call of a host-provided tool.
    pub fn tool_call_ids(&self, hasher: &impl BuildHasher) -> Vec<u64> {
        self.read().transcript.tools.iter().map(|call| hasher.hash_one(call.call_id.as_str())).collect()
    }

    /// Stores a workflow's returned messages and metrics in its only sample. If the workflow returned messages and
    /// has no sample, one is created. Fails with the number of samples if there are several.
    pub fn settle(
        &self,
        only: SampleId,
        messages: Option<Messages>,
        metrics: Vec<(String, f64)>,
    ) -> Result<(), usize> {
        let mut kept = self.read();
        if messages.is_some() && kept.transcript.samples.is_empty() {
            kept.transcript.samples.push(SampleRecord::new(only));
        }
        if kept.transcript.samples.len() > 1 {
            return Err(kept.transcript.samples.len());
        }
        if let Some(messages) = messages {
            // Cannot fail, because the sample exists.
            let _ = kept.replace_history(0, messages);
        }
        if let Some(sample) = kept.transcript.samples.first_mut() {
            sample.metrics.extend(metrics);
        }
        Ok(())
    }

    /// Changes the samples between workflow and grader, or after the grader.
    pub fn with_samples<R>(&self, change: impl FnOnce(&mut Vec<SampleRecord>) -> R) -> R {
        change(&mut self.read().transcript.samples)
    }

    /// Records the amount that a guest requested when a limit stopped it, without counting a hit.
    pub(crate) fn note_requested(&self, limit: Limit, asked: usize) {
        self.read().hits.note_requested(limit, asked);
    }

    /// Counts a refused request for this many random bytes.
    pub(crate) fn random_refused(&self, asked: usize) {
        self.lock().hits.add_requested(Limit::RandomBytes, asked);
    }

    /// Counts a hit of a limit outside of the imports.
    pub fn limit_hit(&self, limit: Limit) {
        self.read().hits.add(limit);
    }

    /// Returns the number of hits of each limit so far, and the number of dropped log entries.
    pub fn limits_hit(&self) -> (LimitHits, u64) {
        let kept = self.read();
        (kept.hits, kept.log_dropped)
    }

    /// Calls `show` with each log entry when it is stored. Guests wait for the callback.
    pub fn watch_log(&self, show: impl Fn(&LogEntry) + Send + Sync + 'static) {
        self.lock().log_watch = LogWatch(Some(Box::new(show)));
    }

    /// Adds the log of another record.
    pub fn add_log(&self, entries: Vec<LogEntry>, limits: &Limits) {
        let mut kept = self.read();
        for entry in entries {
            let bytes = match &entry {
                LogEntry::Line { text, .. } => text.len(),
                LogEntry::Event { event, data } => event.len() + data.get().len(),
            };
            kept.log(bytes, limits, || entry);
        }
    }

    /// Returns the uses refused so far.
    pub fn refused_uses(&self) -> RefusedUses {
        self.read().refused.clone()
    }

    /// Passes the data that the guests left to `show`.
    pub fn with_remains(&self, show: impl FnOnce(&Remains<'_>)) {
        let kept = self.read();
        let RecordState { transcript, artifacts, log, log_dropped, .. } = &*kept;
        show(&Remains { transcript, artifacts, log, log_dropped: *log_dropped });
    }

    /// Takes all data out of the record.
    pub fn take(&self) -> Recorded {
        let kept = std::mem::take(&mut *self.read());
        Recorded {
            transcript: kept.transcript,
            artifacts: kept
                .artifacts
                .into_iter()
                .map(|(name, content)| ArtifactFile { name, content })
                .collect(),
            log: kept.log,
            log_dropped: kept.log_dropped,
            charge: kept.charge,
        }
    }
}
