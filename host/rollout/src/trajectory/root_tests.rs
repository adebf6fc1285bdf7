use super::*;

/// Content of a rollout's file.
const FILE_BYTES: usize = 100_000;

fn id(name: &str) -> RolloutId {
    RolloutId::parse(name).unwrap()
}

fn rollout(root: &Arc<ArtifactRoot>, name: &str) {
    let alive = root.alive(&id(name));
    let written = alive.write(|folder| {
        folder.has_uncounted();
        fs::create_dir_all(folder.path.join("artifacts"))?;
        fs::write(folder.path.join("artifacts/a"), "artifact")?;
        trajectory(folder)
    });
    written.unwrap();
}

/// Writes and counts a trajectory.
fn trajectory(folder: &WrittenFolder) -> io::Result<()> {
    let path = folder.path.join("trajectory.json");
    fs::write(&path, vec![b'x'; FILE_BYTES])?;
    folder.count(&path)
}

/// Creates the folder of a rollout that another process wrote some seconds ago.
fn left(dir: &Path, name: &str, file: &str, age_secs: u64) {
    let folder = dir.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(file), vec![b'x'; FILE_BYTES]).unwrap();
    let written_at = now() - Duration::from_secs(age_secs);
    fs::File::open(&folder).unwrap().set_modified(written_at).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = all.filter(|name| name != REMOVING).collect();
    names.sort();
    names
}

fn bounds(rollouts: u64, age_secs: Option<u64>) -> ArtifactBounds {
    let bytes_max = Some(rollouts * (FILE_BYTES as u64 + 30_000));
    ArtifactBounds { bytes_max, age_max: age_secs.map(Duration::from_secs) }
}

#[test]
fn the_oldest_folders_are_removed_when_the_size_exceeds_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    for (name, age) in [("c", 30), ("a", 50), ("b", 40)] {
        left(dir.path(), name, "trajectory.json", age);
    }
    let root = ArtifactRoot::new(dir.path().to_owned(), bounds(3, None));
    root.walk();
    assert_eq!(root.enforce_limits(), 0);
    rollout(&root, "d");
    rollout(&root, "e");
    assert_eq!(root.enforce_limits(), 2);
    assert_eq!(names(dir.path()), ["c", "d", "e"]);
    assert_eq!(
        root.lock().bytes,
        names(dir.path()).iter().map(|name| bytes_of(&dir.path().join(name))).sum::<u64>()
    );
    assert_eq!(fs::read_dir(dir.path().join(REMOVING)).unwrap().count(), 0);
}

#[test]
fn folders_of_rollouts_that_are_too_old_are_removed_and_other_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    left(dir.path(), "old", "trajectory-s.json", 100);
    left(dir.path(), "older", "log.jsonl", 200);
    left(dir.path(), "young", "trajectory.json", 10);
    left(dir.path(), "thesis", "chapter.tex", 1000);
    left(dir.path(), ".journal", "segment", 1000);
    fs::write(dir.path().join("notes"), "mine").unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
    let root =
        ArtifactRoot::new(dir.path().to_owned(), ArtifactBounds { bytes_max: None, ..bounds(1, Some(60)) });
    root.walk();
    assert_eq!(root.enforce_limits(), 2);
    assert_eq!(names(dir.path()), [".journal", "link", "notes", "thesis", "young"]);
    // Even a root without room removes only the folders of rollouts.
    let root = ArtifactRoot::new(dir.path().to_owned(), bounds(0, None));
    root.walk();
    assert_eq!(root.enforce_limits(), 1);
    assert_eq!(names(dir.path()), [".journal", "link", "notes", "thesis"]);
}

#[test]
fn the_folder_of_a_live_rollout_stays() {
    let dir = tempfile::tempdir().unwrap();
    left(dir.path(), "a", "trajectory.json", 50);
    left(dir.path(), "b", "trajectory.json", 40);
    let root = ArtifactRoot::new(dir.path().to_owned(), bounds(0, None));
    root.walk();
    let alive = root.alive(&id("a"));
    assert_eq!(root.enforce_limits(), 1);
    assert_eq!(names(dir.path()), ["a"]);
    drop(alive);
    assert_eq!(root.enforce_limits(), 1);
    assert_eq!(root.lock().bytes, 0);
}

#[test]
fn rollouts_with_the_same_id_are_counted_once_and_have_the_age_of_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    left(dir.path(), "a", "trajectory.json", 50);
    let root = ArtifactRoot::new(dir.path().to_owned(), bounds(2, None));
    root.walk();
    rollout(&root, "b");
    rollout(&root, "a");
    assert_eq!(root.enforce_limits(), 0);
    rollout(&root, "c");
    root.enforce_limits();
    assert_eq!(names(dir.path()).len(), 2);
    assert!(names(dir.path()).contains(&"c".to_owned()));
}

#[test]
fn limits_that_are_set_later_apply_to_existing_folders() {
    let dir = tempfile::tempdir().unwrap();
    left(dir.path(), "a", "trajectory.json", 50);
    let root = ArtifactRoot::new(dir.path().to_owned(), ArtifactBounds::default());
    rollout(&root, "b");
    let alive = root.alive(&id("c"));
    alive.write(trajectory).unwrap();
    assert_eq!(root.lock().bytes, bytes_of(&dir.path().join("b")) + bytes_of(&dir.path().join("c")));
    alive.write(trajectory).unwrap();
    let of = |name: &str| i64::try_from(bytes_of(&dir.path().join(name))).unwrap();
    let (written, of_b) = (of("b") + of("c"), of("b"));
    assert_eq!(root.change_bytes(), written, "folders of an earlier process are not counted as growth");
    assert!(!root.lock().needs_walk());

    // Without a runtime nothing is removed in the background.
    root.set_bytes_max(bounds(1, None).bytes_max);
    root.walk();

    assert_eq!(root.enforce_limits(), 2);
    assert_eq!(names(dir.path()), ["c"], "the folder of a live rollout is counted, and stays");
    assert_eq!(i64::try_from(root.lock().bytes).unwrap(), of("c"));
    assert!(root.change_bytes() < written - of_b, "removals are counted");
    drop(alive);
    root.set_bytes_max(Some(0));
    assert_eq!(root.enforce_limits(), 1);
    assert_eq!(root.lock().bytes, 0);
}

#[test]
fn a_failed_write_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = ArtifactRoot::new(dir.path().to_owned(), bounds(2, None));
    let alive = root.alive(&id("a"));
    let written = alive.write(|folder| {
        fs::write(folder.path.join("log.jsonl"), "half")?;
        Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull))
    });
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(names(dir.path()).is_empty());
    assert_eq!(root.lock().bytes, 0);
}

#[test]
fn folders_are_listed_again_if_there_are_more_than_are_known() {
    let dir = tempfile::tempdir().unwrap();
    for (name, age) in [("a", 50), ("b", 40), ("c", 30)] {
        left(dir.path(), name, "trajectory.json", age);
    }
    let root = ArtifactRoot::new(dir.path().to_owned(), bounds(1, None));
    root.walk();
    // Forgets two names, as if there had been room for only one.
    {
        let mut state = root.lock();
        state.known.pop_last();
        state.known.pop_last();
        state.has_others = true;
    }
    assert!(!root.lock().needs_walk());
    assert_eq!(root.enforce_limits(), 1);
    assert!(root.lock().needs_walk());
    root.walk();
    assert_eq!(root.enforce_limits(), 1);
    assert_eq!(names(dir.path()), ["c"]);
}
