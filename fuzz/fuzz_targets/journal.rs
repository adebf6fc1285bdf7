#![no_main]

rollout_fuzz::target!("journal");
