//! Mean and spread of finite numbers, without overflow.
//!
//! The sum of two numbers of 1.7e308 is infinite, and so is the square of 1e200. All values here are therefore scaled
//! by a power of two close to the largest number so far. Scaling changes a number's exponent and none of its digits, so
//! the results for numbers of an ordinary size are those of unscaled arithmetic.

/// Exponent of the smallest positive number.
const EXPONENT_MIN: i32 = -1074;

/// Mean and spread of the numbers added so far, all of them finite.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    count: u64,
    /// Numbers are stored as multiples of 2 to this power.
    exponent: i32,
    sum: f64,
    /// Rounding error of the sum.
    lost: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0, exponent: EXPONENT_MIN, sum: 0.0, lost: 0.0, squares: 0.0 }
    }
}

impl FromIterator<f64> for Moments {
    fn from_iter<T: IntoIterator<Item = f64>>(numbers: T) -> Self {
        let mut moments = Self::default();
        for number in numbers {
            moments.add(number);
        }
        moments
    }
}

impl Moments {
    /// Adds a finite number.
    pub fn add(&mut self, number: f64) {
        debug_assert!(number.is_finite(), "{number} is not finite");
        self.enlarge_unit(exponent(number));
        let number = scaled(number, -self.exponent);
        let distance = number - self.mean_in_units();
        self.count += 1;
        self.add_to_sum(number);
        if self.count > 1 {
            self.squares += distance * (number - self.mean_in_units());
        }
    }

    /// Returns the count of the numbers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the arithmetic mean, or `None` without numbers.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.in_ones(self.mean_in_units()))
    }

    /// Returns the population standard deviation (divided by the count), or `None` without numbers.
    #[must_use]
    pub fn std(&self) -> Option<f64> {
        (self.count > 0).then(|| self.in_ones((self.squares.max(0.0) / self.count as f64).sqrt()))
    }

    /// Returns the standard error of the mean of the numbers as a sample, or `None` for fewer than two.
    #[must_use]
    pub fn standard_error(&self) -> Option<f64> {
        let count = self.count as f64;
        (self.count > 1).then(|| self.in_ones((self.squares.max(0.0) / (count - 1.0) / count).sqrt()))
    }

    fn mean_in_units(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.sum + self.lost) / self.count as f64 }
    }

    /// Adds a number with Neumaier's summation, so that many small numbers are not lost.
    fn add_to_sum(&mut self, number: f64) {
        let sum = self.sum + number;
        self.lost += if self.sum.abs() >= number.abs() {
            (self.sum - sum) + number
        } else {
            (number - sum) + self.sum
        };
        self.sum = sum;
    }

    fn enlarge_unit(&mut self, exponent: i32) {
        if exponent <= self.exponent {
            return;
        }
        let by = self.exponent - exponent;
        (self.sum, self.lost) = (scaled(self.sum, by), scaled(self.lost, by));
        self.squares = scaled(self.squares, 2 * by);
        self.exponent = exponent;
    }

    fn in_ones(&self, units: f64) -> f64 {
        scaled(units, self.exponent).clamp(f64::MIN, f64::MAX)
    }
}

/// Returns the clustered standard error of the mean: numbers within a group are dependent, groups are independent.
/// Errors within a group add up and those of different groups cancel out. With one number in each group it is
/// [`Moments::standard_error`]. Returns `None` for fewer than two groups.
#[must_use]
pub fn clustered_error(groups: &[Vec<f64>]) -> Option<f64> {
    let all: Moments = groups.iter().flatten().copied().collect();
    let clusters = groups.iter().filter(|group| !group.is_empty()).count() as f64;
    if clusters < 2.0 {
        return None;
    }
    let mean = all.mean_in_units();
    let squares: f64 = groups
        .iter()
        .map(|group| group.iter().map(|number| scaled(*number, -all.exponent) - mean).sum::<f64>().powi(2))
        .sum();
    Some(all.in_ones((squares * clusters / (clusters - 1.0)).sqrt() / all.count as f64))
}

