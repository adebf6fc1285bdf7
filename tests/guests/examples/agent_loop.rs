//! An agent loop that rates itself.

rollout_sdk::export!(agent_loop = rollout_test_guests::Looping);
