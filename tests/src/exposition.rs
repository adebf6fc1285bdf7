//! Prometheus' text format, read strictly.

use std::collections::{BTreeMap, BTreeSet};

/// A scrape of metrics. A text that violates the format is an error that names the line.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    /// The kind of each family.
    kinds: BTreeMap<String, String>,
    /// The value of each series, by its name with labels.
    series: BTreeMap<String, f64>,
}

impl Exposition {
    /// Parses a scrape.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.ends_with('\n') {
            return Err("the last line has no end".to_owned());
        }
        let mut read = Self::default();
        let mut family = String::new();
        let mut helped = BTreeSet::new();
        for line in text.lines() {
            let wrong = |what: &str| Err(format!("{what}: {line:?}"));
            if let Some(rest) = line.strip_prefix("# HELP ") {
                match rest.split_once(' ') {
                    Some((name, help)) if is_name(name) && !help.is_empty() => family = name.to_owned(),
                    _ => return wrong("no help"),
                }
                if !helped.insert(family.clone()) {
                    return wrong("a family that comes twice");
                }
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                match rest.split_once(' ') {
                    Some((name, kind @ ("counter" | "gauge" | "histogram"))) if name == family => {
                        read.kinds.insert(family.clone(), kind.to_owned());
                    }
                    _ => return wrong("no type of the family that was begun"),
                }
            } else {
                let Some((series, value)) = line.rsplit_once(' ') else { return wrong("no value") };
                let Ok(value) = value.parse::<f64>() else { return wrong("no number") };
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let Some(labels) = labels.strip_suffix('}') else { return wrong("labels without an end") };
                if !labels.is_empty() && !labels.split(',').all(is_label) {
                    return wrong("no label");
                }
                let Some(kind) = read.kinds.get(&family) else { return wrong("a series without a type") };
                let suffixes: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                if !suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(&family)) {
                    return wrong("a series of another family");
                }
                if kind == "counter" && !family.ends_with("_total") {
                    return wrong("a counter that is not called a total");
                }
                if kind != "gauge" && !(value.is_finite() && value >= 0.0) {
                    return wrong("a count below zero");
                }
                if read.series.insert(series.to_owned(), value).is_some() {
                    return wrong("a series that comes twice");
                }
            }
        }
        read.check_histograms(text)?;
        Ok(read)
    }

    /// Checks that buckets increase, and that the last one, without a bound, equals the count.
    fn check_histograms(&self, text: &str) -> Result<(), String> {
        for (family, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let wrong = |what: &str| Err(format!("{family}: {what}"));
            let beginning = format!("{family}_bucket{{");
            // The last bound and the count up to it, by the labels other than the bound.
            let mut histograms: BTreeMap<String, (f64, f64)> = BTreeMap::new();
            for line in text.lines().filter_map(|line| line.strip_prefix(&beginning)) {
                let parsed = line.split_once("le=\"").and_then(|(labels, rest)| {
                    let (le, value) = rest.split_once("\"} ")?;
                    let le = if le == "+Inf" { f64::INFINITY } else { le.parse().ok()? };
                    Some((labels.trim_end_matches(','), le, value.parse::<f64>().ok()?))
                });
                let Some((labels, le, value)) = parsed else { return wrong("a bucket without a bound") };
                let (bound, count) = histograms.entry(labels.to_owned()).or_insert((f64::NEG_INFINITY, 0.0));
                if le <= *bound || value < *count {
                    return wrong("buckets that do not rise");
                }
                (*bound, *count) = (le, value);
            }
            if histograms.is_empty() {
                return wrong("no bucket");
            }
            for (labels, (bound, count)) in histograms {
                let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                let counted = self.series.get(&format!("{family}_count{labels}"));
                if bound != f64::INFINITY || counted != Some(&count) {
                    return wrong("a last bucket that is not the count");
                }
                if !self.series.contains_key(&format!("{family}_sum{labels}")) {
                    return wrong("no sum");
                }
            }
        }
        Ok(())
    }

    /// Returns the value of a series, written as `name{label="value"}`.
    pub fn get(&self, series: &str) -> Option<f64> {
        self.series.get(series).copied()
    }

    /// Returns the series of a family that are not zero, by their labels.
    pub fn counted(&self, family: &str) -> BTreeMap<&str, f64> {
        let labels = |series: &'_ str| -> Option<(usize, usize)> {
            let rest = series.strip_prefix(family)?.strip_prefix('{')?;
            Some((series.len() - rest.len(), series.len() - 1))
        };
        let counted = self.series.iter().filter(|(_, value)| **value != 0.0);
        counted
            .filter_map(|(series, value)| labels(series).map(|(from, to)| (&series[from..to], *value)))
            .collect()
    }

    /// Returns the names of all families.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// Returns the names of all series, including labels.
    pub fn names(&self) -> BTreeSet<&str> {
        self.series.keys().map(String::as_str).collect()
    }
}

fn is_name(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns whether a text is a label. The host has no values that need escapes.
fn is_label(text: &str) -> bool {
    let Some((name, value)) = text.split_once("=\"") else { return false };
    let value = value.strip_suffix('"');
    is_name(name) && value.is_some_and(|value| !value.is_empty() && !value.contains(['"', '\\', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_violates_the_format_is_rejected() {
        fn check(text: &str, valid: bool) {
            assert_eq!(Exposition::parse(text).is_ok(), valid, "{text}: {:?}", Exposition::parse(text));
        }
        let counter = "# HELP a_total It.\n# TYPE a_total counter\n";
        check(&format!("{counter}a_total 1\n"), true);
        check(&format!("{counter}a_total{{x=\"y\",z=\"w\"}} 1\n"), true);
        check(&format!("{counter}a_total 1"), false);
        check(&format!("{counter}a_total -1\n"), false);
        check(&format!("{counter}a_total one\n"), false);
        check(&format!("{counter}b_total 1\n"), false);
        check(&format!("{counter}a_total 1\na_total 1\n"), false);
        check(&format!("{counter}a_total{{x=y}} 1\n"), false);
        check(&format!("{counter}{counter}"), false);
        check("# TYPE a_total counter\na_total 1\n", false);
        check("a_total 1\n", false);
        let histogram = "# HELP h It.\n# TYPE h histogram\n";
        check(
            &format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 2\n"),
            true,
        );
        check(
            &format!("{histogram}h_bucket{{le=\"1\"}} 3\nh_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 2\n"),
            false,
        );
        check(&format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_sum 3\nh_count 1\n"), false);
        check(&format!("{histogram}h_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 1\n"), false);
    }
}
