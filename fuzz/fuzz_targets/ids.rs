#![no_main]

rollout_fuzz::target!("ids");
