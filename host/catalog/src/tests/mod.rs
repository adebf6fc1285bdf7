//! Tests of a catalog in a temporary folder.

mod files;
mod keys;
mod plugins;
mod reopened;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::DateTime;
use rollout_wire::digest::Digest;
use rollout_wire::quota::Quota;
use tempfile::TempDir;

use crate::*;

/// A catalog in a temporary folder, with a clock that tests set.
pub(super) struct Scene {
    pub folder: TempDir,
    pub now: Arc<AtomicI64>,
    pub catalog: Option<Catalog>,
}

impl Scene {
    pub(super) fn new() -> Self {
        let mut scene = Self {
            folder: tempfile::tempdir().unwrap(),
            now: Arc::new(AtomicI64::new(1_700_000_000)),
            catalog: None,
        };
        scene.catalog = Some(scene.open().unwrap());
        scene
    }

    pub(super) fn settings(&self) -> CatalogSettings {
        let now = Arc::clone(&self.now);
        let clock =
            Arc::new(move || DateTime::from_timestamp(now.load(Ordering::SeqCst), 0).unwrap_or_default());
        CatalogSettings { path: self.folder.path().join("catalog"), clock, shared: None }
    }

    pub(super) fn open(&self) -> Result<Catalog, OpenError> {
        Catalog::open(self.settings())
    }

    /// Closes the catalog and opens it again.
    pub(super) fn reopen(&mut self) -> &Catalog {
        self.catalog = None;
        self.catalog = Some(self.open().unwrap());
        self.at()
    }

    pub(super) fn at(&self) -> &Catalog {
        self.catalog.as_ref().unwrap()
    }

    pub(super) fn advance(&self, secs: i64) {
        self.now.fetch_add(secs, Ordering::SeqCst);
    }

    pub(super) fn tenant(&self, name: &str) -> TenantId {
        self.tenant_with(name, "{}")
    }

    pub(super) fn tenant_with(&self, name: &str, quotas: &str) -> TenantId {
        let quotas = serde_json::from_str(quotas).unwrap();
        let settings = TenantSettings { quotas, ..TenantSettings::default() };
        self.at().create_tenant(&name.parse().unwrap(), &settings).unwrap().id
    }

    pub(super) fn key(&self, tenant: Option<TenantId>, rights: Rights) -> CreatedKey {
        let new = NewKey { name: "of a test".to_owned(), rights, tenant, expires_at: None };
        self.at().create_key(new).unwrap()
    }

    pub(super) fn upload(&self, tenant: TenantId, bytes: &[u8]) -> Result<Digest, CatalogError> {
        let digest = Digest::of(bytes);
        let mut upload = self.at().upload(tenant, digest, 1000)?;
        for chunk in bytes.chunks(3) {
            upload.write(chunk)?;
        }
        upload.finish().map(|component| component.digest)
    }

    /// Pushes a deployment with these bytes as its component.
    pub(super) fn push(&self, tenant: TenantId, plugin: &str, bytes: &[u8], passed: bool) -> u32 {
        let component = self.upload(tenant, bytes).unwrap();
        let new = NewDeployment {
            component,
            grader: None,
            component_origin: None,
            grader_origin: None,
            config: Some("[limits]\n".to_owned()),
            passed,
            report: "{}".to_owned(),
            created_by: "rh_tests".to_owned(),
        };
        self.at().add_deployment(tenant, &plugin.parse().unwrap(), &new).unwrap().version
    }

    /// Returns the names of all component files.
    pub(super) fn component_files(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut folders = vec![self.at().path().join("components")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    names.push(entry.file_name().into_string().unwrap());
                }
            }
        }
        names.sort();
        names
    }
}

/// Returns the name of a component's file.
pub(super) fn file_of(bytes: &[u8]) -> String {
    format!("{}.wasm", Digest::of(bytes))
}
