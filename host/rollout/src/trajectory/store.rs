//! Writes a rollout's files.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::replace::replace;
use super::{AliveFolder, Job, WrittenFolder, layout};
use crate::model::{Finished, TrajectoryFile};
use rollout_core::telemetry::Metrics;
use rollout_guest::imports::{LogEntry, Recorded};

/// Writes the rollout's files into its folder and returns the rollout with its trajectories. A failure is logged and counted
/// for the operator and never changes the outcome.
pub(crate) async fn write(folder: AliveFolder, job: Job, finished: Finished, metrics: &Metrics) -> Finished {
    let finished = Arc::new(finished);
    let writing = finished.clone();
    let written = tokio::task::spawn_blocking(move || {
        let written = folder.write(|to| write_all(to, &job, &writing));
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

pub(super) fn write_all(
    to: &WrittenFolder,
    job: &Job,
    finished: &Finished,
) -> io::Result<Vec<TrajectoryFile>> {
    let recorded: &Recorded = &job.recorded;
    let folder = &*to.path;
    let artifacts = folder.join("artifacts");
    let documents = super::documents(job, finished);
    if !to.is_new {
        match std::fs::remove_dir_all(&artifacts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_trajectories_but(folder, |name| documents.iter().any(|document| document.file_name == name))?;
    }
    for file in &recorded.artifacts {
        to.has_uncounted();
        let path = artifacts.join(&file.name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, &file.content)?;
    }
    if !recorded.log.is_empty() || recorded.log_dropped > 0 {
        let path = folder.join("log.jsonl");
        replace(&path, |log| write_log(log, &recorded.log, recorded.log_dropped))?;
        to.count(&path)?;
    }
    // The trajectories are written last, because an evaluator takes a trajectory as the sign that all files exist.
    let mut files = Vec::with_capacity(documents.len());
    for document in &documents {
        let path = folder.join(&document.file_name);
        let layout =
            replace(&path, |file| layout::write(file, |marks| super::document::Written { document, marks }))?;
        to.count(&path)?;
        files.push(TrajectoryFile::new(path, document.sample_id().cloned(), layout));
    }
    Ok(files)
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
