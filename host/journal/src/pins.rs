//! Segments that are retained regardless of the limits, and their size.

use std::collections::BTreeMap;

/// Sizes of sealed segments, and the first segment that is retained.
#[derive(Debug)]
pub(crate) struct Pins {
    from: u64,
    sizes: BTreeMap<u64, u64>,
    /// Sum of the sizes from `from` on.
    bytes: u64,
}

impl Pins {
    /// Creates pins of none of these segments.
    pub(crate) fn new(sizes: BTreeMap<u64, u64>) -> Self {
        Self { from: u64::MAX, sizes, bytes: 0 }
    }

    /// Returns the size of all sealed segments.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        self.sizes.values().sum()
    }

    /// Returns the first retained segment.
    pub(crate) fn first(&self) -> u64 {
        self.from
    }

    /// Returns the size of the retained segments that are sealed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Retains this segment and later ones only. Reads only the sizes of the segments for which that is a change.
    pub(crate) fn hold_from(&mut self, from: u64) {
        let sum = |between| self.sizes.range(between).map(|(_, bytes)| bytes).sum::<u64>();
        self.bytes = match from {
            u64::MAX => 0,
            _ if from < self.from => self.bytes + sum(from..self.from),
            _ => self.bytes - sum(self.from..from),
        };
        self.from = from;
    }

    /// Adds a segment that was sealed.
    pub(crate) fn sealed(&mut self, number: u64, bytes: u64) {
        self.sizes.insert(number, bytes);
        if number >= self.from {
            self.bytes += bytes;
        }
    }

    /// Removes a segment that was deleted.
    pub(crate) fn deleted(&mut self, number: u64) {
        let bytes = self.sizes.remove(&number).unwrap_or_default();
        if number >= self.from {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_retained_segments_follows_every_change() {
        let mut pins = Pins::new((1..=4).map(|number| (number, number * 10)).collect());
        let mut check = |change: &dyn Fn(&mut Pins), expected: u64| {
            change(&mut pins);
            let sum: u64 = pins.sizes.range(pins.from..).map(|(_, bytes)| bytes).sum();
            assert_eq!((pins.bytes(), sum), (expected, expected));
        };
        check(&|_| {}, 0);
        check(&|pins| pins.hold_from(3), 70);
        check(&|pins| pins.hold_from(2), 90);
        check(&|pins| pins.sealed(5, 50), 140);
        check(&|pins| pins.deleted(1), 140);
        check(&|pins| pins.hold_from(5), 50);
        check(&|pins| pins.hold_from(9), 0);
        check(&|pins| pins.sealed(6, 60), 0);
        check(&|pins| pins.hold_from(6), 60);
        check(&|pins| pins.deleted(6), 0);
        check(&|pins| pins.hold_from(u64::MAX), 0);
        check(&|pins| pins.hold_from(4), 90);
    }
}
