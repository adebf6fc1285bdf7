//! Components in OCI registries: references in place of files, pushes, and the cache of pulled components.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;

use super::print::errln;
use super::progress::bytes_bar;
use super::{PluginFault, SETTINGS, plugin_file};
use rollout_core::limits::{Limits, LoadLimits};
use rollout_guest::engine::{Compiler, Engine, Loader};
use rollout_outbound::NetworkRules;
use rollout_registry::artifact::Interfaces;
use rollout_registry::attestation::{self, Build};
use rollout_registry::credentials;
use rollout_registry::evidence::Evidence;
use rollout_registry::signature::{self, PublicKey};
use rollout_registry::{Options, Pulled, Reference, Registry};
use rollout_wire::digest::Digest;

/// Maximum size of the cache of pulled components in bytes. The files that were used least recently are removed.
const CACHE_BYTES_MAX: u64 = 4 << 30;

/// Access to a registry.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct AccessOptions {
    /// Reaches registries on this machine (loopback addresses) over HTTP without TLS.
    #[arg(long, help_heading = SETTINGS, hide_short_help = true)]
    plain_http: bool,
}

/// How references to registries are resolved.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct RegistryOptions {
    #[command(flatten)]
    access: AccessOptions,
    /// Public key (PEM) of a trusted signer. With it, a component is only taken from a registry, and only if one of
    /// the given keys signed it.
    #[arg(long, value_name = "FILE", help_heading = SETTINGS, hide_short_help = true)]
    verify_key: Vec<PathBuf>,
}

impl RegistryOptions {
    /// Returns options with this access and these files of trusted keys.
    pub(super) fn new(access: AccessOptions, verify_key: Vec<PathBuf>) -> Self {
        Self { access, verify_key }
    }

    /// Returns the first of these options that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let options =
            [("--verify-key", !self.verify_key.is_empty()), ("--plain-http", self.access.plain_http)];
        options.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// Replaces a reference to a registry by the file of the pulled component. `limits` returns the limits of
    /// components.
    pub(super) fn pull(
        &self,
        plugin: &mut PathBuf,
        limits: impl FnOnce() -> Result<LoadLimits>,
    ) -> Result<()> {
        if Reference::is_meant(&plugin.to_string_lossy()) || !self.verify_key.is_empty() {
            *plugin = self.local(plugin, &limits()?)?;
        }
        Ok(())
    }

    /// Returns the file of a component: the path itself, or for a reference `oci://…` the pulled component.
    pub(super) fn local(&self, path: &Path, limits: &LoadLimits) -> Result<PathBuf> {
        let text = path.to_string_lossy();
        if !Reference::is_meant(&text) {
            if !self.verify_key.is_empty() {
                bail!(
                    "{}: a file has no signature; with --verify-key, give a reference oci://…",
                    path.display()
                );
            }
            return Ok(path.to_owned());
        }
        let keys = public_keys(&self.verify_key)?;
        let reference: Reference = text.parse()?;
        let access = self.access.clone();
        let bytes_max = limits.component_bytes_max as u64;
        in_runtime(async move {
            let registry = access.registry(&reference).await?;
            let pulled = registry.resolve(bytes_max).await?;
            if !keys.is_empty() {
                let digest = pulled.digest;
                let key = signature::verify(&registry, &reference, digest, &keys).await;
                let key = key.map_err(|error| PluginFault(error.to_string()))?;
                errln!("{} is signed by key {}", pulled.reference, key.id());
            }
            if reference.digest.is_none() {
                errln!("{reference} is {}", pulled.reference);
            }
            fetch(&registry, &pulled).await
        })
    }

    /// Returns the statements of the given keys about the build of a component, each with the key's id.
    pub(super) fn builds(&self, plugin: &Path) -> Result<Vec<(Build, String)>> {
        let keys = public_keys(&self.verify_key)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let reference: Reference = plugin.to_string_lossy().parse()?;
        let digest = reference.digest.context("the reference has no digest")?;
        in_runtime(async {
            let registry = self.access.registry(&reference).await?;
            let builds = attestation::builds(&registry, digest, &keys).await?;
            Ok(builds.into_iter().map(|(build, key)| (build, key.id())).collect())
        })
    }
}

impl AccessOptions {
    /// Returns a reference with the digest in place of its tag. Returns the path of a file unchanged.
    pub(super) fn pin(&self, plugin: &Path) -> Result<PathBuf> {
        let text = plugin.to_string_lossy();
        if !Reference::is_meant(&text) {
            return Ok(plugin.to_owned());
        }
        let reference: Reference = text.parse()?;
        in_runtime(async {
            let pulled = self.registry(&reference).await?.resolve(u64::MAX).await?;
            if reference.digest.is_none() {
                errln!("{reference} is {}", pulled.reference);
            }
            Ok(pulled.reference.to_string().into())
        })
    }

