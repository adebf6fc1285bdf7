//! Tools for others: two ways to write a number, to be provided to any workflow.
//!
//! A tool is a plain Rust function, as it is within a workflow. Every call of it comes to
//! an instance of its own, so it may be provided to workflows of people who do not trust it.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// What the operator may configure.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Digits after the point, at the most.
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

/// Rounded, and without zeros that say nothing.
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
    fn a_number_is_written_plainly() {
        fn check(number: f64, digits: usize, expected: &str) {
            assert_eq!(shortest(number, digits), expected);
        }
        check(-288.0, 6, "-288");
        check(0.1 + 0.2, 6, "0.3");
        check(100.0, 0, "100");
        check(-0.0000001, 6, "0");
    }
}
