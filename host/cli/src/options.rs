//! Groups of options that several commands share.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use tokio::runtime::Runtime;

use super::plugin_file::CacheOptions;
use super::registry::RegistryOptions;
use super::{OUTPUT, SETTINGS, setup};
use rollout_assembly::config::{Assignment, Config, RawConfig, RawJudge, RawLimits, RawModel};
use rollout_assembly::{Assembled, Options, Sources};
use rollout_core::limits::LoadLimits;
use rollout_core::telemetry::{Metrics, Traces};
use rollout_guest::engine::Loader;
use rollout_outbound as outbound;

/// Reads a configuration file, or returns an empty configuration without one. [`RawConfig::resolve`] reports mistakes.
pub(super) fn raw_config(path: Option<&Path>) -> Result<RawConfig> {
    let Some(path) = path else { return Ok(RawConfig::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(RawConfig::parse(&text, &path.display().to_string()))
}

/// Options for loading components.
#[derive(Clone, Debug, Args)]
pub(super) struct LoadOptions {
    /// Configuration file in TOML: [plugin] is for the plugin, the rest for the host. Options take precedence
    /// over the file.
    #[arg(long, value_name = "FILE", help_heading = SETTINGS)]
    config: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheOptions,
}

impl LoadOptions {
    /// Returns the limits of components that the configuration file sets.
    pub(crate) fn limits(&self) -> Result<LoadLimits> {
        Ok(self.raw_config()?.resolve()?.load_limits)
    }

    /// Reads the configuration file, or returns an empty configuration. [`RawConfig::resolve`] reports
    /// mistakes.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        raw_config(self.config.as_deref())
    }

    /// Creates the loader that these options and the configuration describe.
    pub(crate) fn loader(&self, config: &Config) -> Result<Loader> {
        self.cache.loader(config.cache_dir.as_deref(), &config.load_limits)
    }

    /// Returns the directory of compiled code, or `None` if compiled code is not stored.
    pub(crate) fn cache_dir(&self, config: &Config) -> Option<PathBuf> {
        self.cache.dir(config.cache_dir.as_deref())
    }

    /// Returns whether compiled code of earlier runs must not be used.
    pub(crate) fn no_cache(&self) -> bool {
        self.cache.no_cache
    }
}

/// Options for loading and configuring a plugin.
#[derive(Clone, Debug, Args)]
pub(super) struct PluginOptions {
    #[command(flatten)]
    pub load: LoadOptions,
    #[command(flatten)]
    pub registry: RegistryOptions,
    /// Sets one value of the plugin's configuration, overriding [plugin]; nested keys are joined by dots.
    /// `rollout-host config PLUGIN` lists the keys.
    #[arg(long, value_name = "KEY=VALUE", help_heading = SETTINGS)]
    set: Vec<Assignment>,
}

impl PluginOptions {
    /// Returns the configuration with these options applied.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        let raw = self.load.raw_config()?;
        Ok(RawConfig { set: self.set.clone(), ..raw })
    }

    /// Replaces a reference to a registry by the file of the pulled component.
    pub(crate) fn pull(&self, plugin: &mut PathBuf) -> Result<()> {
        self.registry.pull(plugin, || self.load.limits())
    }
}

/// Options of rollouts: the plugin's configuration, a separate grader, and limits.
#[derive(Clone, Debug, Args)]
pub(super) struct RolloutOptions {
    /// Component with the grader, instead of the plugin's own.
    #[arg(long, value_name = "FILE", help_heading = None::<&str>)]
    pub grader: Option<PathBuf>,
    #[command(flatten)]
    pub plugin: PluginOptions,
    /// Date, or date and time, at which guests' clocks start. [default: 2025-01-01]
    #[arg(long, value_name = "DATE", help_heading = SETTINGS)]
    clock_begins: Option<String>,
    #[command(flatten)]
    limits: RawLimits,
}

