//! Groups of options that several commands have, each said once: its help, and what it comes to.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use tokio::runtime::Runtime;

use super::plugin_file::CacheOptions;
use super::{OUTPUT, SETTINGS, setup};
use rollout_assembly::config::{Assignment, Config, RawConfig, RawJudge, RawLimits, RawModel};
use rollout_assembly::{Assembled, Options, Sources};
use rollout_core::telemetry::{Metrics, Traces};
use rollout_guest::engine::Loader;
use rollout_outbound as outbound;

/// What a configuration file says, or an empty one. What is wrong in it, `resolve` says.
pub(super) fn raw_config(path: Option<&Path>) -> Result<RawConfig> {
    let Some(path) = path else { return Ok(RawConfig::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(RawConfig::parse(&text, &path.display().to_string()))
}

/// How components are brought in.
#[derive(Clone, Debug, Args)]
pub(super) struct LoadOptions {
    /// Settings in TOML: [plugin] for the plugin, the rest for the host. An option goes before
    /// what is there.
    #[arg(long, value_name = "FILE", help_heading = SETTINGS)]
    config: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheOptions,
}

impl LoadOptions {
    /// What the file says, or an empty one. What is wrong in it, `resolve` says.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        raw_config(self.config.as_deref())
    }

    /// The loader that these options and the configuration ask for.
    pub(crate) fn loader(&self, config: &Config) -> Result<Loader> {
        self.cache.loader(config.cache_dir.as_deref(), &config.load_limits)
    }

    /// Where compiled code is kept, if it is.
    pub(crate) fn cache_dir(&self, config: &Config) -> Option<PathBuf> {
        self.cache.dir(config.cache_dir.as_deref())
    }

    /// Whether nothing of earlier runs may be used.
    pub(crate) fn no_cache(&self) -> bool {
        self.cache.no_cache
    }
}

/// How a plugin is brought in and configured.
#[derive(Clone, Debug, Args)]
pub(super) struct PluginOptions {
    #[command(flatten)]
    pub load: LoadOptions,
    /// Sets one value of the plugin's configuration, over what [plugin] says; nested keys
    /// are joined by dots. `rollout-host config PLUGIN` lists what there is.
    #[arg(long, value_name = "KEY=VALUE", help_heading = SETTINGS)]
    set: Vec<Assignment>,
}

impl PluginOptions {
    /// The configuration, with these options in it.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        let raw = self.load.raw_config()?;
        Ok(RawConfig { set: self.set.clone(), ..raw })
    }
}

/// What rollouts are made of: a plugin, perhaps a grader besides, and their limits.
#[derive(Clone, Debug, Args)]
pub(super) struct RolloutOptions {
    /// A component with the grader, in place of the plugin's own.
    #[arg(long, value_name = "FILE", help_heading = None::<&str>)]
    pub grader: Option<PathBuf>,
    #[command(flatten)]
    pub plugin: PluginOptions,
    /// The date, or date and time, that guests' clocks begin at. [default: 2025-01-01]
    #[arg(long, value_name = "DATE", help_heading = SETTINGS)]
    clock_begins: Option<String>,
    #[command(flatten)]
    limits: RawLimits,
}

impl RolloutOptions {
    /// The configuration, with these options in it.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        let raw = self.plugin.raw_config()?;
        let clock_begins = self.clock_begins.clone().or(raw.clock_begins);
        Ok(RawConfig { clock_begins, limits: self.limits.clone().or(raw.limits), ..raw })
    }

    /// The components, with this one as the plugin.
    pub(crate) fn sources<'a>(&'a self, plugin: &'a Path) -> Sources<'a> {
        Sources::of(plugin, self.grader.as_deref())
    }

    /// Compiles the components, makes the host and sees that instances can start.
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

/// A host whose guests ask an operator's models.
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
    /// The configuration, with these options in it.
    pub(crate) fn raw_config(&self) -> Result<RawConfig> {
        let mut raw = self.rollout.raw_config()?;
        self.params.put_over(&mut raw.model);
        self.judge.put_over(&mut raw.judge);
        Ok(raw)
    }

    /// The file with settings, if there is one.
    pub(crate) fn config_path(&self) -> Option<&Path> {
        self.rollout.plugin.load.config.as_deref()
    }
}

/// Which sampling parameters guests may set.
#[derive(Clone, Debug, Args)]
struct ParamOptions {
    /// Sampling parameters that workflows may set, by name; any other is refused. Without
    /// this, all pass that do not decide which model answers, or where.
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
    fn put_over(&self, raw: &mut RawModel) {
        let given = self.model_params.as_ref();
        // An empty text is an empty list.
        let names = given.map(|names| names.iter().filter(|name| !name.is_empty()).cloned().collect());
        raw.params = names.or(raw.params.take());
    }
}

/// Where the judge of graders is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Judge, for graders that ask one")]
struct JudgeOptions {
    /// The judge's server, up to and without /chat/completions.
    #[arg(long, value_name = "URL")]
    judge_url: Option<String>,
    /// The judge's name at its server; `mock` without --judge-url runs the built-in
    /// stand-in.
    #[arg(long, value_name = "NAME")]
    judge_model: Option<String>,
    /// Environment variable with the key of the judge's server.
    #[arg(long, value_name = "VAR")]
    judge_api_key_env: Option<String>,
}

impl JudgeOptions {
    fn put_over(&self, raw: &mut RawJudge) {
        if let Some(url) = &self.judge_url {
            // The key that the file names is for the server that it names.
            (raw.url, raw.api_key_env) = (Some(url.clone()), None);
        }
        raw.model = self.judge_model.clone().or(raw.model.take());
        raw.api_key_env = self.judge_api_key_env.clone().or(raw.api_key_env.take());
    }
}

/// Where traces go.
#[derive(Clone, Debug, Args)]
pub(super) struct TraceOptions {
    /// Collector of traces, by OTLP over HTTP: a trace a rollout, a span a phase. Without
    /// a path, /v1/traces is added.
    #[arg(long, value_name = "URL", help_heading = OUTPUT)]
    otlp: Option<String>,
}

impl TraceOptions {
    /// Begins to export traces of what is counted here, where the operator says to where.
    pub(crate) fn begin(&self, runtime: &Runtime, metrics: &Metrics) -> Result<Option<Traces>> {
        let Some(url) = &self.otlp else { return Ok(None) };
        let _runtime = runtime.enter();
        let traces = metrics.trace_to(url, outbound::http_client()?).context("--otlp")?;
        Ok(Some(traces))
    }
}