/// Returns the exponent of the largest power of two that is not above the number.
fn exponent(number: f64) -> i32 {
    /// Exponent that scales the smallest number into the normal range.
    const TO_NORMAL: i32 = 64;
    let exponent_bits = |number: f64| ((number.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    if number == 0.0 {
        EXPONENT_MIN
    } else if number.is_normal() {
        exponent_bits(number)
    } else {
        exponent_bits(scaled(number, TO_NORMAL)) - TO_NORMAL
    }
}

/// Returns the number times 2 to the power of `by`.
fn scaled(mut number: f64, mut by: i32) -> f64 {
    /// A power of two with this exponent is a normal number.
    const STEP: i32 = 1000;
    let power = |by: i32| f64::from_bits(((1023 + by) as u64) << 52);
    while by.abs() > STEP {
        number *= power(STEP * by.signum());
        by -= STEP * by.signum();
    }
    number * power(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares two numbers except for their last digits.
    fn same(got: f64, expected: f64) -> bool {
        got == expected || ((got - expected) / expected).abs() < 1e-14
    }

    #[test]
    fn numbers_of_an_ordinary_size_have_the_usual_mean_and_spread() {
        fn check(numbers: &[f64], mean: f64, std: f64, error: Option<f64>) {
            let moments: Moments = numbers.iter().copied().collect();
            assert!(same(moments.mean().unwrap(), mean), "{numbers:?}: {moments:?}");
            assert!(same(moments.std().unwrap(), std), "{numbers:?}: {:?}", moments.std());
            match (moments.standard_error(), error) {
                (Some(got), Some(expected)) => assert!(same(got, expected), "{numbers:?}: {got}"),
                (got, expected) => assert_eq!(got, expected, "{numbers:?}"),
            }
        }
        check(&[0.5], 0.5, 0.0, None);
        check(&[1.0, 0.0, 0.0, 1.0], 0.5, 0.5, Some((1.0_f64 / 12.0).sqrt()));
        check(&[9.0, 2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0], 5.0, 2.0, Some((32.0_f64 / 56.0).sqrt()));
        check(&[-1.0, 3.0, -2.0], 0.0, (14.0_f64 / 3.0).sqrt(), Some((7.0_f64 / 3.0).sqrt()));
        check(&[1e-300, 3e-300], 2e-300, 1e-300, Some(1e-300));
        assert_eq!([0.1; 1000].into_iter().collect::<Moments>().mean(), Some(0.1));
        let none = Moments::default();
        assert_eq!((none.count(), none.mean(), none.std(), none.standard_error()), (0, None, None, None));
    }

    #[test]
    fn the_largest_and_the_smallest_numbers_have_a_finite_mean_and_spread() {
        fn check(numbers: &[f64], mean: f64, std: f64) {
            let moments: Moments = numbers.iter().copied().collect();
            assert_eq!(moments.mean(), Some(mean), "{numbers:?}");
            assert!(same(moments.std().unwrap(), std), "{numbers:?}: {:?}", moments.std());
            assert!(moments.standard_error().is_none_or(f64::is_finite), "{numbers:?}");
            let groups: Vec<Vec<f64>> = numbers.iter().map(|number| vec![*number]).collect();
            assert!(clustered_error(&groups).is_none_or(f64::is_finite), "{numbers:?}");
        }
        check(&[1.7e308, 1.7e308], 1.7e308, 0.0);
        check(&[f64::MAX; 7], f64::MAX, 0.0);
        check(&[f64::MIN; 3], f64::MIN, 0.0);
        check(&[f64::MAX, f64::MIN], 0.0, f64::MAX);
        check(&[f64::MIN, f64::MAX, f64::MAX, f64::MIN], 0.0, f64::MAX);
        check(&[5e-324; 3], 5e-324, 0.0);
        check(&[0.0, 0.0], 0.0, 0.0);
        check(&[0.0, 1.5e308], 0.75e308, 0.75e308);
        check(&[5e-324, 1.5e308], 0.75e308, 0.75e308);
        check(&[1e200, 3e200], 2e200, 1e200);
    }

    #[test]
    fn numbers_that_are_equal_within_their_group_count_as_one_number_per_group() {
        fn check(groups: &[&[f64]], expected: Option<f64>) {
            let groups: Vec<Vec<f64>> = groups.iter().map(|group| group.to_vec()).collect();
            match (clustered_error(&groups), expected) {
                (Some(got), Some(expected)) => assert!(same(got, expected), "{groups:?}: {got}"),
                (got, expected) => assert_eq!(got, expected, "{groups:?}"),
            }
        }
        let once = [9.0, 2.0, 4.0, 5.0].into_iter().collect::<Moments>().standard_error();
        check(&[&[9.0], &[2.0], &[4.0], &[5.0]], once);
        check(&[&[9.0; 8], &[2.0; 8], &[4.0; 8], &[5.0; 8]], once);
        check(&[&[9.0], &[], &[2.0], &[4.0], &[5.0]], once);
        // If all groups have the same mean, the choice of groups makes no difference.
        check(&[&[0.0, 1.0], &[1.0, 0.0], &[0.5, 0.5]], Some(0.0));
        check(&[&[1.0, 0.0]], None);
        check(&[&[], &[]], None);
    }
}
