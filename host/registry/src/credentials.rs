//! Credentials for registries, from the files and helpers that container tools use.
//!
//! The file is `config.json` of Docker or `auth.json` of Podman. An entry of `credHelpers`, or else `credsStore`, names
//! a helper, the program `docker-credential-NAME`; without a helper, `auths` contains user and password.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;

use rollout_outbound::Secret;

/// Maximum time that a helper may take. It may use a keyring that waits for a person to unlock it.
const HELPER_TIME_MAX: Duration = Duration::from_secs(60);

/// User name that a helper returns if its secret is a token.
const TOKEN_USER: &str = "<token>";

/// Error of reading credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read the registry credentials in {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// The file does not have the format that container tools write.
    #[error("the registry credentials in {} are not valid: {reason}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Reason, without values of the file.
        reason: String,
    },
    /// A helper cannot be started, or it fails.
    #[error("the credential helper {program} fails: {reason}; run it by hand, or log in again")]
    Helper {
        /// Name of the program.
        program: String,
        /// Reason.
        reason: String,
    },
}

/// Credentials for one registry.
#[derive(Clone)]
pub enum Credentials {
    /// User and password.
    Basic {
        /// Name of the user.
        user: String,
        /// Password, or an access token that is used as one.
        password: Secret,
    },
    /// A token that is exchanged for access tokens.
    Refresh(Secret),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Basic { user, .. } => f.debug_struct("Basic").field("user", user).finish_non_exhaustive(),
            Self::Refresh(_) => f.write_str("Refresh"),
        }
    }
}

/// Finds the file with credentials: `REGISTRY_AUTH_FILE`, `DOCKER_CONFIG`, or the default paths of Podman and Docker.
/// `variable` reads an environment variable.
pub fn default_file(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = set("REGISTRY_AUTH_FILE") {
        return Some(file);
    }
    if let Some(folder) = set("DOCKER_CONFIG") {
        return Some(folder.join("config.json"));
    }
    let podman = set("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json"));
    let docker = set("HOME").map(|folder| folder.join(".docker/config.json"));
    [podman, docker].into_iter().flatten().find(|file| file.is_file())
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: HashMap<String, AuthEntry>,
    creds_store: Option<String>,
    cred_helpers: HashMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase", default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// Response of a helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Reads the credentials for a registry. Returns `None`, for anonymous access, if the file has no entry for it.
///
/// # Errors
///
/// If the file cannot be read, or a helper that it names fails.
pub async fn find(file: &Path, host: &str) -> Result<Option<Credentials>, CredentialsError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| CredentialsError::Read { path: file.to_owned(), source })?;
    let invalid = |reason: String| CredentialsError::Invalid { path: file.to_owned(), reason };
    // The message of serde's error may quote the file, so only line and column are reported.
    let parsed: File = serde_json::from_str(&text)
        .map_err(|error| invalid(format!("line {}, column {}", error.line(), error.column())))?;
    let helper = parsed.cred_helpers.get(host).or(parsed.creds_store.as_ref());
    if let Some(helper) = helper
        && let Some(found) = run_helper(helper, host).await?
    {
        return Ok(Some(found));
    }
    let names =
        [host.to_owned(), format!("https://{host}"), format!("http://{host}"), format!("https://{host}/v2/")];
    let Some(entry) = names.iter().find_map(|name| parsed.auths.get(name)) else { return Ok(None) };
    entry.credentials().map_err(|reason| invalid(format!("auths, {host}: {reason}")))
}

impl AuthEntry {
    fn credentials(&self) -> Result<Option<Credentials>, &'static str> {
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            return Ok(Some(Credentials::Refresh(Secret::new(token))));
        }
        if let (Some(user), Some(password)) = (&self.username, &self.password) {
            return Ok(Some(Credentials::Basic { user: user.clone(), password: Secret::new(password) }));
        }
        let Some(auth) = self.auth.as_ref().filter(|auth| !auth.is_empty()) else { return Ok(None) };
        let decoded = BASE64_STANDARD.decode(auth.trim()).map_err(|_| "auth is not base64")?;
        let decoded = String::from_utf8(decoded).map_err(|_| "auth is not text")?;
        let (user, password) = decoded.split_once(':').ok_or("auth is not USER:PASSWORD")?;
        // Docker ends some passwords with a NUL byte.
        let password = Secret::new(password.trim_end_matches('\0'));
        Ok(Some(Credentials::Basic { user: user.to_owned(), password }))
    }
}

