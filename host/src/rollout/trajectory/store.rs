//! Puts a rollout's files on disk.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Document, Plugins, TrajectoryFile, documents};
use crate::imports::{LogEntry, Recorded, RunContext};
use crate::rollout::RolloutRequest;
use crate::rollout::outcome::Finished;

/// Writes what is to be kept below `<root>/<rollout>/` and gives the trajectories. A failure
/// is the operator's to mend and never changes the outcome.
pub(in crate::rollout) async fn write(
    root: PathBuf,
    request: &RolloutRequest,
    run: &RunContext,
    finished: &Finished,
    recorded: Recorded,
    plugins: &Plugins,
) -> Vec<TrajectoryFile> {
    let folder = root.join(finished.id.dir_name());
    let mut written = Vec::new();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for Document { file_name, sample, trajectory } in documents(request, run, finished, &recorded, plugins) {
        match serde_json::to_vec_pretty(&trajectory) {
            Ok(text) => {
                written.push(TrajectoryFile { path: folder.join(&file_name), sample });
                files.push((file_name, text));
            }
            Err(error) => {
                tracing::error!(%error, "trajectory could not be encoded")
            }
        }
    }
    match tokio::task::spawn_blocking(move || write_all(&folder, files, recorded)).await {
        Ok(Ok(())) => written,
        Ok(Err(error)) => {
            tracing::error!(root = %root.display(), %error, "trajectory not written");
            Vec::new()
        }
        Err(error) => {
            tracing::error!(%error, "trajectory not written");
            Vec::new()
        }
    }
}

fn write_all(folder: &Path, files: Vec<(String, Vec<u8>)>, recorded: Recorded) -> io::Result<()> {
    let artifacts = folder.join("artifacts");
    if !is_new(folder)? {
        // A rollout of the same id ran before; its files are not this one's.
        match std::fs::remove_dir_all(&artifacts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_trajectories_but(folder, &files)?;
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

/// Makes the folder of a rollout, if it is not there.
fn is_new(folder: &Path) -> io::Result<bool> {
    match std::fs::create_dir(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(folder).map(|()| true)
        }
        Err(error) => Err(error),
    }
}

/// Removes the trajectories of samples that this rollout does not have.
fn remove_trajectories_but(folder: &Path, files: &[(String, Vec<u8>)]) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_trajectory =
            name == "trajectory.json" || name.starts_with("trajectory-") && name.ends_with(".json");
        if is_trajectory && !files.iter().any(|(kept, _)| kept == name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Writes a file so that a reader sees the old one or all of the new one.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
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
