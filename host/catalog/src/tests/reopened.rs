use chrono::NaiveDate;

use super::*;

/// A dump of a catalog with version 1 of the tables. Must never change: users have such catalogs.
const VERSION_1: &str = include_str!("version-1.sql");

#[test]
fn tenants_survive_a_restart_unchanged() {
    let mut scene = Scene::new();
    let a = scene.tenant_with("a", r#"{"running":3}"#);
    scene.tenant("b");
    let error = scene.at().create_tenant(&"a".parse().unwrap(), &settings()).unwrap_err();
    assert_eq!(error.to_string(), "a tenant 'a' exists already");
    let updated = scene.at().update_tenant("a", |settings| settings.network.allow.push("10.0.0.0/8".into()));
    let updated = updated.unwrap();
    assert_eq!(updated.network.allow, ["10.0.0.0/8"]);
    assert_eq!(scene.reopen().tenant_named("a").unwrap(), updated);
    assert_eq!(scene.at().tenant(a).unwrap(), updated);
    assert_eq!(updated.quotas.get(Quota::Running), Some(3));
    let names = |after, limit| -> Vec<String> {
        scene.at().tenants(after, limit).unwrap().iter().map(|tenant| tenant.name.to_string()).collect()
    };
    assert_eq!(names(None, 10), ["a", "b"]);
    assert_eq!(names(None, 1), ["a"]);
    assert_eq!(names(Some("a"), 10), ["b"]);
    assert!(scene.at().update_tenant("c", |_| ()).is_err());
}

fn settings() -> TenantSettings {
    TenantSettings::default()
}

#[test]
fn deleting_a_tenant_hides_it_at_once_and_removes_its_data_later() {
    let mut scene = Scene::new();
    let a = scene.tenant("a");
    let key = scene.key(Some(a), Rights::Author);
    scene.push(a, "calc", b"1", true);
    scene.at().activate(a, "calc", 1, "k").unwrap();
    scene.at().set_default_plugin(a, Some("calc")).unwrap();
    scene.at().set_secret(a, &"judge".parse().unwrap(), b"sealed").unwrap();
    scene.at().add_usage(a, TenantUsage { model_tokens: 1, guest_cpu_nanos: 1 });
    std::fs::write(scene.at().tenant_folder(a).join("journal"), "events").unwrap();
    let before_sharing = scene.at().path().join(format!("journals-before-sharing/{a}"));
    std::fs::create_dir_all(&before_sharing).unwrap();
    assert_eq!(scene.at().delete_tenant("a").unwrap(), a);
    assert_eq!(scene.at().authenticate(&key.key), None);
    assert!(scene.at().tenant(a).is_err() && scene.at().plugin(a, "calc").is_err());
    assert!(scene.at().tenants(None, 10).unwrap().is_empty());
    assert!(scene.at().keys(None, None, 10).unwrap().is_empty());
    assert!(scene.at().revoke_key(key.info.id).is_err());
    assert!(scene.at().upload(a, Digest::of(b""), 10).is_err());
    // The name is free, and a new tenant with this name does not inherit the data.
    let again = scene.tenant("a");
    assert_ne!(again, a);
    assert_eq!(scene.reopen().tenants_being_deleted().unwrap(), [a]);
    assert_eq!(scene.at().authenticate(&key.key), None);
    assert!(scene.at().tenant_folder(a).exists());
    scene.at().finish_deleting(a).unwrap();
    assert!(!scene.at().tenant_folder(a).exists() && scene.component_files().is_empty());
    assert!(!before_sharing.exists());
    assert!(scene.reopen().tenants_being_deleted().unwrap().is_empty());
    assert!(scene.at().finish_deleting(a).is_err() && scene.at().finish_deleting(again).is_err());
    assert_eq!(scene.at().usage_today(a).1, TenantUsage::default());
    assert!(scene.at().tenant_folder(again).is_dir());
}

#[test]
fn each_database_has_a_name_of_its_count_of_usage() {
    let (mut scene, other) = (Scene::new(), Scene::new());
    let name = scene.at().usage_count_name().unwrap();
    assert_eq!((name.len(), scene.reopen().usage_count_name().unwrap()), (32, name.clone()));
    assert_ne!(other.at().usage_count_name().unwrap(), name);
}

#[test]
fn secrets_are_stored_sealed() {
    let mut scene = Scene::new();
    let (a, b) = (scene.tenant("a"), scene.tenant("b"));
    let name: Name = "judge-key".parse().unwrap();
    scene.at().set_secret(a, &name, b"one").unwrap();
    scene.at().set_secret(a, &name, b"two").unwrap();
    assert_eq!(scene.reopen().secrets(a).unwrap(), [(name.clone(), b"two".to_vec())]);
    assert!(scene.at().secrets(b).unwrap().is_empty());
    assert!(scene.at().remove_secret(b, &name).is_err());
    scene.at().remove_secret(a, &name).unwrap();
    assert!(scene.reopen().secrets(a).unwrap().is_empty());
}

#[test]
fn usage_is_counted_by_day_and_survives_a_restart() {
    let mut scene = Scene::new();
    let a = scene.tenant("a");
    let day = |d| NaiveDate::from_ymd_opt(2023, 11, d).unwrap();
    let usage = |model_tokens| TenantUsage { model_tokens, guest_cpu_nanos: 2 * model_tokens };
    scene.at().add_usage(a, usage(1));
    scene.at().add_usage(a, usage(2));
    assert_eq!(scene.at().usage_today(a), (day(14), usage(3)));
    assert_eq!(scene.reopen().usage_today(a), (day(14), usage(3)));
    scene.at().add_usage(a, usage(4));
    scene.at().flush().unwrap();
    scene.advance(24 * 60 * 60);
    assert_eq!(scene.at().usage_today(a), (day(15), TenantUsage::default()));
    scene.at().add_usage(a, usage(u64::MAX / 2));
    scene.at().add_usage(a, usage(10));
    assert_eq!(scene.at().usage(a, day(14)).unwrap(), usage(7));
    let b = scene.tenant("b");
    scene.at().add_usage(b, usage(1));
    for reopened in [false, true] {
        let catalog = if reopened { scene.reopen() } else { scene.at() };
        assert_eq!(catalog.usage_of_all(day(14)).unwrap(), [(a, usage(7))]);
        let today = catalog.usage_of_all(catalog.today()).unwrap();
        assert_eq!(today.iter().map(|(tenant, _)| *tenant).collect::<Vec<_>>(), [a, b]);
    }
    let days = scene.reopen().usage_since(a, day(1)).unwrap();
    assert_eq!(days.iter().map(|(day, _)| *day).collect::<Vec<_>>(), [day(15), day(14)]);
    scene.advance(500 * 24 * 60 * 60);
    assert!(scene.reopen().usage_since(a, day(1)).unwrap().is_empty());
}

#[test]
fn a_catalog_of_version_1_opens_with_all_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let made = rusqlite::Connection::open(folder.path().join("catalog.db")).unwrap();
    made.execute_batch(VERSION_1).unwrap();
    drop(made);
    let catalog = Catalog::open(CatalogSettings::new(folder.path())).unwrap();
    let tenant = catalog.tenant_named("team-a").unwrap();
    assert_eq!((tenant.quotas.get(Quota::Running), tenant.quotas.weight()), (Some(8), 2));
    assert_eq!(tenant.network.allow, ["10.0.0.0/8"]);
    assert_eq!(tenant.default_plugin.as_deref(), Some("calc"));
    let key = format!("rh_{}", "A".repeat(43));
    let identity = catalog.authenticate(&key).unwrap();
    assert_eq!((identity.tenant, identity.rights), (Some(tenant.id), Rights::Author));
    assert_eq!(catalog.plugin(tenant.id, "calc").unwrap().active, Some(1));
    let deployment = catalog.deployment(tenant.id, "calc", 1).unwrap();
    assert_eq!(deployment.info.component, Digest::of(b"abc"));
    assert_eq!((deployment.info.component_origin, tenant.trusted_keys), (None, Vec::new()));
    assert_eq!(catalog.activations(tenant.id, "calc", 9).unwrap().len(), 1);
    assert_eq!(catalog.secrets(tenant.id).unwrap().len(), 1);
    let day = NaiveDate::from_ymd_opt(2026, 11, 20).unwrap();
    assert_eq!(
        catalog.usage(tenant.id, day).unwrap(),
        TenantUsage { model_tokens: 500, guest_cpu_nanos: 1_000_000 }
    );
    assert_eq!(catalog.tenants_being_deleted().unwrap(), [TenantId(2)]);
}

#[test]
fn a_catalog_of_a_later_version_is_rejected() {
    let mut scene = Scene::new();
    scene.at().0.store.read(|t| Ok(t.pragma_update(None, "user_version", 1000)?)).unwrap();
    scene.catalog = None;
    let error = scene.open().err().unwrap();
    assert!(matches!(error, OpenError::Newer(_)), "{error}");
    assert!(error.to_string().contains("later version of this program"));
}
