//! The commands `sign` and `verify`: signatures of components in registries, and statements about their builds.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::print::outln;
use super::registry::{AccessOptions, RegistryOptions, in_runtime};
use super::{Exit, PluginFault, build, plugin_file, watch};
use rollout_core::limits::LoadLimits;
use rollout_registry::Reference;
use rollout_registry::attestation::{self, Build};
use rollout_registry::signature::{self, PrivateKey};
use rollout_wire::digest::Digest;
use rollout_wire::text::printable;

/// Signs a component in a registry, as cosign does with a key.
///
/// The signature is stored beside the component. It covers the digest of the manifest that the reference has now.
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

    /// Signs the component of a reference, and with `--attest` a statement about its build.
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

/// Renders a statement about the build of a component.
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
            language: build::Language::of(self.project)?.name().to_owned(),
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
        let options = RegistryOptions::new(self.access.clone(), self.key);
        let limits = LoadLimits::default();
        // A tag is resolved once: signature, statements and bytes are of one manifest.
        let plugin = self.access.pin(&self.plugin)?;
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
