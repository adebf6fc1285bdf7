//! The single entry point of guests into the host.
//!
//! Every import begins with [`Imports::enter`], which counts the call, delivers the answers that arrived since the
//! previous call, and checks that the guest's role may use the import. A test below checks that every import calls it.
//! An import returns a plain `Result`: a [`CallError::Reported`] becomes an error of the contract, a
//! [`CallError::Fatal`] ends the guest.

use wasmtime::component::ResourceTableError;

use super::bindings::rollout::plugin::{artifacts, models, samples};
use super::{ContractViolation, Imports, Role};
use rollout_core::telemetry::Limit;

/// An imported function of the contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import {
    name: &'static str,
    only: Option<&'static [Role]>,
}

impl Import {
    const fn for_all(name: &'static str) -> Self {
        Self { name, only: None }
    }

    const fn for_workflows(name: &'static str) -> Self {
        Self { name, only: Some(&[Role::Workflow]) }
    }

    const fn for_graders(name: &'static str) -> Self {
        Self { name, only: Some(&[Role::Grader]) }
    }

    const fn for_all_graders(name: &'static str) -> Self {
        Self { name, only: Some(&[Role::Grader, Role::GroupGrader]) }
    }

    const fn for_workflows_and_environments(name: &'static str) -> Self {
        Self { name, only: Some(&[Role::Workflow, Role::Environment]) }
    }

    pub(super) const ROLLOUT_ID: Self = Self::for_all("context.rollout-id");
    pub(super) const ATTEMPT: Self = Self::for_all("context.attempt");
    pub(super) const CONFIG: Self = Self::for_all("context.config");
    pub(super) const METADATA: Self = Self::for_all("context.metadata");
    pub(super) const TIME_LEFT: Self = Self::for_all("context.time-left-ms");

    pub(super) const SAMPLE_LIMIT: Self = Self::for_workflows("samples.limit");
    pub(super) const SAMPLE_OPEN: Self = Self::for_workflows("samples.sample.open");
    pub(super) const SAMPLE_ID: Self = Self::for_workflows("samples.sample.id");
    pub(super) const SAMPLE_PUSH: Self = Self::for_workflows("samples.sample.push");
    pub(super) const SAMPLE_REPLACE: Self = Self::for_workflows("samples.sample.replace");
    pub(super) const SAMPLE_HISTORY: Self = Self::for_workflows("samples.sample.history");
    pub(super) const SAMPLE_SET_METRIC: Self = Self::for_workflows("samples.sample.set-metric");
    pub(super) const SAMPLE_SET_FIELD: Self = Self::for_workflows("samples.sample.set-field");
    pub(super) const SAMPLE_WITHDRAW: Self = Self::for_workflows("samples.sample.withdraw");

    pub(super) const CALLS_WAIT: Self = Self::for_all("calls.wait");

    pub(super) const ASK_POLICY: Self = Self::for_workflows("models for the policy");
    pub(super) const ASK_JUDGE: Self = Self::for_all_graders("models for a judge");
    pub(super) const MODEL_FINISH: Self = Self::for_all("models.finish");

    pub(super) const TOOLS_AVAILABLE: Self = Self::for_workflows_and_environments("tools.available");
    pub(super) const TOOLS_EXECUTE: Self = Self::for_workflows_and_environments("tools.execute");
    pub(super) const TOOL_START: Self = Self::for_workflows_and_environments("tools.start");
    pub(super) const TOOL_FINISH: Self = Self::for_workflows_and_environments("tools.finish");

    pub(super) const ARTIFACT_WRITE: Self = Self::for_all("artifacts.write");
    pub(super) const ARTIFACT_READ: Self = Self::for_all("artifacts.read");
    pub(super) const ARTIFACT_NAMES: Self = Self::for_all("artifacts.names");

    pub(super) const LOG_LINE: Self = Self::for_all("log.line");
    pub(super) const LOG_EVENT: Self = Self::for_all("log.event");

    pub(super) const LOG_REFUSED: Self = Self::for_all("log.refused");

    pub(super) const OBSERVE: Self = Self::for_graders("observations.exchanges");
}

