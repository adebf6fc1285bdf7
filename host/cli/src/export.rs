//! The command `export`, which writes training rows of finished rollouts.

use std::cmp::Ordering;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::print::{self, errln};
use super::{Exit, OUTPUT, journal};
use rollout_export::source::{self, TrajectoryFiles};
use rollout_export::{Condition, Format, Output, OutputError, Row};
use rollout_rollout::{JournalError, NoTrajectory, StoredRollout};
use rollout_wire::text::printable;

/// Maximum number of unreadable trajectories that are named.
const NAMED_MAX: u64 = 20;

/// Writes training rows of finished rollouts, one for each sample.
///
/// A row has the messages, a mark for those that the model wrote, token ids and log-probabilities if the
/// model's server returned them, reward, metrics and ids. docs/serve/training-rows.md describes the columns.
/// Rows are in the order in which rollouts are found.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done; 2 not done, or some trajectories cannot be read and --skip-unreadable is not given.\n\n\
    Examples:\n  rollout-host export evals/my_agent-rows-1700000000 --out rows.parquet\n  \
    rollout-host export rollouts --where 'reward >= 1 and input_ids is not null' --out rows.parquet\n  \
    rollout-host export /var/lib/rollouts/journal --where 'metrics.accuracy > 0.5 or not withdrawn' | head\n  \
    rollout-host export evals/my_agent-rows-1700000000 --format inspect \\\n      \
    --out logs/2026-01-31T12-00-00_my_agent.json"
)]
pub(super) struct Export {
    /// Directory of an evaluation's results, a server's --artifact-root, or a journal, even while another
    /// process has it open.
    dir: PathBuf,
    /// Writes only rows that meet this condition: comparisons (= != < <= > >=) of columns, numbers and quoted
    /// texts, `is null`, `is not null`, `and`, `or`, `not` and parentheses, as in SQL. A metric is
    /// metrics.NAME.
    #[arg(long = "where", value_name = "CONDITION", value_parser = Condition::parse)]
    condition: Option<Condition>,
    /// File to write; it appears when it is complete. [default: standard output]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    out: Option<PathBuf>,
    /// Format of the rows. [default: parquet if FILE ends in .parquet, else jsonl]
    #[arg(long, value_enum, hide_default_value = true, help_heading = OUTPUT)]
    format: Option<RowFormat>,
    /// Exits with 0 even if some trajectories cannot be read.
    #[arg(long, help_heading = OUTPUT)]
    skip_unreadable: bool,
}

/// Format of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RowFormat {
    /// A Parquet file.
    Parquet,
    /// JSON Lines, one row per line.
    Jsonl,
    /// A log that the package inspect_ai reads. `inspect view` lists it if its name begins with a time and ends in
    /// .json: 2026-01-31T12-00-00_my_agent.json.
    Inspect,
}

impl From<RowFormat> for Format {
    fn from(format: RowFormat) -> Self {
        match format {
            RowFormat::Parquet => Self::Parquet,
            RowFormat::Jsonl => Self::JsonLines,
            RowFormat::Inspect => Self::Inspect,
        }
    }
}

impl Export {
    pub(crate) fn run(self) -> Result<Exit> {
        let source = Source::find(&self.dir)?;
        let format = self.format();
        let output = match &self.out {
            Some(path) => Output::to_file(path, format.into())?,
            None if format == RowFormat::Parquet && stdout().is_terminal() => {
                bail!("a Parquet file cannot be written to a terminal; choose a file with --out")
            }
            None => Output::to_stream(print::OutWriter, format.into())?,
        };
        let mut rows = Rows::new(output, self.condition);
        let added = rows.add_all(source);
        rows.bar.finish_and_clear();
        if added.is_ok() && rows.counts.found == 0 {
            let dir = self.dir.display();
            bail!(
                "there are no trajectories in {dir}; for those in a server's journal, give the journal's directory"
            );
        }
        if let Err(error) = added.and_then(|()| Ok(rows.output.finish()?)) {
            return match (error.downcast_ref(), print::output_status()) {
                (Some(OutputError::Stream(_)), print::OutputStatus::All)
                | (Some(OutputError::File { .. }) | None, _) => Err(error),
                // The reader of standard output is gone, or its failure is reported when the program exits.
                _ => Ok(Exit::NotDone),
            };
        }
        rows.counts.report(self.out.as_deref());
        let is_done = rows.counts.unreadable == 0 || self.skip_unreadable;
        Ok(if is_done { Exit::Done } else { Exit::NotDone })
    }

    fn format(&self) -> RowFormat {
        let named = self.out.as_deref().and_then(Path::extension);
        self.format.unwrap_or(match named {
            Some(ending) if ending.eq_ignore_ascii_case("parquet") => RowFormat::Parquet,
            _ => RowFormat::Jsonl,
        })
    }
}

