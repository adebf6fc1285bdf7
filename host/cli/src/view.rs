//! The command `view`, which shows the results of evaluations in a browser.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use rollout_eval::{LineOutcome, Manifest, ResultLine, Summary, Tally};
use rollout_page::{
    ComparisonPage, EvaluationFigures, EvaluationPage, Frame, Links, NoticePage, PageOfTurns, PassAtK,
    RolloutPage, RolloutSource, RowLine, RowQuery, SentArtifact, Side, SideBySidePage, Template, duration,
    number, reward, whole_text,
};
use rollout_rollout::StoredRollout;
use rollout_server::{Listening, MadePage, PageMaker, pages};
use rollout_transcript::Transcript;
use rollout_wire::id::RolloutId;
use tokio_util::sync::CancellationToken;

use super::print::outln;
use super::progress::Working;
use super::{Exit, journal, setup};

/// Maximum number of browsers' connections.
const CONNECTIONS_MAX: usize = 64;

/// Maximum number of bytes of a prompt, an answer, a label or a reason that are held, and that a search for a text
/// reads.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// The root of the pages of the second evaluation.
const OTHER: &str = "/other";

/// Shows the results of an evaluation in a browser: its rows, rewards and conversations.
///
/// With a second directory, it also compares the two: which rows improved, which got worse, and both
/// conversations of a row. The evaluation may be running; a reload shows its latest results. Conversations are
/// read from the journal beside the results.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host view evals/my_agent-rows-1700000000\n  \
    rollout-host view evals/before evals/after --listen 127.0.0.1:9300")]
pub(super) struct View {
    /// Directory of an evaluation's results.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Directory of another evaluation's results, to compare with.
    #[arg(value_name = "OTHER")]
    other: Option<PathBuf>,
    /// Address of this machine to listen on; port 0 selects a free port. Pages need no key, so other machines
    /// cannot see them.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

impl View {
    pub(crate) fn run(self) -> Result<Exit> {
        if !self.listen.ip().is_loopback() {
            bail!(
                "--listen {} is not an address of this machine only; give one such as 127.0.0.1:0",
                self.listen
            );
        }
        setup::runtime()?.block_on(self.serve())?;
        Ok(Exit::Done)
    }

    /// Creates the command for the results in a directory, on a free port.
    pub(super) fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), other: None, listen: SocketAddr::from(([127, 0, 0, 1], 0)) }
    }

    /// Serves the pages until the program receives a signal to stop.
    pub(super) async fn serve(self) -> Result<()> {
        let open = |dir: &Path, root| Evaluation::open(dir, root);
        let other = self.other.as_deref().map(|dir| open(dir, OTHER)).transpose()?;
        let maker = Arc::new(EvaluationPages { own: open(&self.dir, "")?, other });
        let mut stop = setup::StopSignal::new()?;
        let socket = rollout_server::bind(self.listen);
        let listener = socket.and_then(rollout_server::listen);
        let listener = listener.with_context(|| {
            format!("cannot listen on {}; choose another address with --listen", self.listen)
        })?;
        let address = listener.local_addr().context("cannot determine the address")?;
        let stopped = CancellationToken::new();
        let (listening, router) = (Listening::from(listener), pages(maker));
        let serving = rollout_server::serve(listening, router, CONNECTIONS_MAX, stopped.clone());
        let serving = tokio::spawn(serving);
        outln!("listening on http://{address}/");
        stop.next().await;
        stopped.cancel();
        // The command does not wait for open pages.
        serving.abort();
        Ok(())
    }
}

/// The results of an evaluation on disk.
struct Evaluation {
    dir: PathBuf,
    /// The directory as it was given, for commands.
    shown_dir: String,
    name: String,
    /// The root of its pages.
    root: &'static str,
    manifest: Manifest,
    read: Mutex<Option<Arc<Results>>>,
}

/// The results that were read.
struct Results {
    /// Length of the file.
    bytes: u64,
    lines: Vec<RowLine>,
    figures: EvaluationFigures,
}

