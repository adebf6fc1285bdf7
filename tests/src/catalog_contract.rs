//! The contract of a catalog that several processes share, whatever stores its log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_catalog::{
    AppendError, Catalog, CatalogSettings, ChangeKind, LogExtent, NewDeployment, NewKey, OpenError, Rights,
    SharedError, SharedLog, TenantId, TenantSettings,
};
use rollout_wire::digest::Digest;
use rollout_wire::quota::Quota;

/// A step of a process that cuts a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuttingStep {
    /// Appends the checkpoint.
    Checkpoint,
    /// Stores the snapshot.
    Snapshot,
    /// Removes the changes before it.
    Cut,
}

/// A step of a process that removes a component from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// The version is about to be read.
    BeforeVersion,
    /// The version was read.
    AfterVersion,
    /// The component is about to be removed.
    BeforeRemoval,
}

/// Work that is done while a component is removed.
pub type RemovalWork = Box<dyn FnOnce() + Send>;

/// Work that is done while a snapshot is downloaded.
pub type DownloadWork = Box<dyn FnOnce() + Send>;

/// A log in the memory of one process.
#[derive(Default)]
pub struct MemoryLog {
    /// All changes, in order. The first one has the sequence 1.
    pub changes: Mutex<Vec<Vec<u8>>>,
    /// Number of the first changes that were removed.
    pub removed: Mutex<usize>,
    /// Snapshots by the sequence of their checkpoint.
    pub snapshots: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Number of changes above which the log is long.
    pub changes_max: Mutex<Option<usize>>,
    /// Whether the log is so full that it takes only checkpoints.
    pub is_full: Mutex<bool>,
    /// A step that has no answer, and whether it is done nevertheless.
    pub failing: Mutex<Option<(CuttingStep, bool)>>,
    /// Work that is done once at a step of a process that removes a component.
    pub at_removal: Mutex<Option<(RemovalStep, RemovalWork)>>,
    /// Work that is done once while a snapshot is downloaded.
    pub at_download: Mutex<Option<DownloadWork>>,
    /// Components with their versions.
    components: Mutex<BTreeMap<Digest, (u64, Vec<u8>)>>,
    version: AtomicU64,
}

impl MemoryLog {
    /// Does the work that is due at a step.
    fn reach(&self, step: RemovalStep) {
        let due = locked(&self.at_removal).take_if(|(at, _)| *at == step);
        if let Some((_, work)) = due {
            work();
        }
    }

