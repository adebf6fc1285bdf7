//! What is kept of a rollout while its guests run, and after they are gone.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::Ended;
use super::meter::Meter;
use super::refused::{KIND_BYTES, RefusedKind, RefusedUses};
use rollout_core::budget::{Charge, Holder, Use};
use rollout_core::error::Fault;
use rollout_core::limits::Limits;
use rollout_core::telemetry::{Limit, LimitHits, RolloutTrace};
use rollout_transcript::{SampleRecord, Transcript};
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;

/// What a log entry takes besides its text, in bytes.
const LOG_ENTRY_BYTES: usize = size_of::<LogEntry>();

/// What a field or a metric of a sample costs besides its name and value.
pub(super) const FIELD_BYTES: usize = 128;

/// Why the judge is to blame if the grader gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgeFailure {
    /// Whose move it is.
    pub fault: Fault,
    /// What happened.
    pub reason: String,
}

/// A file of the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFile {
    /// Its name, path segments joined by `/`.
    pub name: String,
    /// Its content.
    pub content: Bytes,
}

/// How much a log entry matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For whoever looks closely.
    Debug,
    /// The usual.
    Info,
    /// Something is odd.
    Warn,
    /// Something is wrong.
    Error,
}

/// A line or an event of a guest.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum LogEntry {
    /// A line of text.
    Line {
        /// How much it matters.
        level: LogLevel,
        /// The text, control characters escaped.
        text: String,
    },
    /// A named value.
    Event {
        /// The event's name, control characters escaped.
        event: String,
        /// What happened.
        data: Box<RawValue>,
    },
}

/// What a rollout's guests left behind, taken when both are gone.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The samples and calls.
    pub transcript: Transcript,
    /// The files, sorted by name.
    pub artifacts: Vec<ArtifactFile>,
    /// The log.
    pub log: Vec<LogEntry>,
    /// Log entries that were dropped at the limit.
    pub log_dropped: u64,
    /// What all of it is charged to for as long as it is there.
    pub charge: Option<Charge>,
}

/// Everything that a rollout's guests left, while it is in the record.
#[derive(Clone, Copy)]
pub struct Remains<'a> {
    /// The samples and calls.
    pub transcript: &'a Transcript,
    /// The files, by name.
    pub artifacts: &'a BTreeMap<String, Bytes>,
    /// The log.
    pub log: &'a [LogEntry],
    /// Log entries that were dropped at the limit.
    pub log_dropped: u64,
}

/// Reads a log as it is stored: a list.
pub fn read_log(text: &[u8]) -> Result<Vec<LogEntry>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Line<'a> {
        level: Option<LogLevel>,
        #[serde(borrow)]
        text: Option<Cow<'a, str>>,
        #[serde(borrow)]
        event: Option<Cow<'a, str>>,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    let lines: Vec<Line<'_>> = serde_json::from_slice(text)?;
    let entry = |line| match line {
        Line { event: Some(event), data, .. } => {
            LogEntry::Event { event: event.into_owned(), data: data.unwrap_or(RawValue::NULL).to_owned() }
        }
        Line { level, text, .. } => LogEntry::Line {
            level: level.unwrap_or(LogLevel::Info),
            text: text.unwrap_or_default().into_owned(),
        },
    };
    Ok(lines.into_iter().map(entry).collect())
}

