//! Makes the host do the work: it logs a huge line, waits a little, and repeats that.

use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour};

/// A little less than the maximum of one call.
const LINE_BYTES: usize = 60 << 20;

struct BusyLogs;

impl Workflow for BusyLogs {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            let line = "x".repeat(LINE_BYTES);
            loop {
                log::info(&line);
                sleep(Duration::from_millis(1));
            }
        }
        ask_once(&ctx)
    }
}

export!(workflow = BusyLogs, grader = Honest);