    /// Does a step unless it fails.
    fn step(&self, step: CuttingStep, work: impl FnOnce()) -> Result<(), SharedError> {
        let failing = (*locked(&self.failing)).filter(|(failing, _)| *failing == step);
        if failing.is_none_or(|(_, is_done)| is_done) {
            work();
        }
        failing.map_or(Ok(()), |_| Err(SharedError::Unavailable("no answer".to_owned())))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io(error: std::io::Error) -> SharedError {
    SharedError::Unavailable(error.to_string())
}

impl SharedLog for MemoryLog {
    fn append(&self, after: u64, change: &[u8], kind: ChangeKind) -> Result<u64, AppendError> {
        let mut changes = locked(&self.changes);
        if changes.len() as u64 != after {
            return Err(AppendError::Behind);
        }
        match kind {
            ChangeKind::Checkpoint => self.step(CuttingStep::Checkpoint, || changes.push(change.to_vec()))?,
            ChangeKind::Rows if *locked(&self.is_full) => {
                return Err(SharedError::Unavailable("the log is full".to_owned()).into());
            }
            ChangeKind::Rows => changes.push(change.to_vec()),
        }
        Ok(changes.len() as u64)
    }

    fn read(&self, after: u64) -> Result<Vec<(u64, Vec<u8>)>, SharedError> {
        let changes = locked(&self.changes);
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        if after > changes.len() {
            return Err(SharedError::Damaged("the log ends too early".to_owned()));
        }
        let after = after.max(*locked(&self.removed));
        let new = &changes[after..];
        // Few at a time, as from a server.
        Ok(new
            .iter()
            .take(3)
            .enumerate()
            .map(|(at, change)| ((after + at + 1) as u64, change.clone()))
            .collect())
    }

    fn extent(&self) -> LogExtent {
        let (last, removed) = (locked(&self.changes).len(), *locked(&self.removed));
        let changes_max = *locked(&self.changes_max);
        LogExtent {
            first: removed as u64 + 1,
            last: last as u64,
            is_long: changes_max.is_some_and(|max| last - removed > max),
        }
    }

    fn put_snapshot(&self, checkpoint: u64, file: &Path) -> Result<(), SharedError> {
        let contents = std::fs::read(file).map_err(io)?;
        self.step(CuttingStep::Snapshot, || drop(locked(&self.snapshots).insert(checkpoint, contents)))
    }

    fn has_snapshot(&self, checkpoint: u64) -> Result<bool, SharedError> {
        Ok(locked(&self.snapshots).contains_key(&checkpoint))
    }

    fn fetch_snapshot(&self, checkpoint: u64, file: &Path) -> Result<bool, SharedError> {
        let work = locked(&self.at_download).take();
        if let Some(work) = work {
            work();
        }
        match locked(&self.snapshots).get(&checkpoint) {
            Some(contents) => std::fs::write(file, contents).map_err(io).map(|()| true),
            None => Ok(false),
        }
    }

    fn cut(&self, checkpoint: u64) -> Result<(), SharedError> {
        self.step(CuttingStep::Cut, || {
            let mut removed = locked(&self.removed);
            *removed = (*removed).max(usize::try_from(checkpoint).unwrap_or(usize::MAX) - 1);
            locked(&self.snapshots).retain(|checkpoint, _| *checkpoint > *removed as u64);
        })
    }

    fn put_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError> {
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        let mut components = locked(&self.components);
        if let Some((of_stored, _)) = components.get_mut(&digest) {
            *of_stored = version;
        } else {
            components.insert(digest, (version, std::fs::read(file).map_err(io)?));
        }
        Ok(())
    }

    fn fetch_component(&self, digest: Digest, file: &Path) -> Result<(), SharedError> {
        let found = locked(&self.components).get(&digest).cloned();
        let (_, bytes) =
            found.ok_or_else(|| SharedError::Unavailable("there is no such component".to_owned()))?;
        std::fs::write(file, bytes).map_err(io)
    }

    fn component_version(&self, digest: Digest) -> Result<Option<u64>, SharedError> {
        self.reach(RemovalStep::BeforeVersion);
        let version = locked(&self.components).get(&digest).map(|(version, _)| *version);
        self.reach(RemovalStep::AfterVersion);
        Ok(version)
    }

    fn remove_component(&self, digest: Digest, version: u64) -> Result<(), SharedError> {
        self.reach(RemovalStep::BeforeRemoval);
        let mut components = locked(&self.components);
        if components.get(&digest).is_some_and(|(found, _)| *found == version) {
            components.remove(&digest);
        }
        Ok(())
    }
}

/// Opens a copy of the catalog in a folder.
fn open(folder: &Path, log: &Arc<dyn SharedLog>) -> Catalog {
    let shared = Some(log.clone());
    open_with(&CatalogSettings { shared, ..CatalogSettings::new(folder) })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a copy of the catalog as soon as no process has it.
pub(crate) fn open_with(settings: &CatalogSettings) -> Result<Catalog, OpenError> {
    let until = std::time::Instant::now() + crate::TIMEOUT;
    loop {
        match Catalog::open(settings.clone()) {
            // A process that another test starts has the lock until it runs its program.
            Err(OpenError::Locked(_)) if std::time::Instant::now() < until => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Uploads a component for a tenant.
pub fn upload(catalog: &Catalog, tenant: TenantId, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    let mut upload = catalog.upload(tenant, digest, 10_000).expect("the tenant exists");
    upload.write(bytes).expect("it is short");
    upload.finish().expect("the digest is right").digest
}

pub(crate) fn deployment(component: Digest, report: &str) -> NewDeployment {
    NewDeployment {
        component,
        grader: None,
        component_origin: None,
        grader_origin: None,
        config: Some("[limits]\n".to_owned()),
        passed: true,
        report: report.to_owned(),
        created_by: "rh_tests".to_owned(),
    }
}

/// Returns everything that a catalog has, as text.
pub(crate) fn contents(catalog: &Catalog) -> String {
    let mut all = Vec::new();
    for tenant in catalog.tenants(None, 1000).expect("it can be read") {
        let id = tenant.id;
        all.push(format!("{tenant:?} {:?}", catalog.secrets(id).expect("it can be read")));
        for plugin in catalog.plugins(id, None, 1000).expect("it can be read") {
            let deployments = catalog.deployments(id, &plugin.name, None, 1000).expect("it can be read");
            let activations = catalog.activations(id, &plugin.name, 1000).expect("it can be read");
            all.push(format!("{plugin:?} {deployments:?} {activations:?}"));
        }
    }
    all.push(format!("{:?}", catalog.keys(None, None, 1000).expect("it can be read")));
    all.join("\n")
}

/// Checks that copies of a catalog have the same contents, whichever process changes it. Each log is that of one process.
/// Blocks.
pub fn shared_catalog_contract(logs: [Arc<dyn SharedLog>; 3]) {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let folder = |name: &str| dir.path().join(name);
    let (one, other) = (open(&folder("one"), &logs[0]), open(&folder("other"), &logs[1]));
    let catch_up = |catalog: &Catalog| catalog.catch_up().expect("the log answers");

    // One process changes, the other one follows.
    let settings = TenantSettings::default();
    let tenant = one.create_tenant(&"a".parse().expect("a name"), &settings).expect("it is new").id;
    let new =
        |rights| NewKey { name: "of a test".to_owned(), rights, tenant: Some(tenant), expires_at: None };
    let key = one.create_key(new(Rights::Author)).expect("there is room");
    let component = upload(&one, tenant, b"a component");
    let plugin = "calc".parse().expect("a name");
    // Larger than a message.
    let report = format!("{{\"text\": \"{}\"}}", "x".repeat(1 << 20));
    one.add_deployment(tenant, &plugin, &deployment(component, &report)).expect("it has its component");
    one.activate(tenant, "calc", 1, "rh_tests").expect("it has passed");
    one.set_default_plugin(tenant, Some("calc")).expect("it exists");
    one.set_secret(tenant, &"judge".parse().expect("a name"), &[0, 255, 7]).expect("there is room");
    assert!(other.authenticate(&key.key).is_none(), "nothing was read yet");
    assert!(other.changed().is_empty());
    catch_up(&other);
    assert_eq!(contents(&one), contents(&other));
    assert_eq!(other.changed(), BTreeSet::from([tenant]));
    assert!(other.changed().is_empty() && one.changed().is_empty());
    assert_eq!(other.authenticate(&key.key), one.authenticate(&key.key));
    assert_eq!(other.deployment(tenant, "calc", 1).expect("it is there").report, report);
    let path = other.component_path(component).expect("it can be fetched");
    assert_eq!(std::fs::read(path).expect("it was fetched"), b"a component");
    assert!(other.tenant_folder(tenant).is_dir());

    // The other one changes what it has read; nothing that its own process counts is shared.
    other
        .update_tenant("a", |settings| settings.quotas.set(Quota::Running, 3).expect("in range"))
        .expect("it is there");
    other.touch(key.info.id);
    other.flush().expect("the disk has room");
    other.revoke_key(key.info.id).expect("it is there");
    let second = upload(&other, tenant, b"another component");
    other.add_deployment(tenant, &plugin, &deployment(second, "{}")).expect("it has its component");
    other.activate(tenant, "calc", 2, "rh_tests").expect("it has passed");
    other.remove_secret(tenant, "judge").expect("it is there");
    catch_up(&one);
    assert!(one.authenticate(&key.key).is_none(), "the key was revoked");
    assert_eq!(one.plugin(tenant, "calc").expect("it is there").active, Some(2));
    let used = |catalog: &Catalog| catalog.key(key.info.id).expect("it is listed").last_used_at.is_some();
    assert_eq!((used(&one), used(&other)), (false, true));

    // Both at once: no change is lost, and no id is given twice.
    let create = |catalog: &Catalog, name: &str| {
        for number in 0..10 {
            let name = format!("{name}-{number}").parse().expect("a name");
            catalog.create_tenant(&name, &settings).expect("the name is free");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| create(&one, "one"));
        scope.spawn(|| create(&other, "other"));
    });
    catch_up(&one);
    catch_up(&other);
    let tenants = |catalog: &Catalog| catalog.tenants(None, 1000).expect("it can be read");
    assert_eq!((tenants(&one).len(), tenants(&one)), (21, tenants(&other)));
    let taken =
        one.create_tenant(&"other-1".parse().expect("a name"), &settings).expect_err("it has an owner");
    assert_eq!(taken.to_string(), "a tenant 'other-1' exists already");

    // Removals reach rows that refer to others, and files.
    one.remove_plugin(tenant, "calc").expect("it is there");
    let deleted = one.delete_tenant("a").expect("it is there");
    one.finish_deleting(deleted).expect("its files are closed");
    catch_up(&other);
    assert_eq!(contents(&one), contents(&other));
    assert!(other.changed().contains(&deleted) && other.tenant(deleted).is_err());
    assert!(
        !folder("other")
            .join("components")
            .join(&component.to_string()[..2])
            .join(format!("{component}.wasm"))
            .exists()
    );
    let gone = dir.path().join("gone");
    assert!(logs[0].fetch_component(component, &gone).is_err(), "no tenant has the component any more");
    other.remove_folder(deleted).expect("its files are closed");
    assert!(!other.tenant_folder(deleted).exists());

    // A process that starts again continues, and a new one begins from nothing.
    drop(other);
    let other = open(&folder("other"), &logs[1]);
    let third = open(&folder("third"), &logs[2]);
    assert!([&other, &third].iter().all(|catalog| tenants(catalog) == tenants(&one)));
    let next = third.create_tenant(&"next".parse().expect("a name"), &settings).expect("it is new").id;
    assert!(next > TenantId(21), "ids are never reused");
    catch_up(&one);
    assert_eq!(one.tenant_named("next").expect("it was read").id, next);
}
