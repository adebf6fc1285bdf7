//! Components in OCI registries.
//!
//! [`Registry`] pushes and pulls components as artifacts of the CNCF's format for WebAssembly: one layer of type
//! `application/wasm`, whose digest is the component's SHA-256, and a configuration that lists exports and imports.
//! Other tools for components read the same format. [`signature`] signs and verifies manifests as cosign does with
//! keys, and [`evidence`] proves to a server, without network access, which keys signed a component. [`attestation`]
//! signs and verifies statements of how a component was built.
//!
//! Requests follow the rules of the host's outbound connections. Redirects are followed without credentials, responses
//! have a size limit, and content that is requested by its digest is checked against that digest.

pub mod artifact;
pub mod attestation;
mod auth;
mod client;
pub mod credentials;
mod error;
pub mod evidence;
mod reference;
pub mod signature;

pub use client::{Options, Pulled, Registry, RepositoryState};
pub use error::RegistryError;
pub use reference::{InvalidReference, Reference};
