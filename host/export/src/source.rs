//! Lists the trajectories in a folder: the results of `eval`, an artifact root, or the folder of one rollout.

use std::fs::{DirEntry, ReadDir};
use std::io;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

/// Folder of the rollouts in the results of `eval`.
pub const ROLLOUTS: &str = "rollouts";

/// Error of reading a folder or a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct ReadError {
    /// The folder or file.
    pub path: PathBuf,
    /// Error of the operating system.
    #[source]
    pub source: io::Error,
}

/// Iterator over the paths of the trajectories in a folder.
///
/// Rollouts are in the order in which the system lists them, the trajectories of a rollout in the order of
/// their names. Only the paths of one rollout are in memory.
pub struct TrajectoryFiles {
    folders: Option<ReadDir>,
    root: PathBuf,
    files: IntoIter<PathBuf>,
}

impl TrajectoryFiles {
    /// Lists the trajectories in a folder. Artifacts of a rollout are never taken for trajectories.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub fn find(folder: &Path) -> Result<Self, ReadError> {
        let own = in_folder(folder)?;
        let evaluated = folder.join(ROLLOUTS);
        let is_results = folder.join("manifest.json").is_file() && evaluated.is_dir();
        let root = if is_results { evaluated } else { folder.to_owned() };
        // A folder that contains trajectories belongs to one rollout.
        let folders = if own.is_empty() { Some(list(&root)?) } else { None };
        Ok(Self { folders, root, files: own.into_iter() })
    }

    fn next_folder(&mut self) -> Option<Result<PathBuf, ReadError>> {
        loop {
            let entry = match self.folders.as_mut()?.next()? {
                Ok(entry) => entry,
                Err(source) => {
                    // Listing may fail forever after an error.
                    self.folders = None;
                    return Some(Err(ReadError { path: self.root.clone(), source }));
                }
            };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                return Some(Ok(entry.path()));
            }
        }
    }
}

impl Iterator for TrajectoryFiles {
    type Item = Result<PathBuf, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(file) = self.files.next() {
                return Some(Ok(file));
            }
            match self.next_folder()?.and_then(|folder| in_folder(&folder)) {
                Ok(files) => self.files = files.into_iter(),
                Err(failed) => return Some(Err(failed)),
            }
        }
    }
}

/// Reads a trajectory.
///
/// # Errors
///
/// The file cannot be read or is not UTF-8.
pub fn read(path: &Path) -> Result<String, ReadError> {
    std::fs::read_to_string(path).map_err(|source| ReadError { path: path.to_owned(), source })
}

fn list(folder: &Path) -> Result<ReadDir, ReadError> {
    std::fs::read_dir(folder).map_err(|source| ReadError { path: folder.to_owned(), source })
}

/// Lists the trajectories directly in a folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let is_trajectory = |entry: &DirEntry| {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| {
            name == "trajectory.json" || (name.starts_with("trajectory-") && name.ends_with(".json"))
        });
        is_named && entry.file_type().is_ok_and(|kind| kind.is_file())
    };
    let mut files = Vec::new();
    for entry in list(folder)? {
        let entry = entry.map_err(|source| ReadError { path: folder.to_owned(), source })?;
        if is_trajectory(&entry) {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let found = TrajectoryFiles::find(folder).unwrap().map(Result::unwrap);
        let mut names: Vec<String> =
            found.map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn trajectories_are_found_and_artifacts_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}").unwrap();
        };
        put("r1/trajectory.json");
        put("r1/trajectory.json.partial");
        put("r1/artifacts/trajectory.json");
        put("r1/artifacts/deep/trajectory-a.json");
        put("r2/trajectory-b.json");
        put("r2/trajectory-a.json");
        put("r2/log.jsonl");
        put("artifacts/trajectory.json");
        let of_root = [
            "artifacts/trajectory.json",
            "r1/trajectory.json",
            "r2/trajectory-a.json",
            "r2/trajectory-b.json",
        ];
        assert_eq!(names(dir.path()), of_root, "a rollout may be called artifacts");
        assert_eq!(names(&dir.path().join("r1")), ["trajectory.json"]);

        put("out/manifest.json");
        put("out/rollouts/row-00000-run-0/trajectory.json");
        put("out/else/trajectory.json");
        assert_eq!(names(&dir.path().join("out")), ["rollouts/row-00000-run-0/trajectory.json"]);
        assert_eq!(
            TrajectoryFiles::find(&dir.path().join("none")).err().unwrap().path,
            dir.path().join("none")
        );
    }
}
