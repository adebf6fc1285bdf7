//! The fuzz target of the configuration file.

use crate::config::RawConfig;

/// A fuzz target, a function of arbitrary bytes.
pub type Target = fn(&[u8]);

/// The targets of this crate by name, which is that of the program and of the corpus directory.
pub const TARGETS: [(&str, Target); 1] = [("config", config)];

/// Fuzz target: parses and checks a configuration file.
fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match RawConfig::parse(text, "fuzz.toml").resolve() {
        Ok(config) => {
            assert!((1..=20_000).contains(&config.max_concurrent));
            assert!(config.osmosis.lease > config.osmosis.result_wait);
            assert!(config.limits.samples_max > 0);
            let given = config.plugin.map(|plugin| serde_json::Value::Object(plugin).to_string());
            assert!(given.is_none_or(|text| serde_json::from_str::<serde_json::Value>(&text).is_ok()));
        }
        Err(invalid) => {
            for problem in &invalid.0 {
                let (key, _) = problem.split_once(':').expect("a problem begins with its key");
                assert!(!key.is_empty() && !key.contains(' '), "{problem}");
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
