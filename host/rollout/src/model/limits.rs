//! The limits of a rollout as its outcome shows them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use rollout_core::limits::Amount;

/// One limit at the end of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitUse {
    /// Its name in `[limits]`; where it is written, it is the key.
    #[serde(skip)]
    pub name: Cow<'static, str>,
    /// Its value, in the unit of the name.
    pub max: Amount,
    /// What was used of it, where the host measures that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Amount>,
    /// How often it stopped or refused something.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hits: u64,
    /// What would have been in use when it did, at the most, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
}

fn is_zero(times: &u64) -> bool {
    *times == 0
}

/// Limits as a map by name, in their order.
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
