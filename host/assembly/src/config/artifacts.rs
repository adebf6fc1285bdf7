//! `[artifacts]`: limits on the files of rollouts.

use std::time::Duration;

use super::setting::settings;
use rollout_rollout::ArtifactBounds;

/// Limits that apply without a setting. By default the age is unlimited.
pub(super) const DEFAULT: ArtifactBounds = ArtifactBounds { bytes_max: Some(64 << 30), age_max: None };

settings! {
    /// `[artifacts]` as written by the operator.
    RawArtifacts, "artifacts" => ArtifactBounds {
        /// Maximum number of bytes of all rollouts together. The smallest one may be too small for a single rollout.
        bytes_max: Option<u64>, "bytes-max", Some(1 << 20)..;
        /// Maximum age of a rollout's files in seconds.
        age_max: Option<Duration>, "age-secs-max", ..;
    }
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;
    use super::*;

    #[test]
    fn files_are_limited_in_bytes_and_if_configured_in_age() {
        let bounds = |text: &str| RawConfig::parse(text, "c.toml").resolve().unwrap().artifacts;
        assert_eq!(bounds(""), ArtifactBounds { bytes_max: Some(64 << 30), age_max: None });
        let given = "[artifacts]\nbytes-max = 1073741824\nage-secs-max = 60.0";
        let age_max = Some(Duration::from_secs(60));
        assert_eq!(bounds(given), ArtifactBounds { bytes_max: Some(1 << 30), age_max });
        let wrong = RawConfig::parse("[artifacts]\nbytes-max = 1\nage-secs-max = -1.0", "c.toml").resolve();
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains("artifacts.bytes-max") && error.contains("artifacts.age-secs-max"), "{error}");
    }
}
