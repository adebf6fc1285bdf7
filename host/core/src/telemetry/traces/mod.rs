//! Traces of rollouts for OpenTelemetry.
//!
//! A rollout is one trace, or a part of its caller's trace if the request names one. The root span lasts from admission
//! until the last holder of the [`RolloutTrace`] drops it, usually after the caller was notified of the outcome. Below
//! it is a span for each phase, and below those the calls of the model. [`Traces::start`] starts the export. Without it
//! a [`RolloutTrace`] is empty and its methods do nothing.
//!
//! Spans are created here and not with `tracing`, so that the log filter hides none and the exporter's HTTP client adds
//! none.

mod export;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

pub use export::{InvalidOtlp, Traces};

pub(super) use export::SpanCounts;

use export::Queue;

/// Maximum size of an attribute's text in bytes. Ids and reasons may come from a caller or a guest.
const TEXT_BYTES_MAX: usize = 1024;

/// The span of another program that a rollout is a part of, from the header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
}

impl TraceParent {
    /// Parses the header. Returns `None` for an invalid one, which is not an error: a rollout does not fail because of
    /// its tracing.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let mut hex = |length: usize| {
            let part = parts.next()?;
            let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == length && part.bytes().all(lower)).then_some(part)
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        // Later versions may have more fields.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace != TraceId::INVALID && span != SpanId::INVALID).then_some(Self { trace, span, sampled })
    }
}

/// The trace of one rollout, empty if traces are not exported. The root span ends when the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct RolloutTrace(Option<Arc<Live>>);

/// A root span that has not ended.
#[derive(Debug)]
struct Live {
    queue: Queue,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    root: SpanData,
    sampled: bool,
    /// The current phase, or the root.
    current: SpanId,
}

impl Live {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.sampled {
            state.root.end_time = now();
            self.queue.push(Box::new(state.root.clone()));
        }
    }
}

impl RolloutTrace {
    fn begin(queue: Queue, rollout_id: &str) -> Self {
        let ids = RandomIdGenerator::default();
        let root = span_data(ids.new_trace_id(), ids.new_span_id(), "rollout", SpanKind::Server);
        let current = root.span_context.span_id();
        let trace =
            Self(Some(Arc::new(Live { queue, state: Mutex::new(State { root, sampled: true, current }) })));
        trace.set("rollout.id", rollout_id.to_owned());
        trace
    }

    /// Returns whether the trace is not exported.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Makes the rollout a part of its caller's trace. Must be called before the first phase.
    pub fn child_of(&self, parent: TraceParent) {
        let Some(live) = &self.0 else { return };
        let mut state = live.state();
        let TraceParent { trace, span, sampled } = parent;
        let id = state.root.span_context.span_id();
        state.root.span_context = context(trace, id);
        state.root.parent_span_id = span;
        state.root.parent_span_is_remote = true;
        // A caller that does not sample its trace wants no spans.
        state.sampled = sampled;
    }

    /// Adds an attribute to the root span.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        let Some(live) = &self.0 else { return };
        live.state().root.attributes.push(KeyValue::new(key, bounded(value.into())));
    }

    /// Marks the rollout as failed, with the kind and the reason.
    pub fn failed(&self, kind: &'static str, reason: &str) {
        let Some(live) = &self.0 else { return };
        fail(&mut live.state().root, kind, reason);
    }

    /// Starts a phase. Spans that start during a phase are its children. Phases do not overlap.
    pub fn phase(&self, name: &'static str) -> Span {
        self.phase_since(name, None)
    }

    /// Starts a phase with the start time of the rollout.
    pub fn first_phase(&self, name: &'static str) -> Span {
        let began = self.0.as_ref().map(|live| live.state().root.start_time);
        self.phase_since(name, began)
    }

    fn phase_since(&self, name: &'static str, began: Option<SystemTime>) -> Span {
        let mut span = self.below(name, SpanKind::Internal, true);
        if let Some(open) = &mut span.0 {
            open.is_phase = true;
            open.data.start_time = began.unwrap_or(open.data.start_time);
            open.live.state().current = open.data.span_context.span_id();
        }
        span
    }

    /// Starts a span within the current phase.
    pub fn span(&self, name: &'static str) -> Span {
        self.below(name, SpanKind::Internal, false)
    }

    /// Starts the span of a request to another server, within the current phase.
    pub fn request(&self, name: &'static str) -> Span {
        self.below(name, SpanKind::Client, false)
    }

    fn below(&self, name: &'static str, kind: SpanKind, root: bool) -> Span {
        let Some(live) = &self.0 else { return Span(None) };
        let (trace, parent) = {
            let state = live.state();
            if !state.sampled {
                return Span(None);
            }
            let root_id = state.root.span_context.span_id();
            (state.root.span_context.trace_id(), if root { root_id } else { state.current })
        };
        let mut data = span_data(trace, RandomIdGenerator::default().new_span_id(), name, kind);
        data.parent_span_id = parent;
        Span(Some(Box::new(Open { live: live.clone(), data, is_phase: false })))
    }
}