/// Runs a helper that returns the credentials for a registry.
async fn run_helper(name: &str, host: &str) -> Result<Option<Credentials>, CredentialsError> {
    let program = format!("docker-credential-{name}");
    let failed = |reason: String| CredentialsError::Helper { program: program.clone(), reason };
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err(failed(
            "its name has characters other than letters, digits, '-', '_' and '.'".to_owned(),
        ));
    }
    let run = async {
        let mut child = tokio::process::Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // A helper that reads nothing closes the pipe. Its exit status says whether it failed.
            let _ = input.write_all(format!("{host}\n").as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(HELPER_TIME_MAX, run)
        .await
        .map_err(|_| failed(format!("no response within {} s", HELPER_TIME_MAX.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(output.status.to_string()));
    }
    let Answer { username, secret } =
        serde_json::from_slice(&output.stdout).map_err(|_| failed("its response is not JSON".to_owned()))?;
    Ok(Some(if username == TOKEN_USER {
        Credentials::Refresh(Secret::new(&secret))
    } else {
        Credentials::Basic { user: username, password: Secret::new(&secret) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(text: &str, host: &str) -> Result<Option<(String, String)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, text).unwrap();
        let found = find(&file, host).await.map_err(|error| error.to_string())?;
        Ok(found.map(|credentials| match credentials {
            Credentials::Basic { user, password } => (user, password.expose().to_owned()),
            Credentials::Refresh(token) => (TOKEN_USER.to_owned(), token.expose().to_owned()),
        }))
    }

    #[tokio::test]
    async fn credentials_are_read_in_the_forms_that_container_tools_write() {
        let pair = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        // "dTpwOnc=" is "u:p:w".
        let text = r#"{"auths": {"h:5000": {"auth": "dTpwOnc="}, "https://i": {"username": "a", "password": "b"},
            "j": {"auth": "", "identitytoken": "t"}, "k": {}}, "HttpHeaders": {}}"#;
        assert_eq!(found(text, "h:5000").await, pair("u", "p:w"));
        assert_eq!(found(text, "i").await, pair("a", "b"));
        assert_eq!(found(text, "j").await, pair(TOKEN_USER, "t"));
        assert_eq!(found(text, "k").await, Ok(None));
        assert_eq!(found(text, "l").await, Ok(None));
    }

    #[tokio::test]
    async fn wrong_credentials_are_named_without_their_values() {
        for (text, expected) in [
            (r#"{"auths": {"h": {"auth": "secret!"}}}"#, "auths, h: auth is not base64"),
            (r#"{"auths": {"h": {"auth": "c2VjcmV0"}}}"#, "auths, h: auth is not USER:PASSWORD"),
            (r#"{"auths": "secret"}"#, "line 1, column"),
            (r#"{"credHelpers": {"h": "none-of-this-name"}}"#, "docker-credential-none-of-this-name fails"),
            (r#"{"credsStore": "../x"}"#, "its name has characters"),
        ] {
            let error = found(text, "h").await.unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_file_is_found_in_the_usual_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".docker")).unwrap();
        let docker = folder.path().join(".docker/config.json");
        std::fs::write(&docker, "{}").unwrap();
        let home = |name: &str| (name == "HOME").then(|| folder.path().into());
        assert_eq!(default_file(home), Some(docker));
        let set = |name: &str| (name == "DOCKER_CONFIG").then(|| "/d".into());
        assert_eq!(default_file(set), Some("/d/config.json".into()));
        assert_eq!(
            default_file(|name| (name == "REGISTRY_AUTH_FILE").then(|| "/a".into())),
            Some("/a".into())
        );
        assert_eq!(default_file(|_| None), None);
    }
}
