//! Tries to write artifacts under invalid names, and reports the errors.

use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct ArtifactNames;

const TRICKS: [&str; 12] = [
    "",
    ".",
    "..",
    "../escaped",
    "/tmp/escaped",
    "a/../../escaped",
    "a//b",
    "a/",
    "a\\..\\escaped",
    ".hidden",
    "nul\0byte",
    "kept/below",
];

impl Workflow for ArtifactNames {
    fn run(ctx: Context) -> Result<Output> {
        artifact::write("kept", "kept by the guest")?;
        artifact::write("deep/down.txt", "and below")?;
        let mut answers = Vec::new();
        for name in TRICKS {
            let written = artifact::write(name, "escaped").map_err(|error| error.to_string());
            let read = artifact::read(name).map_err(|error| error.to_string());
            answers.push(json!({"name": name, "write": written.err(), "read": read.err()}));
        }
        Ok(report(&ctx, json!({"answers": answers, "names": artifact::names()})))
    }
}

export!(workflow = ArtifactNames, grader = Honest);
