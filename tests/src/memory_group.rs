//! A control group with little memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A memory control group (version 1 or 2) for one test. It is removed when this is dropped; its processes must have
/// ended by then.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    /// The file with a line `oom_kill N`.
    fn kills_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.oom_control",
            Self::V2 => "memory.events",
        }
    }
}

impl MemoryGroup {
    /// Creates a group with this memory limit. The error has the reason why this machine does not allow it.
    pub fn new(bytes: u64) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rollout-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let places =
            [(Path::new("/sys/fs/cgroup/memory"), Version::V1), (Path::new("/sys/fs/cgroup"), Version::V2)];
        let mut reasons = Vec::new();
        for (place, version) in places {
            let path = place.join(&name);
            let group = match std::fs::create_dir(&path) {
                Ok(()) => Self { path, version },
                Err(error) => {
                    reasons.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            match std::fs::write(group.path.join(version.limit_file()), bytes.to_string()) {
                Ok(()) => return Ok(group),
                Err(error) => reasons.push(format!("{}: {error}", group.path.display())),
            }
        }
        Err(reasons.join("; "))
    }

    /// Returns the file to which a process writes its id to enter the group.
    pub fn processes_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Returns the number of the group's processes that the kernel killed for lack of memory.
    pub fn kills(&self) -> u64 {
        let path = self.path.join(self.version.kills_file());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        kills.unwrap_or_else(|| panic!("{path:?} has no line 'oom_kill N'"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group that still has processes stays, which does not affect a later run.
        let _ = std::fs::remove_dir(&self.path);
    }
}
