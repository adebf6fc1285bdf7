//! Messages of a log: one batch of records of all journals of a worker, or a fence.
//!
//! ```text
//! "ROLLLOG1" | u32 CRC-32 of the rest | u8 kind | u8 x 3 zero | u64 epoch | u64 number | u64 time of the message before
//!            | body
//! ```
//!
//! Integers are little-endian. The epoch identifies the owner of the log; a new owner begins with a fence, whose body
//! is the owner's URL. Each number is the previous message's number plus one, also across owners, so a gap is detected. The
//! time, in milliseconds since 1970, shows whether the previous message may have been dropped because of its age.
//!
//! The body of a batch is a list of chunks:
//!
//! ```text
//! u8 length of the name | name of the journal | u8 flags | u32 length | records, framed as in the journal's crate
//! ```
//!
//! A record that is larger than a message is split. Flag 1 marks a chunk that begins inside a record, and flag 2 a chunk
//! that ends inside a record. The next chunk of the same journal continues the record, unless a fence is in between: then
//! the record was never acknowledged.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use rollout_journal::record_bytes;

/// Maximum size of a message, below the server's default limit of 1 MiB.
pub(crate) const MESSAGE_BYTES_MAX: usize = 768 << 10;

/// Maximum size of a journal's name in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

const MAGIC: &[u8; 8] = b"ROLLLOG1";

const HEADER_BYTES: usize = 40;

const FENCE: u8 = 1;

const BEGINS_INSIDE: u8 = 1;

const ENDS_INSIDE: u8 = 2;

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) is_fence: bool,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    /// Time of the previous message in milliseconds since 1970; 0 for the first message of a log.
    pub(crate) time_before: u64,
}

/// A message whose body is being written. The room for the header is in front, so that no record is copied again.
pub(crate) struct Draft(Vec<u8>);

impl Draft {
    /// Returns a draft for a body of this size.
    pub(crate) fn new(body_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity((HEADER_BYTES + body_bytes).min(MESSAGE_BYTES_MAX));
        bytes.resize(HEADER_BYTES, 0);
        Self(bytes)
    }

    /// Returns a draft with this body.
    pub(crate) fn of(body: &[u8]) -> Self {
        let mut draft = Self::new(body.len());
        draft.0.extend_from_slice(body);
        draft
    }

    fn is_empty(&self) -> bool {
        self.0.len() == HEADER_BYTES
    }

    /// Returns the number of bytes that still fit into the message.
    fn room(&self) -> usize {
        MESSAGE_BYTES_MAX.saturating_sub(self.0.len())
    }

    /// Completes the message.
    pub(crate) fn finish(self, head: Head) -> Bytes {
        let mut bytes = self.0;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..16].copy_from_slice(&[u8::from(head.is_fence) * FENCE, 0, 0, 0]);
        for (at, word) in [(16, head.epoch), (24, head.number), (32, head.time_before)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes.into()
    }
}

/// Decodes a message into its head and body. The error describes the damage.
pub(crate) fn decode(message: &Bytes) -> Result<(Head, Bytes), &'static str> {
    let Some(header) = message.first_chunk::<HEADER_BYTES>() else {
        return Err("it is too short for a message of a log");
    };
    if header[..8] != *MAGIC {
        return Err("it does not begin like a message of this version");
    }
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
    if crc32fast::hash(&message[12..]).to_le_bytes() != header[8..12] {
        return Err("its checksum is wrong");
    }
    let head =
        Head { is_fence: header[12] == FENCE, epoch: word(16), number: word(24), time_before: word(32) };
    Ok((head, message.slice(HEADER_BYTES..)))
}

/// A part of a journal's records in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) journal: String,
    begins_inside: bool,
    ends_inside: bool,
    records: Bytes,
}

