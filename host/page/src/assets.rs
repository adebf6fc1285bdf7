//! The files that pages need, as parts of the program.

/// A file that pages need.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its name, below `assets/`.
    pub name: &'static str,
    /// Its media type.
    pub media_type: &'static str,
    /// Its content.
    pub content: &'static str,
}

/// All files that pages need.
pub const ASSETS: [Asset; 3] = [
    Asset {
        name: "style.css",
        media_type: "text/css; charset=utf-8",
        content: include_str!("../assets/style.css"),
    },
    Asset {
        name: "script.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("../assets/script.js"),
    },
    Asset { name: "icon.svg", media_type: "image/svg+xml", content: include_str!("../assets/icon.svg") },
];

/// Value of the header `Content-Security-Policy` of every page: scripts, styles and connections of the server only,
/// none of them inline, and no frame around a page.
pub const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
