//! Reports refused uses as often as the host accepts them.

use rollout_test_guests::raw_workflow::log::{self, RefusedUse};
use rollout_test_guests::raw_workflow::{Failure, Guest};
use rollout_test_guests::{MISBEHAVE, export_raw_workflow};

struct RefusedUses;

const TIMES: u32 = 500_000;

impl Guest for RefusedUses {
    fn run(mut prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure> {
        if prompt.last().is_some_and(|message| message.contains(MISBEHAVE)) {
            log::refused(RefusedUse::File, 3, &format!("\x1b[31m{}", "made.py".repeat(100_000)));
            log::refused(RefusedUse::Thread, 0, "none of these");
            log::refused(RefusedUse::Network, 70_000, "");
            for at in 0..TIMES {
                log::refused(RefusedUse::Process, 1, &format!("made.py:{at}, in grade: subprocess.run"));
            }
        }
        log::refused(RefusedUse::Alarm, 1, "made.py:1, in grade: signal.alarm");
        prompt.push(r#"{"role": "assistant", "content": "I say #### 5"}"#.to_owned());
        Ok(Some(prompt))
    }
}

export_raw_workflow!(RefusedUses);