    /// Returns the repository of a reference, with the credentials that container tools stored.
    pub(super) async fn registry(&self, reference: &Reference) -> Result<Registry> {
        let credentials = match credentials::default_file(|name| std::env::var_os(name)) {
            Some(file) => credentials::find(&file, &reference.host).await?,
            None => None,
        };
        let network = Arc::new(NetworkRules::open());
        Ok(Registry::new(reference, Options { credentials, plain_http: self.plain_http, network })?)
    }
}

/// Pulls a component with the evidence of its origin and of its signatures.
pub(super) fn pull_with_evidence(
    reference: &Reference,
    access: &AccessOptions,
) -> Result<(Vec<u8>, Evidence)> {
    let limits = LoadLimits::default();
    in_runtime(async {
        let registry = access.registry(reference).await?;
        let pulled = registry.resolve(limits.component_bytes_max as u64).await?;
        if reference.digest.is_none() {
            errln!("{reference} is {}", pulled.reference);
        }
        let evidence = Evidence::collect(&registry, &pulled).await?;
        let file = fetch(&registry, &pulled).await?;
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((bytes, evidence))
    })
}

/// Returns the component of an artifact from the cache, or pulls it.
async fn fetch(registry: &Registry, pulled: &Pulled) -> Result<PathBuf> {
    let cache = plugin_file::default_dir().and_then(|dir| Some(dir.parent()?.join("components")));
    let cache =
        cache.context("neither XDG_CACHE_HOME nor HOME is set, so a pulled component cannot be stored")?;
    let file = cache.join(format!("{}.wasm", pulled.layer.digest));
    // The digest is checked again, because the file may have been damaged.
    if let Ok(bytes) = fs::read(&file)
        && Digest::of(&bytes) == pulled.layer.digest
    {
        // Only the order of removal depends on the time.
        let _ = fs::File::open(&file).and_then(|file| file.set_modified(SystemTime::now()));
        return Ok(file);
    }
    let bar = bytes_bar("pulling", &pulled.reference.to_string(), pulled.layer.size);
    let bytes = registry.blob(&pulled.layer, |received| bar.set_position(received)).await;
    bar.finish_and_clear();
    store(&cache, &file, &bytes?).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Writes a component into the cache in one step, after making room.
fn store(cache: &Path, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(cache)?;
    let mut cached: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let about = entry.metadata()?;
        cached.push((about.modified()?, about.len(), entry.path()));
    }
    cached.sort();
    let mut total: u64 = cached.iter().map(|(_, size, _)| size).sum::<u64>() + bytes.len() as u64;
    for (_, size, path) in cached {
        if total <= CACHE_BYTES_MAX {
            break;
        }
        // An error is ignored, because another process may have removed the file.
        let _ = fs::remove_file(path);
        total -= size;
    }
    let mut part = tempfile::NamedTempFile::new_in(cache)?;
    part.write_all(bytes)?;
    part.as_file().sync_all()?;
    part.persist(file).map_err(|error| error.error)?;
    Ok(())
}

/// Checks a component and pushes it to a registry. Returns the reference with its digest.
pub(super) fn push(file: &Path, reference: &Reference, access: &AccessOptions) -> Result<Reference> {
    let limits = LoadLimits::default();
    let component = plugin_file::read(file, &limits)?;
    let engine = Engine::new(1, Limits::default().memory_bytes_max)?;
    let loader = Loader::new(Compiler::new(plugin_file::this_program()?, limits), None);
    let about = loader.inspect(&engine, &component);
    let about = about.map_err(|error| plugin_file::at_fault(&file.display().to_string(), error))?;
    let component = Bytes::from(component);
    let names = |items: &[rollout_guest::plugin::Item]| {
        items.iter().map(|item| item.name.clone()).collect::<Vec<_>>()
    };
    let (exports, imports) = (names(&about.exports), names(&about.imports));
    let title = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let bar = bytes_bar("pushing", &file.display().to_string(), component.len() as u64);
    let (reference, access) = (reference.clone(), access.clone());
    in_runtime(async move {
        let registry = access.registry(&reference).await?;
        let interfaces = Interfaces::new(&exports, &imports);
        let pushed = registry.push(component, interfaces, &title, |sent| bar.set_position(sent)).await;
        bar.finish_and_clear();
        Ok(pushed?)
    })
}

/// Reads public keys.
pub(super) fn public_keys(files: &[PathBuf]) -> Result<Vec<PublicKey>> {
    let read = |file: &PathBuf| {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        PublicKey::from_pem(&text).with_context(|| file.display().to_string())
    };
    files.iter().map(read).collect()
}

/// Runs requests, to a registry for example, on this thread. When `serve` calls this, it has not dropped its privileges yet, and
/// other threads would keep them.
pub(super) fn in_runtime<T>(requests: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(requests)
}
