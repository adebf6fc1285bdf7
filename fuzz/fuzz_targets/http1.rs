#![no_main]

rollout_fuzz::target!("http1");
