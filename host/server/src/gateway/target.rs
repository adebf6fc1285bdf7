//! The workers that a request is for, by its method and path.

use axum::http::Method;

/// The workers that a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// One that has room. The body may name a rollout.
    New,
    /// The one whose log the lease of this rollout names.
    Poll(&'a str),
    /// The one that has the rollout.
    Rollout(&'a str),
    /// All of them, with one answer.
    Cancel,
    /// Any of them; all give the same answer.
    Any,
}

impl<'a> Target<'a> {
    /// Returns the target of a request. The path is [below](below) a tenant's plugin.
    pub(super) fn of(method: &Method, path: &'a str) -> Self {
        let mut parts = path.trim_start_matches('/').split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("rollout"), Some("cancel"), None, None) if method == Method::POST => Self::Cancel,
            (Some("rollout"), Some(id), Some("result"), None) => Self::Poll(id),
            (Some("rollout"), Some(id), Some(_), None) => Self::Rollout(id),
            _ if method == Method::GET => Self::Any,
            _ => Self::New,
        }
    }
}

/// Returns the part of a path below a tenant's plugin, `/p/NAME`.
pub(super) fn below(path: &str) -> &str {
    let Some(rest) = path.strip_prefix("/p/") else { return path };
    rest.find('/').map_or("/", |end| &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_of_a_tenant_is_not_a_part_of_the_route() {
        let check = |path, expected| assert_eq!(below(path), expected, "{path}");
        check("/rollout", "/rollout");
        check("/p/calc/rollout/r/result", "/rollout/r/result");
        check("/p/calc", "/");
        check("/pp/calc", "/pp/calc");
    }

    #[test]
    fn a_path_determines_the_workers() {
        let check = |method: Method, path, expected| {
            assert_eq!(Target::of(&method, path), expected, "{method} {path}");
        };
        check(Method::POST, "/rollout", Target::New);
        check(Method::POST, "/v1/rollout/init", Target::New);
        check(Method::POST, "/run", Target::New);
        check(Method::POST, "/rollout/cancel", Target::Cancel);
        check(Method::GET, "/rollout/r/result", Target::Poll("r"));
        check(Method::GET, "/rollout/r/status", Target::Rollout("r"));
        check(Method::GET, "/rollout/r/trajectory", Target::Rollout("r"));
        check(Method::GET, "/openenv/schema", Target::Any);
        check(Method::GET, "/rollout/r", Target::Any);
    }
}
