//! Components in OCI registries: references in place of files, and the commands `sign` and `verify`.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;

use super::print::{errln, outln};
use super::progress::bytes_bar;
use super::{Exit, PluginFault, SETTINGS, build, plugin_file, watch};
use rollout_core::limits::{Limits, LoadLimits};
use rollout_guest::engine::{Compiler, Engine, Loader};
use rollout_outbound::NetworkRules;
use rollout_registry::artifact::Interfaces;
use rollout_registry::attestation::{self, Build};
use rollout_registry::credentials;
use rollout_registry::evidence::Evidence;
use rollout_registry::signature::{self, PrivateKey, PublicKey};
use rollout_registry::{Options, Pulled, Reference, Registry};
use rollout_wire::digest::Digest;
use rollout_wire::text::printable;

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
    /// Returns the first of these options that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let options =
            [("--verify-key", !self.verify_key.is_empty()), ("--plain-http", self.access.plain_http)];
        options.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// Replaces a reference to a registry by the file of the pulled component. `limits` returns the limits of components.
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
    fn local(&self, path: &Path, limits: &LoadLimits) -> Result<PathBuf> {
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
}

impl RegistryOptions {
    /// Returns the statements of the given keys on how a component was built, each with the key's id.
    fn builds(&self, plugin: &Path) -> Result<Vec<(Build, String)>> {
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
    fn pin(&self, plugin: &Path) -> Result<PathBuf> {
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
    let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let about = entry.metadata()?;
        kept.push((about.modified()?, about.len(), entry.path()));
    }
    kept.sort();
    let mut total: u64 = kept.iter().map(|(_, size, _)| size).sum::<u64>() + bytes.len() as u64;
    for (_, size, path) in kept {
        if total <= CACHE_BYTES_MAX {
            break;
        }
        // Another process may have removed it.
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

/// Signs a component in a registry, as cosign does with a key.
///
/// The signature is stored beside the component. It is over the digest of the manifest that the reference has now.
/// With --attest, the project is built again, and if the result has the component's bytes, a signed statement with
/// the digest of the source, the SDK and the options of the build is stored, too.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 it is signed; 1 the project builds other bytes; 2 not done.\n\nExamples:\n  \
    rollout-host sign --generate-key release.key\n  \
    rollout-host sign oci://registry.example/team/calc:1.0.0 --key release.key --attest calc/"
)]
pub(super) struct Sign {
    /// The component, oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:….
    #[arg(required_unless_present = "generate_key")]
    reference: Option<Reference>,
    /// Private key of ECDSA with P-256 (PEM, PKCS#8, not encrypted).
    #[arg(long, value_name = "FILE", required_unless_present = "generate_key")]
    key: Option<PathBuf>,
    /// Project that the component is built from. It is built again and compared.
    #[arg(long, value_name = "DIR")]
    attest: Option<PathBuf>,
    /// Option of `build` for the project; may be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, requires = "attest")]
    build_option: Vec<String>,
    /// Writes a new private key to FILE and its public key to FILE.pub, and signs nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reference", "key", "attest"])]
    generate_key: Option<PathBuf>,
    #[command(flatten)]
    access: AccessOptions,
}

impl Sign {
    pub(crate) fn run(self) -> Result<Exit> {
        match (&self.generate_key, &self.reference, &self.key) {
            (Some(file), ..) => generate(file),
            (None, Some(reference), Some(key)) => self.sign(reference, key),
            // Clap requires one or the other.
            _ => bail!("give a reference and --key, or --generate-key"),
        }
    }

    fn sign(&self, reference: &Reference, key: &Path) -> Result<Exit> {
        let text = fs::read_to_string(key).with_context(|| format!("cannot read {}", key.display()))?;
        let key = PrivateKey::from_pem(&text).with_context(|| key.display().to_string())?;
        in_runtime(async {
            let registry = self.access.registry(reference).await?;
            let pulled = registry.resolve(u64::MAX).await?;
            let build = match &self.attest {
                Some(project) => {
                    let rebuild = Rebuild { project, options: &self.build_option };
                    rebuild.compare(&pulled.reference.to_string(), pulled.layer.digest)?;
                    Some(rebuild.describe()?)
                }
                None => None,
            };
            if let Some(build) = &build {
                attestation::attest(&registry, reference, pulled.digest, build, &key).await?;
            }
            signature::sign(&registry, reference, pulled.digest, &key).await?;
            outln!("{} is signed by key {}", pulled.reference, key.public()?.id());
            if let Some(build) = &build {
                outln!("{}", line(build));
            }
            Ok(Exit::Done)
        })
    }
}

/// Renders how a component was built.
fn line(build: &Build) -> String {
    let Build { language, options, sdk, program, source } = build;
    let options = if options.is_empty() { "none".to_owned() } else { options.join(" ") };
    let text = format!(
        "built from source sha256:{source} in {language}, SDK {sdk}, options {options}, by rollout-host {program}"
    );
    printable(&text)
}

/// A project that is built again.
struct Rebuild<'a> {
    project: &'a Path,
    /// Options of `build`.
    options: &'a [String],
}

