//! Has no grader.

use rollout_sdk::export;
use rollout_test_guests::Honest;

export!(workflow = Honest);
