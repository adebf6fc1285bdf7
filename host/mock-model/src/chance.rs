//! Reproducible randomness.
//!
//! A [`Dice`] is a hash of the seed and the question, so a result does not depend on the order of concurrent
//! calls. [`Counters`] distinguishes calls that look the same; its memory is bounded.

use std::collections::HashMap;
use std::hash::Hash;

use sha2::{Digest, Sha256};

/// Number of counters in each of two generations. A rollout makes its calls within seconds of each other;
/// after 50,000 calls of others it is over.
const GENERATION: usize = 50_000;

/// Four random words for one question.
#[derive(Clone, Debug)]
pub(super) struct Dice([u8; 32]);

impl Dice {
    /// Hashes a question, which consists of `purpose` and `about`.
    pub(super) fn roll(seed: u64, purpose: &str, about: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update(seed.to_le_bytes());
        for field in [purpose.as_bytes()].iter().chain(about) {
            // The length distinguishes ("ab", "c") from ("a", "bc").
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        Self(hash.finalize().into())
    }

    /// Returns one of the four words.
    pub(super) fn word(&self, index: usize) -> u64 {
        let bytes = self.0.as_chunks::<8>().0[index];
        u64::from_le_bytes(bytes)
    }

    /// Returns whether an event of this probability happens, decided by the word at `index`.
    pub(super) fn happens(&self, index: usize, probability: f64) -> bool {
        // 53 bits fill a float's mantissa, so the quotient is in 0..1 and probability 1.0 always happens.
        let unit = (self.word(index) >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }

    /// Returns a key that is unique to the question, short of a hash collision.
    pub(super) fn key(&self) -> u128 {
        u128::from(self.word(2)) << 64 | u128::from(self.word(3))
    }
}

/// Counters by key that forget the least recently counted keys.
#[derive(Debug)]
pub(super) struct Counters<K> {
    young: HashMap<K, u64>,
    old: HashMap<K, u64>,
    generation: usize,
}

impl<K: Hash + Eq> Counters<K> {
    pub(super) fn new() -> Self {
        Self::with_generation(GENERATION)
    }

    fn with_generation(generation: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), generation }
    }

    /// Returns how often the key was counted.
    pub(super) fn get(&self, key: &K) -> u64 {
        let count = self.young.get(key).or_else(|| self.old.get(key));
        count.copied().unwrap_or(0)
    }

    /// Counts the key and returns how often it was counted before.
    pub(super) fn count(&mut self, key: K) -> u64 {
        let before = match self.young.get(&key) {
            Some(count) => *count,
            None => self.old.remove(&key).unwrap_or(0),
        };
        if self.young.len() >= self.generation && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, before + 1);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_questions_have_equal_dice_and_others_differ() {
        let word = |seed, purpose, about: &[&[u8]]| Dice::roll(seed, purpose, about).word(0);
        let first = word(1, "p", &[b"ab", b"c"]);
        assert_eq!(first, word(1, "p", &[b"ab", b"c"]));
        assert_ne!(first, word(2, "p", &[b"ab", b"c"]));
        assert_ne!(first, word(1, "q", &[b"ab", b"c"]));
        assert_ne!(first, word(1, "p", &[b"a", b"bc"]));
    }

    #[test]
    fn events_happen_as_often_as_their_probability_says() {
        let often = |probability: f64| {
            (0..10_000_u64).filter(|seed| Dice::roll(*seed, "p", &[]).happens(0, probability)).count()
        };
        assert_eq!(often(0.0), 0);
        assert_eq!(often(1.0), 10_000);
        let quarter = often(0.25);
        assert!((2_300..2_700).contains(&quarter), "{quarter}");
    }

    #[test]
    fn counters_forget_the_oldest_keys_and_stay_small() {
        let mut counters = Counters::with_generation(10);
        for key in 0..1_000 {
            assert_eq!(counters.count(key), 0);
            // Counted throughout, so never forgotten.
            assert_eq!(counters.count(-1), key as u64);
        }
        assert!(counters.young.len() + counters.old.len() <= 20);
        assert_eq!(counters.get(&999), 1);
        assert_eq!(counters.get(&0), 0);
    }
}
