//! Results of an evaluation, kept in a directory so that it can be resumed.
//!
//! A [`Journal`] owns that directory while it lives:
//!
//! | file | content |
//! |---|---|
//! | `manifest.json` | what the run was started with ([`Manifest`]) |
//! | `results.jsonl` | one [`ResultLine`] for each finished rollout, in order of finishing |
//! | `summary.json` | the figures, when the run is over ([`Summary`]) |
//! | `rewards.json` | rewards before and after, where an evaluation was graded again ([`Rewards`]) |
//! | `lock` | the process that writes here, while there is one |
//!
//! A line is written with one call and is complete once that returns, also if the
//! process is killed right after. A line that a kill tore is cut off on resuming and its
//! rollout runs again. Nothing is ever deleted but what the caller asks to retry.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::manifest::{self, Changed, Manifest};
use super::rewards::Rewards;
use super::stats::Summary;
use rollout_core::imports::RefusedUses;
use rollout_core::limits::Amount;

mod files;
use files::Lock;

/// Name of the file with what the run was started with.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";
/// Name of the file with one line for each finished rollout.
pub(crate) const RESULTS_FILE: &str = "results.jsonl";
/// Name of the file with the figures of the run.
pub(crate) const SUMMARY_FILE: &str = "summary.json";
/// Name of the file that the writing process holds locked.
pub(crate) const LOCK_FILE: &str = "lock";
/// Name of the file with the rewards before and after, where an evaluation was graded again.
pub(crate) const REWARDS_FILE: &str = "rewards.json";

/// How much of a prompt, a label or an answer a line has, in bytes. Lines are read in
/// numbers; what is longer than this is in the trajectory.
pub(crate) const TEXT_BYTES_MAX: usize = 64 << 10;

/// Whether a rollout got a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It has one.
    Scored,
    /// It has none, and the line says why.
    Unscored,
}

/// One finished rollout. Fields that are `None` are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// The data set row, from 0.
    pub row: usize,
    /// Which of the attempts on that row, from 0.
    pub run: usize,
    /// The rollout's id, of this attempt only.
    pub rollout_id: String,
    /// The reward, finite; there if and only if the outcome is scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Whether there is a reward.
    pub outcome: Outcome,
    /// Where an unscored rollout ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// What ended it, as one of few words, by which unscored rollouts are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whose fault it was: `plugin`, `model`, `host` or `caller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// What ended it, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The text of the prompt's last message of the user; its beginning, if it is longer
    /// than `TEXT_BYTES_MAX`. The trajectory has all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What the grader compared with, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The text of the last message of the model in the first sample that counts, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Finite figures by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// The samples that the workflow opened.
    #[serde(default)]
    pub samples: Vec<SampleLine>,
    /// Model calls.
    #[serde(default)]
    pub chat_calls: u64,
    /// Tries of those after the first.
    #[serde(default)]
    pub chat_retries: u64,
    /// Prompt tokens of all model calls, as the endpoint counted them.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Completion tokens of all model calls, as the endpoint counted them.
    #[serde(default)]
    pub completion_tokens: u64,
    /// CPU time of both guests, in milliseconds.
    #[serde(default)]
    pub guest_cpu_ms: f64,
    /// The most memory that an instance had, in bytes.
    #[serde(default)]
    pub memory_bytes_peak: u64,
    /// Calls of the contract's imports by both guests.
    #[serde(default)]
    pub host_calls: u64,
    /// Time for which guests were alive and waited, in milliseconds.
    #[serde(default)]
    pub waited_ms: f64,
    /// Time of all model calls, in milliseconds; calls may overlap.
    #[serde(default)]
    pub model_ms: f64,
    /// The limits that were hit, by their names in `[limits]`. The manifest has all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits_hit: BTreeMap<String, LimitLine>,
    /// What the guests' own runtimes refused, by kind.
    #[serde(default, skip_serializing_if = "RefusedUses::is_empty")]
    pub refused_uses: RefusedUses,
    /// Samples without a reply of the model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub samples_unanswered: usize,
    /// Wall time, with that in the queue, ms, finite.
    pub duration_ms: f64,
    /// Wall time in the queue, in milliseconds.
    #[serde(default)]
    pub queued_ms: f64,
    /// Where the trajectory is, relative to the journal's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<String>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A limit that were hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitLine {
    /// Its value, in the unit of its name.
    pub max: Amount,
    /// What was used of it, where the host measures that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Amount>,
    /// What would have been in use when it was hit, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// How often it stopped or refused something.
    pub times: u64,
}

