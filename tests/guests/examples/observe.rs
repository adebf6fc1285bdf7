//! A workflow that requests the host's observations, which are for graders only.

use rollout_test_guests::raw_workflow::{Failure, Guest, observations};
use rollout_test_guests::{MISBEHAVE, export_raw_workflow};

struct Observe;

impl Guest for Observe {
    fn run(mut prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure> {
        if prompt.last().is_some_and(|message| message.contains(MISBEHAVE)) {
            let seen = observations::exchanges("main").len();
            return Err(Failure::Failed(format!("it was told of {seen} exchanges")));
        }
        prompt.push(r#"{"role": "assistant", "content": "I say #### 5"}"#.to_owned());
        Ok(Some(prompt))
    }
}

export_raw_workflow!(Observe);
