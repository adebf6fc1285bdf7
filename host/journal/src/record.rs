//! Records outside of segments: length, checksum and contents. A segment uses a [frame](crate::frame)
//! instead.
//!
//! ```text
//! u32 length of the rest after the checksum | u32 CRC-32 of it | u64 rollout | u8 kind | payload
//! ```
//!
//! Numbers are little-endian. A length of zero marks the end, because allocated and unwritten space reads as
//! zeros.

use bytes::Bytes;

/// Size of length and checksum.
pub(crate) const FRAME_BYTES: usize = 8;

/// Size of rollout number and kind.
pub(crate) const HEAD_BYTES: usize = 9;

/// Maximum size of a payload, far above that of any message of a model server or caller.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Start of a rollout; the payload is its name.
    Begin,
    /// End of a rollout. A process that opens the journal ignores ended rollouts.
    End,
    /// An event with a kind that its owner chose.
    Event(u8),
}

const BEGIN: u8 = 0;
const END: u8 = u8::MAX;

impl Kind {
    pub(crate) fn of(byte: u8) -> Self {
        match byte {
            BEGIN => Self::Begin,
            END => Self::End,
            event => Self::Event(event),
        }
    }

    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Begin => BEGIN,
            Self::End => END,
            Self::Event(event) => event,
        }
    }
}

/// Returns the size of a record with a payload of this size.
#[cfg(test)]
pub(crate) fn framed_bytes(payload: usize) -> usize {
    FRAME_BYTES + HEAD_BYTES + payload
}

/// Appends an encoded record.
pub(crate) fn write(to: &mut Vec<u8>, rollout: u64, kind: Kind, payload: &[Bytes]) {
    let start = to.len();
    to.extend_from_slice(&[0; FRAME_BYTES]);
    to.extend_from_slice(&rollout.to_le_bytes());
    to.push(kind.byte());
    for part in payload {
        to.extend_from_slice(part);
    }
    let body = &to[start + FRAME_BYTES..];
    // `append` has checked the length against `PAYLOAD_BYTES_MAX`.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let checksum = crc32fast::hash(body);
    to[start..start + 4].copy_from_slice(&length.to_le_bytes());
    to[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// A parsed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read<'a> {
    pub rollout: u64,
    pub kind: Kind,
    pub payload: &'a [u8],
}

/// Contents at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A complete record with its size.
    Record(Read<'a>, usize),
    /// The end of the records.
    End,
    /// An incomplete or damaged record.
    Torn,
}

/// Parses the record at the beginning of the bytes.
pub(crate) fn read(bytes: &[u8]) -> Parsed<'_> {
    let Some((frame, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else {
        return if bytes.iter().all(|byte| *byte == 0) { Parsed::End } else { Parsed::Torn };
    };
    let [a, b, c, d, e, f, g, h] = *frame;
    let (length, checksum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    if length == 0 && checksum == 0 {
        return Parsed::End;
    }
    let Some(body) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
        return Parsed::Torn;
    };
    if crc32fast::hash(body) != checksum {
        return Parsed::Torn;
    }
    let Some((rollout, [kind, payload @ ..])) = body.split_first_chunk::<8>() else { return Parsed::Torn };
    let read = Read { rollout: u64::from_le_bytes(*rollout), kind: Kind::of(*kind), payload };
    Parsed::Record(read, FRAME_BYTES + body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_record_is_read_as_written_and_a_part_is_rejected() {
        let mut bytes = Vec::new();
        write(&mut bytes, 7, Kind::Event(3), &[Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        let whole = Read { rollout: 7, kind: Kind::Event(3), payload: b"abc" };
        assert_eq!(read(&bytes), Parsed::Record(whole, framed_bytes(3)));
        for end in 1..bytes.len() {
            assert_eq!(read(&bytes[..end]), Parsed::Torn, "cut at {end}");
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x40;
            assert_eq!(read(&wrong), Parsed::Torn, "changed at {at}");
        }
        assert_eq!(read(&[]), Parsed::End);
        assert_eq!(read(&[0; 32]), Parsed::End);
    }
}
