//! `[journal]`: where rollouts are kept, so that none that was admitted is lost.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::secs;
use rollout_core::rollout::{JournalRetention, JournalSettings, JournalSync};

/// `[journal]` as it was written.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawJournal {
    /// Its directory.
    pub dir: Option<PathBuf>,
    /// Whether there is none.
    pub off: Option<bool>,
    /// When what was written is brought to the disk.
    pub sync: Option<SyncWhen>,
    /// Bytes that it keeps, all segments together.
    pub bytes_max: Option<u64>,
    /// Seconds that it keeps rollouts which are over.
    pub age_secs_max: Option<f64>,
    /// The environment variable with the key that seals what nobody may read on disk.
    pub key_env: Option<String>,
}

/// When what was written is brought to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncWhen {
    /// Before an admission is answered.
    Admission,
    /// Before anybody hears of anything.
    Every,
    /// When the kernel likes to.
    Never,
}

/// Where rollouts are kept, if they are.
#[derive(Clone, Debug, PartialEq)]
pub enum JournalConfig {
    /// Nowhere.
    Off,
    /// Where the operator says.
    At(JournalOptions),
    /// Beside the artifacts, in a directory of the address that is listened on.
    Beside(JournalOptions),
}

/// How they are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalOptions {
    dir: PathBuf,
    sync: JournalSync,
    retention: JournalRetention,
    /// The environment variable with the key that seals secrets; without, it is in a file.
    pub key_env: Option<String>,
}

/// What is kept of rollouts that are over, unless the operator says otherwise: a journal is no
/// archive, and should not be what fills a disk.
const BYTES_MAX: u64 = 16 << 30;
const AGE_MAX: Duration = Duration::from_secs(14 * 24 * 3600);

/// Less than this, and there is not room for a segment to write and one ahead.
const BYTES_MIN: u64 = 256 << 20;

impl RawJournal {
    pub(super) fn resolve(self, listen: SocketAddr, problems: &mut Vec<String>) -> JournalConfig {
        let Self { dir, off, sync, bytes_max, age_secs_max, key_env } = self;
        if bytes_max.is_some_and(|bytes| bytes < BYTES_MIN) {
            problems.push(format!("journal.bytes-max: less than {} MiB", BYTES_MIN >> 20));
        }
        if dir.is_some() && off == Some(true) {
            problems.push("journal.off: true, and there is a dir; leave out one or the other".to_owned());
        }
        let options = |dir| JournalOptions {
            dir,
            sync: match sync.unwrap_or(SyncWhen::Admission) {
                SyncWhen::Admission => JournalSync::Admission,
                SyncWhen::Every => JournalSync::Every,
                SyncWhen::Never => JournalSync::Never,
            },
            retention: JournalRetention { bytes_max: bytes_max.unwrap_or(BYTES_MAX), age_max: AGE_MAX },
            key_env,
        };
        let age_max = secs("journal.age-secs-max", age_secs_max, AGE_MAX, problems);
        let mut config = match dir {
            _ if off == Some(true) => return JournalConfig::Off,
            Some(dir) => JournalConfig::At(options(dir)),
            // A port that the system chooses is another one the next time, and nobody would come back
            // for what is kept of this one.
            None if listen.port() == 0 => return JournalConfig::Off,
            None => JournalConfig::Beside(options(PathBuf::from(format!(".journal/{}", listen.port())))),
        };
        if let JournalConfig::At(options) | JournalConfig::Beside(options) = &mut config {
            options.retention.age_max = age_max;
        }
        config
    }
}

impl JournalConfig {
    /// The directory, where there is one.
    pub fn dir(&self, artifact_root: &Path) -> Option<PathBuf> {
        match self {
            Self::Off => None,
            Self::At(options) => Some(options.dir.clone()),
            Self::Beside(options) => Some(artifact_root.join(&options.dir)),
        }
    }

    /// The environment variable with the key that seals secrets, where the operator says one.
    pub fn key_env(&self) -> Option<&str> {
        match self {
            Self::Off => None,
            Self::At(options) | Self::Beside(options) => options.key_env.as_deref(),
        }
    }

    /// The settings of the journal, where there is one.
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
    fn a_journal_is_where_its_server_is_found_again_or_where_it_is_said() {
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
        let nowhere = RawConfig::parse("trajectories = 'journal'\n[journal]\noff = true", "c.toml").resolve();
        assert!(nowhere.unwrap_err().to_string().contains("trajectories: in the journal"));
        let wrong = "[journal]\ndir = 'j'\noff = true\nbytes-max = 1\nage-secs-max = -1.0";
        let error = RawConfig::parse(wrong, "c.toml").resolve().unwrap_err().to_string();
        for key in ["journal.off", "journal.bytes-max", "journal.age-secs-max"] {
            assert!(error.contains(key), "{error}");
        }
    }
}