/// Source of finished rollouts.
enum Source {
    /// Trajectories in files.
    Files(TrajectoryFiles),
    /// The directory of a journal.
    Journal(PathBuf),
}

impl Source {
    fn find(dir: &Path) -> Result<Self> {
        let journal = journal::resolve(dir);
        let is_written = dir.join(source::ROLLOUTS).is_dir();
        if journal::is_journal(&journal)? && !(journal != *dir && is_written) {
            return Ok(Self::Journal(journal));
        }
        Ok(Self::Files(TrajectoryFiles::find(dir)?))
    }
}

/// The export in progress.
struct Rows {
    output: Output,
    condition: Option<Condition>,
    counts: Counts,
    bar: ProgressBar,
}

/// Numbers of trajectories by result.
#[derive(Default)]
struct Counts {
    found: u64,
    rows: u64,
    left_out: u64,
    unreadable: u64,
}

impl Rows {
    fn new(output: Output, condition: Option<Condition>) -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{pos} trajectories, {per_sec}, {elapsed} elapsed");
        // The template is constant; if it were invalid, the default would do.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { output, condition, counts: Counts::default(), bar }
    }

    fn add_all(&mut self, source: Source) -> Result<()> {
        match source {
            Source::Files(trajectories) => Ok(self.add_files(trajectories)?),
            Source::Journal(dir) => self.add_journal(&dir),
        }
    }

    fn add_files(&mut self, trajectories: TrajectoryFiles) -> Result<(), OutputError> {
        for path in trajectories {
            match path.and_then(|path| Ok((source::read(&path)?, path))) {
                Ok((document, path)) => self.add(&document, || path.display().to_string())?,
                Err(failed) => self.unreadable(&failed.path.display().to_string(), &failed.source),
            }
        }
        Ok(())
    }

    /// Adds the rows of all finished rollouts in a journal.
    fn add_journal(&mut self, dir: &Path) -> Result<()> {
        let unreadable = || format!("the journal in {} cannot be read", dir.display());
        let mut document = Vec::new();
        for stored in StoredRollout::all(dir).with_context(unreadable)? {
            let stored = match stored {
                Ok(stored) => stored,
                // The journal itself is damaged, so other rollouts may be missing too.
                Err(error) if error.get_ref().is_some_and(|inner| inner.is::<JournalError>()) => {
                    return Err(error).with_context(unreadable);
                }
                Err(error) => {
                    self.unreadable("a rollout", &error);
                    continue;
                }
            };
            let id = stored.request.id.clone();
            let trajectories = match rollout_server::Trajectories::of(stored) {
                Ok(trajectories) => trajectories,
                Err(NoTrajectory::NotOver(_)) => continue,
                Err(error) => {
                    self.unreadable(id.as_str(), &error);
                    continue;
                }
            };
            let documents = trajectories.documents();
            for (index, entry) in documents.iter().enumerate() {
                document.clear();
                let name = || format!("{} of {id}", entry.file_name());
                match trajectories.write(&documents, index, &mut document) {
                    Ok(()) => self.add(&String::from_utf8_lossy(&document), name)?,
                    Err(error) => self.unreadable(&name(), &error),
                }
            }
        }
        Ok(())
    }

    /// Writes the row of a trajectory.
    fn add(&mut self, document: &str, name: impl FnOnce() -> String) -> Result<(), OutputError> {
        let row = match Row::parse(document) {
            Ok(row) => row,
            Err(wrong) => {
                self.unreadable(&name(), &wrong);
                return Ok(());
            }
        };
        self.counts.found += 1;
        self.bar.inc(1);
        let cells = row.cells();
        if self.condition.as_ref().is_some_and(|condition| !condition.selects(&cells)) {
            self.counts.left_out += 1;
            return Ok(());
        }
        self.counts.rows += 1;
        self.output.push(&row, &cells)
    }

    fn unreadable(&mut self, name: &str, why: &dyn std::error::Error) {
        self.counts.found += 1;
        self.counts.unreadable += 1;
        let message = match self.counts.unreadable.cmp(&(NAMED_MAX + 1)) {
            Ordering::Less => format!("cannot read {name}: {}", printable(&why.to_string())),
            Ordering::Equal => "further unreadable trajectories are only counted".to_owned(),
            Ordering::Greater => return,
        };
        self.bar.suspend(|| errln!("{message}"));
    }
}

impl Counts {
    fn report(&self, out: Option<&Path>) {
        let Self { found, rows, left_out, unreadable } = self;
        let to = out.map_or(String::new(), |path| format!(" to {}", path.display()));
        let left_out = match left_out {
            0 => String::new(),
            count => format!("; --where excluded {count}"),
        };
        let unreadable = match unreadable {
            0 => String::new(),
            count => format!("; {count} cannot be read"),
        };
        let (rows, found) = (counted(*rows, "row", "rows"), counted(*found, "trajectory", "trajectories"));
        errln!("{rows} of {found}{to}{left_out}{unreadable}");
    }
}

fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
