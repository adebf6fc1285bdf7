//! Writes a rollout's files.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::replace::replace;
use super::{AliveFolder, Job, layout};
use crate::model::{Finished, TrajectoryFile};
use rollout_core::telemetry::Metrics;
use rollout_guest::imports::{LogEntry, Recorded};

/// Writes the rollout's files into its folder and returns the rollout with its trajectories. A failure is logged and counted
/// for the operator and never changes the outcome.
pub(crate) async fn write(folder: AliveFolder, job: Job, finished: Finished, metrics: &Metrics) -> Finished {
    let finished = Arc::new(finished);
    let writing = finished.clone();
    let written = tokio::task::spawn_blocking(move || {
        let written = folder.write(|path| write_all(path, &job, &writing));
        written.map_err(|error| (folder.path(), error))
    });
    let written = written.await;
    // The thread that wrote has dropped its reference, whatever the result.
    let mut finished = Arc::unwrap_or_clone(finished);
    match written {
        Ok(Ok(files)) => {
            finished.trajectories = files;
            return finished;
        }
        Ok(Err((folder, error))) => {
            tracing::error!(folder = %folder.display(), %error, "trajectory not written");
        }
        Err(error) => tracing::error!(%error, "trajectory not written"),
    }
    metrics.trajectory_unwritten();
    finished
}

pub(super) fn write_all(folder: &Path, job: &Job, finished: &Finished) -> io::Result<Vec<TrajectoryFile>> {
    let recorded: &Recorded = &job.recorded;
    let artifacts = folder.join("artifacts");
    let documents = super::documents(job, finished);
    if !is_new(folder)? {
        // The files are those of an earlier rollout with the same id.
        match std::fs::remove_dir_all(&artifacts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_trajectories_but(folder, |name| documents.iter().any(|document| document.file_name == name))?;
    }
    for file in &recorded.artifacts {
        let path = artifacts.join(&file.name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, &file.content)?;
    }
    if !recorded.log.is_empty() || recorded.log_dropped > 0 {
        replace(&folder.join("log.jsonl"), |to| write_log(to, &recorded.log, recorded.log_dropped))?;
    }
    // The trajectories are written last, because an evaluator takes a trajectory as the sign that all files exist.
    let mut files = Vec::with_capacity(documents.len());
    for document in &documents {
        let path = folder.join(&document.file_name);
        let layout =
            replace(&path, |to| layout::write(to, |marks| super::document::Written { document, marks }))?;
        files.push(TrajectoryFile::new(path, document.sample_id().cloned(), layout));
    }
    Ok(files)
}

/// Creates the folder of a rollout unless it exists.
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

/// Removes trajectories of samples that this rollout does not have, and partial files of a process that ended while it
/// wrote them.
fn remove_trajectories_but(folder: &Path, is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_trajectory = name == "trajectory.json" || name.starts_with("trajectory-");
        let is_left =
            name.starts_with("trajectory") && [".partial", ".original"].iter().any(|end| name.ends_with(end));
        if is_left || is_trajectory && name.ends_with(".json") && !is_kept(name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write_log(to: &mut impl Write, log: &[LogEntry], dropped: u64) -> io::Result<()> {
    for entry in log {
        serde_json::to_writer(&mut *to, entry)?;
        to.write_all(b"\n")?;
    }
    if dropped > 0 {
        writeln!(
            to,
            r#"{{"level":"warn","text":"{dropped} more entries were dropped at the log's limit"}}"#
        )?;
    }
    Ok(())
}
