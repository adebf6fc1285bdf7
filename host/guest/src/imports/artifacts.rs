//! `artifacts` and `observations`: files of the rollout, and the exchanges with the model that the host
//! observed.

use super::bindings::rollout::plugin::artifacts::{self, Error};
use super::bindings::rollout::plugin::observations;
use super::gate::{ArtifactError, Import};
use super::{ContractViolation, Imports};
use rollout_core::budget::Use;
use rollout_core::telemetry::{Limit, ModelRole};
use rollout_transcript::Exchange;

/// Maximum length of a file's name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Maximum number of directories in a name. Each takes an inode, however small the file is.
const DIRECTORIES_MAX: usize = 4;

/// Number of bytes that a file takes in the host besides its name and content.
const ARTIFACT_BYTES: usize = 128;

/// Checks a file's name. A valid name is safe on every file system: no absolute path, no `..`, no hidden
/// file.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("it is empty".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("it is longer than {NAME_BYTES_MAX} bytes"));
    }
    if name.split('/').count() > DIRECTORIES_MAX + 1 {
        return Err(format!("it has more than {DIRECTORIES_MAX} directories"));
    }
    for segment in name.split('/') {
        if segment.is_empty() {
            return Err("it has an empty path segment".to_owned());
        }
        if segment.starts_with('.') {
            return Err(format!("'{segment}' begins with a dot"));
        }
        if let Some(c) = segment.chars().find(|c| !c.is_ascii_alphanumeric() && !"._-".contains(*c)) {
            return Err(format!("{c:?} is not a letter, a digit, '.', '_' or '-'"));
        }
    }
    Ok(())
}

/// Returns whether `inner` is in a directory named `outer`.
fn is_inside(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

impl artifacts::Host for Imports {
    fn convert_error(&mut self, refused: ArtifactError) -> wasmtime::Result<Error> {
        refused.for_guest()
    }

    fn write(&mut self, name: String, content: Vec<u8>) -> Result<(), ArtifactError> {
        self.enter(Import::ARTIFACT_WRITE)?;
        check_name(&name).map_err(Error::InvalidName)?;
        let mut kept = self.record.lock();
        if let Some(other) =
            kept.artifacts.keys().find(|other| is_inside(&name, other) || is_inside(other, &name))
        {
            let why = format!("'{other}' exists, and one would have to be a directory");
            return Err(Error::InvalidName(why).into());
        }
        let old = kept.artifacts.get(&name).map(bytes::Bytes::len);
        if old.is_none() && kept.artifacts.len() >= self.limits.artifacts_max {
            let asked = kept.artifacts.len() + 1;
            kept.hits.add_requested(Limit::Artifacts, asked);
            let max = self.limits.artifacts_max;
            let why = format!("artifacts-max of {max} files; the operator can raise it");
            return Err(Error::OverLimit(why).into());
        }
        let total = kept.artifact_bytes - old.unwrap_or(0) + content.len();
        if total > self.limits.artifact_bytes_max {
            kept.hits.add_requested(Limit::ArtifactBytes, total);
            let max = self.limits.artifact_bytes_max;
            return Err(Error::OverLimit(format!(
                "artifact-bytes-max of {max} bytes: this would make {total}; the operator can raise it"
            ))
            .into());
        }
        // The old content stays charged until the new one is charged too.
        let cost = |content: usize| ARTIFACT_BYTES + name.len() + content;
        kept.hold(cost(content.len())).map_err(|over| Error::OverLimit(over.0))?;
        if let Some(old) = old {
            kept.release_held(cost(old));
        }
        kept.artifact_bytes = total;
        kept.artifacts.insert(name, content.into());
        Ok(())
    }

    fn read(&mut self, name: String) -> Result<Vec<u8>, ArtifactError> {
        self.enter(Import::ARTIFACT_READ)?;
        check_name(&name).map_err(Error::InvalidName)?;
        let kept = self.record.lock();
        let content = kept.artifacts.get(&name).ok_or(Error::NotFound)?;
        Ok(content.to_vec())
    }

    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        self.enter(Import::ARTIFACT_NAMES)?;
        Ok(self.record.lock().artifacts.keys().cloned().collect())
    }
}

impl observations::Host for Imports {
    fn exchanges(&mut self, sample_id: String) -> wasmtime::Result<Vec<observations::Exchange>> {
        self.enter(Import::OBSERVE)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let kept = self.record.lock();
        let transcript = &kept.transcript;
        let lists = transcript.policy.among(&transcript.samples);
        let is_its =
            |exchange: &&Exchange| exchange.sample.as_ref().is_some_and(|id| id.as_str() == sample_id);
        let its = || transcript.policy.exchanges().iter().filter(is_its);
        // The requests, which repeat the conversation, may be far larger than their stored form.
        let bytes = its().map(|exchange| lists.body_bytes(exchange)).fold(0, usize::saturating_add);
        let max = self.limits.memory_bytes_max;
        if bytes > max {
            return Err(wasmtime::Error::new(ContractViolation::ManyObserved { bytes, max }));
        }
        let mut charge = self.record.holder().map(|holder| holder.nothing(Use::Record));
        if let Some(charge) = &mut charge {
            charge.grow(bytes).map_err(wasmtime::Error::new)?;
        }
        Ok(its()
            .map(|exchange| observations::Exchange {
                request: text(&lists.body(exchange)),
                reply: match &exchange.result {
                    Ok(reply) => Ok(text(reply.completion.body())),
                    Err(failure) => Err(failure.message(ModelRole::Policy)),
                },
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_leads_nowhere_else() {
        fn check(name: &str, valid: bool) {
            assert_eq!(check_name(name).is_ok(), valid, "{name:?}");
        }
        check("notes.txt", true);
        check("a/b-c/d_1.json", true);
        check("", false);
        check("/etc/passwd", false);
        check("../x", false);
        check("a/../b", false);
        check("a//b", false);
        check("a/", false);
        check(".hidden", false);
        check("a\\b", false);
        check("a\0b", false);
        check("a/b/c/d/file", true);
        check("a/b/c/d/e/file", false);
        check("é", false);
        check(&"x".repeat(256), false);
    }

    #[test]
    fn a_file_cannot_be_a_directory_too() {
        assert!(is_inside("a/b", "a"));
        assert!(!is_inside("ab", "a"));
        assert!(!is_inside("a", "a"));
    }
}
