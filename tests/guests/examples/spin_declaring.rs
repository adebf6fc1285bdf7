//! Never returns from `declare`.

use std::borrow::Cow;

use rollout_sdk::schemars::{JsonSchema, Schema, SchemaGenerator};
use rollout_sdk::*;
use rollout_test_guests::{Honest, spin};

#[derive(serde::Deserialize)]
struct Config {}

impl JsonSchema for Config {
    fn schema_name() -> Cow<'static, str> {
        "Config".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        spin()
    }
}

export!(workflow = Honest, grader = Honest, settings = Config);
