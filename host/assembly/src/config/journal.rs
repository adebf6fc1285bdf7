//! `[journal]`: the journal from which rollouts are resumed after a crash.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::setting::settings;
use rollout_rollout::{JournalRetention, JournalSettings, JournalSync};

/// Limits of finished rollouts in the journal that apply without a setting. The journal is not an archive and must not fill
/// the disk.
pub(super) const RETENTION: JournalRetention =
    JournalRetention { bytes_max: 16 << 30, age_max: Duration::from_secs(14 * 24 * 3600) };

/// Smallest configurable size: room for the current segment and the next one.
const BYTES_MIN: u64 = 256 << 20;

settings! {
    /// `[journal]` as written by the operator.
    RawJournal, "journal" => JournalRetention {
        /// Maximum number of bytes of all segments together.
        bytes_max: u64, "bytes-max", BYTES_MIN..;
        /// Maximum age of finished rollouts in seconds.
        age_max: Duration, "age-secs-max", ..;
    } and {
        /// Directory of the journal.
        dir: Option<PathBuf>, "dir";
        /// Whether the journal is switched off.
        off: Option<bool>, "off";
        /// Moment at which written data is synced to disk.
        sync: Option<SyncWhen>, "sync";
        /// Environment variable with the key that encrypts secrets on disk.
        key_env: Option<String>, "key-env";
    }
}

/// Moment at which written data is synced to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncWhen {
    /// Before an admission is answered.
    Admission,
    /// Before anything is reported.
    Every,
    /// Never by the host; the operating system decides.
    Never,
}

/// Location and options of the journal.
#[derive(Clone, Debug, PartialEq)]
pub enum JournalConfig {
    /// No journal.
    Off,
    /// A journal in the configured directory.
    At(JournalOptions),
    /// A journal beside the artifacts, in a directory named after the port.
    Beside(JournalOptions),
}

/// Options of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalOptions {
    dir: PathBuf,
    sync: JournalSync,
    retention: JournalRetention,
    /// Environment variable with the key that encrypts secrets; without it, the key is in a file.
    pub key_env: Option<String>,
}

impl RawJournal {
    /// Fills in defaults and checks every field.
    pub(super) fn resolve(self, listen: SocketAddr, problems: &mut Vec<String>) -> JournalConfig {
        let retention = self.resolve_over(RETENTION, problems);
        let Self { dir, off, sync, key_env, .. } = self;
        if dir.is_some() && off == Some(true) {
            problems.push("journal.off: contradicts journal.dir; remove one of them".to_owned());
        }
        let sync = match sync.unwrap_or(SyncWhen::Admission) {
            SyncWhen::Admission => JournalSync::Admission,
            SyncWhen::Every => JournalSync::Every,
            SyncWhen::Never => JournalSync::Never,
        };
        let options = |dir| JournalOptions { dir, sync, retention, key_env };
        match dir {
            _ if off == Some(true) => JournalConfig::Off,
            Some(dir) => JournalConfig::At(options(dir)),
            // A port that the system chooses differs at the next start, which would not find this journal.
            None if listen.port() == 0 => JournalConfig::Off,
            None => JournalConfig::Beside(options(PathBuf::from(format!(".journal/{}", listen.port())))),
        }
    }
}

impl JournalConfig {
    /// Returns the directory of the journal.
    pub fn dir(&self, artifact_root: &Path) -> Option<PathBuf> {
        match self {
            Self::Off => None,
            Self::At(options) => Some(options.dir.clone()),
            Self::Beside(options) => Some(artifact_root.join(&options.dir)),
        }
    }

    /// Returns the environment variable with the key that encrypts secrets, if configured.
    pub fn key_env(&self) -> Option<&str> {
        match self {
            Self::Off => None,
            Self::At(options) | Self::Beside(options) => options.key_env.as_deref(),
        }
    }

    /// Returns the settings of the journal.
    pub fn settings(&self, artifact_root: &Path) -> Option<JournalSettings> {
        let dir = self.dir(artifact_root)?;
        let (Self::At(options) | Self::Beside(options)) = self else { return None };
        let JournalOptions { sync, retention, .. } = options;
        Some(JournalSettings { sync: *sync, retention: *retention, ..JournalSettings::new(dir) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;
    use super::*;

    #[test]
    fn a_journal_is_in_the_configured_directory_or_in_that_of_the_port() {
        fn check(text: &str, dir: Option<&str>) {
            let config = RawConfig::parse(text, "c.toml").resolve().unwrap();
            assert_eq!(config.journal.dir(Path::new("root")).as_deref(), dir.map(Path::new), "{text}");
        }
        check("", Some("root/.journal/9000"));
        check("listen = '127.0.0.1:81'", Some("root/.journal/81"));
        check("listen = '127.0.0.1:0'", None);
        check("listen = '127.0.0.1:0'\n[journal]\ndir = '/j'", Some("/j"));
        check("[journal]\noff = true", None);
        let files = |text: &str| RawConfig::parse(text, "c.toml").resolve().unwrap().writes_files();
        assert!(!files("") && files("listen = '127.0.0.1:0'") && files("trajectories = 'files'"));
        assert!(!files("trajectories = 'journal'"));
        let off = RawConfig::parse("trajectories = 'journal'\n[journal]\noff = true", "c.toml").resolve();
        assert!(off.unwrap_err().to_string().contains("trajectories: needs a journal"));
        let wrong = "[journal]\ndir = 'j'\noff = true\nbytes-max = 1\nage-secs-max = -1.0";
        let error = RawConfig::parse(wrong, "c.toml").resolve().unwrap_err().to_string();
        for key in ["journal.off", "journal.bytes-max", "journal.age-secs-max"] {
            assert!(error.contains(key), "{error}");
        }
    }
}