/// One sample of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// The sample's id.
    pub id: String,
    /// Its reward, finite, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Whether the workflow took it back.
    #[serde(default)]
    pub withdrawn: bool,
    /// The text of the model's last message, where there are several samples; its
    /// beginning, if it is longer than `TEXT_BYTES_MAX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Finite figures by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
}

impl ResultLine {
    /// Its text, if a journal can keep it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn checked_text(&self) -> Result<String, String> {
        self.check()?;
        serde_json::to_string(self).map_err(|error| error.to_string())
    }

    /// What makes this line one that a journal cannot keep.
    fn check(&self) -> Result<(), String> {
        match (self.outcome, self.reward) {
            (Outcome::Scored, None) => return Err("it is scored without a reward".to_owned()),
            (Outcome::Unscored, Some(_)) => {
                return Err("it is unscored and has a reward".to_owned());
            }
            (Outcome::Scored, Some(_)) | (Outcome::Unscored, None) => {}
        }
        // JSON has no NaN and no infinity: they would be written as null.
        let own = [
            ("reward", self.reward),
            ("duration_ms", Some(self.duration_ms)),
            ("queued_ms", Some(self.queued_ms)),
        ];
        let rewards = self.samples.iter().map(|s| ("sample reward", s.reward));
        let metrics = self
            .samples
            .iter()
            .map(|sample| &sample.metrics)
            .chain([&self.metrics])
            .flatten()
            .map(|(name, &value)| (name.as_str(), Some(value)));
        for (name, value) in own.into_iter().chain(rewards).chain(metrics) {
            if let Some(value) = value
                && !value.is_finite()
            {
                return Err(format!("{name} is {value}, which is not finite"));
            }
        }
        Ok(())
    }
}

/// What to do with results that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Drop unscored results, so that their rollouts run again.
    pub retry_unscored: bool,
    /// Rename the directory to `<dir>.old-<n>` and begin anew, whatever it was made with.
    pub fresh: bool,
}

/// Why a directory cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The system refused.
    #[error("cannot {action} {}; check permissions and free space", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another evaluation has the directory open.
    #[error(
        "another evaluation (process {holder}) is writing to {}; \
         wait for it, stop it, or use another --out",
        .dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Process id of the other, or `unknown`.
        holder: String,
    },
    /// The directory has files in it, and not those of an evaluation.
    #[error(
        "{} is not empty and has no {MANIFEST_FILE}, so it is not the output of an evaluation; \
         use another --out",
        .dir.display()
    )]
    NotARun {
        /// The directory.
        dir: PathBuf,
    },
    /// The manifest cannot be understood.
    #[error(
        "cannot understand {}, perhaps of another version; use another --out or --fresh",
        .path.display()
    )]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The results were made with something else.
    #[error("{}", changed_text(dir, changes))]
    Changed {
        /// The directory.
        dir: PathBuf,
        /// Every field that differs.
        changes: Vec<Changed>,
    },
    /// A line of the results is not a result.
    #[error(
        "line {line} of {} is not a result ({what}); \
         correct or remove the line, or use another --out or --fresh",
        .path.display()
    )]
    BadLine {
        /// The results.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Two lines of the results are of the same attempt.
    #[error(
        "lines {first} and {line} of {} are both of row {row}, run {run}; \
         remove one of them, or use another --out or --fresh",
        .path.display()
    )]
    Duplicate {
        /// The results.
        path: PathBuf,
        /// The earlier line, from 1.
        first: usize,
        /// The later line, from 1.
        line: usize,
        /// Their row.
        row: usize,
        /// Their run.
        run: usize,
    },
    /// The caller gave a line that cannot be kept. A mistake in the host.
    #[error("cannot keep the result of row {row}, run {run}: {what}; report this")]
    Refused {
        /// Its row.
        row: usize,
        /// Its run.
        run: usize,
        /// Why.
        what: String,
    },
}

