//! The limits of a rollout in its outcome.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use rollout_core::limits::Amount;

/// A limit at the end of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitUse {
    /// Its name in `[limits]`, which is its key when serialized.
    #[serde(skip)]
    pub name: Cow<'static, str>,
    /// The limit, in the unit of its name.
    pub max: Amount,
    /// The usage, if the host measures it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Amount>,
    /// Number of times that it stopped or refused something.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hits: u64,
    /// The largest amount that would have been in use at a hit, if it is known.
    #[serde(default, rename = "asked", skip_serializing_if = "Option::is_none")]
    pub requested_max: Option<u64>,
}

fn is_zero(times: &u64) -> bool {
    *times == 0
}

/// Serializes limits as a map by name, in their order.
pub(super) mod by_name {
    use std::fmt;

    use serde::de::{MapAccess, Visitor};
    use serde::{Deserializer, Serializer};

    use super::LimitUse;

    pub(crate) fn serialize<S: Serializer>(limits: &[LimitUse], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(limits.iter().map(|limit| (&limit.name, limit)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LimitUse>, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Vec<LimitUse>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("limits by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut limits: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some((name, limit)) = limits.next_entry::<String, LimitUse>()? {
                    all.push(LimitUse { name: name.into(), ..limit });
                }
                Ok(all)
            }
        }
        from.deserialize_map(InOrder)
    }
}