impl Rebuild<'_> {
    /// Builds the project, and fails unless the result has this digest.
    fn compare(&self, about: &str, expected: Digest) -> Result<()> {
        let project = self.project.display();
        let folder = tempfile::tempdir()?;
        let built = folder.path().join("rebuilt.wasm");
        let status = std::process::Command::new(plugin_file::this_program()?)
            .args(["build", "--no-cache", "-o"])
            .args([&built, self.project])
            .args(self.options)
            .status()
            .context("cannot start the build")?;
        if !status.success() {
            bail!("{project} cannot be built");
        }
        let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
        let found = Digest::of(&bytes);
        if expected == found {
            return Ok(());
        }
        let reason = format!(
            "{about} has SHA-256 {expected}, and {project} builds a component with {found}: the source, a dependency, the SDK, \
             an option or the program differs"
        );
        Err(PluginFault(reason).into())
    }

    fn describe(&self) -> Result<Build> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Build {
            language: format!("{:?}", build::Language::of(self.project)?).to_lowercase(),
            options: self.options.to_vec(),
            sdk: version.clone(),
            program: version,
            source: watch::source_digest(self.project)?,
        })
    }
}

/// Writes a new pair of keys. Existing files are not replaced.
fn generate(file: &Path) -> Result<Exit> {
    let key = PrivateKey::generate()?;
    let public = PrivateKey::from_pem(key.expose())?.public()?;
    let public_file = PathBuf::from(format!("{}.pub", file.display()));
    let write = |path: &Path, mode: u32, text: &str| {
        let opened = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
        opened
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot create {}", path.display()))
    };
    write(file, 0o600, key.expose())?;
    write(&public_file, 0o644, &public.to_pem())?;
    outln!(
        "wrote the private key {} and the public key {} ({})",
        file.display(),
        public_file.display(),
        public.id()
    );
    Ok(Exit::Done)
}

/// Verifies who signed a component in a registry, or that a project builds it.
///
/// With --key, one of the given keys has to have signed the component, and statements that they signed on how it was
/// built are printed. With --rebuild, the project is built again, and the result has to have the component's bytes: a
/// build is reproducible.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 verified; 1 not signed by a given key, or other bytes; 2 not done.\n\n\
    Examples:\n  rollout-host verify oci://registry.example/team/calc:1.0.0 --key release.key.pub\n  \
    rollout-host verify calc.wasm --rebuild calc/"
)]
pub(super) struct Verify {
    /// The component: a reference oci://…, or with --rebuild also a file.
    plugin: PathBuf,
    /// Public key (PEM) of a trusted signer.
    #[arg(long, value_name = "FILE", required_unless_present = "rebuild")]
    key: Vec<PathBuf>,
    /// Project to build.
    #[arg(long, value_name = "DIR")]
    rebuild: Option<PathBuf>,
    /// Option of `build` for the project; may be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, requires = "rebuild")]
    build_option: Vec<String>,
    #[command(flatten)]
    access: AccessOptions,
}

impl Verify {
    pub(crate) fn run(self) -> Result<Exit> {
        let options = RegistryOptions { access: self.access, verify_key: self.key };
        let limits = LoadLimits::default();
        // A tag is resolved once: signature, statements and bytes are of one manifest.
        let plugin = options.access.pin(&self.plugin)?;
        let file = options.local(&plugin, &limits)?;
        for (build, id) in options.builds(&plugin)? {
            outln!("key {id} states: {}", line(&build));
        }
        let Some(project) = self.rebuild else {
            return Ok(Exit::Done);
        };
        let found = Digest::of(&plugin_file::read(&file, &limits)?);
        let rebuild = Rebuild { project: &project, options: &self.build_option };
        rebuild.compare(&self.plugin.display().to_string(), found)?;
        outln!("{} is what {} builds, SHA-256 {found}", self.plugin.display(), project.display());
        Ok(Exit::Done)
    }
}

fn public_keys(files: &[PathBuf]) -> Result<Vec<PublicKey>> {
    let read = |file: &PathBuf| {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        PublicKey::from_pem(&text).with_context(|| file.display().to_string())
    };
    files.iter().map(read).collect()
}

/// Runs requests to a registry on this thread: `serve` has not dropped its privileges yet, which threads would keep.
fn in_runtime<T>(requests: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(requests)
}
