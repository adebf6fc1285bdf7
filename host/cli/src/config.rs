//! The command `config`, which shows the settings of a plugin.

use crate::print::{out, outln};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::options::PluginOptions;
use super::{Exit, OUTPUT, plugin_file, setup};
use rollout_guest::engine::Engine;
use rollout_guest::plugin::{Declaration, Field, PluginSettings};
use rollout_wire::text;

/// Shows the settings of a plugin and the values that it would run with.
///
/// Values come from --set, then from [plugin] of --config, then from the plugin's defaults. An invalid value
/// is an error, as for serve and eval.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host config my_agent.wasm\n  \
    rollout-host config my_agent.wasm --set max_turns=3 --set 'search.places=[\"here\"]'")]
pub(super) struct Config {
    /// The component.
    plugin: PathBuf,
    /// Prints one JSON object: schema, defaults and resolved values.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    #[command(flatten)]
    options: PluginOptions,
}

impl Config {
    pub(crate) fn run(mut self) -> Result<Exit> {
        self.options.pull(&mut self.plugin)?;
        let config = self.options.raw_config()?.resolve()?;
        let runtime = setup::runtime()?;
        let engine = Engine::new(1, config.limits.memory_bytes_max)?;
        let loader = self.options.load.loader(&config)?;
        let plugin = plugin_file::load(&loader, &engine, &self.plugin, &config.load_limits)?;
        let (declared, settings) = setup::settings(&runtime, &self.plugin, &plugin, &config)?;
        if self.json {
            let whole = json!({
                "declared": declared.is_some(),
                "schema": declared.as_ref().map(Declaration::schema),
                "defaults": declared.as_ref().map(Declaration::defaults),
                "fields": declared.as_ref().map(Declaration::fields),
                "values": settings.values,
                "name": settings.name,
                "description": settings.description,
                "max_concurrent": settings.max_concurrent,
            });
            outln!("{whole:#}");
        } else {
            out!("{}", self.render(declared.as_ref(), &settings));
        }
        Ok(Exit::Done)
    }

    fn render(&self, declared: Option<&Declaration>, settings: &PluginSettings) -> String {
        let path = self.plugin.display();
        let mut out = match declared.map(Declaration::fields) {
            None => format!("{path} declares no settings: it receives the configuration unchecked\n"),
            Some(fields) if fields.is_empty() => format!("{path} has no settings\n"),
            Some(fields) => format!(
                "{path} has {}\n\n{}",
                if fields.len() == 1 {
                    "one setting".to_owned()
                } else {
                    format!("{} settings", fields.len())
                },
                table(&fields, settings)
            ),
        };
        out += "\nit would run with:\n\n";
        out += &toml_of(settings);
        out += &match settings.max_concurrent {
            Some(1) => "\none rollout runs at a time\n".to_owned(),
            Some(count) => format!("\nat most {count} rollouts run at once\n"),
            None => String::new(),
        };
        out
    }
}

/// Renders one line per field and its description below it. A value is shown if it differs from the default.
fn table(fields: &[Field], settings: &PluginSettings) -> String {
    let title = ["SETTING", "TYPE", "DEFAULT", "VALUE"].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(title)
        .chain(fields.iter().map(|field| {
            let default = match (&field.default, field.required) {
                (Some(default), _) => brief(default),
                (None, true) => "(required)".to_owned(),
                (None, false) => "-".to_owned(),
            };
            let value = value_of(settings, &field.key).filter(|value| Some(*value) != field.default.as_ref());
            [field.key.clone(), field.kind.clone(), default, value.map(brief).unwrap_or_default()]
        }))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for (at, [key, kind, default, value]) in rows.iter().enumerate() {
        let line =
            format!("  {key:<0$}  {kind:<1$}  {default:<2$}  {value}", widths[0], widths[1], widths[2]);
        out += line.trim_end();
        out.push('\n');
        let about = at.checked_sub(1).and_then(|at| fields[at].description.as_deref());
        for line in about.into_iter().flat_map(str::lines) {
            out += &format!("      {line}\n");
        }
    }
    out
}

fn value_of<'a>(settings: &'a PluginSettings, key: &str) -> Option<&'a Value> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = settings.values.as_ref()?.get(first)?;
    rest.map_or(Some(value), |rest| rest.split('.').try_fold(value, |value, key| value.get(key)))
}

fn brief(value: &Value) -> String {
    const BYTES_SHOWN: usize = 40;
    text::printable(&text::beginning(&value.to_string(), BYTES_SHOWN))
}

/// Renders the values as a configuration file. TOML has no null, so a comment shows such a value.
fn toml_of(settings: &PluginSettings) -> String {
    let Some(values) = &settings.values else { return "  (no configuration)\n".to_owned() };
    let mut nulls = Vec::new();
    let table = without_nulls(&Value::Object(values.clone()), "", &mut nulls);
    let whole = toml::Table::from_iter([("plugin".to_owned(), table)]);
    let mut text = match toml::to_string(&whole) {
        Ok(text) => text,
        // TOML cannot express numbers beyond 64 bits.
        Err(_) => format!("{:#}\n", Value::Object(values.clone())),
    };
    for null in nulls {
        text += &format!("# {null} is null\n");
    }
    text::printable(&text)
        .lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") })
        .collect()
}

fn without_nulls(value: &Value, key: &str, nulls: &mut Vec<String>) -> toml::Value {
    match value {
        Value::Object(fields) => {
            let mut table = toml::Table::new();
            for (name, value) in fields {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                if value.is_null() {
                    nulls.push(key);
                    continue;
                }
                let inner = without_nulls(value, &key, nulls);
                // A table of nulls only would be an empty heading.
                if inner.as_table().is_none_or(|table| !table.is_empty()) {
                    table.insert(name.clone(), inner);
                }
            }
            toml::Value::Table(table)
        }
        other => toml::Value::try_from(other).unwrap_or_else(|_| toml::Value::String(other.to_string())),
    }
}
