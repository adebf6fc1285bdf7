//! Memory limits of the control groups that this process is in, of versions 1 and 2.
//!
//! A limit applies to a group and all groups below it, so the smallest one up the tree counts. Version 2 has one tree;
//! version 1 has one for each controller, and a machine may have both at once.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that a control group allows this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupMemory {
    /// Bytes free below the limit. Pages of files that the kernel may drop count as free.
    pub free_bytes: u64,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// The file that contains the limit.
    pub limit_file: PathBuf,
}

/// Names of files in a version of control groups.
struct Version {
    /// The kernel's name of the file system.
    file_system: &'static str,
    /// Files that contain a limit each.
    limits: &'static [&'static str],
    /// The file that contains the bytes in use.
    used: &'static str,
    /// The line of `memory.stat` that counts file pages not used lately, of the group and those below.
    droppable: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        file_system: "cgroup2",
        limits: &["memory.max", "memory.high"],
        used: "memory.current",
        droppable: "inactive_file",
    },
    Version {
        file_system: "cgroup",
        limits: &["memory.limit_in_bytes"],
        used: "memory.usage_in_bytes",
        droppable: "total_inactive_file",
    },
];

/// Returns the group that leaves this process the least memory, if any group limits it.
pub(super) fn tightest() -> Option<GroupMemory> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    tightest_in(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

fn tightest_in(groups: &str, mounts: &str) -> Option<GroupMemory> {
    let limits = VERSIONS.iter().flat_map(|version| {
        let group = own_group(groups, version);
        let trees = mounts.lines().filter_map(|line| mount(line, version));
        trees.flat_map(move |(root, point)| up_the_tree(version, group.unwrap_or("/"), &root, &point))
    });
    limits.min_by_key(|limit| limit.free_bytes)
}

/// Finds the path of the process's group in `/proc/self/cgroup`, whose lines are `ID:CONTROLLERS:PATH`.
fn own_group<'a>(groups: &'a str, version: &Version) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_match = match version.file_system {
            "cgroup2" => controllers.is_empty(),
            _ => controllers.split(',').any(|controller| controller == "memory"),
        };
        is_match.then_some(path)
    })
}

/// Parses a line of `/proc/self/mountinfo`. Returns the mounted group and its mount point.
fn mount(line: &str, version: &Version) -> Option<(PathBuf, PathBuf)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    let is_match = file_system.next()? == version.file_system
        && (version.file_system == "cgroup2"
            || file_system.nth(1)?.split(',').any(|option| option == "memory"));
    is_match.then(|| (root.into(), point.into()))
}

/// Returns the memory of each limited group from `group` up to the mounted one. A container sees its own group as the
/// mounted one, with a path of the machine's or with none.
fn up_the_tree(version: &Version, group: &str, root: &Path, point: &Path) -> Vec<GroupMemory> {
    let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
    let below = if below.components().any(|part| part.as_os_str() == "..") { Path::new("") } else { below };
    below.ancestors().filter_map(|part| limit_of(version, &point.join(part))).collect()
}

fn limit_of(version: &Version, dir: &Path) -> Option<GroupMemory> {
    let limits = version.limits.iter().map(|name| dir.join(name));
    let limits = limits.filter_map(|file| Some((number_in(&file)?, file)));
    let (limit_bytes, limit_file) = limits.min_by_key(|(bytes, _)| *bytes)?;
    let used = number_in(&dir.join(version.used))?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let droppable = stat.lines().find_map(|line| line.strip_prefix(version.droppable)?.trim().parse().ok());
    let used = used.saturating_sub(droppable.unwrap_or(0));
    Some(GroupMemory { free_bytes: limit_bytes.saturating_sub(used), limit_bytes, limit_file })
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the files of a group.
    fn group(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    /// Checks the group found for these contents of `/proc/self/cgroup`, with the tree mounted at `dir`.
    fn check(dir: &Path, file_system: &str, groups: &str, expected: Option<(u64, u64, &str)>) {
        let root = if groups.contains("/docker/") { "/docker/abc" } else { "/" };
        let mounts = format!(
            "22 1 0:21 / /proc rw - proc proc rw\n35 31 0:32 {root} {} rw,relatime - {file_system}\n",
            dir.display()
        );
        let found = tightest_in(groups, &mounts);
        let found = found.map(|found| (found.free_bytes, found.limit_bytes, found.limit_file));
        assert_eq!(found, expected.map(|(free, limit, file)| (free, limit, dir.join(file))), "{groups}");
    }

    #[test]
    fn the_smallest_limit_up_the_tree_binds_in_version_2() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        group(&dir.join("a"), &[("memory.max", "1000\n"), ("memory.current", "900\n"), ("memory.stat", "")]);
        let stat = "anon 1\ninactive_file 300\n";
        group(&dir.join("a/b"), &[("memory.max", "5000"), ("memory.current", "400"), ("memory.stat", stat)]);
        group(&dir.join("c"), &[("memory.max", "max"), ("memory.high", "700"), ("memory.current", "100")]);
        group(&dir.join("d"), &[("memory.max", "max"), ("memory.high", "max"), ("memory.current", "100")]);
        check(dir, "cgroup2 none rw", "0::/a/b\n", Some((100, 1000, "a/memory.max")));
        check(dir, "cgroup2 none rw", "0::/c\n", Some((600, 700, "c/memory.high")));
        check(dir, "cgroup2 none rw", "0::/d\n", None);
        fs::write(dir.join("a/b/memory.max"), "160").unwrap();
        check(dir, "cgroup2 none rw", "0::/a/b\n", Some((60, 160, "a/b/memory.max")));
    }

    #[test]
    fn version_1_is_read_in_its_own_tree() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let unlimited = [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "5")];
        group(dir, &unlimited);
        let stat = "inactive_file 1\ntotal_inactive_file 50\n";
        let files =
            [("memory.limit_in_bytes", "2000\n"), ("memory.usage_in_bytes", "500\n"), ("memory.stat", stat)];
        group(&dir.join("pods"), &files);
        group(&dir.join("pods/one"), &unlimited);
        let groups = "5:cpu,cpuacct:/\n4:memory:/pods/one\n0::/\n";
        check(dir, "cgroup cgroup rw,memory", groups, Some((1550, 2000, "pods/memory.limit_in_bytes")));
        check(dir, "cgroup cgroup rw,cpu", groups, None);
    }

    #[test]
    fn a_container_sees_its_group_as_the_mounted_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        group(dir, &[("memory.limit_in_bytes", "2000"), ("memory.usage_in_bytes", "500")]);
        let expected = Some((1500, 2000, "memory.limit_in_bytes"));
        check(dir, "cgroup cgroup rw,memory", "4:memory:/docker/abc\n", expected);
        check(dir, "cgroup cgroup rw,memory", "4:memory:/docker/abc/..\n", expected);
        check(dir, "cgroup cgroup rw,memory", "4:memory:/../elsewhere\n", expected);
    }
}
