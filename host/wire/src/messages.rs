//! Messages of a conversation in one buffer.
//!
//! A message may be as short as `{}`, and an allocation for each would take twenty times its bytes. Here a message
//! takes its text and eight bytes.

use std::fmt;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Size up to which the buffer doubles when it grows.
const SMALL_BYTES: usize = 4 << 10;

/// JSON objects in order, each unchanged. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Messages(Arc<Inner>);

#[derive(Clone, Default, PartialEq, Eq)]
struct Inner {
    /// Texts of the objects, one after the other.
    text: String,
    /// End of each text.
    ends: Vec<usize>,
}

impl Inner {
    /// Reserves room for more text. A long conversation grows by a quarter instead of doubling, because the spare room
    /// of thousands of waiting conversations adds up.
    fn make_room(&mut self, bytes: usize) {
        if self.text.capacity() - self.text.len() < bytes {
            let more = if self.text.len() < SMALL_BYTES { self.text.len() } else { self.text.len() / 4 };
            self.text.reserve_exact(bytes.max(more));
        }
    }
}

impl Messages {
    /// Creates an empty list with room for this much text.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Arc::new(Inner { text: String::with_capacity(bytes), ends: Vec::new() }))
    }

    /// Adds a message. The caller has checked it with [`super::object`].
    pub fn push(&mut self, message: &RawValue) {
        self.push_text(message.get());
    }

    /// Adds a message that is a checked JSON object without surrounding white space.
    pub fn push_text(&mut self, message: &str) {
        debug_assert!(message.starts_with('{') && message.ends_with('}'), "{message}");
        self.push_texts(std::iter::once(message));
    }

    /// Adds the messages of another list.
    pub fn append(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        let inner = Arc::make_mut(&mut self.0);
        let start = inner.text.len();
        inner.make_room(other.0.text.len());
        inner.text.push_str(&other.0.text);
        inner.ends.extend(other.0.ends.iter().map(|end| start + end));
    }

    /// Adds messages from other lists, or messages that were checked otherwise.
    pub fn push_texts<'a>(&mut self, texts: impl Iterator<Item = &'a str>) {
        let inner = Arc::make_mut(&mut self.0);
        for text in texts {
            inner.make_room(text.len());
            inner.text.push_str(text);
            inner.ends.push(inner.text.len());
        }
    }

    /// Returns the messages from an index on as a new list.
    pub fn tail(&self, from: usize) -> Self {
        let mut tail = Self::with_capacity(self.text_bytes_of(from, self.len()));
        tail.push_texts(self.iter().skip(from));
        tail
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Returns the message at an index.
    pub fn get(&self, at: usize) -> Option<&str> {
        let end = *self.0.ends.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.0.ends[before]);
        self.0.text.get(start..end)
    }

    /// Returns the messages in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone {
        (0..self.len()).map(|at| self.get(at).unwrap_or_default())
    }

    /// Returns the size of all texts in bytes.
    pub fn text_bytes(&self) -> usize {
        self.0.text.len()
    }

    /// Returns the size of the texts in a range in bytes.
    pub fn text_bytes_of(&self, from: usize, to: usize) -> usize {
        let begin = |at: usize| at.checked_sub(1).map_or(0, |before| self.0.ends[before]);
        begin(to) - begin(from)
    }

    /// Returns whether both lists share one buffer. Equal lists may have separate buffers.
    pub fn is_same_list(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the allocated size in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.0.text.capacity() + self.0.ends.capacity() * size_of::<usize>()
    }

    /// Releases spare room.
    pub fn shrink(&mut self) {
        let inner = Arc::make_mut(&mut self.0);
        inner.text.shrink_to_fit();
        inner.ends.shrink_to_fit();
    }
}

impl<'a> FromIterator<&'a RawValue> for Messages {
    fn from_iter<I: IntoIterator<Item = &'a RawValue>>(messages: I) -> Self {
        let mut all = Self::default();
        messages.into_iter().for_each(|message| all.push(message));
        all
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Serializes the unchanged objects as an array. JSON only.
impl Serialize for Messages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.len()))?;
        for message in self.iter() {
            // SAFETY: The message was pushed as one JSON object without surrounding white space: as a raw value, or as a
            // part of JSON that was parsed. A text is read at the position at which it was written.
            let raw = unsafe { RawValue::from_string_unchecked(message.to_owned()) };
            list.serialize_element(&raw)?;
        }
        list.end()
    }
}

/// Deserializes an array of objects, each of which stays unchanged. JSON only.
impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
            type Value = Messages;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Messages, A::Error> {
                let mut all = Messages::default();
                while let Some(message) = list.next_element::<Box<RawValue>>()? {
                    if !message.get().starts_with('{') {
                        return Err(serde::de::Error::custom("a message is not an object"));
                    }
                    all.push(&message);
                }
                all.shrink();
                Ok(all)
            }
        }
        from.deserialize_seq(Each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(texts: &[&str]) -> Messages {
        texts.iter().map(|text| crate::object(text).unwrap()).collect()
    }

    #[test]
    fn messages_are_returned_unchanged() {
        let texts = ["{}", r#"{"role":"user", "n":1.10}"#, r#"{"é":"\u00e9"}"#, "{}"];
        let mut all = messages(&texts);

        assert_eq!(all.iter().collect::<Vec<_>>(), texts);
        assert_eq!((all.len(), all.is_empty(), all.get(4)), (4, false, None));
        assert_eq!(serde_json::to_string(&all).unwrap(), format!("[{}]", texts.join(",")));
        let before = all.clone();
        all.push(crate::object("{}").unwrap());
        assert_eq!((before.len(), all.len()), (4, 5), "a clone is independent");
        all.append(before);
        assert_eq!(
            all.iter().collect::<Vec<_>>().concat(),
            [&texts[..], &["{}"], &texts[..]].concat().concat()
        );
        assert!(Messages::default().is_empty());
    }

    #[test]
    fn messages_are_deserialized_unchanged() {
        let all = messages(&["{}", r#"{"role":"user",  "n":1.10}"#]);
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Messages>(&text).unwrap(), all);
        assert!(serde_json::from_str::<Messages>("[1]").is_err());
    }

    #[test]
    fn a_growing_conversation_has_at_most_a_quarter_of_spare_room() {
        let mut all = Messages::default();
        let text = format!(r#"{{"role":"tool","content":"{}"}}"#, "x".repeat(1000));
        for _ in 0..300 {
            all.append(messages(&[&text]));
            let spare = all.0.text.capacity() - all.0.text.len();
            assert!(spare <= SMALL_BYTES.max(all.0.text.len() / 4), "{spare} of {}", all.0.text.len());
        }
    }

    #[test]
    fn the_smallest_messages_take_a_few_bytes_each() {
        let smallest = crate::object("{}").unwrap();
        let mut all = Messages::from_iter(std::iter::repeat_n(smallest, 100_000));
        all.shrink();
        assert!(all.memory_bytes() <= 10 * 100_000, "{}", all.memory_bytes());
    }
}
