//! `serve --catalog`: the plugins of many tenants.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::Serve;
use crate::print::{errln, outln};
use crate::{PluginFault, plugin_file, setup};
use rollout_assembly::NotLoaded;
use rollout_assembly::config::{Config, RawConfig};
use rollout_catalog::{Catalog, NewKey, Rights};
use rollout_core::capacity::Machine;
use rollout_core::engine::{Engine, Loader};
use rollout_core::error::Fault;
use rollout_core::seal::Seal;
use rollout_server::admin::{self, Admin};
use rollout_server::tenants::{self, CheckMemory, Checks, Tenants};

/// The operator's configuration, if there is nothing in it that is each plugin's.
pub(super) fn operators(mut raw: RawConfig, journal: Option<&Path>) -> RawConfig {
    let of_plugins = [
        ("[plugin]", raw.plugin.is_some()),
        ("[grader]", raw.grader.is_some()),
        ("--set", !raw.set.is_empty()),
        ("the judge", raw.judge.url.is_some() || raw.judge.model.is_some()),
    ];
    for (what, _) in of_plugins.iter().filter(|(_, is_there)| *is_there) {
        raw.mistakes.push(format!(
            "{what}: with --catalog this comes with a plugin when it is pushed, in its configuration"
        ));
    }
    if journal.is_some_and(|dir| dir.as_os_str() != "off") || raw.journal.dir.is_some() {
        raw.mistakes.push(
            "journal.dir: with --catalog each tenant's journal is in its folder there; --journal off keeps none"
                .to_owned(),
        );
    } else if raw.journal.off != Some(true) {
        // Wherever a process listens that has this catalog, it goes on with what is in it.
        raw.journal.dir = Some("journal".into());
    }
    raw
}

/// What compiles and brings in components.
fn loading(loader: Loader, config: &Config) -> Arc<tenants::LoadComponent> {
    let limits = config.load_limits.clone();
    Arc::new(move |engine: &Engine, path: &Path| {
        plugin_file::load(&loader, engine, path, &limits).map_err(|error| NotLoaded {
            fault: if error.is::<PluginFault>() { Fault::Plugin } else { Fault::Host },
            reason: format!("{error:#}"),
        })
    })
}

impl Serve {
    /// The tenants of a catalog, within the runtime.
    pub(super) fn tenants(
        &self,
        dir: &Path,
        operators: RawConfig,
        config: &Config,
    ) -> Result<(Tenants, Admin)> {
        if !config.tools.is_empty() {
            bail!("[tools]: a server of many tenants provides no tools");
        }
        let catalog = Catalog::open(rollout_catalog::CatalogSettings::new(dir))?;
        self.see_to_operator_key(&catalog)?;
        let seal = match setup::key_from_env("journal.key-env", config.journal.key_env())? {
            Some(key) => Seal::of_secret(&key),
            None => {
                let path = dir.join("key");
                Seal::of_file(&path)
                    .with_context(|| format!("cannot use the catalog's key {}", path.display()))?
            }
        };
        let seal = Arc::new(seal);
        let load = &self.host.rollout.plugin.load;
        let cache: Vec<OsString> = match load.cache_dir(config) {
            Some(dir) => vec!["--cache-dir".into(), dir.into()],
            None => vec!["--no-cache".into()],
        };
        let (memory, config) = with_check_memory(&operators, config);
        let tenants = Tenants::start(tenants::Settings {
            catalog: catalog.clone(),
            operators,
            config: config.clone(),
            load: loading(load.loader(&config)?, &config),
            seal: seal.clone(),
            checks: Checks {
                program: plugin_file::this_program()?,
                cache,
                time_max: config.catalog.check_time_max,
                compile_time_max: config.load_limits.compile_time_max,
                at_once: config.catalog.checks_max,
                memory,
            },
        })?;
        let admin = Admin::new(admin::Settings {
            catalog,
            deployments: Arc::new(tenants.clone()),
            seal,
            budget: tenants.budget().clone(),
            component_bytes_max: config.load_limits.component_bytes_max as u64,
        });
        let slots = tenants.slots();
        tracing::info!(
            catalog = %dir.display(),
            slots = slots.running_max,
            queue_max = slots.queue_max,
            bound_by = %slots.bound_by,
            memory_budget_bytes = tenants.budget().total(),
            "catalog opened"
        );
        Ok((tenants, admin))
    }