/// What a rollout has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RolloutUsage {
    /// Calls of the model, not counting retries.
    pub chat_calls: u64,
    /// Those of them that had a reply.
    pub chat_replies: u64,
    /// Tries of finished calls after the first.
    pub chat_retries: u64,
    /// How long those with a reply took, retries included.
    pub chat_time: Duration,
    /// Calls of tools: those of host-provided tools, the refused among them, and, once the
    /// rollout is over, those of the plugin's own whose results are in its samples.
    pub tool_calls: u64,
    /// Tokens of the requests, as far as the server said.
    pub prompt_tokens: u64,
    /// Tokens of the replies, as far as the server said.
    pub completion_tokens: u64,
    /// Bytes of all requests to models, not counting retries.
    pub sent_bytes: u64,
    /// Calls of the judge, not counting retries.
    pub judge_calls: u64,
    /// Tokens of requests to the judge and of its replies, as far as its server said.
    pub judge_tokens: u64,
    /// CPU time of both guests, with what the host did within their calls.
    pub guest_cpu: Duration,
    /// The most memory that either of the two instances had, in bytes.
    pub memory_bytes_peak: usize,
    /// Calls of the contract's imports by both guests.
    pub host_calls: u64,
    /// Wall time for which instances were alive, one after the other.
    pub guest_wall: Duration,
    /// Time that calls of the model took, summed over the calls, which may overlap.
    pub model_time: Duration,
    /// Samples that were opened.
    pub samples: usize,
    /// Bytes of messages, fields and exchanges kept.
    pub record_bytes: usize,
    /// Artifacts kept.
    pub artifacts: usize,
    /// Bytes of artifacts kept.
    pub artifact_bytes: usize,
    /// Log entries kept.
    pub log_lines: usize,
    /// Bytes of log entries kept.
    pub log_bytes: usize,
    /// Uses that the guests' own runtimes refused, but for alarms.
    #[serde(default)]
    pub refused_uses: u64,
}

impl RolloutUsage {
    /// Time for which guests were alive and did nothing: they waited for the model, for
    /// tools, or for their turn.
    pub fn waited(&self) -> Duration {
        self.guest_wall.saturating_sub(self.guest_cpu)
    }
}

/// The record of one rollout, shared by its two stores, one after the other.
#[derive(Debug, Default)]
pub struct Record {
    kept: Mutex<RecordState>,
    /// In a box, because a rollout that runs has none.
    sealed: OnceLock<Box<Mutex<RecordState>>>,
    meter: Meter,
    trace: RolloutTrace,
    /// Who holds what is kept and what its guests have of memory; none is not charged.
    holder: Option<Holder>,
}

type ShowEntry = dyn Fn(&LogEntry) + Send + Sync;

/// Shows each log entry when it is kept.
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
    /// How often each host-provided tool was called, by its place.
    pub tool_calls_made: BTreeMap<usize, u32>,
    pub artifacts: BTreeMap<String, Bytes>,
    pub artifact_bytes: usize,
    pub log: Vec<LogEntry>,
    log_bytes: usize,
    log_dropped: u64,
    log_watch: LogWatch,
    refused: RefusedUses,
    /// The kinds that only the host reported so far.
    refused_by_host: BTreeSet<RefusedKind>,
    /// Messages, fields and exchanges, in bytes.
    bytes: usize,
    /// All that is kept, artifacts and log among it, where it is charged.
    charge: Option<Charge>,
    /// Whether nothing more is kept.
    closed: bool,
    /// Tokens of all finished calls of the model.
    pub chat_tokens: u64,
    /// Tries of all finished calls of the model after the first.
    pub chat_retries: u64,
    /// Bytes of all requests to models.
    pub sent_bytes: u64,
    /// Tokens of all finished calls of the judge.
    pub judge_tokens: u64,
    /// Why the judge is to blame if the grader gives up, and how many calls of it there
    /// were when it failed.
    pub judge_failure: Option<(JudgeFailure, usize)>,
    /// How often each limit was hit.
    pub hits: LimitHits,
    /// Whose fault it was that the workflow's last finished call of the model failed, if it did.
    pub model_failed: Option<Fault>,
}

/// A limit of the record is reached; the text names it and its value.
#[derive(Debug)]
pub(super) struct OverLimit(pub String);

impl RecordState {
    /// Charges bytes that are to be kept for as long as the rollout lives.
    pub(super) fn charge(&mut self, bytes: usize, limits: &Limits) -> Result<(), OverLimit> {
        let total = self.bytes.saturating_add(bytes);
        if total > limits.record_bytes_max {
            self.hits.add_asked(Limit::RecordBytes, total);
            let max = limits.record_bytes_max;
            return Err(OverLimit(format!(
                "record-bytes-max of {max} bytes: {bytes} more would make {total}; the operator can raise it"
            )));
        }
        self.hold(bytes)?;
        self.bytes = total;
        Ok(())
    }