fn changed_text(dir: &Path, changes: &[Changed]) -> String {
    let mut text = format!(
        "the results in {} were made with something else; use another --out or --fresh",
        dir.display()
    );
    for change in changes {
        text.push_str(&format!("\n  {change}"));
    }
    text
}

/// A directory of results, open for writing by this process alone.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    results: File,
    /// Length of the results up to the last complete line, bytes.
    results_len: u64,
    /// Row and run of each result.
    finished: HashSet<(usize, usize)>,
    _locks: Vec<Lock>,
}

/// A journal and what was found in it.
#[derive(Debug)]
pub struct Opened {
    /// The journal, ready for more lines.
    pub journal: Journal,
    /// The results that stand, in the order in which they were written.
    pub finished: Vec<ResultLine>,
    /// How many unscored results were dropped, to be run again.
    pub dropped: usize,
    /// Whether the last line was torn and has been cut off.
    pub torn: bool,
    /// Where the old directory is, if it was moved out of the way.
    pub moved_to: Option<PathBuf>,
}

impl Journal {
    /// Opens `dir` for the run that `manifest` describes, new or resumed. The directory
    /// is made if it is not there. Open it before writing anything else to it.
    ///
    /// # Errors
    ///
    /// See [`JournalError`]. On an error the results are as they were.
    pub fn open(dir: &Path, manifest: &Manifest, resume: Resume) -> Result<Opened, JournalError> {
        // Before anything is written: what belongs to somebody else is left as it is.
        if dir.is_dir() {
            files::holds_a_run(dir)?;
        }
        fs::create_dir_all(dir).map_err(|e| failed("make directory", dir, e))?;
        let dir = fs::canonicalize(dir).map_err(|e| failed("find", dir, e))?;
        let mut locks = vec![Lock::take(&dir)?];
        let mut has_manifest = files::holds_a_run(&dir)?;
        let mut moved_to = None;
        if resume.fresh && has_manifest {
            moved_to = Some(files::move_away(&dir)?);
            // The old lock is kept as well, for whoever opened its file before the move.
            locks.push(Lock::take(&dir)?);
            has_manifest = false;
        }
        if has_manifest {
            if check_manifest(&dir, manifest)? == Matches::WithChanges {
                files::write_json(&dir, MANIFEST_FILE, manifest)?;
            }
        } else {
            files::write_json(&dir, MANIFEST_FILE, manifest)?;
        }
        let found = Found::read(&dir, resume.retry_unscored)?;
        let path = dir.join(RESULTS_FILE);
        if found.dropped > 0 {
            files::write_atomically(&dir, RESULTS_FILE, &found.kept)?;
        }
        let results =
            OpenOptions::new().append(true).create(true).open(&path).map_err(|e| failed("open", &path, e))?;
        let results_len = found.kept.len() as u64;
        if found.torn && found.dropped == 0 {
            results.set_len(results_len).map_err(|e| failed("cut the torn last line off", &path, e))?;
        }
        let journal = Self {
            dir,
            results,
            results_len,
            finished: found.lines.iter().map(|l| (l.row, l.run)).collect(),
            _locks: locks,
        };
        Ok(Opened { journal, finished: found.lines, dropped: found.dropped, torn: found.torn, moved_to })
    }

    /// The directory, as an absolute path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether this attempt has a result.
    #[must_use]
    pub(crate) fn is_finished(&self, row: usize, run: usize) -> bool {
        self.finished.contains(&(row, run))
    }

    /// Adds one result. When this returns, the line outlives the process; after
    /// [`Journal::sync`], it outlives the machine.
    ///
    /// # Errors
    ///
    /// [`JournalError::Refused`] for a second result of an attempt, a number that is not
    /// finite, or a reward that does not go with the outcome; [`JournalError::Io`] if
    /// the line cannot be written, and then it is as if it had never been given.
    pub(crate) fn append(&mut self, line: &ResultLine) -> Result<(), JournalError> {
        let refused = |what: String| JournalError::Refused { row: line.row, run: line.run, what };
        line.check().map_err(refused)?;
        if self.is_finished(line.row, line.run) {
            return Err(refused("it has one already".to_owned()));
        }
        let mut bytes = serde_json::to_vec(line).map_err(|e| refused(e.to_string()))?;
        bytes.push(b'\n');
        self.write(&bytes).map_err(|e| failed("write to", &self.dir.join(RESULTS_FILE), e))?;
        self.finished.insert((line.row, line.run));
        Ok(())
    }

