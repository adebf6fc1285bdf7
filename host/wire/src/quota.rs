//! Quotas of tenants and plugins.
//!
//! [`Quota`] defines the name, the meaning and the range of each quota. [`Quotas`] maps quotas to values, and
//! [`QuotasChange`] maps them to new values. The catalog stores [`Quotas`], the admin API and the commands transfer
//! both types, and the admission of rollouts enforces the quotas.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A quota. The order is the one in which quotas are listed and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quota {
    /// Rollouts that run at once.
    Running,
    /// Rollouts that wait for a slot.
    Queued,
    /// Rollouts that are started per second.
    RequestsPerSecond,
    /// Tokens of prompts and completions per day, by UTC.
    ModelTokensPerDay,
    /// CPU time of guests per day in seconds, by UTC.
    GuestCpuSecondsPerDay,
    /// Bytes of journals, trajectories and artifacts.
    StoredBytes,
    /// Number of plugins.
    Plugins,
    /// Bytes of all components.
    ComponentBytes,
    /// Weight in the sharing of slots.
    Weight,
}

impl Quota {
    /// All quotas.
    pub const ALL: [Self; 9] = [
        Self::Running,
        Self::Queued,
        Self::RequestsPerSecond,
        Self::ModelTokensPerDay,
        Self::GuestCpuSecondsPerDay,
        Self::StoredBytes,
        Self::Plugins,
        Self::ComponentBytes,
        Self::Weight,
    ];

    /// Returns whether it limits the usage of a day.
    pub fn is_of_a_day(self) -> bool {
        matches!(self, Self::ModelTokensPerDay | Self::GuestCpuSecondsPerDay)
    }

    /// Names of all quotas, in the order of [`ALL`](Self::ALL).
    pub const NAMES: [&str; 9] = {
        let mut names = [""; 9];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].as_str();
            at += 1;
        }
        names
    };

    /// Returns the name in files, in the API, on command lines and in errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Queued => "queued",
            Self::RequestsPerSecond => "requests-per-second",
            Self::ModelTokensPerDay => "model-tokens-per-day",
            Self::GuestCpuSecondsPerDay => "guest-cpu-seconds-per-day",
            Self::StoredBytes => "stored-bytes",
            Self::Plugins => "plugins",
            Self::ComponentBytes => "component-bytes",
            Self::Weight => "weight",
        }
    }

    /// Returns a description for the documentation of the API.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Running => "Rollouts that run at once.",
            Self::Queued => "Rollouts that wait for a slot.",
            Self::RequestsPerSecond => "Rollouts that are started per second.",
            Self::ModelTokensPerDay => "Tokens of prompts and completions per day (UTC).",
            Self::GuestCpuSecondsPerDay => "CPU time of guests per day (UTC), in seconds.",
            Self::StoredBytes => "Bytes of journals, trajectories and artifacts.",
            Self::Plugins => "Number of plugins.",
            Self::ComponentBytes => "Bytes of all components.",
            Self::Weight => "Weight in the sharing of slots; 1 if it is missing.",
        }
    }

    /// Returns the smallest value.
    pub const fn value_min(self) -> u64 {
        match self {
            Self::Weight => 1,
            _ => 0,
        }
    }

    /// Returns the largest value.
    pub const fn value_max(self) -> u64 {
        match self {
            Self::Running | Self::Queued | Self::RequestsPerSecond | Self::Plugins => u32::MAX as u64,
            Self::Weight => u16::MAX as u64,
            Self::ModelTokensPerDay
            | Self::GuestCpuSecondsPerDay
            | Self::StoredBytes
            | Self::ComponentBytes => u64::MAX,
        }
    }

    /// Returns whether only tenants have the quota, and plugins do not.
    pub const fn is_tenant_only(self) -> bool {
        matches!(self, Self::StoredBytes | Self::Plugins | Self::ComponentBytes)
    }

    /// Checks that a value is in range.
    fn check(self, value: u64) -> Result<u64, OutOfRange> {
        if (self.value_min()..=self.value_max()).contains(&value) {
            Ok(value)
        } else {
            Err(OutOfRange { quota: self, value })
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Quota {
    type Err = UnknownQuota;

    fn from_str(text: &str) -> Result<Self, UnknownQuota> {
        let found = Self::ALL.into_iter().find(|quota| quota.as_str() == text);
        found.ok_or_else(|| UnknownQuota(text.to_owned()))
    }
}

/// Error of an unknown quota name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no quota '{0}'; there are: {names}", names = Quota::NAMES.join(", "))]
pub struct UnknownQuota(String);

/// Error of a value outside the range of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quota {quota} is {value}, expected a {kind} of at most {max}",
    kind = if quota.value_min() > 0 { "nonzero number" } else { "number" },
    max = quota.value_max()
)]
pub struct OutOfRange {
    quota: Quota,
    value: u64,
}