    /// The sample at this place. There is none once the rollout is over: a guest that was
    /// stopped within a call comes to the end of it with nothing left to write to.
    pub(super) fn sample(&mut self, place: usize) -> Result<&mut SampleRecord, Ended> {
        self.transcript.samples.get_mut(place).ok_or(Ended::Over)
    }

    /// Puts messages in the place of a sample's history. The old one stays where a request
    /// carried it.
    pub(super) fn replace_history(&mut self, place: usize, messages: Messages) -> Result<(), Ended> {
        let free = self.transcript.replace_history(place, messages).ok_or(Ended::Over)?;
        self.release(free);
        Ok(())
    }

    /// Gives back bytes that were charged.
    pub(super) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.let_go(bytes);
    }

    /// Charges bytes to all that the host holds. Where that is used up, a rollout is
    /// ended, and it may be this one.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), OverLimit> {
        if self.closed {
            return Err(OverLimit("the rollout is over".to_owned()));
        }
        let Some(charge) = &mut self.charge else { return Ok(()) };
        charge.grow(bytes).map_err(|over| {
            self.hits.note_asked(Limit::MemoryBudget, over.used.saturating_add(over.asked));
            OverLimit(over.to_string())
        })
    }

    /// Gives back bytes that are no longer held.
    pub(super) fn let_go(&mut self, bytes: usize) {
        if let Some(charge) = &mut self.charge {
            charge.shrink_to(charge.bytes().saturating_sub(bytes));
        }
    }

    /// Keeps a log entry, or counts it where the limit is reached. It is made only if a
    /// text of so many bytes, which it is made of, has room.
    pub(super) fn log(&mut self, text_bytes: usize, limits: &Limits, entry: impl FnOnce() -> LogEntry) {
        if !self.has_room_for_log(text_bytes, limits) {
            return;
        }
        let entry = entry();
        let bytes = match &entry {
            LogEntry::Line { text, .. } => text.len(),
            LogEntry::Event { event, data } => event.len() + data.get().len(),
        };
        // Escaping may have made it longer.
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

    /// Counts uses that a guest's own runtime refused. Where there is no memory for a place, the count
    /// goes without one.
    pub(super) fn refused(&mut self, kind: RefusedKind, count: u32, place: &str) {
        if self.closed || count == 0 {
            return;
        }
        if self.refused_by_host.remove(&kind) {
            // The guest's runtime reports the same uses, with its own places.
            self.refused.clear(kind);
        }
        self.add_refused(kind, count, place);
    }

    /// Counts a use that the host itself refused. A guest whose own runtime reports uses of this kind counts them.
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
            self.hits.add_asked(Limit::LogLines, self.log.len() + 1);
        } else if total > limits.log_bytes_max {
            self.hits.add_asked(Limit::LogBytes, total);
        } else {
            return true;
        }
        self.log_dropped += 1;
        false
    }
}

impl Record {
    /// A record of a rollout that is traced, charged to its holder.
    pub fn of_rollout(trace: RolloutTrace, holder: Holder) -> Self {
        Self { trace, ..Self::of_no_rollout(holder) }
    }

    /// A record of an instance that belongs to no rollout.
    pub fn of_no_rollout(holder: Holder) -> Self {
        let kept = RecordState { charge: Some(holder.nothing(Use::Record)), ..RecordState::default() };
        Self { kept: kept.into(), holder: Some(holder), ..Self::default() }
    }

    /// Charges what a guest gave back, before it is kept. The error names the limit.
    pub fn charge(&self, bytes: usize, limits: &Limits) -> Result<(), String> {
        self.read().charge(bytes, limits).map_err(|over| over.0)
    }

    /// Who holds what is kept here, where that is charged.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// The rollout's trace.
    pub fn trace(&self) -> &RolloutTrace {
        &self.trace
    }

    /// For what guests add.
    pub(super) fn lock(&self) -> MutexGuard<'_, RecordState> {
        // A panic elsewhere in this rollout leaves plain data that is still readable.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what the rollout reads and decides.
    pub(super) fn read(&self) -> MutexGuard<'_, RecordState> {
        self.sealed.get().map_or(&self.kept, |sealed| sealed).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on nothing that a guest does is in it: one that was stopped while it ran
    /// may come to the end of its turn a moment after its rollout is over.
    pub fn seal(&self) {
        let closed = RecordState { closed: true, ..RecordState::default() };
        self.sealed.get_or_init(|| Box::new(Mutex::new(std::mem::replace(&mut *self.lock(), closed))));
    }

