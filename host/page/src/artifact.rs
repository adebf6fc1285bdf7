//! Artifacts of a rollout: their lines on a page, and the responses with their content.
//!
//! A guest chose both name and content. Pictures are recognised by their first bytes, never by their name, and formats
//! that may contain scripts are offered for download only.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::format::bytes;
use crate::text::{Text, visible};

/// Maximum number of bytes of a text that is shown on the page of its rollout.
const TEXT_BYTES_MAX: usize = 2 << 10;

/// Maximum number of artifacts whose content is shown on the page of their rollout.
const SHOWN_MAX: usize = 20;

/// Maximum number of bytes of a picture that is shown on the page of its rollout.
const PICTURE_BYTES_MAX: usize = 8 << 20;

/// Value of the header `Content-Security-Policy` of an artifact: nothing is loaded or run.
pub const ARTIFACT_POLICY: &str = "default-src 'none'; sandbox; frame-ancestors 'none'";

/// The form of an artifact's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Picture(&'static str),
    Text,
    Other,
}

impl Form {
    fn of(content: &[u8]) -> Self {
        const PICTURES: [(&[u8], &str); 4] = [
            (b"\x89PNG\r\n\x1a\n", "image/png"),
            (b"\xff\xd8\xff", "image/jpeg"),
            (b"GIF87a", "image/gif"),
            (b"GIF89a", "image/gif"),
        ];
        if let Some((_, media_type)) = PICTURES.iter().find(|(beginning, _)| content.starts_with(beginning)) {
            return Self::Picture(media_type);
        }
        if content.starts_with(b"RIFF") && content.get(8..12) == Some(b"WEBP") {
            return Self::Picture("image/webp");
        }
        let is_text = std::str::from_utf8(content).is_ok_and(|text| !text.contains('\0'));
        if is_text { Self::Text } else { Self::Other }
    }
}

/// An artifact as it is sent to a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentArtifact {
    /// The media type.
    pub media_type: &'static str,
    /// Value of the header `Content-Disposition`, in ASCII.
    pub disposition: String,
    /// The content.
    pub content: Vec<u8>,
}

impl SentArtifact {
    /// Creates the response for an artifact.
    pub fn new(name: &str, content: &[u8]) -> Self {
        let (media_type, disposition) = match Form::of(content) {
            Form::Picture(media_type) => (media_type, "inline"),
            Form::Text => ("text/plain; charset=utf-8", "inline"),
            Form::Other => ("application/octet-stream", "attachment"),
        };
        let file = name.rsplit('/').next().unwrap_or_default();
        let file = utf8_percent_encode(file, NON_ALPHANUMERIC);
        Self {
            media_type,
            disposition: format!("{disposition}; filename*=UTF-8''{file}"),
            content: content.to_vec(),
        }
    }
}

/// An artifact on the page of its rollout.
#[derive(Clone, Debug)]
pub(crate) struct ArtifactLine {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: String,
    /// The address of its content.
    pub link: String,
    /// Whether the page shows it as a picture.
    pub is_picture: bool,
    /// Its text, if the page shows it.
    pub text: Option<Text>,
    /// The verb for the effect of a click.
    pub action: &'static str,
}

impl ArtifactLine {
    /// Creates the line of the artifact with this index.
    pub(crate) fn new(at: usize, name: &str, content: &[u8], link: String) -> Self {
        let (form, is_shown) = (Form::of(content), at < SHOWN_MAX);
        let text = |content| Text::beginning(&String::from_utf8_lossy(content), TEXT_BYTES_MAX);
        Self {
            name: visible(name),
            size: bytes(content.len() as u64),
            link,
            is_picture: is_shown && matches!(form, Form::Picture(_)) && content.len() <= PICTURE_BYTES_MAX,
            text: (is_shown && form == Form::Text).then(|| text(content)),
            action: if form == Form::Other { "download" } else { "open" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_and_text_are_shown() {
        fn check(name: &str, content: &[u8], media_type: &str, disposition: &str) {
            let sent = SentArtifact::new(name, content);
            assert_eq!((sent.media_type, &*sent.disposition), (media_type, disposition), "{name}");
        }
        check("a/plot.png", b"\x89PNG\r\n\x1a\n...", "image/png", "inline; filename*=UTF-8''plot%2Epng");
        check("b", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp", "inline; filename*=UTF-8''b");
        let text = "text/plain; charset=utf-8";
        check("x.html", b"<script>alert(1)</script>", text, "inline; filename*=UTF-8''x%2Ehtml");
        check("x.svg", b"<svg onload='alert(1)'/>", text, "inline; filename*=UTF-8''x%2Esvg");
        let other = "application/octet-stream";
        check("x.png", b"\0asm", other, "attachment; filename*=UTF-8''x%2Epng");
        check("\"\r\nx", b"\xff", other, "attachment; filename*=UTF-8''%22%0D%0Ax");
        assert!(ArtifactLine::new(SHOWN_MAX, "a", b"text", String::new()).text.is_none());
        assert!(ArtifactLine::new(0, "a", b"text", String::new()).text.is_some());
    }
}