/// Quotas of a tenant, or of a plugin within a tenant. A missing quota means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas(BTreeMap<Quota, u64>);

impl Quotas {
    /// Returns the value of a quota. `None` means unlimited.
    pub fn get(&self, quota: Quota) -> Option<u64> {
        self.0.get(&quota).copied()
    }

    /// Sets a quota.
    ///
    /// # Errors
    ///
    /// If the value is out of range.
    pub fn set(&mut self, quota: Quota, value: u64) -> Result<(), OutOfRange> {
        self.0.insert(quota, quota.check(value)?);
        Ok(())
    }

    /// Returns the quotas that are set, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Quota, u64)> {
        self.0.iter().map(|(quota, value)| (*quota, *value))
    }

    /// Returns the weight in the sharing of slots, by default 1.
    pub fn weight(&self) -> u32 {
        self.get_u32(Quota::Weight).unwrap_or(1)
    }

    /// Returns the value of a quota whose range has 32 bits, and the largest number for a larger value.
    pub fn get_u32(&self, quota: Quota) -> Option<u32> {
        self.get(quota).map(|value| value.try_into().unwrap_or(u32::MAX))
    }

    /// Returns the quotas of one of `count` processes that share a tenant's rollouts, so that all together stay within
    /// the quotas. Quotas that rollouts do not use up are not divided. Each process gets at least 1 of a quota that is not
    /// 0, so a quota that is smaller than the number of processes is exceeded.
    pub fn divided(&self, count: u32) -> Self {
        let part = |(quota, value): (Quota, u64)| match quota {
            Quota::Running
            | Quota::Queued
            | Quota::RequestsPerSecond
            | Quota::ModelTokensPerDay
            | Quota::GuestCpuSecondsPerDay
            | Quota::StoredBytes => (quota, (value / u64::from(count.max(1))).max(value.min(1))),
            Quota::Plugins | Quota::ComponentBytes | Quota::Weight => (quota, value),
        };
        Self(self.iter().map(part).collect())
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &QuotasChange) {
        for (quota, value) in &change.0 {
            match value {
                Some(value) => self.0.insert(*quota, *value),
                None => self.0.remove(quota),
            };
        }
    }
}

impl Serialize for Quotas {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter().map(|(quota, value)| (quota.as_str(), value)))
    }
}

impl<'de> Deserialize<'de> for Quotas {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let QuotasChange(change) = QuotasChange::deserialize(from)?;
        Ok(Self(change.into_iter().filter_map(|(quota, value)| Some((quota, value?))).collect()))
    }
}

/// New values of quotas: a number sets a quota, `None` (`null` in JSON) removes it, a missing quota stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotasChange(BTreeMap<Quota, Option<u64>>);

impl QuotasChange {
    /// Adds the new value of a quota.
    ///
    /// # Errors
    ///
    /// If the value is out of range.
    pub fn insert(&mut self, quota: Quota, value: Option<u64>) -> Result<(), OutOfRange> {
        let value = value.map(|value| quota.check(value)).transpose()?;
        self.0.insert(quota, value);
        Ok(())
    }