impl Evaluation {
    /// Reads the manifest of an evaluation.
    fn open(dir: &Path, root: &'static str) -> Result<Self> {
        let path = dir.join("manifest.json");
        if !dir.is_dir() {
            bail!("there is no directory {}; give the directory of an evaluation's results", dir.display());
        }
        if !path.is_file() {
            bail!(
                "{} has no manifest.json, so it has no results of an evaluation; give the directory that eval printed",
                dir.display()
            );
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let manifest = serde_json::from_slice(&text).with_context(|| {
            format!("cannot parse {}; another version of this program may have written it", path.display())
        })?;
        let full = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let name = full.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let evaluation = Self {
            dir: dir.to_owned(),
            shown_dir: dir.display().to_string(),
            name,
            root,
            manifest,
            read: Mutex::default(),
        };
        let working = Working::on(format!("reading {}", dir.display()));
        evaluation.results()?;
        drop(working);
        Ok(evaluation)
    }

    /// Returns the results. They are read again if the file has grown.
    fn results(&self) -> Result<Arc<Results>> {
        let path = self.dir.join("results.jsonl");
        let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(results) = read.as_ref().filter(|results| results.bytes == bytes) {
            return Ok(results.clone());
        }
        let results = Arc::new(self.read_results(&path, bytes)?);
        *read = Some(results.clone());
        Ok(results)
    }

    /// Reads the results from a file of this many bytes.
    fn read_results(&self, path: &Path, bytes: u64) -> Result<Results> {
        let settings = &self.manifest.settings;
        let attempts = settings.get("n").and_then(serde_json::Value::as_u64).unwrap_or(1);
        let threshold = settings.get("pass_threshold").and_then(serde_json::Value::as_f64).unwrap_or(1.0);
        let mut tally = Tally::new(usize::try_from(attempts).unwrap_or(1), threshold);
        let mut lines = Vec::new();
        let unreadable = || format!("cannot read {}", path.display());
        let file = match fs::File::open(path) {
            Ok(file) => Some(file),
            // No rollout has finished yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(unreadable),
        };
        let mut text = Vec::new();
        let mut reader = file.map(BufReader::new);
        while let Some(reader) = &mut reader {
            text.clear();
            reader.read_until(b'\n', &mut text).with_context(unreadable)?;
            // The last line may be in the middle of being written.
            if text.last() != Some(&b'\n') {
                break;
            }
            let line: ResultLine = serde_json::from_slice(&text).with_context(|| {
                format!(
                    "line {} of {} is not a result; correct or remove it",
                    lines.len() + 1,
                    path.display()
                )
            })?;
            tally.add(&line);
            lines.push(
                row_line(line).with_context(|| format!("line {} of {}", lines.len() + 1, path.display()))?,
            );
        }
        RowLine::add_row_figures(&mut lines);
        let figures = self.figures(&tally.summary());
        Ok(Results { bytes, lines, figures })
    }

    /// Returns the figures of the evaluation for its page.
    fn figures(&self, summary: &Summary) -> EvaluationFigures {
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let setting = |name: &str| self.manifest.settings.get(name).and_then(serde_json::Value::as_str);
        let file =
            |path: &str| Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut about = vec![
            pair("plugin", file(&self.manifest.plugin_file)),
            pair("data", file(&self.manifest.data_file)),
        ];
        about.extend(setting("model").map(|model| pair("model", model.to_owned())));
        let mut figures = Vec::new();
        if let Some(stats) = &summary.reward {
            figures.push(pair("mean reward", reward(stats.mean)));
            figures.extend(stats.standard_error.map(|error| pair("standard error", reward(error))));
        }
        figures.push(pair("rollouts", number(summary.rollouts as u64)));
        figures.push(pair("passed", number(summary.passed as u64)));
        if summary.unscored > 0 {
            figures.push(pair("without reward", number(summary.unscored as u64)));
        }
        figures.push(pair("tokens", number(summary.prompt_tokens + summary.completion_tokens)));
        if let Some(latency) = &summary.latency_ms {
            let time = |millis: f64| duration(Duration::from_secs_f64((millis / 1e3).clamp(0.0, 1e9)));
            figures.push(pair("median time", time(latency.p50)));
            figures.push(pair("90 % within", time(latency.p90)));
        }
        let pass_at_k = summary.pass_at_k.iter().filter_map(|(k, pass)| {
            Some(PassAtK { k: *k, estimate: pass.estimate?, standard_error: pass.standard_error })
        });
        EvaluationFigures {
            about,
            figures,
            pass_threshold: summary.pass_threshold,
            pass_at_k: pass_at_k.collect(),
            unscored: summary.unscored_by_kind.iter().map(|(kind, of)| (kind.clone(), of.rollouts)).collect(),
        }
    }

    fn frame(&self) -> Frame {
        Frame { links: Links { root: self.root, tenant: None }, name: self.name.clone(), ..Frame::default() }
    }

    /// Reads a rollout from the journal beside the results, if there is one.
    fn recorded(&self, id: &RolloutId) -> Result<Option<(StoredRollout, Transcript)>> {
        let dir = self.dir.join(journal::EVALUATION_DIR);
        if !dir.is_dir() {
            return Ok(None);
        }
        let unreadable = || format!("cannot read the journal {}", dir.display());
        let Some(stored) = StoredRollout::find(&dir, id).with_context(unreadable)? else { return Ok(None) };
        let transcript = Transcript::read(&stored.workflow, &stored.grader).map_err(anyhow::Error::msg)?;
        Ok(Some((stored, transcript)))
    }

    /// Renders the page of a rollout, with the conversation if the journal has it.
    fn rollout_page(&self, line: &RowLine, query: &Query) -> Result<String> {
        let number = |name: &str| query.get(name).and_then(|value| value.parse().ok());
        let (turns, log) = (PageOfTurns { number: number("page").unwrap_or(1) }, number("log").unwrap_or(1));
        let recorded = self.recorded(&line.id)?;
        let nothing = Transcript::default();
        let stored = recorded.as_ref().map(|(stored, _)| stored);
        let finished = stored.and_then(|stored| stored.outcome.as_deref());
        let time = Duration::from_secs_f64((line.duration_ms / 1e3).clamp(0.0, 1e9));
        let artifacts = stored.map(StoredRollout::artifacts).unwrap_or_default().iter();
        let source = RolloutSource {
            id: &line.id,
            plugin: None,
            phase: None,
            admitted_at: stored.map_or(std::time::UNIX_EPOCH, |stored| stored.admitted_at),
            time,
            workflow_started_at: stored.and_then(|stored| stored.workflow_started_at),
            grader_started_at: stored.and_then(|stored| stored.grader_started_at),
            transcript: recorded.as_ref().map_or(&nothing, |(_, transcript)| transcript),
            outcome: finished.map(|finished| &finished.outcome),
            finished,
            fork: None,
            group: None,
            family: Vec::new(),
            log: stored.map(StoredRollout::log).unwrap_or_default(),
            log_dropped: stored.map_or(0, StoredRollout::log_dropped),
            artifacts: artifacts.map(|artifact| (&*artifact.name, &*artifact.content)).collect(),
            journal: Some(&self.shown_dir),
            caveat: recorded.is_none().then(|| {
                let outcome = line.reward.map_or_else(
                    || format!("It has no reward: {}", line.reason),
                    |value| format!("Its reward is {}", reward(value)),
                );
                format!(
                    "{outcome}. Its conversation is not in a journal: the evaluation ran with --journal off, or the \
                     directory was copied without its journal."
                )
            }),
        };
        Ok(RolloutPage::new(self.frame(), &source, turns, log).render()?)
    }
}

/// Returns the parts of a line that pages show.
fn row_line(line: ResultLine) -> Result<RowLine> {
    let text = |text: Option<String>| {
        let mut text = text.unwrap_or_default();
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.shrink_to_fit();
        text
    };
    let is_scored = line.outcome == LineOutcome::Scored;
    Ok(RowLine {
        row: line.row,
        run: line.run,
        id: RolloutId::parse(line.rollout_id)?,
        reward: line.reward.filter(|_| is_scored),
        kind: line.kind.unwrap_or_else(|| if is_scored { String::new() } else { "unknown".to_owned() }),
        fault: line.fault.unwrap_or_default(),
        reason: text(line.reason),
        prompt: text(line.prompt),
        answer: text(line.answer),
        label: text(line.label),
        chat_calls: line.chat_calls,
        tokens: line.prompt_tokens + line.completion_tokens,
        duration_ms: line.duration_ms,
        row_mean: None,
        row_spread: 0.0,
    })
}

/// The query of an address.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: &str) -> Self {
        let url = reqwest::Url::parse(&format!("http://localhost/?{query}")).ok();
        let pairs = url.iter().flat_map(reqwest::Url::query_pairs);
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.get(name)?.parse().ok()
    }
}