    /// What its guests use of the machine.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What was used so far.
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
                // The numbers are the model server's own words.
                used.prompt_tokens = used.prompt_tokens.saturating_add(usage.prompt_tokens);
                used.completion_tokens = used.completion_tokens.saturating_add(usage.completion_tokens);
            }
        }
        used
    }

    /// The guests' events so far, by name, with their values.
    pub fn events(&self) -> Vec<(String, Box<RawValue>)> {
        let event = |entry: &LogEntry| match entry {
            LogEntry::Event { event, data } => Some((event.clone(), data.clone())),
            LogEntry::Line { .. } => None,
        };
        self.read().log.iter().filter_map(event).collect()
    }

    /// Whose fault it was that the workflow's last finished call of the model failed, if it did.
    pub fn model_failure(&self) -> Option<Fault> {
        self.read().model_failed
    }

    /// Why the judge is to blame for a grader that gives up, if it is.
    pub fn judge_failure(&self) -> Option<JudgeFailure> {
        self.lock().judge_failure.as_ref().map(|(failure, _)| failure.clone())
    }

    /// What a guest printed last when it panicked: where, and the message.
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

    /// The samples as they are now.
    pub fn samples(&self) -> Vec<SampleRecord> {
        self.read().transcript.samples.clone()
    }

    /// The samples that the model was asked for.
    pub fn asked(&self) -> HashSet<SampleId> {
        self.read()
            .transcript
            .policy
            .exchanges()
            .iter()
            .filter_map(|exchange| exchange.sample.clone())
            .collect()
    }

    /// The samples that the model replied to.
    pub fn replied(&self) -> HashSet<SampleId> {
        let kept = self.read();
        let replied =
            kept.transcript.policy.exchanges().iter().filter(|exchange| exchange.completion().is_some());
        replied.filter_map(|exchange| exchange.sample.clone()).collect()
    }

    /// A keyed hash of the id of each call of a host-provided tool.
    pub fn tool_call_ids(&self, hasher: &impl BuildHasher) -> Vec<u64> {
        self.read().transcript.tools.iter().map(|call| hasher.hash_one(call.call_id.as_str())).collect()
    }

    /// Makes what a workflow gave back the history and the measurements of its one sample,
    /// which is made where there is none; the error is how many there are.
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
            // There is one.
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

    /// Notes how much a guest would have used when a limit stopped it, without counting.
    pub(crate) fn note_asked(&self, limit: Limit, asked: usize) {
        self.read().hits.note_asked(limit, asked);
    }

    /// Counts a refusal of random numbers, at so many bytes.
    pub(crate) fn random_refused(&self, asked: usize) {
        self.lock().hits.add_asked(Limit::RandomBytes, asked);
    }

    /// Counts a limit that were hit outside of the imports.
    pub fn limit_hit(&self, limit: Limit) {
        self.read().hits.add(limit);
    }

    /// How often each limit was hit so far, and how many log entries were dropped.
    pub fn limits_hit(&self) -> (LimitHits, u64) {
        let kept = self.read();
        (kept.hits, kept.log_dropped)
    }

    /// Has each log entry be shown when it is kept. Guests wait meanwhile.
    pub fn watch_log(&self, show: impl Fn(&LogEntry) + Send + Sync + 'static) {
        self.lock().log_watch = LogWatch(Some(Box::new(show)));
    }

    /// The uses that the guests' own runtimes refused so far.
    pub fn refused_uses(&self) -> RefusedUses {
        self.read().refused.clone()
    }

    /// Passes everything that the guests left to `show`.
    pub fn with_remains(&self, show: impl FnOnce(&Remains<'_>)) {
        let kept = self.read();
        let RecordState { transcript, artifacts, log, log_dropped, .. } = &*kept;
        show(&Remains { transcript, artifacts, log, log_dropped: *log_dropped });
    }

    /// Takes everything out.
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