    /// A catalog without an operator could not be changed: one brings a key along, or is told one.
    fn see_to_operator_key(&self, catalog: &Catalog) -> Result<()> {
        if let Some(key) = setup::key_from_env("operator-key-env", self.operator_key_env.as_deref())? {
            catalog.ensure_operator_key(key.expose(), "given at the start").context("--operator-key-env")?;
            return Ok(());
        }
        if catalog.has_operator_key() {
            return Ok(());
        }
        let name = "made at the first start".to_owned();
        let made =
            catalog.create_key(NewKey { name, rights: Rights::Operator, tenant: None, expires_at: None })?;
        errln!("the first operator's key, which is shown this once:");
        outln!("operator key {}", made.key);
        Ok(())
    }
}

/// Divides the memory that the budget leaves among checks and compilers, and bounds compilers by it, unless the operator
/// bounds them.
fn with_check_memory(operators: &RawConfig, config: &Config) -> (CheckMemory, Config) {
    let mut config = config.clone();
    let memory_budget_bytes = config.memory_budget_bytes.map(|bytes| bytes as u64);
    let machine = Machine { memory_budget_bytes, ..Machine::read_again() };
    let mut memory = CheckMemory::of(machine.memory_outside_budget(), config.catalog.checks_max);
    let compile_bytes_max = &mut config.load_limits.compile_memory_bytes_max;
    match operators.limits.compile_memory_bytes_max {
        Some(_) => memory.compile_bytes_max = *compile_bytes_max,
        None => *compile_bytes_max = memory.compile_bytes_max.min(*compile_bytes_max),
    }
    (memory, config)
}

/// What a server of a catalog does not take of the options of one plugin.
pub(super) fn refuse_options_of_one(serve: &Serve) -> Result<()> {
    if serve.host.rollout.grader.is_some() {
        bail!("--grader comes with a plugin: rollout-host push PLUGIN --grader FILE");
    }
    if serve.server_key_env.is_some() || serve.api_key.is_some() {
        bail!("with --catalog callers have keys of their own: rollout-host key create --tenant NAME");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_have_what_the_budget_leaves_or_what_the_operator_says() {
        let check = |text: &str, is_expected: fn(usize) -> bool| {
            let operators = RawConfig::parse(text, "host.toml");
            let config = operators.clone().resolve().unwrap();
            let (memory, config) = with_check_memory(&operators, &config);
            assert!(is_expected(config.load_limits.compile_memory_bytes_max), "{memory:?}");
        };
        check("memory-budget-bytes = 1099511627776\n", |bytes| bytes == 384 << 20);
        let operators =
            "memory-budget-bytes = 1099511627776\n[limits]\ncompile-memory-bytes-max = 1073741824\n";
        check(operators, |bytes| bytes == 1 << 30);
        check("memory-budget-bytes = 67108864\n", |bytes| (384 << 20..=4 << 30).contains(&bytes));
    }

    #[test]
    fn what_belongs_to_a_plugin_is_refused_with_where_it_goes() {
        let text = "[plugin]\na = 1\n[judge]\nmodel = 'm'\n[journal]\ndir = 'j'";
        let raw = operators(RawConfig::parse(text, "host.toml"), None);
        let said = raw.resolve().unwrap_err().to_string();
        for what in ["[plugin]: with --catalog", "the judge: with --catalog", "journal.dir: with --catalog"] {
            assert!(said.contains(what), "{said}");
        }
        let raw = operators(RawConfig::parse("listen = '127.0.0.1:0'", "host.toml"), None);
        assert!(!raw.resolve().unwrap().writes_files(), "the journal is on, whatever the port");
        let off = RawConfig::parse("[journal]\noff = true", "host.toml");
        let raw = operators(off, Some(Path::new("off")));
        assert!(raw.resolve().unwrap().writes_files());
    }
}