impl Imports {
    /// Counts a call. Fails if the limit on calls is exceeded or the guest's role may not use the import.
    pub(super) fn enter(&mut self, Import { name, only }: Import) -> wasmtime::Result<()> {
        crate::stack::note_place();
        self.host_calls += 1;
        self.record.meter().add_host_call();
        if self.host_calls > self.limits.host_calls_max {
            self.record.limit_hit(Limit::HostCalls);
            return Err(wasmtime::Error::new(ContractViolation::HostCalls(self.limits.host_calls_max)));
        }
        self.count_move()?;
        match only {
            Some(allowed) if !allowed.contains(&self.role) => {
                // The first is the role that authors know the import by.
                let (role, allowed) = (self.role.as_str(), allowed[0].as_str());
                Err(wasmtime::Error::new(ContractViolation::WrongRole { role, import: name, allowed }))
            }
            _ => Ok(()),
        }
    }
}

/// Error of an import.
#[derive(Debug)]
pub(crate) enum CallError<E> {
    /// An error of the contract, which the guest receives.
    Reported(E),
    /// An error that ends the guest.
    Fatal(wasmtime::Error),
}

impl<E> CallError<E> {
    /// Returns the error for the guest, or fails with the error that ends it.
    pub(crate) fn for_guest(self) -> wasmtime::Result<E> {
        match self {
            Self::Reported(error) => Ok(error),
            Self::Fatal(error) => Err(error),
        }
    }

    /// Converts the error for the guest; a fatal error stays as it is.
    pub(crate) fn map<F>(self, convert: impl FnOnce(E) -> F) -> CallError<F> {
        match self {
            Self::Reported(error) => CallError::Reported(convert(error)),
            Self::Fatal(error) => CallError::Fatal(error),
        }
    }
}

impl<E> From<wasmtime::Error> for CallError<E> {
    fn from(error: wasmtime::Error) -> Self {
        Self::Fatal(error)
    }
}

impl<E> From<ContractViolation> for CallError<E> {
    fn from(violation: ContractViolation) -> Self {
        Self::Fatal(wasmtime::Error::new(violation))
    }
}

impl<E> From<ResourceTableError> for CallError<E> {
    fn from(error: ResourceTableError) -> Self {
        Self::Fatal(error.into())
    }
}

// One implementation per type: a generic one would conflict with that for the engine's error.
macro_rules! impl_from_reported {
    ($($error:path),+) => {
        $(impl From<$error> for CallError<$error> {
            fn from(error: $error) -> Self {
                Self::Reported(error)
            }
        })+
    };
}

/// Aliases for the bindings, which name the imports' error types and accept no generic types.
pub(crate) type ModelCallError = CallError<models::Error>;
pub(crate) type SampleOpenError = CallError<samples::OpenError>;
pub(crate) type SampleRecordError = CallError<samples::RecordError>;
pub(crate) type ArtifactError = CallError<artifacts::Error>;

impl_from_reported!(models::Error, samples::OpenError, samples::RecordError, artifacts::Error);

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Returns the functions of a source file that guests call, each with the first line of its body.
    fn imports_in(source: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let of_imports = source.split("\nimpl ").filter(|block| {
            let header = block.lines().next().unwrap_or_default();
            header.contains("::Host") && header.contains(" for Imports {")
        });
        for block in of_imports {
            let mut name = None;
            let lines = block.lines().take_while(|line| *line != "}");
            for line in lines.skip(1) {
                if let Some(signature) = line.strip_prefix("    ").filter(|line| line.contains("fn ")) {
                    let signature = signature.trim_start_matches("async ");
                    if let Some(rest) = signature.strip_prefix("fn ") {
                        name = rest.split('(').next().map(str::to_owned);
                    }
                }
                let begins = line.starts_with("        ") && !line.trim_end().ends_with(',');
                if begins && let Some(name) = name.take() {
                    found.push((name, line.trim().to_owned()));
                }
            }
        }
        found
    }

    #[test]
    fn every_import_goes_through_the_gate() {
        let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/imports")];
        let mut seen = 0;
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let source = std::fs::read_to_string(path).unwrap();
            for (name, first_line) in imports_in(&source) {
                // Drops of handles and conversions for the bindings are not calls of the contract.
                if name == "drop" || name.starts_with("convert_") {
                    continue;
                }
                seen += 1;
                assert!(first_line.starts_with("self.enter("), "{name} begins with {first_line:?}");
            }
        }
        assert!(seen >= 25, "only {seen} imports were found, so the check sees too little");
    }
}
