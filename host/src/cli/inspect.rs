//! `inspect`: what a component is.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::plugin_file::{self, CacheOptions};
use super::{Exit, setup};
use crate::engine::Engine;
use crate::plugin::{CONTRACT_VERSION, Description, Item};

/// Says what a component exports and imports, and whether it can be served.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// The component.
    plugin: PathBuf,
    /// Writes one JSON object.
    #[arg(long)]
    json: bool,
    /// Settings in TOML, of which the limits of loading matter here.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheOptions,
}

impl Inspect {
    pub fn run(self) -> Result<Exit> {
        let config = setup::raw_config(self.config.as_deref())?.resolve()?;
        let bytes = plugin_file::read(&self.plugin, &config.load_limits)?;
        let engine = Engine::new(1, config.limits.memory_bytes_max)?;
        let loader = self.cache.loader(config.cache_dir.as_deref(), &config.load_limits)?;
        let about = match loader.inspect(&engine, &bytes) {
            Ok(about) => about,
            Err(error) => {
                let error = plugin_file::at_fault(&self.plugin.display().to_string(), error);
                if self.json {
                    println!("{:#}", json!({"servable": false, "error": error.to_string()}));
                }
                return Err(error);
            }
        };
        let servable = about.problems.is_empty();
        if self.json {
            let mut value = serde_json::to_value(&about)?;
            value["servable"] = servable.into();
            println!("{value:#}");
        } else {
            print!("{}", self.render(&about));
        }
        Ok(if servable { Exit::Done } else { Exit::Plugin })
    }

    fn render(&self, about: &Description) -> String {
        let halves = about.halves();
        let halves = if halves.is_empty() { "nothing that a host runs" } else { &halves };
        let contract = about.contract_version.as_deref().unwrap_or("none");
        let mut text = format!(
            "{}: {halves}\n  contract  {contract} (this host speaks {CONTRACT_VERSION})\n  size      {} KiB\n  \
             digest    sha256:{}\n",
            self.plugin.display(),
            about.size_bytes.div_ceil(1024),
            about.digest
        );
        text += &list("exports", &about.exports);
        text += &list("imports", &about.imports);
        if about.problems.is_empty() {
            text += match (about.workflow, about.agent_loop, about.grader) {
                (false, false, true) => "can be used: rollout-host serve AGENT.wasm --grader this\n",
                (true, _, false) => "can be served; without --grader it gives no rewards\n",
                (_, true, false) => {
                    "can be served; without --grader it has the rewards that the agent loop gives itself\n"
                }
                (false, false, false) => "can be lent to others; there is no agent in it to serve\n",
                _ => "can be served\n",
            };
        } else {
            text += "cannot be served:\n";
            for problem in &about.problems {
                text += &format!("  - {problem}\n");
            }
        }
        text
    }
}

fn list(title: &str, items: &[Item]) -> String {
    let mut text = format!("  {title}\n");
    for item in items {
        // An interface of types alone asks for nothing.
        let detail = match (item.kind, item.functions.as_slice()) {
            ("interface", []) => "types only".to_owned(),
            ("interface", functions) => functions.join(", "),
            (kind, _) => kind.to_owned(),
        };
        text += &format!("    {}: {detail}\n", item.name);
    }
    text
}
