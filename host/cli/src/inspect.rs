//! The command `inspect`, which describes a component.

use crate::print::{out, outln};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::options::LoadOptions;
use super::progress::Working;
use super::registry::RegistryOptions;
use super::{Exit, OUTPUT, plugin_file, setup};
use rollout_guest::engine::{Engine, Loader};
use rollout_guest::plugin::{CONTRACT_VERSIONS, Description, Item};
use rollout_guest::toolbox;
use rollout_wire::text::printable;

/// Shows the exports and imports of a component and whether it can be served.
///
/// Each import has one of four states. `granted`: it works. `empty`: it exists for standard libraries but
/// contains nothing, such as the file system, which has no files. `refused`: every call fails with access
/// denied, such as those of the network. `missing`: the component cannot be served.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host inspect my_agent.wasm\n  \
    rollout-host inspect my_agent.wasm --json | jq '.imports[] | select(.grant != \"granted\").name'")]
pub(super) struct Inspect {
    /// The component.
    plugin: PathBuf,
    /// Prints one JSON object.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    registry: RegistryOptions,
}

impl Inspect {
    pub(crate) fn run(mut self) -> Result<Exit> {
        let load = &self.load;
        self.registry.pull(&mut self.plugin, || load.limits())?;
        let config = self.load.raw_config()?.resolve()?;
        let bytes = plugin_file::read(&self.plugin, &config.load_limits)?;
        let engine = Engine::new(1, config.limits.memory_bytes_max)?;
        let loader = self.load.loader(&config)?;
        let about = match loader.inspect(&engine, &bytes) {
            Ok(about) => about,
            Err(error) => {
                let error = plugin_file::at_fault(&self.plugin.display().to_string(), error);
                if self.json {
                    outln!("{:#}", json!({"servable": false, "error": error.to_string()}));
                }
                return Err(error);
            }
        };
        let mut servable = about.problems.is_empty();
        let tools = match about.tool && servable {
            true => {
                let _working = Working::on(format!("compiling {}", self.plugin.display()));
                Some(tools(&engine, &loader, &bytes, raw(config.plugin)?)?)
            }
            false => None,
        };
        servable &= !matches!(tools, Some(Err(_)));
        if self.json {
            let mut value = serde_json::to_value(&about)?;
            value["servable"] = servable.into();
            match &tools {
                Some(Ok(tools)) => value["tools"] = json!(tools),
                Some(Err(problems)) => value["tool_problems"] = json!(problems),
                None => {}
            }
            outln!("{value:#}");
        } else {
            out!("{}", self.render(&about, tools));
        }
        Ok(if servable { Exit::Done } else { Exit::Plugin })
    }

    /// Renders the description of a component for people.
    fn render(&self, about: &Description, tools: Option<ToolList>) -> String {
        let parts = match about.parts().as_slice() {
            [] => "no part of the contract".to_owned(),
            parts => parts.join(" and "),
        };
        let contract = about.contract_version.as_deref().unwrap_or("none");
        let mut text = format!(
            "{}: {parts}\n  contract  {contract} (this host knows {})\n  size      {} KiB\n  \
             digest    sha256:{}\n",
            self.plugin.display(),
            CONTRACT_VERSIONS.join(", "),
            about.size_bytes.div_ceil(1024),
            about.digest
        );
        text += &list("exports", &about.exports);
        text += &list("imports", &about.imports);
        match tools {
            Some(Ok(tools)) => text += &tool_lines(&tools),
            Some(Err(problems)) => {
                let problems = problems.iter().map(|problem| format!("  - {problem}\n"));
                return text + "cannot be provided:\n" + &problems.collect::<String>();
            }
            None => {}
        }
        if about.problems.is_empty() {
            let has_agent = about.workflow || about.agent_loop;
            text += match (about.workflow, about.agent_loop, about.grader) {
                _ if about.environment && !has_agent => "can be served to callers whose own model acts\n",
                (false, false, true) => "can be used: rollout-host serve AGENT.wasm --grader this\n",
                (true, _, false) => "can be served; without --grader it gives no rewards\n",
                (_, true, false) => {
                    "can be served; without --grader it has the rewards that the agent loop gives itself\n"
                }
                (false, false, false) => {
                    "can be provided: [[tools.component]] in the configuration of a workflow\n"
                }
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

/// Tools of a component, or their problems.
type ToolList = Result<Vec<Value>, Vec<String>>;

/// Encodes the operator's configuration for the component.
fn raw(config: Option<Map<String, Value>>) -> Result<Option<Box<RawValue>>> {
    Ok(config.as_ref().map(serde_json::value::to_raw_value).transpose()?)
}

/// Reads the tools that a component declares with the operator's configuration.
fn tools(engine: &Engine, loader: &Loader, bytes: &[u8], config: Option<Box<RawValue>>) -> Result<ToolList> {
    let plugin = loader.load(engine, bytes)?;
    let functions = setup::runtime()?.block_on(toolbox::describe(plugin, config.map(Into::into)));
    Ok(functions.map(|functions| functions.into_iter().map(Into::into).collect()))
}

/// Renders tools, one per line, with the first line of their descriptions.
fn tool_lines(tools: &[Value]) -> String {
    let line = |tool: &Value| {
        let function = &tool["function"];
        let about = function["description"].as_str().unwrap_or_default().lines().next().unwrap_or_default();
        format!("    {}: {}\n", function["name"].as_str().unwrap_or_default(), printable(about))
    };
    format!("  tools\n{}", tools.iter().map(line).collect::<String>())
}

fn list(title: &str, items: &[Item]) -> String {
    let mut text = format!("  {title}\n");
    for item in items {
        // An interface may have only types.
        let detail = match (item.kind, item.functions.as_slice()) {
            ("interface", []) => "types only".to_owned(),
            ("interface", functions) => functions.join(", "),
            (kind, _) => kind.to_owned(),
        };
        let grant = item.grant.map(|grant| format!("{:<8} ", grant.as_str())).unwrap_or_default();
        text += &format!("    {grant}{}: {detail}\n", item.name);
    }
    text
}
