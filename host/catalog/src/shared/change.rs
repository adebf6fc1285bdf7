//! The encoding of changes in the log.
//!
//! ```text
//! "ROLLCAT1" | SHA-256 of the rest, 32 bytes | JSON: {"before": digest of the change before, "rows": [...]}
//! ```
//!
//! Each change contains the digest of the previous one, so a copy detects a log with other changes than it has applied.

use std::collections::BTreeMap;

use rollout_wire::digest::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const MAGIC: &[u8; 8] = b"ROLLCAT1";

const HEAD_BYTES: usize = MAGIC.len() + 32;

/// The rows that a transaction has changed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// Digest of the previous change; `None` for the first one.
    pub before: Option<Digest>,
    pub rows: Vec<RowChange>,
}

/// A row after a transaction.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowChange {
    pub table: String,
    /// Values of the primary key.
    pub key: Vec<Value>,
    /// Values of all columns by name; `None` if the row was deleted.
    pub row: Option<BTreeMap<String, Value>>,
}

/// A change with its digest.
pub(crate) struct Chained {
    pub change: Change,
    pub digest: Digest,
}

impl Change {
    /// Returns the encoded change and its digest.
    pub(crate) fn encode(&self) -> (Vec<u8>, Digest) {
        // Strings and integers always serialize.
        let body = serde_json::to_vec(self).unwrap_or_default();
        let digest = Digest::of(&body);
        ([&MAGIC[..], digest.as_bytes(), &body].concat(), digest)
    }

    /// Decodes a change. The error describes the damage.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Chained, String> {
        let Some((head, body)) = bytes.split_at_checked(HEAD_BYTES) else {
            return Err("it is too short".to_owned());
        };
        if head[..MAGIC.len()] != *MAGIC {
            return Err("it does not begin like a change of this version".to_owned());
        }
        let digest = Digest::of(body);
        if head[MAGIC.len()..] != digest.as_bytes()[..] {
            return Err("its digest is wrong".to_owned());
        }
        let change = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        Ok(Chained { change, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_with_a_wrong_bit_is_rejected() {
        let row = BTreeMap::from([("id".to_owned(), 7.into()), ("name".to_owned(), "a".into())]);
        let row = RowChange { table: "tenants".to_owned(), key: vec![7.into()], row: Some(row) };
        let change = Change { before: Some(Digest::of(b"before")), rows: vec![row] };
        let (bytes, digest) = change.encode();
        let decoded = Change::decode(&bytes).unwrap();
        assert_eq!((decoded.change, decoded.digest), (change, digest));
        for bit in 0..8 * bytes.len() {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Change::decode(&wrong).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(Change::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
    }
}