/// The pages of one or two evaluations.
struct EvaluationPages {
    own: Evaluation,
    other: Option<Evaluation>,
}

impl PageMaker for EvaluationPages {
    fn page(&self, path: &str, query: &str) -> MadePage {
        let query = Query::parse(query);
        let (evaluation, path) = match (&self.other, path.strip_prefix(OTHER)) {
            (Some(other), Some(rest)) if rest.starts_with('/') => (other, rest),
            _ => (&self.own, path),
        };
        let made = self.made(evaluation, path, &query);
        made.unwrap_or_else(|error| {
            let reason = format!("{error:#}");
            tracing::error!(%reason, path, "a page cannot be rendered");
            let advice = "Correct the files, and reload the page.".to_owned();
            notice(evaluation, "The results cannot be read", reason, advice)
        })
    }
}

fn notice(evaluation: &Evaluation, title: &str, reason: String, advice: String) -> MadePage {
    let page = NoticePage { frame: evaluation.frame(), title: title.to_owned(), reason, advice };
    MadePage::Missing(page.render().unwrap_or_default())
}

impl EvaluationPages {
    /// Makes the page of an evaluation at a path below its root.
    fn made(&self, evaluation: &Evaluation, path: &str, query: &Query) -> Result<MadePage> {
        let segments: Vec<String> = path.trim_matches('/').split('/').map(decoded).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let html = |text: String| Ok(MadePage::Html(text));
        match segments[..] {
            [""] => html(self.evaluation_page(evaluation, query)?),
            ["rollouts", id] => {
                let results = evaluation.results()?;
                match results.lines.iter().find(|line| line.id.as_str() == id) {
                    Some(line) => html(evaluation.rollout_page(line, query)?),
                    None => {
                        Ok(missing(evaluation, &format!("There is no rollout '{id}' in this evaluation.")))
                    }
                }
            }
            ["rollouts", id, "text"] => {
                let (turn, message) =
                    (query.number("turn").unwrap_or(0), query.number("message").unwrap_or(0));
                let recorded = RolloutId::parse(id).ok().map(|id| evaluation.recorded(&id)).transpose()?;
                let text =
                    recorded.flatten().and_then(|(_, transcript)| whole_text(&transcript, turn, message));
                Ok(text.map_or_else(
                    || missing(evaluation, &format!("There is no recorded text at turn {turn} of '{id}'.")),
                    MadePage::Text,
                ))
            }
            ["rollouts", id, "artifact"] => {
                let (id, name) = (decoded(id), query.get("name").unwrap_or_default());
                let recorded = RolloutId::parse(&*id).ok().map(|id| evaluation.recorded(&id)).transpose()?;
                let recorded = recorded.flatten();
                let artifacts = recorded.as_ref().map(|(stored, _)| stored.artifacts()).unwrap_or_default();
                let found = artifacts.iter().find(|artifact| artifact.name == name);
                Ok(found.map_or_else(
                    || missing(evaluation, &format!("There is no artifact '{name}' of '{id}'.")),
                    |artifact| MadePage::Artifact(SentArtifact::new(name, &artifact.content)),
                ))
            }
            ["compare"] => match &self.other {
                Some(other) => html(self.comparison_page(other, query)?),
                None => {
                    Ok(missing(evaluation, "There is one evaluation only; 'view DIR OTHER' compares two."))
                }
            },
            ["compare", row] => match (&self.other, row.parse()) {
                (Some(other), Ok(row)) => html(self.side_by_side_page(other, row)?),
                _ => Ok(missing(evaluation, &format!("There is no row '{row}' in two evaluations."))),
            },
            _ => Ok(missing(evaluation, &format!("There is no page at {path}."))),
        }
    }

