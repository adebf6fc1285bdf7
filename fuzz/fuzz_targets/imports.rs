#![no_main]

rollout_fuzz::target!("imports");
