#![no_main]

rollout_fuzz::target!("chat_request");
