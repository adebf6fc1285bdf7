use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn a_key_proves_its_identity_until_it_is_revoked() {
    let mut scene = Scene::new();
    let tenant = scene.tenant("a");
    let author = scene.key(Some(tenant), Rights::Author);
    assert_eq!(author.key.len(), 46);
    assert_eq!(author.info.prefix, author.key[..11]);
    let identity = scene.at().authenticate(&author.key).unwrap();
    assert_eq!(identity, Identity { key: author.info.id, tenant: Some(tenant), rights: Rights::Author });
    for wrong in ["", "rh_", &author.key[..45], &author.info.prefix, &author.key.to_uppercase()] {
        assert_eq!(scene.at().authenticate(wrong), None);
    }
    assert_eq!(scene.reopen().authenticate(&author.key), Some(identity));
    scene.at().revoke_key(author.info.id).unwrap();
    assert_eq!(scene.at().authenticate(&author.key), None);
    assert_eq!(scene.reopen().authenticate(&author.key), None);
    let keys = scene.at().keys(Some(tenant), None, 10).unwrap();
    assert_eq!(keys.len(), 1);
    assert!(keys[0].revoked_at.is_some());
    scene.at().revoke_key(author.info.id).unwrap();
    let error = scene.at().revoke_key(KeyId(77)).unwrap_err();
    assert_eq!(error.to_string(), "there is no key '77'");
}

#[test]
fn rights_include_those_below_them() {
    use Right::{Author, Call, Operate, View};
    for (rights, allowed) in [
        (Rights::Operator, &[Operate, Author, Call, View][..]),
        (Rights::Author, &[Author, Call, View]),
        (Rights::Caller, &[Call, View]),
        (Rights::Viewer, &[View]),
    ] {
        for right in [Operate, Author, Call, View] {
            assert_eq!(rights.allows(right), allowed.contains(&right), "{rights}");
        }
    }
}

#[test]
fn a_key_is_rejected_from_the_second_at_which_it_expires() {
    let scene = Scene::new();
    let tenant = Some(scene.tenant("a"));
    let end = scene.settings().clock.as_ref()() + chrono::Duration::seconds(60);
    let new = NewKey { name: String::new(), rights: Rights::Caller, tenant, expires_at: Some(end) };
    let key = scene.at().create_key(new).unwrap().key;
    for (step, good) in [(0, true), (59, true), (1, false), (1000, false)] {
        scene.advance(step);
        assert_eq!(scene.at().authenticate(&key).is_some(), good);
    }
}

#[test]
fn an_operator_key_has_no_tenant_and_every_other_key_has_one() {
    let scene = Scene::new();
    let tenant = scene.tenant("a");
    assert!(!scene.at().has_operator_key());
    for (rights, tenant) in [(Rights::Operator, Some(tenant)), (Rights::Author, None)] {
        let new = NewKey { name: String::new(), rights, tenant, expires_at: None };
        assert!(matches!(scene.at().create_key(new), Err(CatalogError::TenantMismatch)));
    }
    let operator = scene.key(None, Rights::Operator);
    assert!(scene.at().has_operator_key());
    scene.at().revoke_key(operator.info.id).unwrap();
    assert!(!scene.at().has_operator_key());
}

#[test]
fn a_key_that_an_operator_supplies_must_be_well_formed() {
    let mut scene = Scene::new();
    let key = format!("rh_{}", "A".repeat(43));
    let first = scene.at().ensure_operator_key(&key, "environment").unwrap();
    assert_eq!(scene.reopen().ensure_operator_key(&key, "again").unwrap().id, first.id);
    assert_eq!(scene.at().authenticate(&key).map(|identity| identity.rights), Some(Rights::Operator));
    for wrong in ["password", "rh_password", &format!("rh_{}", "A".repeat(42))] {
        assert!(matches!(scene.at().ensure_operator_key(wrong, ""), Err(CatalogError::MalformedKey)));
    }
    scene.at().revoke_key(first.id).unwrap();
    let error = scene.at().ensure_operator_key(&key, "").unwrap_err();
    assert_eq!(error.to_string(), "key rh_AAAAAAAA was revoked; use another one");
}

#[test]
fn keys_are_not_stored_in_plain_text() {
    let scene = Scene::new();
    let operator = scene.key(None, Rights::Operator);
    let secret = &operator.key.as_bytes()[11..];
    for file in ["catalog.db", "catalog.db-wal"] {
        let bytes = std::fs::read(scene.at().path().join(file)).unwrap();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{file}");
    }
}

#[test]
fn the_last_use_of_a_key_is_known_at_once_and_written_later() {
    let mut scene = Scene::new();
    let key = scene.key(None, Rights::Operator);
    let used = |catalog: &Catalog| catalog.keys(None, None, 10).unwrap()[0].last_used_at;
    assert_eq!(used(scene.at()), None);
    scene.advance(5);
    scene.at().touch(key.info.id);
    let at = used(scene.at()).unwrap();
    assert_eq!(at.timestamp(), 1_700_000_005);
    assert_eq!(used(scene.reopen()), Some(at));
}

