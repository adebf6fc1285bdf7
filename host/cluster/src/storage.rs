//! The stream of all logs, and the bucket of their owners.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{Context, kv, stream};

use crate::error::{ClusterError, unavailable};
use crate::message::MESSAGE_BYTES_MAX;
use crate::settings::ClusterSettings;

/// Returns the configuration of the stream of all logs.
pub(crate) type Stream = stream::Stream<Info>;

/// Window in which the server recognizes repeated messages by their ids. The host's messages have no ids.
const DUPLICATES: Duration = Duration::from_secs(60);

fn desired_config(settings: &ClusterSettings) -> Config {
    Config {
        name: settings.stream(),
        description: Some("Logs of workers of rollout-host".to_owned()),
        subjects: vec![settings.subject("*")],
        max_bytes: i64::try_from(settings.log_bytes_max).unwrap_or(i64::MAX),
        max_age: settings.log_age(),
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        // Old records are dropped because of their age, never because new ones arrive.
        discard: DiscardPolicy::New,
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        duplicate_window: DUPLICATES.min(settings.log_age()),
        deny_delete: true,
        deny_purge: true,
        ..Config::default()
    }
}

/// Returns the stream. Creates it if it does not exist, and checks its configuration otherwise.
pub(crate) async fn stream(jetstream: &Context, settings: &ClusterSettings) -> Result<Stream, ClusterError> {
    let wanted = desired_config(settings);
    let stream = jetstream.get_or_create_stream(&wanted).await.map_err(unavailable)?;
    let differences = differences(&wanted, &stream.cached_info().config);
    if differences.is_empty() {
        return Ok(stream);
    }
    Err(ClusterError::Differs { what: format!("stream {}", wanted.name), differences })
}

/// Returns a value of a configuration as NATS writes it.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn secs(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// Returns each difference that matters, with both values.
pub(crate) fn differences(wanted: &Config, is: &Config) -> Vec<String> {
    let mut all = Vec::new();
    let mut compare = |name: &str, is: String, wanted: String| {
        if is != wanted {
            all.push(format!("{name} is {is} and should be {wanted}"));
        }
    };
    compare("subjects", json(&is.subjects), json(&wanted.subjects));
    compare("replicas", is.num_replicas.to_string(), wanted.num_replicas.to_string());
    compare("max_age", secs(is.max_age), secs(wanted.max_age));
    compare("max_bytes", is.max_bytes.to_string(), wanted.max_bytes.to_string());
    compare("discard", json(&is.discard), json(&wanted.discard));
    compare("retention", json(&is.retention), json(&wanted.retention));
    compare("storage", json(&is.storage), json(&wanted.storage));
    let unlimited = |limit: i64| if limit <= 0 { "unlimited".to_owned() } else { limit.to_string() };
    compare("max_msgs", unlimited(is.max_messages), "unlimited".to_owned());
    compare("max_msgs_per_subject", unlimited(is.max_messages_per_subject), "unlimited".to_owned());
    let needed = i64::try_from(MESSAGE_BYTES_MAX).unwrap_or(i64::MAX);
    if (1..needed).contains(&i64::from(is.max_message_size)) {
        compare("max_msg_size", is.max_message_size.to_string(), format!("at least {needed}"));
    }
    compare("no_ack", is.no_ack.to_string(), "false".to_owned());
    compare("sealed", is.sealed.to_string(), "false".to_owned());
    compare("deny_purge", is.deny_purge.to_string(), wanted.deny_purge.to_string());
    compare("deny_delete", is.deny_delete.to_string(), "true".to_owned());
    let is_async = is.persist_mode == Some(PersistenceMode::Async);
    compare("persist_mode", if is_async { "async" } else { "default" }.to_owned(), "default".to_owned());
    let is_copy = is.mirror.is_some() || is.sources.as_ref().is_some_and(|sources| !sources.is_empty());
    compare("mirror or sources", is_copy.to_string(), "false".to_owned());
    compare("subject_transform", is.subject_transform.is_some().to_string(), "false".to_owned());
    all
}

/// A bucket that the program creates.
pub(crate) struct Bucket<'a> {
    pub name: String,
    pub description: &'a str,
    /// Age at which entries are dropped; zero if they are kept.
    pub age_max: Duration,
}

impl Bucket<'_> {
    /// Returns the bucket. Creates it if it does not exist, and checks its configuration otherwise.
    pub(crate) async fn open(
        self,
        jetstream: &Context,
        settings: &ClusterSettings,
    ) -> Result<kv::Store, ClusterError> {
        let Self { name, description, age_max } = self;
        let bucket = match jetstream.get_key_value(&name).await {
            Ok(bucket) => bucket,
            // Creation fails if the bucket exists and only could not be read.
            Err(_) => {
                let config = kv::Config {
                    bucket: name.clone(),
                    description: description.to_owned(),
                    history: 1,
                    max_age: age_max,
                    storage: StorageType::File,
                    num_replicas: settings.replicas,
                    ..kv::Config::default()
                };
                jetstream.create_key_value(config).await.map_err(unavailable)?
            }
        };
        let is = &bucket.stream.cached_info().config;
        let mut differences = Vec::new();
        if is.num_replicas != settings.replicas {
            differences.push(format!("replicas is {} and should be {}", is.num_replicas, settings.replicas));
        }
        if is.max_age != age_max {
            let wanted = if age_max.is_zero() { "unlimited".to_owned() } else { secs(age_max) };
            differences.push(format!("max_age is {} and should be {wanted}", secs(is.max_age)));
        }
        if differences.is_empty() {
            return Ok(bucket);
        }
        Err(ClusterError::Differs { what: format!("bucket {name}"), differences })
    }
}

/// Returns the bucket of the owners of logs. The entry of a worker that stops for a while does not expire.
pub(crate) async fn bucket(
    jetstream: &Context,
    settings: &ClusterSettings,
) -> Result<kv::Store, ClusterError> {
    let description = "Owners of the logs of rollout-host";
    Bucket { name: settings.bucket(), description, age_max: Duration::ZERO }.open(jetstream, settings).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_reported_with_both_values() {
        let settings = ClusterSettings::default();
        let good = desired_config(&settings);
        assert!(differences(&good, &good).is_empty());
        let check = |change: fn(&mut Config), expected: &str| {
            let mut is = good.clone();
            change(&mut is);
            assert_eq!(differences(&good, &is), [expected]);
        };
        check(|is| is.num_replicas = 1, "replicas is 1 and should be 3");
        check(|is| is.max_age = Duration::from_secs(60), "max_age is 60 s and should be 86400 s");
        check(|is| is.discard = DiscardPolicy::Old, "discard is \"old\" and should be \"new\"");
        check(|is| is.max_messages = 5, "max_msgs is 5 and should be unlimited");
        check(|is| is.max_message_size = 100, "max_msg_size is 100 and should be at least 786432");
        check(|is| is.deny_purge = false, "deny_purge is false and should be true");
        check(
            |is| is.persist_mode = Some(PersistenceMode::Async),
            "persist_mode is async and should be default",
        );
    }
}
