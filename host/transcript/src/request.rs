//! Calls as events store them.
//!
//! Of a request to a model, only the new parts are stored: its messages after those that it shares with an earlier
//! request, and its other fields if they differ. [`StoredCall::read`] is the only decoder.

use std::borrow::Cow;

use bytes::Bytes;
use rollout_wire::openai::WrittenFrame;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::labels::{ModelRole, ToolKind};

/// A call as the event of its start stores it.
#[derive(Debug)]
pub enum StoredCall<'a> {
    /// A request to a model.
    Model(StoredRequest<'a>),
    /// A call of a host-provided tool.
    Tool(StoredToolCall<'a>),
}

/// A request to a model as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredRequest<'a> {
    /// The model.
    pub asked: ModelRole,
    /// The sample that it was made for.
    #[serde(borrow)]
    pub sample: Option<Cow<'a, str>>,
    /// Index of the sample's last request to the same model, from 0.
    pub before: Option<usize>,
    /// Number of messages that both requests begin with.
    pub shared: usize,
    /// The rest of the request, if it differs from that of the previous request.
    #[serde(borrow)]
    pub frame: Option<WrittenFrame<'a>>,
    /// The messages after the shared ones.
    #[serde(borrow)]
    pub new: Vec<&'a RawValue>,
}

/// A call of a tool as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredToolCall<'a> {
    /// The tool's name.
    #[serde(borrow)]
    pub tool: Cow<'a, str>,
    /// The implementation behind the name.
    pub kind: ToolKind,
    /// The id that the call came with.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// The arguments as they came.
    #[serde(borrow)]
    pub arguments: Cow<'a, str>,
}

impl<'a> StoredCall<'a> {
    /// Reads the request of an [`Event::Started`](crate::Event::Started).
    pub fn read(request: &'a [u8]) -> Result<Self, String> {
        if let Ok(call) = serde_json::from_slice(request) {
            return Ok(Self::Tool(call));
        }
        let request = serde_json::from_slice(request);
        request.map(Self::Model).map_err(|error| format!("a request cannot be read: {error}"))
    }

    /// Returns whether this is a request to the policy, without reading the rest of it.
    pub fn is_to_policy(request: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Asked {
            asked: ModelRole,
        }
        serde_json::from_slice::<Asked>(request).is_ok_and(|request| request.asked == ModelRole::Policy)
    }
}

impl StoredRequest<'_> {
    /// Returns a stored request of a workflow for a model of another name. Other calls, and requests without a name of
    /// their own, stay unchanged.
    pub(crate) fn with_model(request: &Bytes, name: &str) -> Bytes {
        let Ok(StoredCall::Model(stored)) = StoredCall::read(request) else { return request.clone() };
        let StoredRequest { asked: ModelRole::Policy, frame: Some(frame), .. } = stored else {
            return request.clone();
        };
        let renamed = StoredRequest { frame: Some(frame.with_model(name)), ..stored };
        serde_json::to_vec(&renamed).map_or_else(|_| request.clone(), Bytes::from)
    }
}
