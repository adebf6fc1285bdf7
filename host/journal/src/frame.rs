//! Frames of records in a segment, which only this journal can have written.
//!
//! ```text
//! u32 length of the body | u32 CRC-32 of the body | u32 sequence | u64 mark | body: u64 rollout | u8 kind |
//! payload
//! ```
//!
//! Numbers are little-endian. The sequence is the index of the record within its rollout, from 0, which
//! identifies copies of a record. The mark is computed from all other fields of the frame, the record's
//! offset and the journal's salt. Payloads come from guests, which do not know the salt, so no payload can
//! imitate a record, and the next record after a damaged range is found by its mark.

use bytes::Bytes;

use crate::record::{HEAD_BYTES, Kind, PAYLOAD_BYTES_MAX};

/// Size of a frame.
pub(crate) const FRAME_BYTES: usize = 20;

/// Rollout number of records that belong to the journal itself.
pub(crate) const JOURNAL_ROLLOUT: u64 = u64::MAX;

/// Returns the size of a record with a payload of this size in a segment.
pub(crate) fn framed_bytes(payload: usize) -> usize {
    FRAME_BYTES + HEAD_BYTES + payload
}

/// Parameters of the marks in a segment: the journal's salt and the segment's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub salt: u64,
    pub segment: u64,
}

/// A parsed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub rollout: u64,
    /// Index of the record within its rollout.
    pub sequence: u32,
    pub kind: Kind,
    pub payload: &'a [u8],
}

/// Contents at an offset of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A complete record with its size.
    Record(Record<'a>, usize),
    /// A valid frame with a damaged body, with the record's size.
    WrongBody(usize),
    /// No frame of this journal.
    Nothing,
}

/// A frame with a valid mark.
struct FrameHeader {
    length: usize,
    checksum: u32,
    sequence: u32,
}

impl Stamp {
    /// Appends an encoded record that will be written at this offset.
    pub(crate) fn write(
        self,
        to: &mut Vec<u8>,
        offset: u64,
        (rollout, sequence, kind): (u64, u32, Kind),
        payload: &[Bytes],
    ) {
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
        let frame = self.frame(offset, length, checksum, sequence);
        to[start..start + FRAME_BYTES].copy_from_slice(&frame);
    }

    fn frame(self, offset: u64, length: u32, checksum: u32, sequence: u32) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4..8].copy_from_slice(&checksum.to_le_bytes());
        frame[8..12].copy_from_slice(&sequence.to_le_bytes());
        frame[12..].copy_from_slice(&self.mark(offset, length, checksum, sequence).to_le_bytes());
        frame
    }

    /// Computes a mark by mixing its inputs with SplitMix64's finalizer.
    fn mark(self, offset: u64, length: u32, checksum: u32, sequence: u32) -> u64 {
        let words =
            [self.segment, offset, u64::from(length) << 32 | u64::from(checksum), u64::from(sequence)];
        words.into_iter().fold(self.salt, |mark, word| {
            let mixed = (mark ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        })
    }

    /// Parses the frame at the beginning of the bytes, which are at this offset. Returns `None` if its mark
    /// is wrong.
    fn frame_at(self, bytes: &[u8], offset: u64) -> Option<FrameHeader> {
        let frame = bytes.first_chunk::<FRAME_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        let (length, checksum, sequence) = (word(0), word(4), word(8));
        if !(HEAD_BYTES..=HEAD_BYTES + PAYLOAD_BYTES_MAX).contains(&(length as usize)) {
            return None;
        }
        let is_ours = *frame == self.frame(offset, length, checksum, sequence);
        is_ours.then_some(FrameHeader { length: length as usize, checksum, sequence })
    }

    /// Returns the size of the record whose frame is at the beginning of the bytes.
    pub(crate) fn length_at(self, frame: &[u8], offset: u64) -> Option<usize> {
        self.frame_at(frame, offset).map(|frame| FRAME_BYTES + frame.length)
    }

    /// Parses the record at the beginning of the bytes, which are at this offset of the segment.
    pub(crate) fn read(self, bytes: &[u8], offset: u64) -> Parsed<'_> {
        let Some(FrameHeader { length, checksum, sequence }) = self.frame_at(bytes, offset) else {
            return Parsed::Nothing;
        };
        let end = FRAME_BYTES + length;
        let body = bytes.get(FRAME_BYTES..end).filter(|body| crc32fast::hash(body) == checksum);
        let Some((rollout, [kind, payload @ ..])) = body.and_then(|body| body.split_first_chunk::<8>())
        else {
            return Parsed::WrongBody(end);
        };
        let rollout = u64::from_le_bytes(*rollout);
        Parsed::Record(Record { rollout, sequence, kind: Kind::of(*kind), payload }, end)
    }

    /// Finds the next frame of this journal from an offset on, with one comparison per byte.
    pub(crate) fn find(self, segment: &[u8], from: usize) -> Option<usize> {
        (from..segment.len()).find(|at| self.frame_at(&segment[*at..], *at as u64).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { salt: 0x1234_5678_9abc_def0, segment: 3 };

    #[test]
    fn a_record_is_valid_only_at_its_own_offset() {
        let mut bytes = vec![0; 5];
        STAMP.write(
            &mut bytes,
            5,
            (7, 2, Kind::Event(3)),
            &[Bytes::from_static(b"ab"), Bytes::from_static(b"c")],
        );
        let whole = Record { rollout: 7, sequence: 2, kind: Kind::Event(3), payload: b"abc" };
        assert_eq!(STAMP.read(&bytes[5..], 5), Parsed::Record(whole, framed_bytes(3)));
        assert_eq!(STAMP.find(&bytes, 0), Some(5));
        assert_eq!(STAMP.find(&bytes, 6), None);
        assert_eq!(STAMP.read(&bytes[5..], 6), Parsed::Nothing, "at another offset");
        assert_eq!(Stamp { segment: 4, ..STAMP }.read(&bytes[5..], 5), Parsed::Nothing, "in another segment");
        assert_eq!(Stamp { salt: 1, ..STAMP }.read(&bytes[5..], 5), Parsed::Nothing, "in another journal");
        for end in 5..bytes.len() {
            assert!(!matches!(STAMP.read(&bytes[5..end], 5), Parsed::Record(..)), "cut at {end}");
        }
        for bit in 0..8 * (bytes.len() - 5) {
            let mut wrong = bytes.clone();
            wrong[5 + bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(STAMP.read(&wrong[5..], 5), Parsed::Record(..)), "bit {bit} changed");
        }
        assert_eq!(STAMP.read(&[0; 64], 0), Parsed::Nothing);
    }
}
