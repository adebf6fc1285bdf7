//! The trajectories of a folder, one after the other: what `eval` left, an artifact root, or one rollout's folder.

use std::fs::{DirEntry, ReadDir};
use std::io;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

/// Where `eval` has its rollouts, below its results.
pub const ROLLOUTS: &str = "rollouts";

/// A folder or a file that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct Failed {
    /// Which one.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: io::Error,
}

/// The paths of a folder's trajectories, in the order in which the system lists rollouts; those of one rollout in the
/// order of their names. However many there are, only one rollout's are held.
pub struct Trajectories {
    folders: Option<ReadDir>,
    root: PathBuf,
    files: IntoIter<PathBuf>,
}

impl Trajectories {
    /// Those below a folder. What a rollout itself wrote, its artifacts, is never taken for a trajectory.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub fn below(folder: &Path) -> Result<Self, Failed> {
        let own = in_folder(folder)?;
        let evaluated = folder.join(ROLLOUTS);
        let is_results = folder.join("manifest.json").is_file() && evaluated.is_dir();
        let root = if is_results { evaluated } else { folder.to_owned() };
        // The folder of one rollout has nothing but that rollout.
        let folders = if own.is_empty() { Some(list(&root)?) } else { None };
        Ok(Self { folders, root, files: own.into_iter() })
    }

    fn next_folder(&mut self) -> Option<Result<PathBuf, Failed>> {
        loop {
            let entry = match self.folders.as_mut()?.next()? {
                Ok(entry) => entry,
                Err(source) => {
                    // A list that fails once may fail for ever.
                    self.folders = None;
                    return Some(Err(Failed { path: self.root.clone(), source }));
                }
            };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                return Some(Ok(entry.path()));
            }
        }
    }
}

impl Iterator for Trajectories {
    type Item = Result<PathBuf, Failed>;

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
/// It cannot be read, or is no text.
pub fn read(path: &Path) -> Result<String, Failed> {
    std::fs::read_to_string(path).map_err(|source| Failed { path: path.to_owned(), source })
}

fn list(folder: &Path) -> Result<ReadDir, Failed> {
    std::fs::read_dir(folder).map_err(|source| Failed { path: folder.to_owned(), source })
}

/// The trajectories that are in a folder itself.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failed> {
    let is_trajectory = |entry: &DirEntry| {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| {
            name == "trajectory.json" || (name.starts_with("trajectory-") && name.ends_with(".json"))
        });
        is_named && entry.file_type().is_ok_and(|kind| kind.is_file())
    };
    let mut files = Vec::new();
    for entry in list(folder)? {
        let entry = entry.map_err(|source| Failed { path: folder.to_owned(), source })?;
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
        let found = Trajectories::below(folder).unwrap().map(Result::unwrap);
        let mut names: Vec<String> =
            found.map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn trajectories_are_found_and_nothing_that_a_rollout_wrote_itself() {
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
            Trajectories::below(&dir.path().join("none")).err().unwrap().path,
            dir.path().join("none")
        );
    }
}