impl RolloutOptions {
    /// Returns the configuration with these options applied.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        let raw = self.plugin.raw_config()?;
        let clock_begins = self.clock_begins.clone().or(raw.clock_begins);
        Ok(RawConfig { clock_begins, limits: self.limits.clone().or(raw.limits), ..raw })
    }

    /// Replaces references to a registry by the files of the pulled components.
    pub(crate) fn pull(&mut self, plugin: &mut PathBuf) -> Result<()> {
        self.plugin.pull(plugin)?;
        self.grader.as_mut().map_or(Ok(()), |grader| self.plugin.pull(grader))
    }

    /// Returns the components of a rollout: `plugin` and the separate grader, if any.
    pub(crate) fn sources<'a>(&'a self, plugin: &'a Path) -> Sources<'a> {
        Sources::of(plugin, self.grader.as_deref())
    }

    /// Compiles the components, creates the host and checks that instances can start.
    pub(crate) fn host(
        &self,
        runtime: &Runtime,
        sources: Sources<'_>,
        config: &Config,
        options: Options,
    ) -> Result<Assembled> {
        setup::host(runtime, sources, config, &self.plugin.load.loader(config)?, options)
    }
}

/// Options of a host: sampling parameters, the judge, and rollouts.
#[derive(Clone, Debug, Args)]
pub(super) struct HostOptions {
    #[command(flatten)]
    params: ParamOptions,
    #[command(flatten)]
    judge: JudgeOptions,
    #[command(flatten)]
    pub rollout: RolloutOptions,
}

impl HostOptions {
    /// Returns the configuration with these options applied.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        let mut raw = self.rollout.raw_config()?;
        self.params.apply(&mut raw.model);
        self.judge.apply(&mut raw.judge);
        Ok(raw)
    }

    /// Returns the path of the configuration file, if any.
    pub(crate) fn config_path(&self) -> Option<&Path> {
        self.rollout.plugin.load.config.as_deref()
    }
}

/// Options for the sampling parameters that guests may set.
#[derive(Clone, Debug, Args)]
struct ParamOptions {
    /// Sampling parameters that workflows may set, by name; others are refused. Without this option,
    /// workflows may set all parameters except those that select the model or its server.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        help_heading = "What guests may set",
        hide_short_help = true
    )]
    model_params: Option<Vec<String>>,
}

impl ParamOptions {
    fn apply(&self, raw: &mut RawModel) {
        // An empty value is an empty list.
        let names = self.model_params.as_ref();
        let names = names.map(|names| names.iter().filter(|name| !name.is_empty()).cloned().collect());
        raw.params = names.or(raw.params.take());
    }
}

/// Options for the judge of graders.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Judge of the grader")]
struct JudgeOptions {
    /// URL of the judge's server, without /chat/completions.
    #[arg(long, value_name = "URL")]
    judge_url: Option<String>,
    /// Name of the judge's model at its server; `mock` without --judge-url runs the built-in stand-in.
    #[arg(long, value_name = "NAME")]
    judge_model: Option<String>,
    /// Environment variable with the key of the judge's server.
    #[arg(long, value_name = "VAR")]
    judge_api_key_env: Option<String>,
}

impl JudgeOptions {
    fn apply(&self, raw: &mut RawJudge) {
        if let Some(url) = &self.judge_url {
            // The key in the file belongs to the server in the file.
            (raw.url, raw.api_key_env) = (Some(url.clone()), None);
        }
        raw.model = self.judge_model.clone().or(raw.model.take());
        raw.api_key_env = self.judge_api_key_env.clone().or(raw.api_key_env.take());
    }
}

/// Options for exporting traces.
#[derive(Clone, Debug, Args)]
pub(super) struct TraceOptions {
    /// URL of a trace collector, for OTLP over HTTP: a trace per rollout, a span per phase. /v1/traces is
    /// added to a URL without a path.
    #[arg(long, value_name = "URL", help_heading = OUTPUT)]
    otlp: Option<String>,
}

impl TraceOptions {
    /// Starts to export traces if a collector is configured.
    pub(crate) fn start(&self, runtime: &Runtime, metrics: &Metrics) -> Result<Option<Traces>> {
        let Some(url) = &self.otlp else { return Ok(None) };
        let _runtime = runtime.enter();
        let traces = metrics.trace_to(url, outbound::http_client()?).context("--otlp")?;
        Ok(Some(traces))
    }
}
