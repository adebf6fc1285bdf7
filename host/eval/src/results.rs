//! Results of an evaluation, stored in a directory so that it can be resumed.
//!
//! A [`ResultsDir`] has the directory locked while it lives:
//!
//! | file | content |
//! |---|---|
//! | `manifest.json` | the settings of the run ([`Manifest`]) |
//! | `results.jsonl` | one [`ResultLine`] for each finished rollout, in order of finishing |
//! | `summary.json` | the figures, once the run is over ([`Summary`]) |
//! | `rewards.json` | rewards before and after, if an evaluation was graded again ([`Rewards`]) |
//! | `lock` | id of the writing process, while there is one |
//!
//! A line is written by one call and complete once the call returns, even if the process is killed
//! immediately afterwards. A partial last line is removed on resuming, and its rollout runs again. Only
//! results that the caller asks to retry are deleted.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::lines::{LineOutcome, ResultLine};
use super::manifest::{self, Changed, Manifest};
use super::rewards::Rewards;
use super::stats::Summary;

mod files;
use files::Lock;

/// Name of the file with the settings of the run.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";
/// Name of the file with one line for each finished rollout.
pub(crate) const RESULTS_FILE: &str = "results.jsonl";
/// Name of the file with the figures of the run.
pub(crate) const SUMMARY_FILE: &str = "summary.json";
/// Name of the file that the writing process keeps locked.
pub(crate) const LOCK_FILE: &str = "lock";
/// Name of the file with the rewards before and after, if an evaluation was graded again.
pub(crate) const REWARDS_FILE: &str = "rewards.json";

/// Maximum number of bytes of a prompt, a label or an answer in a line. The trajectory has the full text.
pub(crate) const TEXT_BYTES_MAX: usize = 64 << 10;

/// Treatment of the results of an earlier process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Drops unscored results, so that their rollouts run again.
    pub retry_unscored: bool,
    /// Renames the directory to `<dir>.old-<n>` and starts over, whatever its manifest.
    pub fresh: bool,
}

/// Error of opening or writing a results directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// An operation of the operating system failed.
    #[error("cannot {action} {}; check permissions and free space", .path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Another evaluation has locked the directory.
    #[error(
        "another evaluation (process {holder}) is writing to {}; \
         wait for it, stop it, or use another --out",
        .dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Process id of the other evaluation, or `unknown`.
        holder: String,
    },
    /// The directory has files that are not those of an evaluation.
    #[error(
        "{} is not empty and has no {MANIFEST_FILE}, so it is not the output of an evaluation; \
         use another --out",
        .dir.display()
    )]
    NotARun {
        /// The directory.
        dir: PathBuf,
    },
    /// The manifest cannot be parsed.
    #[error(
        "cannot parse {}; another version of this program may have written it; use another --out or --fresh",
        .path.display()
    )]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// The existing results were made with another plugin, data set or settings.
    #[error("{}", changed_text(dir, changes))]
    Changed {
        /// The directory.
        dir: PathBuf,
        /// The fields that differ.
        changes: Vec<Changed>,
    },
    /// A line of the results file is malformed.
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
        /// Description of the problem.
        what: String,
    },
    /// Two lines of the results file have the same row and run.
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
    /// A line to be written is invalid, which is a bug in the host.
    #[error("cannot store the result of row {row}, run {run}: {what}; report this as a bug of the host")]
    InvalidLine {
        /// Its row.
        row: usize,
        /// Its run.
        run: usize,
        /// Description of the problem.
        what: String,
    },
}

fn changed_text(dir: &Path, changes: &[Changed]) -> String {
    let mut text = format!(
        "the results in {} were made with other settings; use another --out or --fresh",
        dir.display()
    );
    for change in changes {
        text.push_str(&format!("\n  {change}"));
    }
    text
}

