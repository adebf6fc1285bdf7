//! Fuzz target of the framing: parses any bytes as heads, split at any position.

use super::{BytesMut, Head, Message, RETRY_AFTER_MAX, chunk_length, head};

/// Maximum length of an input that is split at every byte.
const CUT_BYTES_MAX: usize = 1024;

/// Parses the bytes as the head of a request, the head of a response, and the line before a chunk.
pub(crate) fn heads(bytes: &[u8]) {
    let end = head::end(bytes, 0);
    if bytes.len() <= CUT_BYTES_MAX {
        let cut = (1..=bytes.len()).find_map(|length| head::end(&bytes[..length], length - 1));
        assert_eq!(cut, end, "the end does not depend on how the bytes arrive");
    }
    let _ = chunk_length(bytes);
    let Some(end) = end else { return };
    for parsed in [Head::parse_request(&bytes[..end]), Head::parse_response(&bytes[..end])] {
        let Ok(head) = parsed else { continue };
        assert!(head.length <= end, "a head has an end");
        let message = Message { bytes: bytes[..head.length].into(), head, body: BytesMut::new() };
        let _ = (message.target(), message.authorization(), message.status());
        assert!(message.retry_after().is_none_or(|wait| wait <= RETRY_AFTER_MAX));
    }
}
