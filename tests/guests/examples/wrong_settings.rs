//! Declares a default that its own schema forbids.

use std::borrow::Cow;

use rollout_sdk::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use rollout_sdk::*;
use rollout_test_guests::Honest;

#[derive(serde::Deserialize)]
struct Config {}

impl JsonSchema for Config {
    fn schema_name() -> Cow<'static, str> {
        "Config".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {"max_turns": {"type": "integer", "default": "eight"}},
        })
    }
}

export!(workflow = Honest, grader = Honest, settings = Config);
