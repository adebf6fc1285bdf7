//! Names under which a server may be asked, and web pages that may ask it.

use std::str::FromStr;

/// A name of the server: `rollouts.example`, or `*.example` for all names below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    /// In lower case; with a dot at its beginning where names below it are meant.
    name: String,
}

impl AllowedHost {
    /// Whether it is this name, in any case, with or without the dot at the end.
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

/// The origin of web pages: `https://board.example`, with a port where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin {
    origin: String,
}

impl AllowedOrigin {
    /// Whether it is this one, as a browser writes it.
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
                "'{text}' is not an origin as a browser says it, such as https://board.example or http://localhost:3000"
            ));
        }
        Ok(Self { origin: text.to_owned() })
    }
}

/// Reads a list of such texts; each that is none is a problem.
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
    fn names_and_origins_are_as_written_or_refused() {
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
