//! Calls in the form in which events store them.
//!
//! Only the new parts of a request to a model are stored: the messages after those that it shares with an earlier
//! request, and its other fields if they differ. [`StoredCall::read`] is the only decoder.

use std::borrow::Cow;

use bytes::Bytes;
use rollout_wire::openai::StoredTemplate;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::labels::{ModelRole, ToolKind};

/// A call in the form in which its start event stores it.
#[derive(Debug)]
pub enum StoredCall<'a> {
    /// A request to a model.
    Model(StoredRequest<'a>),
    /// A call of a host-provided tool.
    Tool(StoredToolCall<'a>),
}

/// Stored form of a request to a model.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredRequest<'a> {
    /// Role of the model that receives the request.
    pub asked: ModelRole,
    /// Id of the sample that the request was made for.
    #[serde(borrow)]
    pub sample: Option<Cow<'a, str>>,
    /// Index of the sample's last request to the same model, from 0.
    pub before: Option<usize>,
    /// Number of messages that both requests begin with.
    pub shared: usize,
    /// The request without its messages, if it differs from that of the previous request.
    #[serde(borrow, rename = "frame")]
    pub template: Option<StoredTemplate<'a>>,
    /// The messages after the shared ones.
    #[serde(borrow)]
    pub new: Vec<&'a RawValue>,
}

/// Stored form of a call of a tool.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredToolCall<'a> {
    /// The tool's name.
    #[serde(borrow)]
    pub tool: Cow<'a, str>,
    /// The implementation behind the name.
    pub kind: ToolKind,
    /// The id that the caller gave to the call.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// The arguments, verbatim.
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

    /// Returns whether a call is a request to the policy. Parses only its `asked` field.
    pub fn is_to_policy(request: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Role {
            asked: ModelRole,
        }
        serde_json::from_slice::<Role>(request).is_ok_and(|request| request.asked == ModelRole::Policy)
    }
}

impl StoredRequest<'_> {
    /// Returns a stored request to the policy with another name of the model. Other calls, and requests that do not
    /// store a name, stay unchanged.
    pub(crate) fn with_model(request: &Bytes, name: &str) -> Bytes {
        let Ok(StoredCall::Model(stored)) = StoredCall::read(request) else { return request.clone() };
        let StoredRequest { asked: ModelRole::Policy, template: Some(template), .. } = stored else {
            return request.clone();
        };
        let renamed = StoredRequest { template: Some(template.with_model(name)), ..stored };
        serde_json::to_vec(&renamed).map_or_else(|_| request.clone(), Bytes::from)
    }
}
