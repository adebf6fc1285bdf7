//! The contract of cutting the log of a catalog that several processes share, whatever stores the log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rollout_catalog::{
    Catalog, CatalogSettings, Clock, NewKey, OpenError, Rights, SharedLog, TenantId, TenantSettings,
    TenantUsage,
};

use crate::catalog_contract::{contents, deployment, open_with, upload};

/// Number of changes above which the logs of the contract are long.
pub const CHANGES_MAX: u64 = 6;

/// A clock that tests advance.
#[derive(Clone, Default)]
pub struct TestClock(Arc<AtomicI64>);

impl TestClock {
    /// Advances the time by so many seconds.
    pub fn advance(&self, secs: i64) {
        self.0.fetch_add(secs, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let ahead = self.0.clone();
        Arc::new(move || {
            let now = std::time::SystemTime::now()
                + Duration::from_secs(ahead.load(Ordering::Relaxed).unsigned_abs());
            now.into()
        })
    }
}

/// Copies of a shared catalog, in folders of their own.
pub struct Copies {
    dir: tempfile::TempDir,
    /// The clock of all copies.
    pub clock: TestClock,
}

impl Copies {
    /// Creates the folder of all copies.
    #[expect(clippy::new_without_default, reason = "it creates a folder")]
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
            clock: TestClock::default(),
        }
    }

    /// Returns the folder of a copy.
    pub fn folder(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Opens a copy.
    pub fn open(&self, name: &str, log: &Arc<dyn SharedLog>) -> Catalog {
        self.try_open(name, log).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Opens a copy, or returns the error.
    pub fn try_open(&self, name: &str, log: &Arc<dyn SharedLog>) -> Result<Catalog, OpenError> {
        let settings = CatalogSettings {
            shared: Some(log.clone()),
            clock: self.clock.clock(),
            ..CatalogSettings::new(self.folder(name))
        };
        open_with(&settings)
    }
}

/// Creates a tenant.
pub fn create(catalog: &Catalog, name: &str) -> TenantId {
    let name = name.parse().expect("a name");
    catalog.create_tenant(&name, &TenantSettings::default()).expect("the name is free").id
}

fn component_file(folder: &Path, component: rollout_wire::digest::Digest) -> std::path::PathBuf {
    let name = component.to_string();
    folder.join("components").join(&name[..2]).join(format!("{name}.wasm"))
}

/// Checks that copies have the same contents when the log is cut. Each log is that of one process, and long from
/// [`CHANGES_MAX`] changes on. Blocks.
pub fn cut_log_contract(logs: &[Arc<dyn SharedLog>; 3]) {
    let copies = Copies::new();
    let (one, other) = (copies.open("one", &logs[0]), copies.open("other", &logs[1]));
    let catch_up = |catalog: &Catalog| catalog.catch_up().expect("the log answers");
    let shorten = |catalog: &Catalog| {
        catch_up(catalog);
        catalog.shorten_log().expect("the log answers")
    };

    // The other one has the beginning, with data of its own.
    let tenant = create(&one, "a");
    let gone = create(&one, "gone");
    let new = NewKey { name: "k".to_owned(), rights: Rights::Author, tenant: Some(tenant), expires_at: None };
    let key = one.create_key(new.clone()).expect("there is room");
    let revoked = one.create_key(new).expect("there is room");
    assert!(!shorten(&one), "the log is short");
    let component = upload(&one, gone, b"a component");
    catch_up(&other);
    other.touch(key.info.id);
    other.add_usage(tenant, TenantUsage { model_tokens: 7, guest_cpu_nanos: 0 });
    other.flush().expect("the disk has room");
    other.component_path(component).expect("it can be fetched");
    assert!(component_file(&copies.folder("other"), component).exists());
    other.changed();

    // A change of each kind that the other one learns from the snapshot only.
    one.revoke_key(revoked.info.id).expect("it is there");
    let plugin = "calc".parse().expect("a name");
    let second = upload(&one, tenant, b"another component");
    // Larger than a message.
    let report = format!("{{\"text\": \"{}\"}}", "x".repeat(1 << 20));
    one.add_deployment(tenant, &plugin, &deployment(second, &report)).expect("it has its component");
    one.activate(tenant, "calc", 1, "rh_tests").expect("it has passed");
    one.set_default_plugin(tenant, Some("calc")).expect("it exists");
    one.set_secret(tenant, &"judge".parse().expect("a name"), &[0, 255, 7]).expect("there is room");
    for name in ["gone", "last"] {
        if name == "last" {
            create(&one, name);
        }
        let deleted = one.delete_tenant(name).expect("it is there");
        one.finish_deleting(deleted).expect("its files are closed");
    }
    assert!(other.authenticate(&revoked.key).is_some(), "nothing was read yet");
    assert!(shorten(&one), "the log is long");
    assert!(!shorten(&one), "the log is short again");
    let (applied, extent) = one.log_position().expect("the catalog is shared");
    assert_eq!((extent.first, extent.last), (applied, applied), "only the checkpoint is left");

    // A copy that is behind, one that begins from nothing, and the one that made the snapshot.
    catch_up(&other);
    let third = copies.open("third", &logs[2]);
    assert_eq!(contents(&third), contents(&one));
    let tenants = |catalog: &Catalog| catalog.tenants(None, 1000).expect("it can be read");
    assert_eq!(tenants(&other), tenants(&one));
    assert!(other.authenticate(&revoked.key).is_none(), "the key was revoked");
    assert!(other.changed().is_superset(&[tenant, gone].into()), "running tenants learn of it");
    assert!(!component_file(&copies.folder("other"), component).exists(), "no tenant has it");
    let used = |catalog: &Catalog| catalog.key(key.info.id).expect("it is listed").last_used_at.is_some();
    assert_eq!((used(&one), used(&other), used(&third)), (false, true, false));
    assert_eq!(other.usage_today(tenant).1.model_tokens, 7);
    assert_eq!(other.deployment(tenant, "calc", 1).expect("it is there").report, report);
    drop(other);
    let other = copies.open("other", &logs[1]);
    assert_eq!((used(&other), other.usage_today(tenant).1.model_tokens), (true, 7));
    assert!(create(&third, "next") > TenantId(gone.0 + 1), "ids are never reused");
    catch_up(&one);
    assert!(one.tenant_named("next").is_ok());

    // Everything at once.
    let busy = |catalog: &Catalog, name: &str| {
        for number in 0..12 {
            create(catalog, &format!("{name}-{number}"));
            shorten(catalog);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| busy(&one, "one"));
        scope.spawn(|| busy(&other, "other"));
        scope.spawn(|| {
            for number in 0..4 {
                catch_up(&third);
                drop(copies.open(&format!("new-{number}"), &logs[2]));
            }
        });
    });
    copies.clock.advance(120);
    shorten(&third);
    for catalog in [&one, &other, &third, &copies.open("fourth", &logs[0])] {
        catch_up(catalog);
        assert_eq!((tenants(catalog).len(), tenants(catalog)), (26, tenants(&one)));
    }
    let (_, extent) = third.log_position().expect("the catalog is shared");
    assert!(extent.last - extent.first < CHANGES_MAX, "{extent:?}");
}