/// A span in progress. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "the span ends when it is dropped"]
pub struct Span(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    live: Arc<Live>,
    data: SpanData,
    is_phase: bool,
}

impl Span {
    /// Adds an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(open) = &mut self.0 {
            open.data.attributes.push(KeyValue::new(key, bounded(value.into())));
        }
    }

    /// Adds an attribute with a list of texts.
    pub fn set_texts(&mut self, key: &'static str, texts: impl IntoIterator<Item = String>) {
        let texts = texts.into_iter().map(|text| rollout_wire::text::beginning(&text, TEXT_BYTES_MAX).into());
        self.set(key, Value::Array(opentelemetry::Array::String(texts.collect())));
    }

    /// Marks the span as failed, with the kind and the reason.
    pub fn failed(&mut self, kind: &'static str, reason: &str) {
        if let Some(open) = &mut self.0 {
            fail(&mut open.data, kind, reason);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let Open { live, mut data, is_phase } = *open;
        if is_phase {
            let mut state = live.state();
            state.current = state.root.span_context.span_id();
        }
        data.end_time = now();
        live.queue.push(Box::new(data));
    }
}

fn fail(data: &mut SpanData, kind: &'static str, reason: &str) {
    data.status = Status::error(rollout_wire::text::beginning(reason, TEXT_BYTES_MAX));
    data.attributes.push(KeyValue::new("error.type", kind));
}

fn bounded(value: Value) -> Value {
    match value {
        Value::String(text) if text.as_str().len() > TEXT_BYTES_MAX => {
            rollout_wire::text::beginning(text.as_str(), TEXT_BYTES_MAX).into()
        }
        value => value,
    }
}

#[expect(clippy::disallowed_methods, reason = "spans have dates")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn context(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

fn span_data(trace: TraceId, span: SpanId, name: &'static str, kind: SpanKind) -> SpanData {
    let now = now();
    SpanData {
        span_context: context(trace, span),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: kind,
        name: Cow::Borrowed(name),
        start_time: now,
        end_time: now,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("rollout-host")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_parsed_as_the_w3c_recommendation_defines_it() {
        const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
        const SPAN: &str = "b7ad6b7169203331";
        fn check(header: &str, sampled: Option<bool>) {
            assert_eq!(TraceParent::parse(header).map(|parent| parent.sampled), sampled, "{header}");
        }
        check(&format!("00-{TRACE}-{SPAN}-01"), Some(true));
        check(&format!("00-{TRACE}-{SPAN}-00"), Some(false));
        check(&format!("00-{TRACE}-{SPAN}-03"), Some(true));
        check(&format!("01-{TRACE}-{SPAN}-01-more"), Some(true));
        check(&format!("00-{TRACE}-{SPAN}-01-more"), None);
        check(&format!("ff-{TRACE}-{SPAN}-01"), None);
        check(&format!("00-{}-{SPAN}-01", "0".repeat(32)), None);
        check(&format!("00-{TRACE}-{}-01", "0".repeat(16)), None);
        check(&format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None);
        check(&format!("00-{TRACE}-{SPAN}"), None);
        check("", None);
        check("00-é-é-é", None);
    }

    #[test]
    fn a_trace_that_is_not_exported_accepts_everything_and_does_nothing() {
        let trace = RolloutTrace::default();
        let mut span = trace.phase("workflow");
        span.set("key", 1);
        span.failed("kind", "reason");
        assert!(span.0.is_none());
    }
}
