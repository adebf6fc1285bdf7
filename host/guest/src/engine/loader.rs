//! From a component that nobody vouches for to a plugin: out of the cache, or compiled
//! in a process apart.

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
use super::{Engine, MemoryPlan, plan, source};
use crate::plugin::{self, Description, LoadError, Plugin, Source};
use rollout_core::error::Fault;
use rollout_wire::digest::hex;

/// Brings components in. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Loader {
    compiler: Compiler,
    cache: Option<CodeCache>,
}

/// Why there is no plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The file is no plugin.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// What was compiled does not fit this engine.
    #[error("code from the process that compiles does not load; is it the same program as this one?")]
    Unfit(#[source] wasmtime::Error),
}

impl LoaderError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Load(_) => Fault::Plugin,
            Self::Compile(error) => error.fault(),
            Self::Unfit(_) => Fault::Host,
        }
    }
}

impl Loader {
    /// A loader that compiles by these means, and keeps code where there is a cache.
    pub fn new(compiler: Compiler, cache: Option<CodeCache>) -> Self {
        Self { compiler, cache }
    }

    /// Checks a component and makes it ready to run in this engine. Blocks for as long as
    /// compiling takes.
    pub fn load(&self, engine: &Engine, bytes: &[u8]) -> Result<Plugin, LoaderError> {
        let (component, file) = self.component(engine, bytes)?;
        Ok(engine.link(&component, &file, bytes)?)
    }

    /// Says what a file is, whether or not it can be served. It compiles, too.
    pub fn inspect(&self, engine: &Engine, bytes: &[u8]) -> Result<Description, LoaderError> {
        let (component, file) = self.component(engine, bytes)?;
        Ok(engine.describe(&component, &file))
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
        let code = self.compiler.run(engine.plan, bytes)?;
        // SAFETY: `map` trusts its input to be the output of this version of the
        // engine. It is: a process of this very program made it and gave it to us
        // through a pipe that nobody else holds. Of the component, it depends on what
        // the compiler made of it, as it would had we compiled here.
        let component = unsafe { map(&engine.engine, &code) };
        let component = component.map_err(|error| refused(engine.plan, &code, error))?;
        tracing::info!(digest, elapsed_ms = millis(started), code_bytes = code.len(), "component compiled");
        if let Some(cache) = &self.cache
            && let Err(error) = cache.put(&key, &code)
        {
            tracing::warn!(%error, cache = %cache.dir().display(), "compiled code not kept");
        }
        Ok((component, file))
    }

    fn cached(&self, engine: &Engine, key: &Key) -> Option<Component> {
        let cache = self.cache.as_ref()?;
        let entry = cache.get(key)?;
        // SAFETY: `map` trusts its input to be the output of this version of the
        // engine. The bytes that are handed over are the bytes whose authentication code
        // was verified, under a key that only this user can read, and a host under that
        // key signs nothing but what its own compiling process made of the component
        // and for the engine in `key`. Whoever can forge that can already act as us.
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
            tracing::debug!(%error, "compiled code is copied, because there is no file in memory for it");
            // SAFETY: as the caller says.
            unsafe { Component::deserialize(engine, code) }
        }
    }
}

/// Copies bytes to a file in memory that cannot be changed any more. Returns it with the path by which the engine opens it,
/// which works while the file is held, and only where `/proc` is mounted.
fn sealed(bytes: &[u8]) -> io::Result<(File, PathBuf)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("rollout-host-code", flags)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    File::open(&path)?;
    Ok((file, path))
}

/// Returns why compiled code does not load. The engine has no type for this error: what loads where no
/// memory is set aside is too large for the pool, whose measures are the plugin's to keep to.
fn refused(plan: MemoryPlan, code: &[u8], error: wasmtime::Error) -> LoaderError {
    // SAFETY: the code is this program's own, as it was where it did not load.
    let loads = |engine: wasmtime::Engine| unsafe { Component::deserialize(&engine, code) }.is_ok();
    match wasmtime::Engine::new(&plan::code(plan)).is_ok_and(loads) {
        true => LoadError::TooManyParts(error).into(),
        false => LoaderError::Unfit(error),
    }
}

/// Tells engines apart whose code is not interchangeable.
fn fingerprint(engine: &wasmtime::Engine) -> [u8; 32] {
    struct Sha(Sha256);
    impl Hasher for Sha {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            // Nobody asks: the whole digest is taken below.
            0
        }
    }
    let mut hasher = Sha(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    // Decides on the code's initial memory, and the engine leaves it out.
    plan::IMAGE_BYTES_MAX.hash(&mut hasher);
    hasher.0.finalize().into()
}

fn millis(since: Instant) -> u64 {
    since.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}