/// Splits the body of a batch into its chunks.
pub(crate) fn chunks(mut body: Bytes) -> Result<Vec<Chunk>, &'static str> {
    const SHORT: &str = "a chunk in it is cut";
    let mut chunks = Vec::new();
    while body.has_remaining() {
        let name = usize::from(body.get_u8());
        if body.remaining() < name + 5 {
            return Err(SHORT);
        }
        let name = body.split_to(name);
        let flags = body.get_u8();
        let length = body.get_u32_le() as usize;
        if body.remaining() < length {
            return Err(SHORT);
        }
        let journal = std::str::from_utf8(&name).map_err(|_| "the name of a journal in it is not text")?;
        chunks.push(Chunk {
            journal: journal.to_owned(),
            begins_inside: flags & BEGINS_INSIDE != 0,
            ends_inside: flags & ENDS_INSIDE != 0,
            records: body.split_to(length),
        });
    }
    Ok(chunks)
}

/// Records of a journal that are being put into messages.
pub(crate) struct Outgoing {
    pub(crate) journal: Arc<str>,
    pub(crate) records: Bytes,
    /// Whether the beginning of the first record is in earlier messages.
    is_inside: bool,
}

impl Outgoing {
    pub(crate) fn new(journal: Arc<str>, records: Bytes) -> Self {
        Self { journal, records, is_inside: false }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the minimum number of bytes that the records take in messages.
    pub(crate) fn message_bytes(&self) -> usize {
        self.head_bytes() + self.records.len()
    }

    fn head_bytes(&self) -> usize {
        1 + self.journal.len() + 5
    }

    /// Moves as many records into a message as fit. Returns whether the message is full.
    pub(crate) fn fill(&mut self, draft: &mut Draft) -> bool {
        let room = draft.room().saturating_sub(self.head_bytes());
        let Some((bytes, ends_inside)) = self.part(room, draft.is_empty()) else { return true };
        let Draft(body) = draft;
        let flags = (u8::from(self.is_inside) * BEGINS_INSIDE) | (u8::from(ends_inside) * ENDS_INSIDE);
        // The name was checked when the journal was opened; the length is below that of a message.
        body.push(u8::try_from(self.journal.len()).unwrap_or(u8::MAX));
        body.extend_from_slice(self.journal.as_bytes());
        body.push(flags);
        body.extend_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes());
        body.extend_from_slice(&self.records.split_to(bytes));
        self.is_inside = ends_inside;
        !self.records.is_empty()
    }

    /// Returns how many bytes go into a message with this room, and whether they end inside a record.
    fn part(&self, room: usize, is_first: bool) -> Option<(usize, bool)> {
        if self.records.len() <= room {
            return Some((self.records.len(), false));
        }
        let mut end = 0;
        // The rest of a split record has no length at its beginning.
        while !self.is_inside
            && let Ok(Some(next)) = record_bytes(&self.records[end..])
            && end + next <= room
        {
            end += next;
        }
        match end {
            0 if is_first => Some((room, true)),
            0 => None,
            whole => Some((whole, false)),
        }
    }
}

/// Joins the chunks of each journal to whole records.
#[derive(Default)]
pub(crate) struct Joined {
    cut: HashMap<String, Vec<u8>>,
    /// Journals of which a chunk was seen.
    begun: HashMap<String, bool>,
}

impl Joined {
    /// Drops records that an earlier owner did not finish. They were never acknowledged.
    pub(crate) fn fence(&mut self) {
        self.cut.clear();
    }

    /// Returns the whole records of a chunk. `is_after_drop` is set if earlier messages were dropped because of their age.
    pub(crate) fn add(&mut self, chunk: Chunk, is_after_drop: bool) -> Result<Option<Bytes>, &'static str> {
        let Chunk { journal, begins_inside, ends_inside, records } = chunk;
        let is_first = self.begun.insert(journal.clone(), true).is_none();
        let before = self.cut.remove(&journal);
        let joined = match (before, begins_inside) {
            (None, false) => records,
            (Some(mut before), true) => {
                before.extend_from_slice(&records);
                before.into()
            }
            // The beginning of the record was dropped.
            (None, true) if is_first && is_after_drop => {
                if ends_inside {
                    self.begun.remove(&journal);
                }
                return Ok(None);
            }
            (None, true) => return Err("it continues a record whose beginning is missing"),
            (Some(_), false) => {
                return Err("it does not continue the record that the previous message has split");
            }
        };
        if ends_inside {
            self.cut.insert(journal, joined.into());
            return Ok(None);
        }
        Ok(Some(joined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: u64) -> Head {
        Head { is_fence: false, epoch: 3, number, time_before: 5 }
    }

    #[test]
    fn a_message_with_a_wrong_bit_is_rejected() {
        let bytes = Draft::of(b"body").finish(head(7));
        assert_eq!(decode(&bytes), Ok((head(7), Bytes::from_static(b"body"))));
        for bit in 0..8 * bytes.len() {
            let mut wrong = bytes.to_vec();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&wrong.into()).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(decode(&bytes.slice(..end)).is_err(), "cut at {end}");
        }
    }

