//! Restriction of the files and folders that a process may access, by Landlock: rules of the kernel that a process sets
//! for itself and that cannot be removed.
//!
//! Kernels support different versions of Landlock, and old kernels none. Rules that a kernel does not support are not
//! enforced; [`Enforced`] reports to what extent they are.

use std::fmt;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest version of the rules that is requested.
const VERSION: ABI = ABI::V6;

/// Files that every program reads: its own executable, its libraries, the configuration of name resolution,
/// certificates, and the kernel's information about the machine.
const SYSTEM: [&str; 18] = [
    "/proc/self/exe",
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/localtime",
    "/run/systemd/resolve",
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system",
];

/// Device files that are also written to. They give access to no data.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/urandom"];

/// Folders that a process may access in addition to the system's libraries.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Files and folders that may be read.
    pub read: Vec<PathBuf>,
    /// Folders that may be written to as well.
    pub write: Vec<PathBuf>,
}

/// Extent to which the kernel enforces the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// All rules.
    Fully,
    /// The rules that the kernel supports.
    Partly,
    /// No rules, because the kernel has no Landlock.
    No,
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fully => "enforced",
            Self::Partly => "enforced as far as this kernel knows them",
            Self::No => "not enforced, because this kernel has no Landlock",
        })
    }
}

impl From<RestrictionStatus> for Enforced {
    fn from(status: RestrictionStatus) -> Self {
        match status.ruleset {
            RulesetStatus::FullyEnforced => Self::Fully,
            RulesetStatus::PartiallyEnforced => Self::Partly,
            RulesetStatus::NotEnforced => Self::No,
        }
    }
}

/// Denies this thread, and those that it starts, access to all files, folders and ports, and signals to processes
/// outside.
pub(super) fn allow_nothing() -> Result<Enforced, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?;
    Ok(rules.create()?.restrict_self()?.into())
}

/// Denies this thread, and those that it starts, access to all files and folders except these. The network is not
/// restricted.
pub(super) fn allow(folders: &Folders) -> Result<Enforced, RulesetError> {
    let read = AccessFs::from_read(VERSION);
    let system = SYSTEM.iter().map(|path| (PathBuf::from(path), read));
    let devices = DEVICES.iter().map(|path| (PathBuf::from(path), AccessFs::ReadFile | AccessFs::WriteFile));
    #[expect(clippy::disallowed_methods, reason = "the library for certificates reads these variables, too")]
    let certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(std::env::var_os);
    let certificates = certificates.map(|path| (PathBuf::from(path), read));
    let given = folders.read.iter().map(|path| (path.clone(), read));
    let written = folders.write.iter().map(|path| (path.clone(), AccessFs::from_all(VERSION)));
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .create()?;
    for (path, access) in system.chain(devices).chain(certificates).chain(given).chain(written) {
        // A file that does not exist cannot be opened anyway.
        let Ok(file) = PathFd::new(&path) else { continue };
        // Rights of folders do not apply to a file.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
        rules = rules.add_rule(PathBeneath::new(file, access))?;
    }
    Ok(rules.restrict_self()?.into())
}
