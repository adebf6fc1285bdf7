//! `serve --catalog`, which serves the plugins of many tenants.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::Serve;
use super::cluster::CatalogShare;
use crate::print::{errln, outln};
use crate::{PluginFault, plugin_file, setup};
use rollout_assembly::NotLoaded;
use rollout_assembly::config::{Config, RawConfig};
use rollout_catalog::{Catalog, NewKey, Rights};
use rollout_core::capacity::Machine;
use rollout_core::error::Fault;
use rollout_guest::engine::{Engine, Loader};
use rollout_rollout::seal::Seal;
use rollout_server::admin::{self, Admin};
use rollout_server::tenants::{self, CheckMemory, Checks, Tenants};

/// Prepares the operator's configuration for a catalog. Settings that belong to a plugin are reported as
/// mistakes.
pub(super) fn operator_config(mut raw: RawConfig, journal: Option<&Path>) -> RawConfig {
    let plugin_settings = [
        ("[plugin]", raw.plugin.is_some()),
        ("[grader]", raw.grader.is_some()),
        ("--set", !raw.set.is_empty()),
        ("the judge", raw.judge.url.is_some() || raw.judge.model.is_some()),
    ];
    for (key, _) in plugin_settings.iter().filter(|(_, is_set)| *is_set) {
        raw.mistakes.push(format!(
            "{key}: with --catalog this belongs to the configuration that is pushed with a plugin"
        ));
    }
    if journal.is_some_and(|dir| dir.as_os_str() != "off") || raw.journal.dir.is_some() {
        raw.mistakes.push(
            "journal.dir: with --catalog each tenant's journal is in the catalog; --journal off writes none"
                .to_owned(),
        );
    } else if raw.journal.off != Some(true) {
        // The journals are in the catalog, whatever the port.
        raw.journal.dir = Some("journal".into());
    }
    raw
}

/// Returns the function that compiles and loads components.
fn component_loader(loader: Loader, config: &Config) -> Arc<tenants::LoadComponent> {
    let limits = config.load_limits.clone();
    Arc::new(move |engine: &Engine, path: &Path| {
        plugin_file::load(&loader, engine, path, &limits).map_err(|error| NotLoaded {
            fault: if error.is::<PluginFault>() { Fault::Plugin } else { Fault::Host },
            reason: format!("{error:#}"),
        })
    })
}