    /// A record as the journal frames it, as far as its length is concerned.
    fn record(payload: usize, fill: u8) -> Vec<u8> {
        let length = u32::try_from(9 + payload).unwrap();
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(12 + 9 + payload, fill);
        bytes
    }

    /// Packs records into messages and joins them again.
    fn round(journals: &[(&str, &[usize])]) -> (usize, HashMap<String, Vec<u8>>) {
        let mut drafts = vec![Draft::new(0)];
        let mut expected: HashMap<String, Vec<u8>> = HashMap::new();
        for (journal, sizes) in journals {
            let records: Vec<u8> = sizes.iter().flat_map(|size| record(*size, 3)).collect();
            expected.entry((*journal).to_owned()).or_default().extend(&records);
            let mut outgoing = Outgoing::new((*journal).into(), records.into());
            while outgoing.fill(drafts.last_mut().unwrap()) {
                drafts.push(Draft::new(outgoing.message_bytes()));
            }
        }
        let (mut joined, mut read) = (Joined::default(), HashMap::<String, Vec<u8>>::new());
        let count = drafts.len();
        for draft in drafts {
            let message = draft.finish(head(1));
            assert!(message.len() <= MESSAGE_BYTES_MAX);
            for chunk in chunks(decode(&message).unwrap().1).unwrap() {
                let journal = chunk.journal.clone();
                if let Some(records) = joined.add(chunk, false).unwrap() {
                    read.entry(journal).or_default().extend(&records);
                }
            }
        }
        assert_eq!(read, expected);
        (count, read)
    }

    #[test]
    fn records_are_cut_into_messages_and_joined() {
        assert_eq!(round(&[("a", &[1, 2, 3]), ("b", &[0])]).0, 1);
        assert_eq!(round(&[("a", &[500 << 10, 500 << 10]), ("b", &[10])]).0, 2);
        // A record that is larger than a message begins a message; the next record shares a message with its rest.
        assert_eq!(round(&[("a", &[10, 2 << 20, 10]), ("b", &[10])]).0, 4);
        assert_eq!(round(&[("", &[700 << 10]), ("b", &[700 << 10]), ("a", &[1])]).0, 2);
    }

    #[test]
    fn a_cut_record_without_its_rest_or_beginning_is_damage_unless_there_is_a_reason() {
        let chunk = |begins_inside, ends_inside| Chunk {
            journal: "a".to_owned(),
            begins_inside,
            ends_inside,
            records: Bytes::from_static(b"x"),
        };
        let mut joined = Joined::default();
        assert_eq!(joined.add(chunk(true, true), true), Ok(None), "the beginning was dropped");
        assert_eq!(joined.add(chunk(true, false), true), Ok(None));
        assert!(joined.add(chunk(false, false), true).unwrap().is_some());
        assert!(joined.add(chunk(true, false), true).is_err(), "the beginning is missing");
        assert_eq!(joined.add(chunk(false, true), true), Ok(None));
        assert!(joined.add(chunk(false, false), true).is_err(), "the rest is missing");
        assert_eq!(joined.add(chunk(false, true), true), Ok(None));
        joined.fence();
        assert!(joined.add(chunk(false, false), true).unwrap().is_some(), "it was never acknowledged");
    }
}
