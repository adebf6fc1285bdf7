//! Puts a rollout's files on disk.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Plugins, documents};
use crate::imports::{LogEntry, Recorded, RunContext};
use crate::rollout::RolloutRequest;
use crate::rollout::outcome::Finished;

/// Writes what is to be kept below `<root>/<rollout>/` and gives the path of the
/// trajectory. A failure is the operator's to mend and never changes the outcome.
pub(in crate::rollout) async fn write(
    root: PathBuf,
    request: &RolloutRequest,
    run: &RunContext,
    finished: &Finished,
    recorded: Recorded,
    plugins: &Plugins,
) -> Option<PathBuf> {
    let folder = root.join(finished.id.dir_name());
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, document) in documents(request, run, finished, &recorded, plugins) {
        match serde_json::to_vec_pretty(&document) {
            Ok(text) => files.push((name, text)),
            Err(error) => {
                tracing::error!(%error, "trajectory could not be encoded")
            }
        }
    }
    let main = files.first().map(|(name, _)| folder.join(name));
    let written = tokio::task::spawn_blocking(move || write_all(&folder, files, recorded)).await;
    match written {
        Ok(Ok(())) => main,
        Ok(Err(error)) => {
            tracing::error!(root = %root.display(), %error, "trajectory not written");
            None
        }
        Err(error) => {
            tracing::error!(%error, "trajectory not written");
            None
        }
    }
}

fn write_all(folder: &Path, files: Vec<(String, Vec<u8>)>, recorded: Recorded) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let artifacts = folder.join("artifacts");
    // A rollout of the same id may have run before; its files are not this one's.
    match std::fs::remove_dir_all(&artifacts) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for file in &recorded.artifacts {
        let path = artifacts.join(&file.name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, &file.content)?;
    }
    if !recorded.log.is_empty() || recorded.log_dropped > 0 {
        replace(&folder.join("log.jsonl"), &log_lines(&recorded.log, recorded.log_dropped)?)?;
    }
    // Last, because an evaluator takes its presence as the sign that all is there.
    for (name, text) in files {
        replace(&folder.join(name), &text)?;
    }
    Ok(())
}

/// Writes a file so that a reader sees the old one or all of the new one.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".partial");
    std::fs::write(&temporary, content)?;
    std::fs::rename(temporary, path)
}

fn log_lines(log: &[LogEntry], dropped: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for entry in log {
        serde_json::to_writer(&mut text, entry)?;
        text.push(b'\n');
    }
    if dropped > 0 {
        writeln!(
            text,
            r#"{{"level":"warn","text":"{dropped} more entries were dropped at the log's limit"}}"#
        )?;
    }
    Ok(text)
}