    /// Adds the new values of another change, which replace those of the same quotas.
    pub fn merge(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// Returns whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first quota that the change sets and that [only tenants have](Quota::is_tenant_only).
    pub fn tenant_only(&self) -> Option<Quota> {
        self.0
            .iter()
            .find(|(quota, value)| quota.is_tenant_only() && value.is_some())
            .map(|(quota, _)| *quota)
    }
}

impl Serialize for QuotasChange {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(quota, value)| (quota.as_str(), value)))
    }
}

impl<'de> Deserialize<'de> for QuotasChange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = QuotasChange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of quotas and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<QuotasChange, A::Error> {
                let mut change = QuotasChange::default();
                while let Some(name) = members.next_key::<String>()? {
                    let quota: Quota =
                        name.parse().map_err(|_| A::Error::unknown_field(&name, &Quota::NAMES))?;
                    if change.0.contains_key(&quota) {
                        return Err(A::Error::duplicate_field(quota.as_str()));
                    }
                    change.insert(quota, members.next_value()?).map_err(A::Error::custom)?;
                }
                Ok(change)
            }
        }

        from.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_share_quotas_stay_within_them_together() {
        let all: Quotas =
            serde_json::from_str(r#"{"running": 10, "queued": 0, "plugins": 7, "requests-per-second": 2}"#)
                .unwrap();
        let check = |count, expected: &str| {
            assert_eq!(serde_json::to_string(&all.divided(count)).unwrap(), expected);
        };
        check(1, r#"{"running":10,"queued":0,"requests-per-second":2,"plugins":7}"#);
        check(3, r#"{"running":3,"queued":0,"requests-per-second":1,"plugins":7}"#);
        check(0, r#"{"running":10,"queued":0,"requests-per-second":2,"plugins":7}"#);
    }

    #[test]
    fn quotas_round_trip_through_json_and_reject_unknown_fields() {
        let text = r#"{"running":8,"model-tokens-per-day":5000000000,"weight":3}"#;
        let quotas: Quotas = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&quotas).unwrap(), text);
        assert_eq!((quotas.weight(), Quotas::default().weight()), (3, 1));
        for (wrong, expected) in [
            (r#"{"runing":8}"#, "unknown field `runing`"),
            (r#"{"weight":0}"#, "nonzero"),
            (r#"{"weight":65536}"#, "at most 65535"),
            (r#"{"running":-1}"#, "-1"),
            (r#"{"running":1.5}"#, "1.5"),
            (r#"{"running":4294967296}"#, "at most 4294967295"),
            (r#"{"running":1,"running":2}"#, "duplicate field `running`"),
            ("[]", "an object of quotas"),
        ] {
            let error = serde_json::from_str::<Quotas>(wrong).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_quota_is_listed_once_in_its_order() {
        assert!(Quota::ALL.is_sorted());
        for (quota, name) in Quota::ALL.into_iter().zip(Quota::NAMES) {
            assert_eq!(name.parse(), Ok(quota));
            assert_eq!(quota.to_string(), name);
        }
        let error = "runing".parse::<Quota>().unwrap_err().to_string();
        assert!(error.starts_with("there is no quota 'runing'; there are: running, queued,"), "{error}");
    }

    #[test]
    fn a_change_sets_removes_and_leaves_quotas() {
        let mut quotas: Quotas = serde_json::from_str(r#"{"running":8,"plugins":2}"#).unwrap();
        let change: QuotasChange = serde_json::from_str(r#"{"running":null,"weight":3}"#).unwrap();
        assert_eq!(serde_json::to_string(&change).unwrap(), r#"{"running":null,"weight":3}"#);
        assert_eq!(change.tenant_only(), None);
        quotas.apply(&change);
        assert_eq!(serde_json::to_string(&quotas).unwrap(), r#"{"plugins":2,"weight":3}"#);
        let tenants: QuotasChange = serde_json::from_str(r#"{"running":1,"stored-bytes":1}"#).unwrap();
        assert_eq!(tenants.tenant_only(), Some(Quota::StoredBytes));
        let removes: QuotasChange = serde_json::from_str(r#"{"stored-bytes":null}"#).unwrap();
        assert_eq!(removes.tenant_only(), None);
    }
}
