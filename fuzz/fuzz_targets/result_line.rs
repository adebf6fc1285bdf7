#![no_main]

rollout_fuzz::target!("result_line");
