#![no_main]

rollout_fuzz::target!("mock_model");
