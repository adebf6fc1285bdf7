//! Loading of untrusted components: from the cache, or compiled in a separate process. Components with the same code share
//! their compiled code ([`template`](super::template)).

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use super::cache::{CodeCache, Key};
use super::compile::{CompileError, Compiler};
use super::template::Template;
use super::{Engine, MemoryPlan, plan, source};
use crate::plugin::{self, Description, LoadError, Plugin, Source};
use rollout_core::error::Fault;
use rollout_wire::digest::{hex, sha256};

/// Loads components. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Loader {
    compiler: Compiler,
    cache: Option<CodeCache>,
}

/// Error of loading a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The file is not a plugin.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The component could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The compiled code does not fit this engine.
    #[error("compiled code does not load; is the compiler the same program as this one?")]
    Unfit(#[source] wasmtime::Error),
}

impl LoaderError {
    /// Returns the party that must act.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Load(_) => Fault::Plugin,
            Self::Compile(error) => error.fault(),
            Self::Unfit(_) => Fault::Host,
        }
    }
}

impl Loader {
    /// Creates a loader, which stores code in the cache if there is one.
    pub fn new(compiler: Compiler, cache: Option<CodeCache>) -> Self {
        Self { compiler, cache }
    }

    /// Checks a component and prepares it for this engine. Blocks while it compiles.
    pub fn load(&self, engine: &Engine, bytes: &[u8]) -> Result<Plugin, LoaderError> {
        let (component, file) = self.component(engine, bytes)?;
        Ok(engine.link(&component, &file, bytes)?)
    }

    /// Describes a file, even one that cannot be served. Compiles it, too.
    pub fn inspect(&self, engine: &Engine, bytes: &[u8]) -> Result<Description, LoaderError> {
        let (component, file) = self.component(engine, bytes)?;
        Ok(engine.describe(&component, &file))
    }

    /// Compiles a component that runs outside of rollouts, or takes its code from the cache.
    pub fn compiled(&self, engine: &Engine, bytes: &[u8]) -> Result<Component, LoaderError> {
        Ok(self.component(engine, bytes)?.0)
    }

    fn component(&self, engine: &Engine, bytes: &[u8]) -> Result<(Component, Source), LoaderError> {
        plugin::check_kind(bytes)?;
        let started = Instant::now();
        let file = source(bytes);
        let key = Key { component: file.digest, engine: fingerprint(&engine.engine) };
        let digest = hex(&file.digest);
        if let Some(component) = self.cached(engine, &key) {
            tracing::info!(digest, elapsed_ms = millis(started), "compiled code loaded from cache");
            return Ok((component, file));
        }
        if let Some(template) = Template::of(bytes)
            && let Some(component) = self.completed(engine, &template, key.engine)?
        {
            tracing::info!(
                digest,
                elapsed_ms = millis(started),
                "compiled code shared with other components loaded"
            );
            return Ok((component, file));
        }
        let code = self.compiler.run(engine.plan, bytes)?;
        // SAFETY: `map` requires the output of this version of the engine. A process of this very program produced it
        // and passed it through a pipe that no other process has open. It depends on the component only as the
        // compiler's output does, as it would if this process had compiled it.
        let component = unsafe { map(&engine.engine, &code) };
        let component = component.map_err(|error| refused(engine.plan, &code, error))?;
        tracing::info!(digest, elapsed_ms = millis(started), code_bytes = code.len(), "component compiled");
        self.store(&key, &code);
        Ok((component, file))
    }

    fn store(&self, key: &Key, code: &[u8]) {
        if let Some(cache) = &self.cache
            && let Err(error) = cache.put(key, code)
        {
            tracing::warn!(%error, cache = %cache.dir().display(), "cannot store compiled code in the cache");
        }
    }

