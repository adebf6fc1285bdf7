//! A container registry, the one of Debian's package, on a port of its own.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, Start, target_dir, until};

/// User and password of a registry with users. The password is in no digest by chance.
pub const REGISTRY_USER: (&str, &str) = ("user", "abcdefghijklmnopqrstuvwxyz");

/// The password's hash, from the published test vectors of bcrypt.
const PASSWORD_HASH: &str = "$2a$06$.rCVZVOThsIa97pEDOxvGuRRgzG64bvtJ0938xuqzv18d3ZpQhstC";

/// A registry that runs until it is dropped.
pub struct TestRegistry {
    /// The server, which runs until this is dropped.
    process: Process,
    dir: TempDir,
    address: String,
}

impl TestRegistry {
    /// Starts a registry that anyone may use.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a registry for [`REGISTRY_USER`] only.
    pub async fn start_with_user() -> Self {
        Self::start_with("auth: {htpasswd: {realm: test, path: DIR/users}}\n").await
    }

    async fn start_with(more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be created");
        let config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: DIR/data}}}}\n\
             http: {{addr: '127.0.0.1:0'}}\n{more}"
        );
        let config = config.replace("DIR", &dir.path().to_string_lossy());
        std::fs::write(dir.path().join("config.yml"), config).expect("the configuration can be written");
        let users = format!("{}:{PASSWORD_HASH}\n", REGISTRY_USER.0);
        std::fs::write(dir.path().join("users"), users).expect("the users can be written");
        let mut command = Command::new(program());
        let process = command.arg("serve").arg(dir.path().join("config.yml")).start();
        let address = until("the registry to listen", async || {
            let log = process.stderr();
            let (_, rest) = log.split_once("listening on ")?;
            let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'))?;
            Some(rest[..end].to_owned())
        })
        .await;
        Self { process, dir, address }
    }

    /// Returns a reference to a repository and tag of the registry.
    pub fn reference(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.address)
    }

    /// Returns host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.process.stderr()
    }

    /// Returns the file in which the registry stores a blob, by its hex digest.
    pub fn blob(&self, hex: &str) -> PathBuf {
        let folder = Path::new("data/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex);
        self.dir.path().join(folder).join("data")
    }
}

fn program() -> PathBuf {
    let venvs = std::env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
    let program = venvs.join("docker-registry/usr/bin/docker-registry");
    assert!(program.is_file(), "there is no {program:?}; run: tests/clients/setup {}", venvs.display());
    program
}