    fn evaluation_page(&self, evaluation: &Evaluation, query: &Query) -> Result<String> {
        let results = evaluation.results()?;
        let rows = RowQuery::read(query.0.iter().map(|(name, value)| (&**name, &**value)));
        let compare = self.other.as_ref().map(|_| "/compare".to_owned());
        Ok(EvaluationPage::new(evaluation.frame(), &results.figures, &results.lines, rows, compare)
            .render()?)
    }

    fn comparison_page(&self, other: &Evaluation, query: &Query) -> Result<String> {
        let (own, others) = (self.own.results()?, other.results()?);
        let (show, page) = (query.get("show").unwrap_or_default(), query.number("page").unwrap_or(1));
        let names = [&*self.own.name, &*other.name];
        Ok(ComparisonPage::new(self.own.frame(), names, [&own.lines, &others.lines], show, page).render()?)
    }

    fn side_by_side_page(&self, other: &Evaluation, row: usize) -> Result<String> {
        let mut sides = Vec::new();
        for (evaluation, anchor) in [(&self.own, "first-turn"), (other, "second-turn")] {
            let results = evaluation.results()?;
            let Some(line) = results.lines.iter().find(|line| line.row == row) else { continue };
            let recorded = evaluation.recorded(&line.id)?;
            let recorded = recorded.as_ref().map(|(stored, transcript)| {
                (
                    transcript,
                    stored.outcome.as_ref().map(|finished| &finished.samples[..]).unwrap_or_default(),
                )
            });
            let link = evaluation.frame().links.rollout(&line.id);
            sides.push(Side::new(&evaluation.name, anchor, line, link, recorded));
        }
        Ok(SideBySidePage { frame: self.own.frame(), row, sides }.render()?)
    }
}

fn missing(evaluation: &Evaluation, reason: &str) -> MadePage {
    let advice = "Check the address, or look for it on the first page.".to_owned();
    notice(evaluation, "No such page", rollout_page::visible(reason), advice)
}

/// Returns a segment of a path without its encoding.
fn decoded(segment: &str) -> String {
    // In a query, a plus would be a space.
    Query::parse(&format!("segment={}", segment.replace('+', "%2B").replace('&', "%26")))
        .get("segment")
        .unwrap_or_default()
        .to_owned()
}