/// A directory of results, open for writing by this process alone.
#[derive(Debug)]
pub struct ResultsDir {
    dir: PathBuf,
    results: File,
    /// Length of the results file up to the last complete line, in bytes.
    results_len: u64,
    /// Row and run of each result.
    finished: HashSet<(usize, usize)>,
    _locks: Vec<Lock>,
}

/// An opened results directory and its earlier results.
#[derive(Debug)]
pub struct Opened {
    /// The directory, open for writing.
    pub results: ResultsDir,
    /// The earlier results, in the order in which they were written.
    pub finished: Vec<ResultLine>,
    /// Number of unscored results that were dropped, to be run again.
    pub dropped: usize,
    /// Whether a partial last line was removed.
    pub torn: bool,
    /// New path of the old directory, if it was moved aside.
    pub moved_to: Option<PathBuf>,
}

impl ResultsDir {
    /// Opens `dir` for the run that `manifest` describes, new or resumed. Creates the directory if it does
    /// not exist. Must be called before anything else is written to the directory.
    ///
    /// # Errors
    ///
    /// Fails with a [`ResultsError`]; earlier results are then unchanged.
    pub fn open(dir: &Path, manifest: &Manifest, resume: Resume) -> Result<Opened, ResultsError> {
        // Checked before anything is written, so that another program's directory stays as it is.
        if dir.is_dir() {
            files::has_results(dir)?;
        }
        fs::create_dir_all(dir).map_err(|e| failed("create directory", dir, e))?;
        let dir = fs::canonicalize(dir).map_err(|e| failed("find", dir, e))?;
        let mut locks = vec![Lock::take(&dir)?];
        let mut has_manifest = files::has_results(&dir)?;
        let mut moved_to = None;
        if resume.fresh && has_manifest {
            moved_to = Some(files::move_away(&dir)?);
            // The old lock stays locked for a process that opened its file before the move.
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
        let found = ResultsFile::read(&dir, resume.retry_unscored)?;
        let path = dir.join(RESULTS_FILE);
        if found.dropped > 0 {
            files::write_atomically(&dir, RESULTS_FILE, &found.kept)?;
        }
        let results =
            OpenOptions::new().append(true).create(true).open(&path).map_err(|e| failed("open", &path, e))?;
        let results_len = found.kept.len() as u64;
        if found.torn && found.dropped == 0 {
            results.set_len(results_len).map_err(|e| failed("remove the partial last line of", &path, e))?;
        }
        let results = Self {
            dir,
            results,
            results_len,
            finished: found.lines.iter().map(|l| (l.row, l.run)).collect(),
            _locks: locks,
        };
        Ok(Opened { results, finished: found.lines, dropped: found.dropped, torn: found.torn, moved_to })
    }

    /// Returns the absolute path of the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns whether an attempt has a result.
    #[must_use]
    pub(crate) fn is_finished(&self, row: usize, run: usize) -> bool {
        self.finished.contains(&(row, run))
    }

    /// Appends one result. The line survives a crash of the process once this returns, and a crash of the
    /// machine after [`ResultsDir::sync`].
    ///
    /// # Errors
    ///
    /// Fails with [`ResultsError::InvalidLine`] if the attempt has a result already, a number is not finite,
    /// or reward and outcome contradict each other, and with [`ResultsError::Io`] if the line cannot be
    /// written. After an error the file is as before.
    pub(crate) fn append(&mut self, line: &ResultLine) -> Result<(), ResultsError> {
        let invalid = |what: String| ResultsError::InvalidLine { row: line.row, run: line.run, what };
        line.check().map_err(invalid)?;
        if self.is_finished(line.row, line.run) {
            return Err(invalid("it has a result already".to_owned()));
        }
        let mut bytes = serde_json::to_vec(line).map_err(|e| invalid(e.to_string()))?;
        bytes.push(b'\n');
        self.write(&bytes).map_err(|e| failed("write to", &self.dir.join(RESULTS_FILE), e))?;
        self.finished.insert((line.row, line.run));
        Ok(())
    }

    /// Syncs the results to disk. Called when the run is over or is being stopped.
    ///
    /// # Errors
    ///
    /// Fails with [`ResultsError::Io`].
    pub(crate) fn sync(&self) -> Result<(), ResultsError> {
        self.results.sync_data().map_err(|e| failed("sync", &self.dir.join(RESULTS_FILE), e))
    }

    /// Writes or replaces `summary.json` atomically.
    ///
    /// # Errors
    ///
    /// Fails with [`ResultsError::Io`].
    pub fn write_summary(&self, summary: &Summary) -> Result<(), ResultsError> {
        files::write_json(&self.dir, SUMMARY_FILE, summary)
    }

    /// Writes or replaces `rewards.json` atomically.
    ///
    /// # Errors
    ///
    /// Fails with [`ResultsError::Io`].
    pub fn write_rewards(&self, rewards: &Rewards) -> Result<(), ResultsError> {
        files::write_json(&self.dir, REWARDS_FILE, rewards)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Remove the partial line of an earlier failed write first.
        if self.results.metadata()?.len() != self.results_len {
            self.results.set_len(self.results_len)?;
        }
        self.results.write_all(bytes)?;
        self.results.flush()?;
        self.results_len += bytes.len() as u64;
        Ok(())
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> ResultsError {
    ResultsError::Io { action, path: path.to_owned(), source }
}

/// Result of comparing a manifest with the stored one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matches {
    /// They are equal.
    Exactly,
    /// They differ in fields that may change.
    WithChanges,
}

/// Reads the manifest and the results of a directory, without locking it. The results are in the order in
/// which they were written.
pub fn read(dir: &Path) -> Result<(Manifest, Vec<ResultLine>), ResultsError> {
    Ok((read_manifest(dir)?, ResultsFile::read(dir, false)?.lines))
}

fn read_manifest(dir: &Path) -> Result<Manifest, ResultsError> {
    let path = dir.join(MANIFEST_FILE);
    let text = fs::read(&path).map_err(|e| failed("read", &path, e))?;
    serde_json::from_slice(&text).map_err(|source| ResultsError::Manifest { path, source })
}

fn check_manifest(dir: &Path, manifest: &Manifest) -> Result<Matches, ResultsError> {
    let old = read_manifest(dir)?;
    let changes = manifest::changes(&old, manifest);
    if changes.is_empty() {
        return Ok(if old == *manifest { Matches::Exactly } else { Matches::WithChanges });
    }
    Err(ResultsError::Changed { dir: dir.to_owned(), changes })
}

/// Content of a results file.
#[derive(Default)]
struct ResultsFile {
    lines: Vec<ResultLine>,
    /// The bytes of `lines`, as they were written.
    kept: Vec<u8>,
    /// Line number of each (row, run), from 1.
    numbers: HashMap<(usize, usize), usize>,
    dropped: usize,
    torn: bool,
}

impl ResultsFile {
    fn read(dir: &Path, retry_unscored: bool) -> Result<Self, ResultsError> {
        let path = dir.join(RESULTS_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let mut found = Self::default();
        for (at, raw) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if raw.ends_with(b"\n") {
                found.add(&path, at + 1, raw, retry_unscored)?;
            } else {
                found.torn = true;
            }
        }
        Ok(found)
    }

    fn add(
        &mut self,
        path: &Path,
        number: usize,
        raw: &[u8],
        retry_unscored: bool,
    ) -> Result<(), ResultsError> {
        let bad = |what| ResultsError::BadLine { path: path.to_owned(), line: number, what };
        let line: ResultLine = serde_json::from_slice(raw).map_err(|e| bad(e.to_string()))?;
        line.check().map_err(bad)?;
        if let Some(first) = self.numbers.insert((line.row, line.run), number) {
            return Err(ResultsError::Duplicate {
                path: path.to_owned(),
                first,
                line: number,
                row: line.row,
                run: line.run,
            });
        }
        if retry_unscored && line.outcome == LineOutcome::Unscored {
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