    /// Returns a component from the code of its template, which is in the cache or compiled now. Returns `None` if the
    /// component must be compiled by itself.
    fn completed(
        &self,
        engine: &Engine,
        template: &Template,
        fingerprint: [u8; 32],
    ) -> Result<Option<Component>, LoaderError> {
        let key = Key { component: sha256(template.component()), engine: fingerprint };
        let cached = self.cache.as_ref().and_then(|cache| cache.get(&key));
        let code = match cached {
            Some(entry) => entry.into_code(),
            None => match self.compiler.run(engine.plan, template.component()) {
                Ok(code) => {
                    self.store(&key, &code);
                    code
                }
                // Compiling the component itself reports the error with the right offsets.
                Err(CompileError::Invalid(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            },
        };
        let Some(code) = template.complete(code) else { return Ok(None) };
        // SAFETY: `map` requires the output of this version of the engine. The code of the template is such an
        // output, for the same reasons as in `component` and `cached`. It was changed only within the section that
        // contains the initial memories of modules and nothing else, and any bytes are valid there.
        match unsafe { map(&engine.engine, &code) } {
            Ok(component) => Ok(Some(component)),
            Err(error) => Err(refused(engine.plan, &code, error)),
        }
    }

    fn cached(&self, engine: &Engine, key: &Key) -> Option<Component> {
        let cache = self.cache.as_ref()?;
        let entry = cache.get(key)?;
        // SAFETY: `map` requires the output of this version of the engine. These are the bytes whose authentication
        // code was verified, under a key that only this user can read. A host with that key signs only the output of
        // its own compiler process for the component and engine in `key`. An attacker who can forge that can already
        // act as this user.
        match unsafe { map(&engine.engine, entry.code()) } {
            Ok(component) => Some(component),
            Err(error) => {
                cache.discard(key, &format!("{error:#}"));
                None
            }
        }
    }
}

/// Maps compiled code from a sealed copy in memory.
///
/// The engine maps a component's initial memory from the file that its code came from. Code without a file has that
/// memory twice: a Python component would take 85 MiB instead of 51.
///
/// # Safety
///
/// The code is the output of this version of the engine.
unsafe fn map(engine: &wasmtime::Engine, code: &[u8]) -> wasmtime::Result<Component> {
    match sealed(code) {
        // SAFETY: the file has these bytes, and its seals keep every process from changing them.
        Ok((_file, path)) => unsafe { Component::deserialize_file(engine, path) },
        Err(error) => {
            tracing::debug!(%error, "compiled code is copied, because an in-memory file cannot be created");
            // SAFETY: the caller guarantees it.
            unsafe { Component::deserialize(engine, code) }
        }
    }
}

/// Copies bytes to a sealed in-memory file. Returns it with the path by which the engine opens it, which is valid while
/// the file is open, and only if `/proc` is mounted.
fn sealed(bytes: &[u8]) -> io::Result<(File, PathBuf)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("rollout-host-code", flags)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    File::open(&path)?;
    Ok((file, path))
}

/// Converts the error of loading compiled code. The engine has no type for code that is too large for the pool, which
/// is the plugin's fault; such code loads in an engine without a pool.
fn refused(plan: MemoryPlan, code: &[u8], error: wasmtime::Error) -> LoaderError {
    // SAFETY: the code is this program's own, which the failed load has not changed.
    let loads = |engine: wasmtime::Engine| unsafe { Component::deserialize(&engine, code) }.is_ok();
    match wasmtime::Engine::new(&plan::code(plan)).is_ok_and(loads) {
        true => LoadError::TooManyParts(error).into(),
        false => LoaderError::Unfit(error),
    }
}

/// Returns a fingerprint that differs between engines with incompatible code.
fn fingerprint(engine: &wasmtime::Engine) -> [u8; 32] {
    struct Sha(Sha256);
    impl Hasher for Sha {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            // Not used: the whole digest is taken below.
            0
        }
    }
    let mut hasher = Sha(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    // Determines the code's initial memory, and is not part of the engine's hash.
    plan::IMAGE_BYTES_MAX.hash(&mut hasher);
    hasher.0.finalize().into()
}

fn millis(since: Instant) -> u64 {
    since.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}
