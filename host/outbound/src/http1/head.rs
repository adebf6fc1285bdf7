//! The head of a message: parsed by `httparse`, looked at for the fields that matter here.

use std::ops::Range;

use httparse::{EMPTY_HEADER, Error, Header, Request, Response, Status};

use super::Broken;

/// Header fields of one message, as many as other clients take.
pub(super) const FIELDS_MAX: usize = 100;

/// How a message says where its body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    Unsaid,
}

/// Where the fields that matter are in the bytes of a head.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub length: usize,
    /// A request's target; nothing in a response.
    pub target: Range<usize>,
    pub status: Option<u16>,
    pub framing: Framing,
    /// Whether the connection ends with this message.
    pub closes: bool,
    pub authorization: Option<Range<usize>>,
    pub retry_after: Option<Range<usize>>,
    pub date: Option<Range<usize>>,
}

impl Head {
    /// Reads the head of a response, which `bytes` end with.
    pub(super) fn of_response(bytes: &[u8]) -> Result<Self, Broken> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut response = Response::new(&mut fields);
        let parsed = response.parse(bytes).map_err(malformed)?;
        let mut head = Self::empty(parsed, response.version)?;
        head.status = response.code;
        head.read_fields(bytes, response.headers)?;
        // A response that does not say how long it is ends with its connection.
        head.closes |= head.framing == Framing::Unsaid;
        Ok(head)
    }

    /// The same of a request.
    pub(super) fn of_request(bytes: &[u8]) -> Result<Self, Broken> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = Request::new(&mut fields);
        let parsed = request.parse(bytes).map_err(malformed)?;
        let mut head = Self::empty(parsed, request.version)?;
        head.target = request.path.map(|path| place(bytes, path.as_bytes())).unwrap_or_default();
        head.read_fields(bytes, request.headers)?;
        Ok(head)
    }

    fn empty(parsed: Status<usize>, version: Option<u8>) -> Result<Self, Broken> {
        let Status::Complete(length) = parsed else { return Err(Broken::Malformed("the head")) };
        Ok(Self {
            length,
            target: 0..0,
            status: None,
            framing: Framing::Unsaid,
            closes: version == Some(0),
            authorization: None,
            retry_after: None,
            date: None,
        })
    }

    fn read_fields(&mut self, bytes: &[u8], fields: &[Header<'_>]) -> Result<(), Broken> {
        for field in fields {
            let (name, value) = (field.name.as_bytes(), field.value);
            // The length tells most fields apart before any letter is compared.
            match name.len() {
                14 if name.eq_ignore_ascii_case(b"content-length") => self.read_length(value)?,
                17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                    if !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(Broken::Malformed("a transfer encoding other than chunked"));
                    }
                    // Who says both is not to be trusted with another message.
                    self.closes |= matches!(self.framing, Framing::Length(_));
                    self.framing = Framing::Chunked;
                }
                10 if name.eq_ignore_ascii_case(b"connection") => {
                    let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                    self.closes |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
                }
                13 if name.eq_ignore_ascii_case(b"authorization") => {
                    self.authorization = Some(place(bytes, value));
                }
                11 if name.eq_ignore_ascii_case(b"retry-after") => {
                    self.retry_after = Some(place(bytes, value));
                }
                4 if name.eq_ignore_ascii_case(b"date") => self.date = Some(place(bytes, value)),
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
            Framing::Unsaid => self.framing = Framing::Length(length),
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

/// Where the end of a head is, behind its empty line. Looks only at what was not `searched`.
pub(super) fn end(bytes: &[u8], searched: usize) -> Option<usize> {
    // An empty line may begin with what was the last byte then, or the one before it.
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

/// Where a part is in the bytes that it was parsed from.
fn place(bytes: &[u8], part: &[u8]) -> Range<usize> {
    let begin = (part.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
    begin..begin + part.len()
}

fn malformed(error: Error) -> Broken {
    Broken::Malformed(match error {
        Error::HeaderName | Error::HeaderValue => "a header field",
        Error::TooManyHeaders => "more header fields than anybody sends",
        Error::Status => "the status",
        Error::NewLine => "the end of a line",
        Error::Token | Error::Version => "the first line",
    })
}
