//! Heads of messages: parsed by `httparse`, and searched for the fields that the host uses.

use std::ops::Range;

use httparse::{EMPTY_HEADER, Error, Header, Request, Response, Status};

use super::Broken;

/// Maximum number of header fields of a message, the same as in other clients.
pub(super) const FIELDS_MAX: usize = 100;

/// The way in which a message delimits its body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    Unspecified,
}

/// The relevant fields of a head, as ranges in its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub length: usize,
    /// Target of a request; empty for a response.
    pub target: Range<usize>,
    pub status: Option<u16>,
    pub framing: Framing,
    /// Whether the connection ends after this message.
    pub closes: bool,
    pub authorization: Option<Range<usize>>,
    pub retry_after: Option<Range<usize>>,
    pub date: Option<Range<usize>>,
}

impl Head {
    /// Parses the head of a response. `bytes` end with the head.
    pub(super) fn parse_response(bytes: &[u8]) -> Result<Self, Broken> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut response = Response::new(&mut fields);
        let parsed = response.parse(bytes).map_err(malformed)?;
        let mut head = Self::empty(parsed, response.version)?;
        head.status = response.code;
        head.read_fields(bytes, response.headers)?;
        // A response without a length ends with its connection.
        head.closes |= head.framing == Framing::Unspecified;
        Ok(head)
    }

    /// Parses the head of a request. `bytes` end with the head.
    pub(super) fn parse_request(bytes: &[u8]) -> Result<Self, Broken> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = Request::new(&mut fields);
        let parsed = request.parse(bytes).map_err(malformed)?;
        let mut head = Self::empty(parsed, request.version)?;
        head.target = request.path.map(|path| range_within(bytes, path.as_bytes())).unwrap_or_default();
        head.read_fields(bytes, request.headers)?;
        Ok(head)
    }

    fn empty(parsed: Status<usize>, version: Option<u8>) -> Result<Self, Broken> {
        let Status::Complete(length) = parsed else { return Err(Broken::Malformed("the head")) };
        Ok(Self {
            length,
            target: 0..0,
            status: None,
            framing: Framing::Unspecified,
            closes: version == Some(0),
            authorization: None,
            retry_after: None,
            date: None,
        })
    }

    /// Parses the fields that the host uses. Fields that contradict each other make the message invalid or the
    /// connection's last.
    fn read_fields(&mut self, bytes: &[u8], fields: &[Header<'_>]) -> Result<(), Broken> {
        for field in fields {
            let (name, value) = (field.name.as_bytes(), field.value);
            // Most names differ in length, so few are compared byte by byte.
            match name.len() {
                14 if name.eq_ignore_ascii_case(b"content-length") => self.read_length(value)?,
                17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                    if !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(Broken::Malformed("a transfer encoding other than chunked"));
                    }
                    // A message with both fields may be an attempt at request smuggling, so it is the connection's
                    // last.
                    self.closes |= matches!(self.framing, Framing::Length(_));
                    self.framing = Framing::Chunked;
                }
                10 if name.eq_ignore_ascii_case(b"connection") => {
                    let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                    self.closes |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
                }
                13 if name.eq_ignore_ascii_case(b"authorization") => {
                    self.authorization = Some(range_within(bytes, value));
                }
                11 if name.eq_ignore_ascii_case(b"retry-after") => {
                    self.retry_after = Some(range_within(bytes, value));
                }
                4 if name.eq_ignore_ascii_case(b"date") => self.date = Some(range_within(bytes, value)),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_length(&mut self, value: &[u8]) -> Result<(), Broken> {
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(value).ok().filter(|_| digits);
        let length =
            text.and_then(|text| text.parse().ok()).ok_or(Broken::Malformed("the content length"))?;
        match self.framing {
            Framing::Unspecified => self.framing = Framing::Length(length),
            Framing::Length(earlier) if earlier != length => {
                return Err(Broken::Malformed("two content lengths"));
            }
            Framing::Length(_) => {}
            Framing::Chunked => self.closes = true,
        }
        Ok(())
    }

    pub(super) fn status(&self) -> Result<u16, Broken> {
        self.status.ok_or(Broken::Malformed("the status"))
    }
}

/// Returns the end of a head, after its empty line. Skips the bytes that were `searched` before.
pub(super) fn end(bytes: &[u8], searched: usize) -> Option<usize> {
    // The empty line may start up to two bytes before the end of the searched part.
    let mut from = searched.saturating_sub(2);
    while let Some(at) = bytes[from..].iter().position(|&byte| byte == b'\n') {
        let after = from + at + 1;
        match &bytes[after..] {
            [b'\n', ..] => return Some(after + 1),
            [b'\r', b'\n', ..] => return Some(after + 2),
            _ => from = after,
        }
    }
    None
}

/// Returns the range of a part within the bytes that it was parsed from.
fn range_within(bytes: &[u8], part: &[u8]) -> Range<usize> {
    let begin = (part.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
    begin..begin + part.len()
}

fn malformed(error: Error) -> Broken {
    Broken::Malformed(match error {
        Error::HeaderName | Error::HeaderValue => "a header field",
        Error::TooManyHeaders => "too many header fields",
        Error::Status => "the status",
        Error::NewLine => "the end of a line",
        Error::Token | Error::Version => "the first line",
    })
}