#[test]
fn keys_are_listed_in_pages_and_by_tenant() {
    let scene = Scene::new();
    let (a, b) = (scene.tenant("a"), scene.tenant("b"));
    let keys: Vec<KeyId> =
        [a, b, a, a].iter().map(|tenant| scene.key(Some(*tenant), Rights::Viewer).info.id).collect();
    let ids = |tenant, after, limit| -> Vec<KeyId> {
        scene.at().keys(tenant, after, limit).unwrap().iter().map(|key| key.id).collect()
    };
    assert_eq!(ids(None, None, 10), keys);
    assert_eq!(ids(Some(a), None, 2), [keys[0], keys[2]]);
    assert_eq!(ids(Some(a), Some(keys[2]), 2), [keys[3]]);
    assert_eq!(ids(Some(b), None, 2), [keys[1]]);
}

#[test]
fn keys_that_expired_long_ago_are_deleted() {
    let scene = Scene::new();
    let old = scene.key(None, Rights::Operator);
    scene.at().revoke_key(old.info.id).unwrap();
    scene.advance(91 * 24 * 60 * 60);
    let new = scene.key(None, Rights::Operator);
    let keys = scene.at().keys(None, None, 10).unwrap();
    assert_eq!(keys.iter().map(|key| key.id).collect::<Vec<_>>(), [new.info.id]);
}

#[test]
fn a_revoked_key_stays_invalid_under_concurrent_writes() {
    let scene = Scene::new();
    let tenant = scene.tenant("a");
    let (done, catalog) = (AtomicBool::new(false), scene.at());
    std::thread::scope(|threads| {
        let makers: Vec<_> = (0..3)
            .map(|_| {
                threads.spawn(|| {
                    for _ in 0..20 {
                        let key = scene.key(Some(tenant), Rights::Caller);
                        assert!(catalog.authenticate(&key.key).is_some());
                        catalog.revoke_key(key.info.id).unwrap();
                        assert!(catalog.authenticate(&key.key).is_none());
                    }
                })
            })
            .collect();
        let valid = scene.key(Some(tenant), Rights::Viewer).key;
        threads.spawn({
            let done = &done;
            move || {
                while !done.load(Ordering::SeqCst) {
                    assert!(catalog.authenticate(&valid).is_some());
                }
            }
        });
        for maker in makers {
            maker.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let revoked = catalog.keys(Some(tenant), None, 100).unwrap();
    assert_eq!(revoked.iter().filter(|key| key.revoked_at.is_some()).count(), 60);
}

/// Runs random operations on keys and compares the valid keys with those of a plain list.
#[test]
fn authenticate_agrees_with_a_simple_model_after_random_operations() {
    let mut scene = Scene::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut tenants = vec![scene.tenant("first")];
    // The key, its id and tenant, its time of expiry, whether it is revoked.
    let mut keys: Vec<(String, KeyId, TenantId, Option<i64>, bool)> = Vec::new();
    for step in 0..300 {
        match next(10) {
            0..=3 => {
                let tenant = tenants[next(tenants.len() as u64) as usize];
                let end = (next(2) == 0).then(|| scene.now.load(Ordering::SeqCst) + next(100) as i64);
                let expires_at = end.map(crate::store::time);
                let new = NewKey {
                    name: format!("k{step}"),
                    rights: Rights::Caller,
                    tenant: Some(tenant),
                    expires_at,
                };
                let made = scene.at().create_key(new).unwrap();
                keys.push((made.key, made.info.id, tenant, end, false));
            }
            4 | 5 if !keys.is_empty() => {
                let at = next(keys.len() as u64) as usize;
                if !keys[at].4 {
                    scene.at().revoke_key(keys[at].1).unwrap();
                    keys[at].4 = true;
                }
            }
            6 => scene.advance(next(30) as i64),
            7 => {
                scene.reopen();
            }
            8 if tenants.len() > 1 => {
                let tenant = tenants.swap_remove(next(tenants.len() as u64) as usize);
                let name = scene.at().tenant(tenant).unwrap().name;
                scene.at().delete_tenant(&name).unwrap();
                for key in keys.iter_mut().filter(|key| key.2 == tenant) {
                    key.4 = true;
                }
                if next(2) == 0 {
                    scene.at().finish_deleting(tenant).unwrap();
                }
            }
            _ => tenants.push(scene.tenant(&format!("t{step}"))),
        }
        let now = scene.now.load(Ordering::SeqCst);
        for (key, id, _, end, over) in &keys {
            let good = !over && end.is_none_or(|end| end > now);
            assert_eq!(scene.at().authenticate(key).is_some(), good, "key {id} after step {step}");
        }
    }
    assert!(keys.len() > 50);
}
