//! Random numbers that a rollout's id and attempt decide, so that a run can be
//! repeated and two siblings differ.

use chacha20::ChaCha8Rng;
use rand_core::SeedableRng;
use wasmtime_wasi::WasiCtxBuilder;

use super::{Role, RunContext};
use crate::digest::sha256_parts;

/// The seed of one use within one role of one try of one rollout.
pub(super) fn seed_of(run: &RunContext, role: Role, purpose: &str) -> [u8; 32] {
    sha256_parts(&[
        b"rollout-host guest randomness 1",
        run.rollout_id.as_str().as_bytes(),
        &run.attempt.to_le_bytes(),
        role.as_str().as_bytes(),
        purpose.as_bytes(),
    ])
}

/// Gives the guest's random sources their seeds.
pub(super) fn seed(builder: &mut WasiCtxBuilder, run: &RunContext, role: Role) {
    let seed = seed_of(run, role, "random");
    let mut insecure = seed;
    insecure[0] ^= 1;
    let mut hash_seed = [0; 16];
    hash_seed.copy_from_slice(&seed[16..]);
    builder
        .secure_random(ChaCha8Rng::from_seed(seed))
        .insecure_random(ChaCha8Rng::from_seed(insecure))
        .insecure_random_seed(u128::from_le_bytes(hash_seed));
}
