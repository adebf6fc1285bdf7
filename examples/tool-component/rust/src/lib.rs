//! Tools for other plugins: two ways to format a number.
//!
//! A tool is a Rust function, just as in a workflow. Every call runs in an instance of its own, so workflows
//! of tenants who do not trust each other can share the component.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// Configuration of the component.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Maximum number of digits after the point.
    digits: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { digits: 6 }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Number {
    /// The number, such as `1,234.50` or `$12`.
    text: String,
}

/// Formats a rounded number without trailing zeros.
fn shortest(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn read(number: &Number) -> Result<f64> {
    parse_number(&number.text).context(format_args!("'{}' is no number", number.text))
}

struct Numbers;

impl ToolPlugin<Config> for Numbers {
    fn tools(Config { digits }: Config) -> Result<Vec<Tool>> {
        let plain = move |number: Number| Ok(shortest(read(&number)?, digits));
        let scientific = |number: Number| Ok(format!("{:e}", read(&number)?));
        Ok(vec![
            Tool::new("plain", "Writes a number plainly: no separators, no needless zeros.", plain),
            Tool::new("scientific", "Writes a number with a power of ten.", scientific),
        ])
    }
}

export!(tool = Numbers);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_formatted_plainly() {
        fn check(number: f64, digits: usize, expected: &str) {
            assert_eq!(shortest(number, digits), expected);
        }
        check(-288.0, 6, "-288");
        check(0.1 + 0.2, 6, "0.3");
        check(100.0, 0, "100");
        check(-0.0000001, 6, "0");
    }
}
