//! Names by which clients may address a server, and origins of web pages that may make requests.

use std::str::FromStr;

/// A name of the server: `rollouts.example`, or `*.example` for all names below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    /// The name in lower case; begins with a dot if all names below it are meant.
    name: String,
}

impl AllowedHost {
    /// Returns whether `name` is this name, in any case, with or without a dot at the end.
    pub fn is(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        match self.name.starts_with('.') {
            true => name.ends_with(&self.name) && name.len() > self.name.len(),
            false => name == self.name,
        }
    }
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix('*').unwrap_or(text).to_ascii_lowercase();
        let is_below = name.len() < text.len();
        let bare = if is_below { name.strip_prefix('.').unwrap_or("") } else { name.as_str() };
        let is_label = |label: &str| {
            !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        if !bare.split('.').all(is_label) {
            return Err(format!(
                "'{text}' is not a name without a port, such as rollouts.example, or *.example for all names below it"
            ));
        }
        Ok(Self { name })
    }
}

/// An origin of web pages: `https://board.example`, with a port unless it is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin {
    origin: String,
}

impl AllowedOrigin {
    /// Returns whether `origin`, in the form that browsers send, is this origin.
    pub fn is(&self, origin: &str) -> bool {
        self.origin.eq_ignore_ascii_case(origin)
    }
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.split_once("://").map(|(_, rest)| rest).unwrap_or_default();
        if rest.is_empty() || rest.contains(['/', '?', '#', '@', '*', ' ']) {
            return Err(format!(
                "'{text}' is not an origin in the form that browsers send, such as https://board.example or http://localhost:3000"
            ));
        }
        Ok(Self { origin: text.to_owned() })
    }
}

/// Parses a list of texts and adds each error to `problems`.
pub(super) fn all<T: FromStr<Err: std::fmt::Display>>(
    key: &str,
    texts: Option<Vec<String>>,
    problems: &mut Vec<String>,
) -> Option<Vec<T>> {
    let mut read = Vec::new();
    for text in texts? {
        match text.parse() {
            Ok(value) => read.push(value),
            Err(why) => problems.push(format!("{key}: {why}")),
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_names_and_origins_are_refused() {
        for wrong in ["", "*", "*.", "a b", "a:80", "http://a", "a..b", "a/b", "a*"] {
            assert!(wrong.parse::<AllowedHost>().is_err(), "{wrong}");
        }
        for wrong in ["", "*", "null", "board.example", "https://", "https://a/b", "https://*.a"] {
            assert!(wrong.parse::<AllowedOrigin>().is_err(), "{wrong}");
        }
        let below: AllowedHost = "*.Svc.local".parse().unwrap();
        assert!(below.is("a.svc.local") && below.is("a.b.SVC.local."));
        assert!(!below.is("svc.local") && !below.is(".svc.local") && !below.is("asvc.local"));
        let page: AllowedOrigin = "https://board.example:8443".parse().unwrap();
        assert!(page.is("https://board.example:8443") && !page.is("http://board.example:8443"));
    }
}
