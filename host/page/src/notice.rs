//! Pages without data: a notice about a page that cannot be shown, and the sign-in.

use askama::Template;

use crate::links::Frame;

/// A page with the reason why another page cannot be shown, and with advice.
#[derive(Debug, Template)]
#[template(path = "notice.html")]
pub struct NoticePage {
    /// The frame.
    pub frame: Frame,
    /// A title that names the problem.
    pub title: String,
    /// The reason.
    pub reason: String,
    /// Advice for the reader.
    pub advice: String,
}

/// The page that requests a key.
#[derive(Debug, Template)]
#[template(path = "sign_in.html")]
pub struct SignInPage {
    /// The frame.
    pub frame: Frame,
    /// The reason why a sign-in failed, if one did.
    pub error: Option<String>,
    /// The page to which the sign-in leads.
    pub next: String,
}