impl Serve {
    /// Opens a catalog and starts its tenants. Must be called within the runtime.
    pub(super) fn tenants(
        &self,
        dir: &Path,
        operator_config: RawConfig,
        config: &Config,
        share: Option<&CatalogShare>,
    ) -> Result<(Tenants, Admin)> {
        if !config.tools.is_empty() {
            bail!("[tools]: a server with a catalog provides no tools; remove the section");
        }
        let shared = share.map(CatalogShare::log);
        let settings =
            rollout_catalog::CatalogSettings { shared, ..rollout_catalog::CatalogSettings::new(dir) };
        let catalog = Catalog::open(settings)?;
        self.ensure_operator_key(&catalog)?;
        let seal = match setup::key_from_env("journal.key-env", config.journal.key_env())? {
            Some(key) => Seal::from_secret(&key),
            None => {
                let path = dir.join("key");
                Seal::from_file(&path)
                    .with_context(|| format!("cannot use the catalog's key {}", path.display()))?
            }
        };
        let seal = Arc::new(seal);
        let load = &self.host.rollout.plugin.load;
        let cache: Vec<OsString> = match load.cache_dir(config) {
            Some(dir) => vec!["--cache-dir".into(), dir.into()],
            None => vec!["--no-cache".into()],
        };
        let (memory, config) = with_check_memory(&operator_config, config);
        let tenants = Tenants::start(tenants::TenantsSettings {
            catalog: catalog.clone(),
            operators: operator_config,
            config: config.clone(),
            load: component_loader(load.loader(&config)?, &config),
            seal: seal.clone(),
            checks: Checks {
                program: plugin_file::this_program()?,
                cache,
                time_max: config.catalog.check_time_max,
                compile_time_max: config.load_limits.compile_time_max,
                at_once: config.catalog.checks_max,
                memory,
            },
            worker: share.map(|share| share.identity(&config)).transpose()?,
            replicas: share.map(CatalogShare::replicas),
        })?;
        let admin = Admin::new(admin::AdminSettings {
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

    /// Ensures that the catalog has an operator key: the configured one, or else a new one, which is printed.
    fn ensure_operator_key(&self, catalog: &Catalog) -> Result<()> {
        if let Some(key) = setup::key_from_env("operator-key-env", self.operator_key_env.as_deref())? {
            catalog
                .ensure_operator_key(key.expose(), "given at the start")
                .context("--operator-key-env cannot be used")?;
            return Ok(());
        }
        if catalog.has_operator_key() {
            return Ok(());
        }
        let name = "created at the first start".to_owned();
        let created =
            catalog.create_key(NewKey { name, rights: Rights::Operator, tenant: None, expires_at: None })?;
        errln!("the first operator key, which is shown only once:");
        outln!("operator key {}", created.key);
        Ok(())
    }
}

/// Divides the memory outside the budget among checks and compilers. Returns their shares, and the configuration with the
/// limit of compilers reduced to their share, unless the operator sets that limit.
fn with_check_memory(operator_config: &RawConfig, config: &Config) -> (CheckMemory, Config) {
    let mut config = config.clone();
    let memory_budget_bytes = config.memory_budget_bytes.map(|bytes| bytes as u64);
    let machine = Machine { memory_budget_bytes, ..Machine::read_again() };
    let mut memory = CheckMemory::of(machine.memory_outside_budget(), config.catalog.checks_max);
    let compile_bytes_max = &mut config.load_limits.compile_memory_bytes_max;
    match operator_config.limits.compile_memory_bytes_max {
        Some(_) => memory.compile_bytes_max = *compile_bytes_max,
        None => *compile_bytes_max = memory.compile_bytes_max.min(*compile_bytes_max),
    }
    (memory, config)
}

/// Refuses options for a single plugin.
pub(super) fn refuse_plugin_options(serve: &Serve) -> Result<()> {
    if serve.host.rollout.grader.is_some() {
        bail!("with --catalog a grader is pushed with its plugin: rollout-host push PLUGIN --grader FILE");
    }
    if let Some(option) = serve.host.rollout.plugin.registry.given() {
        bail!(
            "{option}: with --catalog the server connects to no registry; each tenant has a list of trusted keys \
             (rollout-host tenant set NAME --trusted-key FILE), and `rollout-host plugin add` pulls components"
        );
    }
    if serve.server_key_env.is_some() || serve.api_key.is_some() {
        bail!(
            "with --catalog callers have keys of their tenant instead: rollout-host key create --tenant NAME"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_get_the_memory_outside_the_budget_or_the_limit_of_the_operator() {
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
    fn settings_of_a_plugin_are_refused_with_advice() {
        let text = "[plugin]\na = 1\n[judge]\nmodel = 'm'\n[journal]\ndir = 'j'";
        let raw = operator_config(RawConfig::parse(text, "host.toml"), None);
        let error = raw.resolve().unwrap_err().to_string();
        for expected in
            ["[plugin]: with --catalog", "the judge: with --catalog", "journal.dir: with --catalog"]
        {
            assert!(error.contains(expected), "{error}");
        }
        let raw = operator_config(RawConfig::parse("listen = '127.0.0.1:0'", "host.toml"), None);
        assert!(!raw.resolve().unwrap().writes_files(), "the journal is off on port 0");
        let off = RawConfig::parse("[journal]\noff = true", "host.toml");
        let raw = operator_config(off, Some(Path::new("off")));
        assert!(raw.resolve().unwrap().writes_files());
    }
}
