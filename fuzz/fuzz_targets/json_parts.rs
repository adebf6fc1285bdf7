#![no_main]

rollout_fuzz::target!("json_parts");
