//! Readings from `/proc`: CPU time, memory, mappings and descriptors of a process, and the process that
//! listens on a port.
//!
//! The parsers take text and are tested on text. This module only reads.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Error of reading the figures of a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcError {
    /// The system has no `/proc` of Linux.
    #[error("CPU and memory of a process can be read on Linux only; measure by URL, without a pid")]
    NotLinux,
    /// A file is missing or cannot be read.
    #[error("cannot read {path}; the process may have ended or belong to another user")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file lacks a value.
    #[error("{path} does not contain {what}")]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The missing value.
        what: &'static str,
    },
}

/// Memory and descriptors of a process at one moment, or the maximum of several moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Footprint {
    /// Resident memory, in KiB.
    pub(super) rss_kib: u64,
    /// Peak resident memory since the process started, in KiB.
    pub(super) rss_peak_kib: u64,
    /// Proportional memory, in KiB: a page that is mapped many times counts once. `None` if the kernel does not report
    /// it.
    pub(super) pss_kib: Option<u64>,
    pub(super) mappings: u64,
    pub(super) fds: u64,
}

impl Footprint {
    pub(super) fn read(pid: u32) -> Result<Self, ProcError> {
        let path = file(pid, "status")?;
        let status = read(&path)?;
        let kib = |name, what| status_kib(&status, name).ok_or(unexpected(&path, what));
        let maps = file(pid, "maps")?;
        let fds = file(pid, "fd")?;
        let rollup = file(pid, "smaps_rollup")?;
        Ok(Self {
            rss_kib: kib("VmRSS", "VmRSS")?,
            rss_peak_kib: kib("VmHWM", "VmHWM")?,
            pss_kib: fs::read_to_string(rollup).ok().and_then(|rollup| status_kib(&rollup, "Pss")),
            mappings: count_lines(&read(&maps)?),
            fds: fs::read_dir(&fds).map_err(|source| ProcError::Read { path: fds, source })?.count() as u64,
        })
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            rss_kib: self.rss_kib.max(other.rss_kib),
            rss_peak_kib: self.rss_peak_kib.max(other.rss_peak_kib),
            pss_kib: self.pss_kib.max(other.pss_kib),
            mappings: self.mappings.max(other.mappings),
            fds: self.fds.max(other.fds),
        }
    }
}

/// Returns the CPU time of a process in seconds: user and system time of all threads, including ended ones. Child
/// processes are not included. The kernel counts in ticks, usually of 10 ms.
pub(super) fn cpu_secs(pid: u32) -> Result<f64, ProcError> {
    let path = file(pid, "stat")?;
    let stat = Stat::parse(&read(&path)?).ok_or(unexpected(&path, "utime and stime"))?;
    Ok(stat.cpu_ticks as f64 / ticks_per_sec())
}

/// Returns the process that listens on a TCP port of this machine. Among several, prefers one in the process
/// group `group`, then the lowest process ID.
pub(super) fn listener_on(port: u16, group: u32) -> Result<Option<u32>, ProcError> {
    let mut sockets = HashSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // Without IPv6 the second table is missing.
        sockets.extend(listening_inodes(&fs::read_to_string(table).unwrap_or_default(), port));
    }
    let holders = pids()?.filter(|&pid| holds_any(pid, &sockets));
    Ok(holders.min_by_key(|&pid| (stat_of(pid).is_none_or(|stat| stat.group != group), pid)))
}

/// Returns whether a process of this group is running. Zombies do not count.
pub(super) fn group_lives(group: u32) -> bool {
    pids().is_ok_and(|mut pids| pids.any(|pid| stat_of(pid).is_some_and(|it| it.group == group && it.runs)))
}

fn pids() -> Result<impl Iterator<Item = u32>, ProcError> {
    check_linux()?;
    let proc = Path::new("/proc");
    let entries = fs::read_dir(proc).map_err(|source| ProcError::Read { path: proc.into(), source })?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

fn holds_any(pid: u32, sockets: &HashSet<u64>) -> bool {
    // An unreadable process belongs to another user or has ended.
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| {
        let inode = target.to_str().and_then(socket_inode);
        inode.is_some_and(|inode| sockets.contains(&inode))
    })
}

