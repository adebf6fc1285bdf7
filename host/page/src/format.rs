//! Numbers and words for people.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use rollout_core::limits::Amount;
use rollout_rollout::Phase;

/// Returns a number with a thin space between groups of three digits.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    out
}

/// Returns a number of bytes in the unit that suits it.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Returns a duration in the unit that suits it.
pub fn duration(time: Duration) -> String {
    let secs = time.as_secs_f64();
    match time.as_secs() {
        0 if time < Duration::from_millis(1) => format!("{:.2} ms", secs * 1e3),
        0 => format!("{:.0} ms", secs * 1e3),
        1..60 => format!("{secs:.1} s"),
        whole @ 60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Returns a reward with at most four decimals.
pub fn reward(reward: f64) -> String {
    let rounded = (reward * 1e4).round() / 1e4;
    // Adding zero turns negative zero into zero.
    (rounded + 0.0).to_string()
}

/// Returns an amount of a limit in the unit that the limit's name ends in.
pub(crate) fn amount(limit: &str, amount: Amount) -> String {
    match amount {
        Amount::Secs(secs) => format!("{} s", (secs * 100.0).round() / 100.0),
        Amount::Count(count) if limit.contains("bytes") => bytes(count),
        Amount::Count(count) => number(count),
    }
}

/// Returns a time of the day in UTC.
pub(crate) fn time_of_day(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%H:%M:%S").to_string()
}

/// Returns a time in the form of the HTML element `time`.
pub(crate) fn timestamp(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Returns a date and time in UTC.
pub(crate) fn date_and_time(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns the word for a phase.
pub fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Queued => "queued",
        Phase::Running => "running",
        Phase::Grading => "grading",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_for_people() {
        assert_eq!(
            [number(999), number(1000), number(1234567)],
            ["999", "1\u{2009}000", "1\u{2009}234\u{2009}567"]
        );
        assert_eq!([bytes(12), bytes(1536), bytes(3 << 30)], ["12 bytes", "1.5 KiB", "3.0 GiB"]);
        let millis = |millis| duration(Duration::from_millis(millis));
        assert_eq!(
            [millis(0), millis(12), millis(1500), millis(61_000)],
            ["0.00 ms", "12 ms", "1.5 s", "1 min 1 s"]
        );
        assert_eq!(millis(3_660_000), "1 h 1 min");
        assert_eq!([reward(1.0), reward(0.333_333), reward(-0.000_001)], ["1", "0.3333", "0"]);
        assert_eq!(time_of_day(SystemTime::UNIX_EPOCH), "00:00:00");
    }
}
