//! Fuzz target for a workflow's input to the host: names, numbers, messages, fields and files, in any order.
//! The first byte of each line selects the import that receives the rest.

use std::sync::Arc;

use super::bindings::rollout::plugin::samples::{HostSample, OpenError, RecordError};
use super::bindings::rollout::plugin::{artifacts, log};
use super::gate::CallError;
use super::{ClockStart, Imports, Live, Record, Role, RunContext};
use rollout_core::limits::Limits;
use rollout_core::telemetry::Metrics;
use rollout_wire as wire;
use rollout_wire::id::RolloutId;
use rollout_wire::openai::CallerParams;

/// Maximum length in bytes of an error about a text of any size.
const ERROR_BYTES_MAX: usize = 4096;

/// Returns limits that are soon reached.
fn limits() -> Limits {
    Limits {
        samples_max: 4,
        message_bytes_max: 512,
        record_bytes_max: 2048,
        artifacts_max: 4,
        artifact_bytes_max: 1024,
        log_lines_max: 8,
        log_bytes_max: 512,
        ..Limits::default()
    }
}

/// Returns the error that the guest receives. Panics if the guest would be ended instead: invalid input never
/// ends a guest.
fn contract_result<T, E: std::fmt::Debug>(result: Result<T, CallError<E>>) -> Result<T, E> {
    result.map_err(|refused| refused.for_guest().expect("no trap"))
}

fn check<T>(taken: &Result<T, RecordError>) -> bool {
    if let Err(RecordError::Invalid(what) | RecordError::OverLimit(what)) = taken {
        assert!(!what.is_empty() && what.len() < ERROR_BYTES_MAX, "an error of {} bytes", what.len());
    }
    taken.is_ok()
}

/// Runs the calls of one workflow.
pub(crate) fn imports(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let run = RunContext {
        rollout_id: RolloutId::parse("fuzzed").expect("a valid id"),
        caller_id: None,
        attempt: 1,
        config: None,
        metadata: None,
        samples_max: 4,
        caller_params: CallerParams::default(),
        fork: None,
        clock_begins: ClockStart::default(),
        metrics: metrics(),
    };
    let record = Arc::<Record>::default();
    let limits = Arc::new(limits());
    let mut imports =
        Imports::new(Role::Workflow, Arc::new(run), limits.clone(), Live::default(), record.clone());
    let mut open = Vec::new();
    for line in text.split('\n') {
        let mut rest = line.chars();
        let what = rest.next();
        let rest = rest.as_str();
        let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
        let handle = open.last().map(|number| wasmtime::component::Resource::new_borrow(*number));
        match (what, handle) {
            (Some('o'), _) => match contract_result(imports.open(Some(rest.to_owned()))) {
                Ok(sample) => open.push(sample.rep()),
                Err(OpenError::Invalid(why)) => assert!(why.len() < ERROR_BYTES_MAX, "a long {why}"),
                Err(OpenError::TooMany(most)) => assert_eq!(most, 4),
                Err(OpenError::Taken(name)) => assert_eq!(name, rest),
            },
            (Some('p'), Some(sample)) => {
                let taken = contract_result(imports.push(sample, vec![rest.to_owned()]));
                assert!(!check(&taken) || rest.len() <= limits.message_bytes_max);
            }
            (Some('r'), Some(sample)) => {
                check(&contract_result(imports.replace(sample, vec![rest.to_owned()])));
            }
            (Some('h'), Some(sample)) => {
                let (first, count) = (name.parse().unwrap_or(0), value.parse().unwrap_or(u32::MAX));
                if let Ok(texts) = imports.history(sample, first, count) {
                    assert!(
                        texts.len() <= count as usize && texts.iter().all(|text| wire::object(text).is_ok())
                    );
                }
            }
            (Some('m'), Some(sample)) => {
                let number = value.parse().unwrap_or(f64::NAN);
                let taken = contract_result(imports.set_metric(sample, name.to_owned(), number));
                assert!(!check(&taken) || number.is_finite());
            }
            (Some('f'), Some(sample)) => {
                check(&contract_result(imports.set_field(sample, name.to_owned(), value.to_owned())));
            }
            (Some('a'), _) => {
                let written = artifacts::Host::write(&mut imports, name.to_owned(), value.into());
                match contract_result(written) {
                    Ok(()) => {
                        let read = contract_result(artifacts::Host::read(&mut imports, name.to_owned()));
                        assert_eq!(read.ok().as_deref(), Some(value.as_bytes()), "what is written is read");
                    }
                    Err(artifacts::Error::InvalidName(why) | artifacts::Error::OverLimit(why)) => {
                        assert!(why.len() < ERROR_BYTES_MAX, "an error of {} bytes", why.len());
                    }
                    Err(artifacts::Error::NotFound) => panic!("a write looks up no file"),
                }
            }
            (Some('l'), _) => {
                log::Host::event(&mut imports, name.to_owned(), value.to_owned()).expect("no trap");
            }
            _ => log::Host::line(&mut imports, log::Level::Info, rest.to_owned()).expect("no trap"),
        }
    }
    check_kept(&record, &limits);
}

/// Returns shared metrics: they are only counters, and creating them costs more than all the rest.
fn metrics() -> Arc<Metrics> {
    static METRICS: std::sync::OnceLock<Arc<Metrics>> = std::sync::OnceLock::new();
    METRICS.get_or_init(Arc::default).clone()
}

/// Checks that the stored data is within its limits and readable.
fn check_kept(record: &Record, limits: &Limits) {
    let usage = record.usage();
    assert!(usage.record_bytes <= limits.record_bytes_max && usage.log_bytes <= limits.log_bytes_max);
    assert!(usage.artifact_bytes <= limits.artifact_bytes_max && usage.artifacts <= limits.artifacts_max);
    let recorded = record.take();
    assert!(recorded.transcript.samples.len() <= 4 && recorded.log.len() <= limits.log_lines_max);
    for sample in &recorded.transcript.samples {
        assert!(sample.messages.iter().all(|message| wire::object(message).is_ok()));
        assert!(sample.fields.values().all(|value| wire::value(value.get()).is_ok()));
        assert!(sample.metrics.values().all(|value| value.is_finite()));
        let names = sample.metrics.keys().chain(sample.fields.keys());
        assert!(names.clone().all(|name| (1..=256).contains(&name.len())));
    }
    for file in &recorded.artifacts {
        let path = std::path::Path::new(&file.name);
        let ordinary = |part| matches!(part, std::path::Component::Normal(_));
        assert!(path.components().all(ordinary) && !file.name.contains('\\'), "{}", file.name);
        let inside = |other: &str| other.strip_prefix(&file.name).is_some_and(|rest| rest.starts_with('/'));
        assert!(!recorded.artifacts.iter().any(|other| inside(&other.name)), "a file is no directory");
    }
    for entry in &recorded.log {
        serde_json::to_string(entry).expect("the log can be written");
    }
}
