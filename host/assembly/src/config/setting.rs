//! Settings that are declared once: a macro makes the operator's form of a table of the configuration file, which has
//! optional values, and fills it in from the defaults.

use std::ops::{Bound, RangeBounds};
use std::time::Duration;

/// Range of the times and numbers that must be more than 0.
pub(super) struct AboveZero;

impl<T: Setting> RangeBounds<T> for AboveZero {
    fn start_bound(&self) -> Bound<&T> {
        Bound::Excluded(T::ZERO)
    }

    fn end_bound(&self) -> Bound<&T> {
        Bound::Unbounded
    }
}

/// Range of the shares of something that can be given away.
pub(super) const SHARE: (Bound<f64>, Bound<f64>) = (Bound::Excluded(0.0), Bound::Included(1.0));

/// Type of a setting.
pub trait Setting: PartialOrd + 'static {
    /// Type of the value in the configuration file.
    type Written;
    /// The value zero.
    const ZERO: &'static Self;

    /// Reads a value of the file. The error follows the setting's key.
    fn read(written: Self::Written) -> Result<Self, String>
    where
        Self: Sized;

    /// Returns a value as people write it. `key` tells whether it is a number of bytes.
    fn shown(&self, key: &str) -> String;
}

impl Setting for Duration {
    type Written = f64;
    const ZERO: &'static Self = &Self::ZERO;

    fn read(secs: f64) -> Result<Self, String> {
        const YEAR_SECS: f64 = 31_536_000.0;
        if (0.0..=YEAR_SECS).contains(&secs) {
            Ok(Self::from_secs_f64(secs))
        } else {
            Err(format!("{secs} is not between 0 and {YEAR_SECS} seconds"))
        }
    }

    fn shown(&self, _: &str) -> String {
        self.as_secs_f64().to_string()
    }
}

/// Implements [`Setting`] for numbers that are written as they are.
macro_rules! numbers {
    ($($number:ty, $zero:literal;)*) => {$(
        impl Setting for $number {
            type Written = Self;
            const ZERO: &'static Self = &$zero;

            fn read(written: Self) -> Result<Self, String> {
                Ok(written)
            }

            fn shown(&self, key: &str) -> String {
                if key.contains("bytes") { bytes(*self as u64) } else { self.to_string() }
            }
        }
    )*};
}

numbers! {
    u32, 0;
    u64, 0;
    usize, 0;
    f64, 0.0;
}

impl Setting for bool {
    type Written = Self;
    const ZERO: &'static Self = &false;

    fn read(written: Self) -> Result<Self, String> {
        Ok(written)
    }

    fn shown(&self, _: &str) -> String {
        self.to_string()
    }
}

impl<T: Setting> Setting for Option<T> {
    type Written = T::Written;
    const ZERO: &'static Self = &None;

    fn read(written: T::Written) -> Result<Self, String> {
        T::read(written).map(Some)
    }

    fn shown(&self, key: &str) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), |value| value.shown(key))
    }
}

/// Returns a number of bytes in the largest unit that divides it.
fn bytes(count: u64) -> String {
    let unit = ["GiB", "MiB", "KiB"].into_iter().zip([1 << 30, 1 << 20, 1 << 10]);
    match unit.into_iter().find(|(_, size)| count > 0 && count.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{} {unit}", count / size),
        None => count.to_string(),
    }
}

/// Returns the given value, or else the default. A value outside `range` is reported under `table.key`; a setting at the
/// top of the file has the empty table.
pub(super) fn value<T: Setting>(
    (table, key): (&str, &str),
    given: Option<T::Written>,
    default: T,
    range: impl RangeBounds<T>,
    problems: &mut Vec<String>,
) -> T {
    let Some(given) = given else { return default };
    let read = T::read(given).and_then(|value| match outside(key, &value, &range) {
        None => Ok(value),
        Some(wrong) => Err(wrong),
    });
    read.unwrap_or_else(|wrong| {
        let dot = if table.is_empty() { "" } else { "." };
        problems.push(format!("{table}{dot}{key}: {wrong}"));
        default
    })
}

