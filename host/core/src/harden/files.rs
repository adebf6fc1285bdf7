//! Which files and folders a process may reach, by Landlock: rules of the kernel's that a
//! process sets for itself and that nobody can take back.
//!
//! Kernels know more or less of it, and old ones nothing. What a kernel does not know is not
//! enforced, and [`Enforced`] says so.

use std::fmt;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest version of the rules that is asked for.
const VERSION: ABI = ABI::V6;

/// What every program reads: itself, its libraries, names and certificates of the network,
/// what the kernel says of the machine.
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

/// Files that are written to as well, by whoever wants nothing of them.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/urandom"];

/// What a process may reach beside the system's libraries.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Files and folders that may be read.
    pub read: Vec<PathBuf>,
    /// Folders that may be written to as well.
    pub write: Vec<PathBuf>,
}

/// What the kernel enforces of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// Everything.
    Fully,
    /// What it knows of.
    Partly,
    /// Nothing; it has no Landlock.
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

/// Closes all files and folders to this thread and those that it starts, and all ports, and
/// the processes outside.
pub(super) fn allow_nothing() -> Result<Enforced, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?;
    Ok(rules.create()?.restrict_self()?.into())
}

/// Closes all files and folders but these to this thread and those that it starts. The network
/// is left as it is.
pub(super) fn allow(folders: &Folders) -> Result<Enforced, RulesetError> {
    let read = AccessFs::from_read(VERSION);
    let system = SYSTEM.iter().map(|path| (PathBuf::from(path), read));
    let devices = DEVICES.iter().map(|path| (PathBuf::from(path), AccessFs::ReadFile | AccessFs::WriteFile));
    #[expect(clippy::disallowed_methods, reason = "where the library for certificates looks too")]
    let certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(std::env::var_os);
    let certificates = certificates.map(|path| (PathBuf::from(path), read));
    let given = folders.read.iter().map(|path| (path.clone(), read));
    let written = folders.write.iter().map(|path| (path.clone(), AccessFs::from_all(VERSION)));
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .create()?;
    for (path, access) in system.chain(devices).chain(certificates).chain(given).chain(written) {
        // What is not there cannot be opened anyway.
        let Ok(file) = PathFd::new(&path) else { continue };
        // A file has no rights of a folder.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
        rules = rules.add_rule(PathBeneath::new(file, access))?;
    }
    Ok(rules.restrict_self()?.into())
}
