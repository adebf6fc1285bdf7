//! Addresses of pages.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rollout_wire::id::RolloutId;

/// Characters of a path segment or of a value in a query that are encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Returns a text as a segment of a path, or as a value of a query.
pub fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// The addresses of a server's pages.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// The path of the first page, without a slash at its end.
    pub root: &'static str,
    /// The tenant that an operator looks at.
    pub tenant: Option<String>,
}

impl Links {
    /// Returns the address of the first page.
    pub fn home(&self) -> String {
        self.with_query(format!("{}/", self.root), "")
    }

    /// Returns the address of a file that pages need.
    pub fn asset(&self, name: &str) -> String {
        format!("{}/assets/{name}", self.root)
    }

    /// Returns the address of a rollout's page.
    pub fn rollout(&self, id: &RolloutId) -> String {
        self.below_rollout(id, "", "")
    }

    /// Returns an address below that of a rollout's page, with a query.
    pub fn below_rollout(&self, id: &RolloutId, below: &str, query: &str) -> String {
        self.with_query(format!("{}/rollouts/{}{below}", self.root, path_segment(id.as_str())), query)
    }

    /// Returns the address of a page, with a query and the tenant.
    pub fn with_query(&self, path: String, query: &str) -> String {
        let mut address = path;
        let mut separator = '?';
        if let Some(tenant) = &self.tenant {
            // Writing to a text does not fail.
            let _ = write!(address, "?tenant={}", path_segment(tenant));
            separator = '&';
        }
        if !query.is_empty() {
            address.push(separator);
            address.push_str(query);
        }
        address
    }
}

/// The frame of every page around its content.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The addresses of other pages.
    pub links: Links,
    /// The name of the server or of the evaluation.
    pub name: String,
    /// The rights of the key, if the browser is signed in.
    pub signed_in_as: Option<String>,
    /// The address of the events that make the page show changes.
    pub events: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_with_markup_become_one_segment() {
        let links = Links { root: "/ui", tenant: None };
        let id = RolloutId::parse("a b\"><script>&é?#").unwrap();
        assert_eq!(links.rollout(&id), "/ui/rollouts/a%20b%22%3E%3Cscript%3E%26%C3%A9%3F%23");
        let links = Links { root: "/ui", tenant: Some("a&b".to_owned()) };
        assert_eq!(
            links.below_rollout(&id, "/log", "page=2").rsplit('?').next().unwrap(),
            "tenant=a%26b&page=2"
        );
        assert_eq!(links.home(), "/ui/?tenant=a%26b");
    }
}
