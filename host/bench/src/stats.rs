//! Percentiles and medians.

/// Returns a percentile of sorted values by nearest rank, with `share` from 0 to 1. Returns `None` for an
/// empty list.
pub(super) fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Returns the median, or `None` for an empty list.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        fn check(sorted: &[u32], share: f64, expected: Option<u32>) {
            assert_eq!(percentile(sorted, share), expected, "{share} of {sorted:?}");
        }
        let hundred: Vec<u32> = (1..=100).collect();
        check(&[], 0.5, None);
        check(&[7], 0.0, Some(7));
        check(&[7], 0.99, Some(7));
        check(&[1, 2], 0.5, Some(1));
        check(&[1, 2], 0.51, Some(2));
        check(&[1, 2, 3, 4], 0.95, Some(4));
        check(&hundred, 0.50, Some(50));
        check(&hundred, 0.95, Some(95));
        check(&hundred, 0.99, Some(99));
        check(&hundred, 1.0, Some(100));
        check(&hundred, 0.0, Some(1));
    }

    #[test]
    fn a_median_does_not_depend_on_the_order() {
        fn check(values: &[f64], expected: Option<f64>) {
            assert_eq!(median(values.iter().copied()), expected, "{values:?}");
        }
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[3.0, 1.0], Some(2.0));
        check(&[9.0, 1.0, 2.0], Some(2.0));
        check(&[4.0, 1.0, 3.0, 2.0], Some(2.5));
    }
}
