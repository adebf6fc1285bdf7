#![no_main]

rollout_fuzz::target!("start_rollout");
