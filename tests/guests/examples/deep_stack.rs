//! Recurses to the depth in the first word of its prompt. If the second word is "chat", it then calls the model at the
//! bottom; if it is "sleep", it returns to the top and sleeps forever.

use std::hint::black_box;
use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text};

struct DeepStack;

impl Workflow for DeepStack {
    fn run(ctx: Context) -> Result<Output> {
        let text = prompt_text(&ctx);
        let (depth, wait) = text.split_once(' ').ok_or_else(|| Error::invalid("two words are needed"))?;
        let depth: u32 = depth.parse().map_err(|_| Error::invalid(format!("'{depth}' is not a number")))?;
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
    // A use of the result prevents tail-call elimination.
    black_box(&result);
    result
}

export!(workflow = DeepStack, grader = Honest);