    /// Puts every line on disk. To be called when the run is over or is being stopped.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`].
    pub(crate) fn sync(&self) -> Result<(), JournalError> {
        self.results.sync_data().map_err(|e| failed("sync", &self.dir.join(RESULTS_FILE), e))
    }

    /// Writes `summary.json`, whole or not at all, over an earlier one.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`].
    pub fn write_summary(&self, summary: &Summary) -> Result<(), JournalError> {
        files::write_json(&self.dir, SUMMARY_FILE, summary)
    }

    /// Writes `rewards.json`, in the same way.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`].
    pub fn write_rewards(&self, rewards: &Rewards) -> Result<(), JournalError> {
        files::write_json(&self.dir, REWARDS_FILE, rewards)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // What an earlier failure left of a line goes first: nothing follows on it.
        if self.results.metadata()?.len() != self.results_len {
            self.results.set_len(self.results_len)?;
        }
        self.results.write_all(bytes)?;
        self.results.flush()?;
        self.results_len += bytes.len() as u64;
        Ok(())
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { action, path: path.to_owned(), source }
}

/// How a manifest goes with the one that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matches {
    /// It is the same.
    Exactly,
    /// What is different may be.
    WithChanges,
}

/// What is in a directory of results, whoever writes there: with what the run was started, and its
/// results, in the order in which they were written.
pub fn read(dir: &Path) -> Result<(Manifest, Vec<ResultLine>), JournalError> {
    Ok((read_manifest(dir)?, Found::read(dir, false)?.lines))
}

fn read_manifest(dir: &Path) -> Result<Manifest, JournalError> {
    let path = dir.join(MANIFEST_FILE);
    let text = fs::read(&path).map_err(|e| failed("read", &path, e))?;
    serde_json::from_slice(&text).map_err(|source| JournalError::Manifest { path, source })
}

fn check_manifest(dir: &Path, manifest: &Manifest) -> Result<Matches, JournalError> {
    let old = read_manifest(dir)?;
    let changes = manifest::changes(&old, manifest);
    if changes.is_empty() {
        return Ok(if old == *manifest { Matches::Exactly } else { Matches::WithChanges });
    }
    Err(JournalError::Changed { dir: dir.to_owned(), changes })
}

/// What a results file holds.
#[derive(Default)]
struct Found {
    lines: Vec<ResultLine>,
    /// The bytes of `lines`, as they were written.
    kept: Vec<u8>,
    /// The line of each (row, run), from 1.
    at: HashMap<(usize, usize), usize>,
    dropped: usize,
    torn: bool,
}

impl Found {
    fn read(dir: &Path, retry_unscored: bool) -> Result<Self, JournalError> {
        let path = dir.join(RESULTS_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let mut found = Self::default();
        for (at, raw) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if raw.ends_with(b"\n") {
                found.take(&path, at + 1, raw, retry_unscored)?;
            } else {
                found.torn = true;
            }
        }
        Ok(found)
    }

    fn take(
        &mut self,
        path: &Path,
        number: usize,
        raw: &[u8],
        retry_unscored: bool,
    ) -> Result<(), JournalError> {
        let bad = |what| JournalError::BadLine { path: path.to_owned(), line: number, what };
        let line: ResultLine = serde_json::from_slice(raw).map_err(|e| bad(e.to_string()))?;
        line.check().map_err(bad)?;
        if let Some(first) = self.at.insert((line.row, line.run), number) {
            return Err(JournalError::Duplicate {
                path: path.to_owned(),
                first,
                line: number,
                row: line.row,
                run: line.run,
            });
        }
        if retry_unscored && line.outcome == Outcome::Unscored {
            self.dropped += 1;
        } else {
            self.kept.extend_from_slice(raw);
            self.lines.push(line);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
