//! The configuration of a tenant's plugin: the author's values within the operator's limits.

use super::{Config, InvalidConfig, RawConfig, RawTools};

/// Tables that a plugin's author may set. Only the operator may set the others.
const AUTHOR_TABLES: [&str; 6] = ["plugin", "grader", "limits", "model", "judge", "nemo-gym"];

impl RawConfig {
    /// Combines this configuration of an operator with that of a plugin's author, which is `text` in a file called
    /// `name`. An author configures the plugin, its model and its judge, and may lower the operator's limits.
    pub fn for_tenant(&self, text: &str, name: &str) -> Result<Config, InvalidConfig> {
        let given: toml::Table = match toml::from_str(text) {
            Ok(given) => given,
            // `parse` below reports syntax errors with their positions.
            Err(_) => toml::Table::new(),
        };
        let mut author = Self::parse(text, name);
        for table in given.keys().filter(|table| !AUTHOR_TABLES.contains(&table.as_str())) {
            author.mistakes.push(format!(
                "{table}: only the operator may set this; a plugin's configuration may have {}",
                AUTHOR_TABLES.map(|table| format!("[{table}]")).join(", ")
            ));
        }
        let operators = self.clone().resolve()?;
        let Self { plugin, grader, limits, model, judge, nemo_gym, mistakes, .. } = author;
        let effective = Self {
            limits: limits.or(self.limits.clone()),
            plugin,
            grader,
            model,
            judge,
            nemo_gym,
            tools: RawTools::default(),
            set: Vec::new(),
            mistakes,
            ..self.clone()
        };
        let config = effective.resolve()?;
        if config.judge.as_ref().is_some_and(|judge| judge.url.is_none()) {
            let what = "judge.url: missing; the built-in stand-in is available in evaluations only";
            return Err(InvalidConfig(vec![what.to_owned()]));
        }
        let over = over_limits(&config, &operators);
        if over.is_empty() { Ok(config) } else { Err(InvalidConfig(over)) }
    }
}

/// Returns a message for each limit that is above the operator's.
fn over_limits(config: &Config, operators: &Config) -> Vec<String> {
    let table = |config: &Config| config.limits.table().into_iter().chain(config.load_limits.table());
    let both = table(config).zip(table(operators));
    let over = both.filter(|((_, requested), (_, max))| requested.is_more_than(*max));
    let messages = over.map(|((name, requested), (_, max))| {
        format!("limits.{name}: {requested} is more than the operator's maximum, {max}")
    });
    messages.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operators() -> RawConfig {
        RawConfig::parse(
            "max-concurrent = 7\n[limits]\nsamples-max = 5\nguest-cpu-secs-max = 2.5\n[plugin]\nmine = 1",
            "host.toml",
        )
    }

    #[test]
    fn an_author_configures_the_plugin_and_lowers_limits() {
        let text =
            "[plugin]\nmode = 'fast'\n[limits]\nsamples-max = 4\n[judge]\nurl = 'http://j/v1'\nmodel = 'j'";
        let config = operators().for_tenant(text, "calc.toml").unwrap();
        assert_eq!((config.max_concurrent, config.limits.samples_max), (7, 4));
        assert_eq!(
            config.limits.guest_cpu_time_max.as_secs_f64(),
            2.5,
            "the operator's value is the default"
        );
        let plugin = config.plugin.unwrap();
        assert_eq!((plugin.len(), plugin["mode"].as_str()), (1, Some("fast")));
        assert_eq!(
            operators().for_tenant("", "calc.toml").unwrap().plugin,
            None,
            "the operator's is not the tenant's"
        );
    }

    #[test]
    fn settings_of_the_operator_are_refused_by_name() {
        let check = |text: &str, expected: &str| {
            let error = operators().for_tenant(text, "calc.toml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("[limits]\nsamples-max = 6", "limits.samples-max: 6 is more than the operator's maximum, 5");
        check("[limits]\nguest-cpu-secs-max = 2.6", "limits.guest-cpu-secs-max: 2.6");
        for key in ["listen = '0.0.0.0:1'", "on-start = 'true'", "log = '/tmp'", "artifact-root = '/'"] {
            check(key, "only the operator may set this");
        }
        for table in ["network", "journal", "tools.shell", "hardening", "osmosis"] {
            check(&format!("[{table}]"), "only the operator may set this");
        }
        check("[plugin", "calc.toml");
    }
}
