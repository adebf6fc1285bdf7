//! The store of objects that the workers with a catalog share: components, snapshots, and changes that are larger than a
//! message.

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_ROLLUP};
use async_nats::jetstream::Context;
use async_nats::jetstream::object_store::{
    Config, DeleteErrorKind, GetErrorKind, InfoErrorKind, ObjectInfo, ObjectStore,
};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, StorageType};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use bytes::Bytes;
use futures_util::StreamExt;
use rollout_catalog::SharedError;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::error::{ClusterError, chain, unavailable};
use crate::storage::Stream;
use crate::writer::{Publish, publish_with};

/// The objects of a catalog.
pub(crate) struct Objects {
    jetstream: Context,
    bucket: String,
    objects: ObjectStore,
    /// The stream that contains the objects.
    stream: Stream,
}

/// Converts an error of the client or of a file to that of servers that did not answer.
pub(crate) fn away(error: impl std::error::Error + 'static) -> SharedError {
    SharedError::Unavailable(chain(&error))
}

impl Objects {
    /// Opens the store, and creates it if it does not exist.
    pub(crate) async fn open(
        jetstream: &Context,
        bucket: String,
        replicas: usize,
    ) -> Result<Self, ClusterError> {
        let objects = match jetstream.get_object_store(&bucket).await {
            Ok(objects) => objects,
            // Creation fails if the store exists and only could not be read.
            Err(_) => {
                let config = Config {
                    bucket: bucket.clone(),
                    description: Some("Components of rollout-host by their SHA-256".to_owned()),
                    storage: StorageType::File,
                    num_replicas: replicas,
                    ..Config::default()
                };
                jetstream.create_object_store(config).await.map_err(unavailable)?
            }
        };
        let stream = jetstream.get_stream(format!("OBJ_{bucket}")).await.map_err(unavailable)?;
        Ok(Self { jetstream: jetstream.clone(), bucket, objects, stream })
    }

    /// Stores an object, and replaces an earlier one with this name.
    pub(crate) async fn put(
        &self,
        name: &str,
        contents: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), SharedError> {
        self.objects.put(name, contents).await.map(drop).map_err(away)
    }

    /// Returns whether there is an object with this name.
    pub(crate) async fn has(&self, name: &str) -> Result<bool, SharedError> {
        match self.objects.info(name).await {
            Ok(info) => Ok(!info.deleted),
            Err(error) if error.kind() == InfoErrorKind::NotFound => Ok(false),
            Err(error) => Err(away(error)),
        }
    }

    /// Writes the contents of an object. Returns false if there is none with this name.
    pub(crate) async fn get(
        &self,
        name: &str,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<bool, SharedError> {
        let io = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::InvalidData => {
                SharedError::Damaged(format!("the object {name} is damaged: {error}"))
            }
            _ => away(error),
        };
        let mut object = match self.objects.get(name).await {
            Ok(object) => object,
            Err(error) if error.kind() == GetErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(away(error)),
        };
        tokio::io::copy(&mut object, to).await.map_err(io)?;
        to.flush().await.map_err(io)?;
        Ok(true)
    }

    /// Returns the subject of the message that describes an object.
    fn subject(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.bucket, URL_SAFE.encode(name))
    }

    /// Returns an object with the sequence of the message that describes it, which is its version.
    async fn find(&self, name: &str) -> Result<Option<(u64, ObjectInfo)>, SharedError> {
        match self.stream.get_last_raw_message_by_subject(&self.subject(name)).await {
            Ok(message) => {
                let info: ObjectInfo = serde_json::from_slice(&message.payload).map_err(|error| {
                    SharedError::Damaged(format!("the description of the object {name}: {error}"))
                })?;
                Ok((!info.deleted).then_some((message.sequence, info)))
            }
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => Err(away(error)),
        }
    }

    /// Returns the version of an object. Returns `None` if there is none with this name.
    pub(crate) async fn version(&self, name: &str) -> Result<Option<u64>, SharedError> {
        Ok(self.find(name).await?.map(|(version, _)| version))
    }

    /// Replaces the description of an object if the object has this version. Returns whether it had.
    async fn describe(&self, version: u64, info: &ObjectInfo) -> Result<bool, SharedError> {
        let description = serde_json::to_vec(info).map_err(away)?;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_ROLLUP, "sub");
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, version.to_string());
        match publish_with(&self.jetstream, &self.subject(&info.name), headers, &Bytes::from(description))
            .await
        {
            Ok(_) => Ok(true),
            Err(Publish::WrongLast) => Ok(false),
            Err(Publish::Unknown(why)) => Err(SharedError::Unavailable(why)),
        }
    }

    /// Gives an object another version. Returns false if there is none with this name.
    pub(crate) async fn touch(&self, name: &str) -> Result<bool, SharedError> {
        while let Some((version, info)) = self.find(name).await? {
            if self.describe(version, &info).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes an object if it has this version.
    pub(crate) async fn remove(&self, name: &str, version: u64) -> Result<(), SharedError> {
        let Some((_, info)) = self.find(name).await?.filter(|(found, _)| *found == version) else {
            return Ok(());
        };
        let chunks = format!("$O.{}.C.{}", self.bucket, info.nuid);
        let removed = ObjectInfo { deleted: true, size: 0, chunks: 0, ..info };
        if self.describe(version, &removed).await? {
            self.stream.purge().filter(chunks).await.map_err(away)?;
        }
        Ok(())
    }

    /// Removes all objects for whose names the function returns true. These names must not be used again.
    pub(crate) async fn remove_all(
        &self,
        is_unneeded: impl Fn(&str) -> bool + Send,
    ) -> Result<(), SharedError> {
        let mut objects = self.objects.list().await.map_err(away)?;
        let mut unneeded = Vec::new();
        while let Some(object) = objects.next().await {
            let name = object.map_err(away)?.name;
            if is_unneeded(&name) {
                unneeded.push(name);
            }
        }
        for name in unneeded {
            match self.objects.delete(&name).await {
                Err(error) if error.kind() != DeleteErrorKind::NotFound => return Err(away(error)),
                _ => {}
            }
            self.stream.purge().filter(self.subject(&name)).await.map_err(away)?;
        }
        Ok(())
    }
}
