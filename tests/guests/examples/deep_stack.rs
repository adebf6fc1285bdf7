//! Calls itself as often as the first word of its prompt says, and waits: at the bottom for the model if the second word is
//! "chat", and back at the top for a clock that never comes to its end if it is "sleep".

use std::hint::black_box;
use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, asked};

struct DeepStack;

impl Workflow for DeepStack {
    fn run(ctx: Context) -> Result<Output> {
        let text = asked(&ctx);
        let (depth, wait) = text.split_once(' ').ok_or_else(|| Error::invalid("two words are needed"))?;
        let depth: u32 = depth.parse().map_err(|_| Error::invalid(format!("'{depth}' is no number")))?;
        if wait == "chat" {
            return deeper(depth, &mut || ask_once(&ctx));
        }
        deeper(depth, &mut || ());
        std::thread::sleep(Duration::from_secs(3600));
        Err(Error::invalid("the sleep ended"))
    }
}

#[inline(never)]
fn deeper<R>(depth: u32, then: &mut dyn FnMut() -> R) -> R {
    let result = if depth == 0 { then() } else { deeper(black_box(depth) - 1, then) };
    // What follows the call keeps it from becoming a loop.
    black_box(&result);
    result
}

export!(workflow = DeepStack, grader = Honest);
