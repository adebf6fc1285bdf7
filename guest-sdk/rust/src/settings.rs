//! Reading configuration, metadata and tool arguments into the types of a plugin's
//! author.
//!
//! Nothing is read as an object without fields, so a type whose fields have
//! defaults needs none given, and one with a required field names it. `()` takes
//! anything.

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::{Error, OrError, Result};

/// Reads one JSON object, or nothing. `what` names it in the error, which is an invalid
/// one.
pub(crate) fn read<T: DeserializeOwned>(what: &str, text: Option<&str>) -> Result<T> {
    let fields = match text.map(serde_json::from_str).transpose() {
        Ok(Some(Value::Object(fields))) => Some(fields),
        Ok(None | Some(Value::Null)) => None,
        Ok(Some(_)) => return Err(Error::invalid(format_args!("{what}: not a JSON object"))),
        Err(error) => {
            return Err(Error::invalid(format_args!("{what}: not valid JSON: {error}")));
        }
    };
    T::deserialize(Settings(fields)).or_invalid(what)
}

struct Settings(Option<Map<String, Value>>);

impl<'de> Deserializer<'de> for Settings {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let mut fields = Fields { left: self.0.unwrap_or_default().into_iter(), current: None };
        visitor.visit_map(&mut fields)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            None => visitor.visit_none(),
            Some(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        Value::Object(self.0.unwrap_or_default()).deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes
        byte_buf seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The fields of an object. A wrong value is reported with its field's name, which
/// `serde_json`'s own reader leaves out.
struct Fields {
    left: serde_json::map::IntoIter,
    current: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for &mut Fields {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        self.current = self.left.next();
        let Some((name, _)) = &self.current else {
            return Ok(None);
        };
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        let Some((name, value)) = self.current.take() else {
            return Err(de::Error::custom("a value was read before its name"));
        };
        let in_field = |error| de::Error::custom(format_args!("field `{name}`: {error}"));
        seed.deserialize(value).map_err(in_field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Defaults {
        turns: u32,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Required {
        turns: u32,
    }

    fn read_config<T: DeserializeOwned>(text: Option<&str>) -> Result<T, String> {
        read("config", text).map_err(|error| error.to_string())
    }

    #[test]
    fn no_configuration_is_enough_for_types_with_defaults() {
        assert_eq!(read_config::<()>(None), Ok(()));
        assert_eq!(read_config(None), Ok(Defaults { turns: 0 }));
        assert_eq!(read_config(None), Ok(None::<Required>));
        assert_eq!(read_config(None), Ok(Map::new()));
    }

    #[test]
    fn unknown_fields_are_left_alone() {
        assert_eq!(read_config::<()>(Some(r#"{"x": 1}"#)), Ok(()));
        assert_eq!(read_config(Some(r#"{"x": 1, "turns": 2}"#)), Ok(Some(Required { turns: 2 })));
    }

    #[test]
    fn a_mistake_is_reported_with_the_fields_name() {
        let check = |text: Option<&str>, expected: &str| {
            let error = read_config::<Required>(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        };

        check(None, "config: missing field `turns`");
        check(Some(r#"{"turns": "x"}"#), "config: field `turns`: invalid type: string \"x\"");
        check(Some("[]"), "config: not a JSON object");
        check(Some("{"), "config: not valid JSON: EOF");
    }
}
