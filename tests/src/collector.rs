//! A collector of traces, which receives OTLP over HTTP and decodes the protobuf bodies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::in_time;

/// A received span.
#[derive(Clone, Debug)]
pub struct TracedSpan {
    /// The trace id, in hex.
    pub trace: String,
    /// The span id, in hex.
    pub id: String,
    /// The parent's span id, in hex; empty for a root.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// Its attributes.
    pub attributes: BTreeMap<String, Value>,
    /// The reason of its failure, if it failed.
    pub error: Option<String>,
    /// The start time, in nanoseconds.
    pub started: u64,
    /// The end time, in nanoseconds.
    pub ended: u64,
}

impl TracedSpan {
    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> &Value {
        self.attributes.get(name).unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }
}

/// A collector on loopback that stores all spans.
pub struct Collector {
    url: String,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    spans: Mutex<Vec<TracedSpan>>,
    count: watch::Sender<usize>,
    services: Mutex<Vec<String>>,
    held: watch::Sender<bool>,
}

impl Collector {
    /// Starts one on a free port.
    pub async fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let routes = Router::new().route("/v1/traces", post(take)).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let server = tokio::spawn(async move {
            axum::serve(listener, routes).await.expect("the listener continues");
        });
        Self { url, shared, server }
    }

    /// Returns its base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops answering.
    pub fn hold(&self) {
        self.shared.held.send_replace(true);
    }

    /// Returns the names of the services that sent spans.
    pub fn services(&self) -> Vec<String> {
        self.shared.services.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the spans so far.
    pub fn spans(&self) -> Vec<TracedSpan> {
        self.shared.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this many spans have arrived since the start.
    pub async fn arrived(&self, count: usize) -> Vec<TracedSpan> {
        let mut arrived = self.shared.count.subscribe();
        let reached = in_time(&format!("{count} spans"), arrived.wait_for(|arrived| *arrived >= count)).await;
        reached.expect("the sender is in `self`");
        self.spans()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> (StatusCode, Vec<u8>) {
    let _ = shared.held.subscribe().wait_for(|held| !held).await;
    if headers.get("content-type").is_none_or(|kind| kind != "application/x-protobuf") {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, Vec::new());
    }
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let mut spans = shared.spans.lock().unwrap_or_else(PoisonError::into_inner);
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        let name = attributes.into_iter().find(|attribute| attribute.key == "service.name");
        let name = name.and_then(|name| value(name.value?.value?).as_str().map(str::to_owned));
        shared.services.lock().unwrap_or_else(PoisonError::into_inner).extend(name);
        spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(read));
    }
    shared.count.send_replace(spans.len());
    // An empty body is the message that reports full success.
    (StatusCode::OK, Vec::new())
}

fn read(span: Span) -> TracedSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let attributes = span.attributes.into_iter();
    let attributes = attributes
        .map(|attribute| {
            let value_of_attribute = attribute
                .value
                .and_then(|value_of_attribute| value_of_attribute.value)
                .map_or(Value::Null, value);
            (attribute.key, value_of_attribute)
        })
        .collect();
    TracedSpan {
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name,
        attributes,
        // 2 is an error, 1 is ok, 0 is unset.
        error: span.status.filter(|status| status.code == 2).map(|status| status.message),
        started: span.start_time_unix_nano,
        ended: span.end_time_unix_nano,
    }
}

fn value(value: Attribute) -> Value {
    match value {
        Attribute::StringValue(text) => text.into(),
        Attribute::BoolValue(flag) => flag.into(),
        Attribute::IntValue(number) => number.into(),
        Attribute::DoubleValue(number) => json!(number),
        Attribute::ArrayValue(list) => {
            list.values.into_iter().filter_map(|item| item.value).map(self::value).collect()
        }
        other => panic!("no attribute of ours is {other:?}"),
    }
}
