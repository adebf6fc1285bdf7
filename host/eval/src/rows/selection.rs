//! Selection and order of the rows of a data set.

use sha2::{Digest, Sha256};

use super::Row;

/// A selection of rows: shuffles, then skips `offset` rows, then takes `limit` rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Seed of the order; `None` keeps the order of the file.
    pub seed: Option<u64>,
    /// Number of rows skipped at the beginning.
    pub offset: usize,
    /// Number of rows taken; `None` takes all.
    pub limit: Option<usize>,
}

impl Selection {
    /// Applies the selection. Rows keep their indices.
    #[must_use]
    pub fn apply(self, mut rows: Vec<Row>) -> Vec<Row> {
        if let Some(seed) = self.seed {
            rows.sort_by_cached_key(|row| sort_key(seed, row.index));
        }
        let rows = rows.into_iter().skip(self.offset);
        rows.take(self.limit.unwrap_or(usize::MAX)).collect()
    }

    /// Returns the indices that [`Selection::apply`] selects of this number of rows.
    pub(crate) fn indices(self, count: usize) -> Vec<usize> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let Some(seed) = self.seed else { return (0..count).skip(self.offset).take(limit).collect() };
        let mut indices: Vec<usize> = (0..count).collect();
        indices.sort_by_cached_key(|index| sort_key(seed, *index));
        indices.into_iter().skip(self.offset).take(limit).collect()
    }

    /// Returns how many of this number of rows it must look at.
    pub(crate) fn reads(self, count: u64) -> u64 {
        let selected =
            count.saturating_sub(self.offset as u64).min(self.limit.map_or(u64::MAX, |limit| limit as u64));
        if self.seed.is_some() { count } else { selected }
    }
}

/// Returns a digest of seed and index. It is the same on every machine and in every version, so a
/// selection can be reproduced with other tools.
fn sort_key(seed: u64, index: usize) -> [u8; 32] {
    Sha256::digest(format!("{seed}-{index}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<Row> {
        (0..count).map(|index| Row { index, prompt: Vec::new(), label: None, metadata: None }).collect()
    }

    #[test]
    fn rows_are_shuffled_then_skipped_then_taken() {
        fn check(seed: Option<u64>, offset: usize, limit: Option<usize>, expected: &[usize]) {
            let taken: Vec<usize> =
                Selection { seed, offset, limit }.apply(rows(6)).iter().map(|row| row.index).collect();
            assert_eq!(Selection { seed, offset, limit }.indices(6), taken);
            assert_eq!(taken, expected, "{seed:?} {offset} {limit:?}");
        }
        check(None, 0, None, &[0, 1, 2, 3, 4, 5]);
        check(None, 1, Some(2), &[1, 2]);
        check(None, 4, Some(9), &[4, 5]);
        check(None, 9, None, &[]);
        // printf 7-0 | sha256sum, and so on.
        check(Some(7), 0, None, &[1, 2, 5, 0, 3, 4]);
        check(Some(7), 1, Some(3), &[2, 5, 0]);
    }

    #[test]
    fn some_seed_puts_each_row_first() {
        let firsts: std::collections::BTreeSet<usize> = (0..200)
            .map(|seed| Selection { seed: Some(seed), offset: 0, limit: Some(1) }.apply(rows(6))[0].index)
            .collect();
        assert_eq!(firsts.len(), 6);
    }
}
