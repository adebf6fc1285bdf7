//! Shared code of the tests under `tests/`, which test the host from outside.
//!
//! [`TestHost`] is a real `rollout-host serve` process on a free port, with a real component from `guests/`; that of
//! [`InProcess`] runs in the process of the test. [`Controller`] is the other side: the model that a workflow calls and
//! the trainer's callbacks. [`Process`] is any command of the host.
//!
//! Every wait is for an event, with a deadline of [`TIMEOUT`]. Everything that a test starts ends with it.

#![warn(missing_docs)]

mod browser;
mod catalog;
mod catalog_contract;
mod catalog_cutting;
mod collector;
mod controller;
mod evaluation;
mod exposition;
mod host;
mod host_tools;
mod in_process;
mod init;
mod log_contract;
mod made;
mod memory_group;
mod nats;
mod oracle;
mod process;
mod process_memory;
mod programs;
mod raw;
mod registry;
mod terminal;
mod waiting;

pub use browser::BrowserDriver;
pub use catalog::{LeftCatalog, OPERATOR, ServeCatalog, TestCatalog, TestTenant};
pub use catalog_contract::{CuttingStep, MemoryLog, RemovalStep, shared_catalog_contract, upload};
pub use catalog_cutting::{CHANGES_MAX, Copies, create, cut_log_contract};
pub use collector::{Collector, TracedSpan};
pub use controller::{Answer, Controller, KEY_OF_B, Received, RolloutRequest};
pub use evaluation::{Evaluation, read_json, sums};
pub use exposition::Exposition;
pub use host::{Admitted, Reply, Serve, TestHost};
pub use host_tools::{Called, call, call_as, providing};
pub use in_process::InProcess;
pub use init::{InitRequest, check_chat, check_completed};
pub use log_contract::{EmbeddedJournal, JournalPlace, log_contract, rollouts_in, small};
pub use made::component_text;
pub use memory_group::MemoryGroup;
pub use nats::TestNats;
pub use oracle::{Answers, Oracle, OracleRequest};
pub use process::{Process, Ran, Start, rollout_host, rollout_host_with_open_files};
pub use process_memory::{instances_rest, memory_kib, page_faults, private_pages};
pub use programs::{
    client_python, environments, esbuild, example, framework_packages, guest, has_javascript, host_program,
    javascript_engine, javascript_guest, javascript_host, native_wheels, npm_packages, project_root,
    python_guest, python_program, target_dir, trainer_python, with_frameworks,
};
pub use raw::{RawServer, Sends};
pub use registry::{REGISTRY_USER, TestRegistry};
pub use terminal::TestTerminal;
pub use waiting::waiting_component;

use std::time::Duration;

/// The deadline of every wait in a test. It is far longer than needed, because a busy machine is not a failure.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for an event; panics with this description at the deadline.
pub async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, event).await {
        Ok(value) => value,
        Err(_) => panic!("waited {TIMEOUT:?} for {what}"),
    }
}

/// Polls until there is an answer, for state without notifications.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        loop {
            pause.tick().await;
            if let Some(value) = ask().await {
                return value;
            }
        }
    };
    in_time(what, asking).await
}
