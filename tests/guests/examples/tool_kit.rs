//! A tool component: useful tools, and one for each way in which a tool can fail.

use rollout_sdk::*;
use rollout_test_guests::spin;

struct Kit;

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Config {
    greeting: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Text {
    /// The text to process.
    text: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Size {
    bytes: usize,
}

impl ToolPlugin<Config> for Kit {
    fn tools(config: Config) -> Result<Vec<Tool>> {
        if config.greeting == "none" {
            bail!("a greeting is needed");
        }
        Ok(vec![
            tool!(upper, "Writes a text in capitals."),
            Tool::new("greet", "Returns the configured greeting.", move |(): ()| Ok(config.greeting.clone())),
            tool!(seen, "Reports what this tool sees of its environment."),
            tool!(refuse, "Always fails."),
            tool!(large, "Returns a number of bytes."),
            tool!(never, "Never ends."),
            tool!(panic, "Panics."),
            tool!(grow, "Allocates memory until that fails."),
            tool!(chatter, "Writes log lines forever."),
        ])
    }
}

fn upper(args: Text) -> Result<String> {
    Ok(args.text.to_uppercase())
}

fn seen((): ()) -> Result<Value> {
    let random = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 1);
    let environment: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    Ok(json!({"random": random.to_string(), "environment": environment}))
}

fn refuse((): ()) -> Result<()> {
    bail!("this tool refuses")
}

fn large(args: Size) -> Result<String> {
    Ok("x".repeat(args.bytes))
}

fn never((): ()) -> Result<()> {
    spin()
}

fn panic((): ()) -> Result<()> {
    panic!("this tool panics")
}

fn grow((): ()) -> Result<usize> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    loop {
        blocks.push(std::hint::black_box(vec![1; 1 << 20]));
    }
}

fn chatter((): ()) -> Result<()> {
    loop {
        log::info("chatter");
    }
}

export!(tool = Kit);
