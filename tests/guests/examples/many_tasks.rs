//! An environment with a split of ten million tasks, of which only the first two can be read.

use rollout_sdk::*;

struct Many;

impl Environment for Many {
    type Action = Value;
    type Observation = Value;
    const NAME: &str = "many";
    const DESCRIPTION: &str = "Has many tasks.";

    fn reset(_episode: EpisodeStart) -> Result<(Self, Turn<Value>)> {
        Ok((Self, Turn::new(json!("ready"))))
    }

    fn step(&mut self, action: Value) -> Result<Turn<Value>> {
        Ok(Turn::new(action).reward(1.0).done())
    }

    fn splits() -> Vec<Split> {
        vec![Split::new("all", SplitKind::Train, 10_000_000)]
    }

    fn task(_split: &str, index: u64) -> Result<Value> {
        match index {
            0 | 1 => Ok(json!({"question": format!("task {index}")})),
            _ => Err(Error::failed(format_args!("task {index} was read"))),
        }
    }
}

export!(environment = Many);