fn stat_of(pid: u32) -> Option<Stat> {
    Stat::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

fn check_linux() -> Result<(), ProcError> {
    if cfg!(target_os = "linux") { Ok(()) } else { Err(ProcError::NotLinux) }
}

fn file(pid: u32, name: &str) -> Result<PathBuf, ProcError> {
    check_linux()?;
    Ok(PathBuf::from(format!("/proc/{pid}/{name}")))
}

fn read(path: &Path) -> Result<String, ProcError> {
    // Paths of mappings need not be UTF-8.
    let bytes = fs::read(path).map_err(|source| ProcError::Read { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn unexpected(path: &Path, what: &'static str) -> ProcError {
    ProcError::Unexpected { path: path.to_owned(), what }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    /// Whether the process is neither a zombie nor dead.
    runs: bool,
    group: u32,
    cpu_ticks: u64,
}

impl Stat {
    /// Parses a stat line. The name, in parentheses, may itself contain spaces and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // `fields[0]` is the third field of the manual page.
        let number = |at: usize| fields.get(at - 3)?.parse::<u64>().ok();
        let runs = !matches!(*fields.first()?, "Z" | "X");
        Some(Self { runs, group: number(5)?.try_into().ok()?, cpu_ticks: number(14)? + number(15)? })
    }
}

fn status_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn count_lines(text: &str) -> u64 {
    text.bytes().filter(|&b| b == b'\n').count() as u64
}

fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let wanted = format!("{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(3) == Some(&LISTEN))
        .filter(|row| row[1].rsplit_once(':').is_some_and(|(_, port)| port == wanted))
        .filter_map(|row| row.get(9)?.parse().ok())
        .collect()
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn ticks_per_sec() -> f64 {
    // Default of every Linux platform that this program supports.
    let auxv = fs::read("/proc/self/auxv").ok();
    auxv.and_then(|bytes| clock_ticks(&bytes)).map_or(100.0, |ticks| ticks as f64)
}

/// Returns the value of `AT_CLKTCK` in an auxiliary vector.
fn clock_ticks(auxv: &[u8]) -> Option<usize> {
    const AT_CLKTCK: usize = 17;
    const WORD: usize = size_of::<usize>();
    let words = auxv.as_chunks::<WORD>().0.iter().map(|word| usize::from_ne_bytes(*word));
    let words: Vec<usize> = words.collect();
    let pair = words.as_chunks::<2>().0.iter().find(|pair| pair[0] == AT_CLKTCK)?;
    (pair[1] > 0).then_some(pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_parsed_whatever_the_process_name() {
        fn check(text: &str, expected: Option<(bool, u32, u64)>) {
            let expected = expected.map(|(runs, group, cpu_ticks)| Stat { runs, group, cpu_ticks });
            assert_eq!(Stat::parse(text), expected, "{text:?}");
        }
        let rest = "S 1 77 7 0 -1 4194304 9 8 7 6 250 50 11 12 20 0 4 0 100 1 2";
        check(&format!("42 (python) {rest}\n"), Some((true, 77, 300)));
        check(&format!("42 (z) {}", rest.replacen('S', "Z", 1)), Some((false, 77, 300)));
        check(&format!("42 (a b) c) 1 2 (3) {rest}\n"), Some((true, 77, 300)));
        check("42 (short) S 1 77", None);
        check("", None);
    }

    #[test]
    fn memory_values_are_found_by_name() {
        fn check(got: Option<u64>, expected: Option<u64>) {
            assert_eq!(got, expected);
        }
        let status = "Name:\tVmRSS: 3 kB\nVmHWM:\t  5000 kB\nVmRSS:\t  4321 kB\nThreads:\t4\n";
        check(status_kib(status, "VmRSS"), Some(4321));
        check(status_kib(status, "VmHWM"), Some(5000));
        check(status_kib(status, "Threads"), None);
        check(status_kib(status, "VmSwap"), None);
        check(Some(count_lines("a\nb\n")), Some(2));
    }

    #[test]
    fn listening_sockets_are_distinguished_from_connected_ones() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0\n\
            \x20  1: 0100007F:1F90 0100007F:C000 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0\n\
            \x20  2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0\n";
        assert_eq!(listening_inodes(table, 8080), vec![111]);
        assert_eq!(listening_inodes(table, 8081), vec![333]);
        assert_eq!(listening_inodes(table, 80), Vec::<u64>::new());
        assert_eq!(listening_inodes("", 80), Vec::<u64>::new());
        assert_eq!(socket_inode("socket:[111]"), Some(111));
        assert_eq!(socket_inode("/dev/null"), None);
    }

    #[test]
    fn clock_ticks_are_found_among_other_entries() {
        let vector = |words: &[usize]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        assert_eq!(clock_ticks(&vector(&[17, 250, 0, 0])), Some(250));
        // 17 as a value, not as a key.
        assert_eq!(clock_ticks(&vector(&[6, 17, 17, 100, 0, 0])), Some(100));
        assert_eq!(clock_ticks(&vector(&[0, 0])), None);
        assert_eq!(clock_ticks(b"odd"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_can_be_read_and_its_listener_found() {
        let here = std::process::id();
        let footprint = Footprint::read(here).unwrap();
        assert!(footprint.rss_kib > 100 && footprint.rss_peak_kib >= footprint.rss_kib, "{footprint:?}");
        assert!(footprint.mappings > 5 && footprint.fds >= 3, "{footprint:?}");
        assert!(cpu_secs(here).unwrap() >= 0.0);

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listener_on(port, 0).unwrap(), Some(here));
        assert!(matches!(cpu_secs(u32::MAX), Err(ProcError::Read { .. })));
    }
}
