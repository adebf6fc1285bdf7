//! Exact JSON forms of data for which serde has none.
//!
//! A float must be read back exactly, to the last bit, but `serde_json` parses floats faster and less exactly. Here the
//! standard library parses their text, which is exact. All forms work with JSON only.

use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A float that is read back exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Exact(f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number: Box<RawValue> = Deserialize::deserialize(from)?;
        number.get().parse().map(Self).map_err(D::Error::custom)
    }
}

/// A finite float.
pub mod exact {
    use super::*;

    /// Serializes the float.
    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    /// Deserializes the float exactly.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Exact::deserialize(from).map(|Exact(value)| value)
    }
}

/// A finite float, if there is one.
pub mod exact_option {
    use super::*;

    /// Serializes the float, or null.
    pub fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    /// Deserializes the float exactly, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Exact>::deserialize(from)?.map(|Exact(value)| value))
    }
}

/// Finite floats by name.
pub mod exact_map {
    use super::*;
    use std::collections::BTreeMap;

    /// Serializes the map.
    pub fn serialize<S: Serializer>(values: &BTreeMap<String, f64>, to: S) -> Result<S::Ok, S::Error> {
        values.serialize(to)
    }

    /// Deserializes the map with exact floats.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
        let values = BTreeMap::<String, Exact>::deserialize(from)?;
        Ok(values.into_iter().map(|(name, Exact(value))| (name, value)).collect())
    }
}

/// A value in an [`Arc`], serialized like the value itself. Deserialization creates a new `Arc`.
pub mod shared {
    use super::*;

    /// Serializes the value.
    pub fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    /// Deserializes a value into a new `Arc`.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_is_read_as_it_was_written() {
        // The faster parser reads some numbers as their neighbours.
        let mut bits: u64 = 0x9E37_79B9_7F4A_7C15;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = f64::from_bits(bits);
            if value.is_finite() {
                let text = serde_json::to_string(&Exact(value)).unwrap();
                let read: Exact = serde_json::from_str(&text).unwrap();
                assert_eq!(read.0.to_bits(), value.to_bits(), "{text}");
            }
        }
        assert!(serde_json::from_str::<Exact>("\"1\"").is_err());
    }
}
