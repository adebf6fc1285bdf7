//! Deserialization of configuration, metadata and tool arguments, and the declaration of a configuration
//! type.
//!
//! A missing value counts as an object without fields: a type whose fields have defaults accepts it, and a
//! type with a required field reports the field by name. `()` accepts anything.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::{Error, OrError, Result};

/// Deserializes one optional JSON object. `what` names it in the error, which is an invalid-input error.
pub(crate) fn read<T: DeserializeOwned>(what: &str, text: Option<&str>) -> Result<T> {
    let fields = match text.map(serde_json::from_str).transpose() {
        Ok(Some(Value::Object(fields))) => Some(fields),
        Ok(None | Some(Value::Null)) => None,
        Ok(Some(_)) => return Err(Error::invalid(format_args!("{what}: not a JSON object"))),
        Err(error) => {
            return Err(Error::invalid(format_args!("{what}: not valid JSON: {error}")));
        }
    };
    T::deserialize(SettingsDeserializer(fields)).or_invalid(what)
}

/// Limit on concurrent rollouts of a plugin, which the host reads from the configuration's field
/// `concurrency`.
///
/// ```
/// use rollout_sdk::Concurrency;
///
/// #[derive(Default, serde::Deserialize, schemars::JsonSchema)]
/// #[serde(default)]
/// struct Config {
///     /// The name under which this plugin is shown.
///     name: String,
///     concurrency: Concurrency,
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Concurrency {
    /// Maximum number of concurrent rollouts of this plugin; null leaves the limit to the host.
    #[schemars(range(min = 1))]
    pub max_concurrent: Option<u32>,
}

/// Returns the JSON Schema of a configuration type and its defaults according to `serde`. A type without
/// fields declares nothing.
pub(crate) fn declared<C: JsonSchema>() -> (Value, Value) {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<C>().to_value();
    if schema.get("type").and_then(Value::as_str) == Some("null") {
        return (json!({"type": "object"}), json!({}));
    }
    let defaults = defaults_in(&schema).unwrap_or_else(|| json!({}));
    (schema, defaults)
}

/// Returns the defaults of an object's fields.
fn defaults_in(schema: &Value) -> Option<Value> {
    let fields = schema.get("properties")?.as_object()?;
    let default_of = |schema: &Value| schema.get("default").cloned().or_else(|| defaults_in(schema));
    let defaults: Map<String, Value> =
        fields.iter().filter_map(|(name, schema)| Some((name.clone(), default_of(schema)?))).collect();
    (!defaults.is_empty()).then_some(Value::Object(defaults))
}

struct SettingsDeserializer(Option<Map<String, Value>>);

impl<'de> Deserializer<'de> for SettingsDeserializer {
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

/// Fields of an object. Reports an invalid value with its field's name, which `serde_json`'s own deserializer
/// omits.
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

    #[derive(serde::Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Declared {
        /// The most calls.
        turns: u32,
        name: Option<String>,
        concurrency: Concurrency,
    }

    impl Default for Declared {
        fn default() -> Self {
            Self { turns: 8, name: None, concurrency: Concurrency { max_concurrent: Some(2) } }
        }
    }

    #[test]
    fn a_type_declares_its_fields_and_their_serde_defaults() {
        let (schema, defaults) = declared::<Declared>();

        assert_eq!(defaults, json!({"turns": 8, "name": null, "concurrency": {"max_concurrent": 2}}));
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["turns"]["description"], "The most calls.");
        assert_eq!(schema["properties"]["turns"]["type"], "integer");
        assert_eq!(schema.get("required"), None);
    }

    #[test]
    fn a_field_without_a_default_is_required() {
        #[derive(serde::Deserialize, JsonSchema)]
        #[expect(dead_code, reason = "only the type's declaration is used")]
        struct Bare {
            answer: u32,
            #[serde(default)]
            more: u32,
        }

        let (schema, defaults) = declared::<Bare>();

        assert_eq!(schema["required"], json!(["answer"]));
        assert_eq!(defaults, json!({"more": 0}));
        assert_eq!(declared::<()>(), (json!({"type": "object"}), json!({})));
    }

    fn read_config<T: DeserializeOwned>(text: Option<&str>) -> Result<T, String> {
        read("config", text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_missing_configuration_is_enough_for_types_with_defaults() {
        assert_eq!(read_config::<()>(None), Ok(()));
        assert_eq!(read_config(None), Ok(Defaults { turns: 0 }));
        assert_eq!(read_config(None), Ok(None::<Required>));
        assert_eq!(read_config(None), Ok(Map::new()));
    }

    #[test]
    fn unknown_fields_are_ignored() {
        assert_eq!(read_config::<()>(Some(r#"{"x": 1}"#)), Ok(()));
        assert_eq!(read_config(Some(r#"{"x": 1, "turns": 2}"#)), Ok(Some(Required { turns: 2 })));
    }

    #[test]
    fn a_mistake_is_reported_with_the_field_name() {
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
