//! The configuration of a tenant's plugin: what its author wrote, within what the operator did.

use super::{Config, InvalidConfig, RawConfig, RawTools};

/// The tables that an author may write. The rest of a configuration is the host's.
const OF_AUTHORS: [&str; 5] = ["plugin", "grader", "limits", "model", "judge"];

impl RawConfig {
    /// This configuration of an operator's, with what the author of a plugin wrote in a file of this name.
    /// An author sets what the plugin is given, how its model and judge are asked, and limits below the
    /// operator's.
    pub fn for_tenant(&self, text: &str, name: &str) -> Result<Config, InvalidConfig> {
        let given: toml::Table = match toml::from_str(text) {
            Ok(given) => given,
            // It says where, which this does not.
            Err(_) => toml::Table::new(),
        };
        let mut author = Self::parse(text, name);
        for table in given.keys().filter(|table| !OF_AUTHORS.contains(&table.as_str())) {
            author.mistakes.push(format!(
                "{table}: this is the operator's to set; a plugin's configuration has {}",
                OF_AUTHORS.map(|table| format!("[{table}]")).join(", ")
            ));
        }
        let operators = self.clone().resolve()?;
        let Self { plugin, grader, limits, model, judge, mistakes, .. } = author;
        let effective = Self {
            limits: limits.or(self.limits.clone()),
            plugin,
            grader,
            model,
            judge,
            tools: RawTools::default(),
            set: Vec::new(),
            mistakes,
            ..self.clone()
        };
        let config = effective.resolve()?;
        if config.judge.as_ref().is_some_and(|judge| judge.url.is_none()) {
            let what = "judge.url: is missing; the built-in stand-in judges in evaluations only";
            return Err(InvalidConfig(vec![what.to_owned()]));
        }
        let over = over_limits(&config, &operators);
        if over.is_empty() { Ok(config) } else { Err(InvalidConfig(over)) }
    }
}

/// The limits that are above the operator's.
fn over_limits(config: &Config, operators: &Config) -> Vec<String> {
    let table = |config: &Config| config.limits.table().into_iter().chain(config.load_limits.table());
    let both = table(config).zip(table(operators));
    let over = both.filter(|((_, asked), (_, max))| asked.is_more_than(*max));
    let said = over.map(|((name, asked), (_, max))| {
        format!("limits.{name}: {asked} is more than {max}, which the operator of this host allows")
    });
    said.collect()
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
    fn an_author_sets_the_plugin_and_limits_below_the_operators() {
        let text =
            "[plugin]\nmode = 'fast'\n[limits]\nsamples-max = 4\n[judge]\nurl = 'http://j/v1'\nmodel = 'j'";
        let config = operators().for_tenant(text, "calc.toml").unwrap();
        assert_eq!((config.max_concurrent, config.limits.samples_max), (7, 4));
        assert_eq!(
            config.limits.guest_cpu_time_max.as_secs_f64(),
            2.5,
            "the operator's, where nothing is said"
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
    fn what_is_the_operators_is_refused_with_its_name() {
        let check = |text: &str, said: &str| {
            let error = operators().for_tenant(text, "calc.toml").unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        };
        check("[limits]\nsamples-max = 6", "limits.samples-max: 6 is more than 5, which the operator");
        check("[limits]\nguest-cpu-secs-max = 2.6", "limits.guest-cpu-secs-max: 2.6");
        for key in ["listen = '0.0.0.0:1'", "on-start = 'true'", "log = '/tmp'", "artifact-root = '/'"] {
            check(key, "this is the operator's to set");
        }
        for table in ["network", "journal", "tools.shell", "hardening", "osmosis"] {
            check(&format!("[{table}]"), "this is the operator's to set");
        }
        check("[plugin", "calc.toml");
    }
}