/// Returns a message if a value is not in its range.
fn outside<T: Setting>(key: &str, value: &T, range: &impl RangeBounds<T>) -> Option<String> {
    if range.contains(value) {
        return None;
    }
    let range = match (range.start_bound(), range.end_bound()) {
        (Bound::Included(start), Bound::Included(end)) => {
            format!("between {} and {}", start.shown(key), end.shown(key))
        }
        (start, end) => {
            let one = |including: &str, excluding: &str, bound| match bound {
                Bound::Included(bound) => Some(format!("{including} {}", T::shown(bound, key))),
                Bound::Excluded(bound) => Some(format!("{excluding} {}", T::shown(bound, key))),
                Bound::Unbounded => None,
            };
            let both = [one("at least", "more than", start), one("at most", "less than", end)];
            both.into_iter().flatten().collect::<Vec<_>>().join(" and ")
        }
    };
    Some(format!("must be {range}, not {}", value.shown(key)))
}

/// Returns the help text of an option: the first paragraph about its setting, and the default.
pub(super) fn help<T: Setting>(about: &[&str], default: &T, key: &str) -> String {
    let lines = about.iter().map(|line| line.trim());
    let about: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    format!("{} [default: {}]", about.join(" "), default.shown(key))
}

/// Returns the name of an option's value in the help.
pub(super) fn value_name(key: &str) -> &'static str {
    match key {
        _ if key.contains("-bytes-") => "BYTES",
        _ if key.contains("-secs-") => "SECS",
        _ => "N",
    }
}

/// A setting and its default, as the documents show them.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Documented {
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    pub(super) default: String,
}

/// Declares a table of the configuration file: the struct with the operator's values, `resolve_over`, which fills in
/// defaults and checks every value, and `documented`, which lists the keys and their defaults.
///
/// An entry has its text, its field in the checked struct, which is that of the operator's values too, its type, its key,
/// and the range of permitted values. Further fields of the operator's struct, without a default, come last.
macro_rules! settings {
    (
        $(#[$about:meta])*
        $raw:ident, $table:literal => $checked:ident {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty, $key:literal, $range:expr;)*
        }
        $(and { $($(#[doc = $other_doc:literal])* $other:ident: $other_type:ty, $other_key:literal;)* })?
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $raw {
            $($($(#[doc = $other_doc])* #[serde(rename = $other_key)] pub $other: $other_type,)*)?
            $($(#[doc = $doc])* #[serde(rename = $key)]
            pub $field: Option<<$type as $crate::config::setting::Setting>::Written>,)*
        }

        impl $raw {
            /// Fills in the missing values from `default`, and checks the others.
            #[allow(clippy::needless_update, reason = "other fields of the checked struct are not settings")]
            pub(super) fn resolve_over(&self, default: $checked, problems: &mut Vec<String>) -> $checked {
                $(let $field = $crate::config::setting::value(
                    ($table, $key),
                    self.$field,
                    default.$field,
                    $range,
                    problems,
                );)*
                $checked { $($field,)* ..default }
            }

            /// Fills in missing values from `other`.
            #[allow(dead_code, reason = "not every table has a second source")]
            pub fn or(self, other: Self) -> Self {
                Self {
                    $($field: self.$field.or(other.$field),)*
                    $($($other: self.$other.or(other.$other),)*)?
                }
            }

            /// Lists the keys and their defaults.
            #[cfg(test)]
            #[allow(dead_code, reason = "some defaults are those of another table")]
            pub(super) fn documented(default: &$checked) -> Vec<$crate::config::setting::Documented> {
                use $crate::config::setting::{Documented, Setting};
                vec![$(Documented {
                    table: $table,
                    key: $key,
                    default: Setting::shown(&default.$field, $key),
                },)*]
            }
        }
    };
}
pub(super) use settings;
