//! An agent loop that returns a reward.

rollout_sdk::export!(agent_loop = rollout_test_guests::Looping);
