//! Streaming readers of JSON: lists and objects part by part, texts without a copy.
//!
//! JSON of guests, callers and models may have millions of tiny parts, and a tree of values takes about a hundred times
//! the bytes of its text. Here a part is dropped before the next one is read.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Error of a streaming reader.
#[derive(Debug)]
pub enum Stopped<E> {
    /// The text is not the expected JSON.
    Json(serde_json::Error),
    /// The callback returned an error.
    Taker(E),
}

impl<E> From<Stopped<E>> for String
where
    E: Into<Self>,
{
    fn from(stopped: Stopped<E>) -> Self {
        match stopped {
            Stopped::Json(error) => error.to_string(),
            Stopped::Taker(error) => error.into(),
        }
    }
}

impl<E> Stopped<E> {
    /// Returns the error of a serializer whose callback writes each part.
    pub fn ser(self) -> E
    where
        E: serde::ser::Error,
    {
        match self {
            Self::Json(error) => E::custom(error),
            Self::Taker(error) => error,
        }
    }
}

/// Reads a list and passes each element to `take`.
pub fn each<'de, T, E>(list: &'de str, take: impl FnMut(T) -> Result<(), E>) -> Result<(), Stopped<E>>
where
    T: Deserialize<'de>,
{
    let mut failed = None;
    let mut from = serde_json::Deserializer::from_str(list);
    let visitor = Each { take, failed: &mut failed, of: PhantomData };
    let read = from.deserialize_seq(visitor).and_then(|()| from.end());
    read.map_err(|error| failed.map_or(Stopped::Json(error), Stopped::Taker))
}

/// Reads an object and passes each member to `take`. A name may occur more than once.
pub fn members<'de, T, E>(
    object: &'de str,
    take: impl FnMut(Cow<'de, str>, T) -> Result<(), E>,
) -> Result<(), Stopped<E>>
where
    T: Deserialize<'de>,
{
    let mut failed = None;
    let mut from = serde_json::Deserializer::from_str(object);
    let visitor = Each { take, failed: &mut failed, of: PhantomData };
    let read = from.deserialize_map(Members(visitor)).and_then(|()| from.end());
    read.map_err(|error| failed.map_or(Stopped::Json(error), Stopped::Taker))
}

struct Each<'f, T, E, F> {
    take: F,
    failed: &'f mut Option<E>,
    of: PhantomData<T>,
}

impl<'de, T, E, F> Visitor<'de> for Each<'_, T, E, F>
where
    T: Deserialize<'de>,
    F: FnMut(T) -> Result<(), E>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            if let Err(error) = (self.take)(element) {
                *self.failed = Some(error);
                return Err(A::Error::custom("not read to its end"));
            }
        }
        Ok(())
    }
}

struct Members<'f, T, E, F>(Each<'f, T, E, F>);

impl<'de, T, E, F> Visitor<'de> for Members<'_, T, E, F>
where
    T: Deserialize<'de>,
    F: FnMut(Cow<'de, str>, T) -> Result<(), E>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
        while let Some((Text(name), value)) = object.next_entry::<Text<'de>, T>()? {
            if let Err(error) = (self.0.take)(name, value) {
                *self.0.failed = Some(error);
                return Err(A::Error::custom("not read to its end"));
            }
        }
        Ok(())
    }
}

/// A text, borrowed if it has no escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        from.deserialize_str(Reader)
    }
}

/// The first element of a list; the others are skipped.
#[derive(Clone, Debug)]
pub struct First<T>(pub Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = First<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<First<T>, A::Error> {
                let first = list.next_element()?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        from.deserialize_seq(Reader(PhantomData))
    }
}

/// Returns the first element of a list without reading the others. `None` for an empty list and for other JSON.
pub fn first(list: &RawValue) -> Option<&RawValue> {
    let mut found = None;
    // The callback stops the reader after one element, which is not a failure.
    let _ = each(list.get(), |element: &RawValue| {
        found = Some(element);
        Err(())
    });
    found
}

/// Returns whether all elements of a list have this type, whose values must be small.
pub fn is_list_of<T: DeserializeOwned>(list: &str) -> bool {
    each(list, |_: T| Ok::<(), std::convert::Infallible>(())).is_ok()
}

/// Returns whether JSON has more than `max` values, including names. Call it before a tree of values is built.
pub fn has_more_parts(json: &str, max: usize) -> bool {
    let (mut parts, mut in_string, mut escaped) = (1_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b',' | b':' if !in_string => {
                parts += 1;
                if parts > max {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// Returns the text of a JSON string, or `None` for other JSON.
pub fn text(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str(json).ok().map(|Text(text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_element_by_element_until_the_callback_fails() {
        fn check(list: &str, expected: &str) {
            let mut seen = Vec::new();
            let read = each(list, |element: &RawValue| {
                seen.push(element.get());
                if seen.len() < 3 { Ok(()) } else { Err("enough".to_owned()) }
            });
            let end = read.map_or_else(String::from, |()| "end".to_owned());
            assert_eq!(format!("{} {end}", seen.join("|")), expected);
        }
        check("[]", " end");
        check(r#"[ {} , "a,]" ]"#, r#"{}|"a,]" end"#);
        check("[1,2,3,4]", "1|2|3 enough");
        check("[1,2", "1|2 EOF while parsing a list at line 1 column 4");
        check("[1] 2", "1 trailing characters at line 1 column 5");
        check("{}", " invalid type: map, expected a list at line 1 column 0");
    }

    #[test]
    fn an_object_is_read_member_by_member() {
        let mut seen = Vec::new();
        let read = members(r#"{"a":1,"\u0062":[2],"a":{}}"#, |name, value: &RawValue| {
            seen.push(format!("{name}={}", value.get()));
            Ok::<(), String>(())
        });
        assert!(read.is_ok());
        assert_eq!(seen, ["a=1", "b=[2]", "a={}"]);
    }

    #[test]
    fn parts_are_counted_outside_of_texts() {
        assert!(has_more_parts("[{},{},{}]", 6) && !has_more_parts("[{},{},{}]", 7));
        assert!(!has_more_parts(r#"",,[[{\",,""#, 1));
    }

    #[test]
    fn a_text_without_escapes_is_borrowed() {
        assert!(matches!(text("\"plain é\""), Some(Cow::Borrowed("plain é"))));
        assert!(matches!(text(r#""a\nb""#), Some(Cow::Owned(text)) if text == "a\nb"));
        assert_eq!(text("3"), None);
    }

    #[test]
    fn only_the_first_element_of_a_list_is_read() {
        let first = |list: &str| serde_json::from_str::<First<u8>>(list).map(|First(first)| first).ok();
        assert_eq!(first("[7,{\"x\":[]},null]"), Some(Some(7)));
        assert_eq!(first("[]"), Some(None));
        assert_eq!(first("7"), None);
        assert!(is_list_of::<i64>("[1,-2]") && !is_list_of::<i64>("[1.5]") && !is_list_of::<i64>("{}"));
    }
}
