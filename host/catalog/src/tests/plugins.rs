use super::*;

#[test]
fn only_checked_versions_are_activated_and_rollback_returns_to_the_previous_one() {
    let mut scene = Scene::new();
    let a = scene.tenant("a");
    let versions = [b"1", b"2", b"3"].map(|bytes| scene.push(a, "calc", bytes, bytes != b"3"));
    assert_eq!(versions, [1, 2, 3]);
    let plugin = scene.at().plugin(a, "calc").unwrap();
    assert_eq!((plugin.active, plugin.newest), (None, Some(3)));
    let error = scene.at().rollback(a, "calc", "k").unwrap_err();
    assert!(error.to_string().contains("no earlier active version"), "{error}");
    assert_eq!(scene.at().activate(a, "calc", 1, "k").unwrap().before, None);
    assert!(scene.at().rollback(a, "calc", "k").is_err());
    assert_eq!(scene.at().activate(a, "calc", 2, "k").unwrap().before, Some(1));
    let error = scene.at().activate(a, "calc", 3, "k").unwrap_err();
    assert_eq!(error.to_string(), "version 3 of plugin 'calc' failed its checks and cannot be activated");
    let error = scene.at().activate(a, "calc", 4, "k").unwrap_err();
    assert_eq!(error.to_string(), "there is no deployment '4'");
    assert_eq!(scene.reopen().plugin(a, "calc").unwrap().active, Some(2));
    assert_eq!(scene.at().rollback(a, "calc", "k").unwrap().version, 1);
    assert_eq!(scene.at().rollback(a, "calc", "k").unwrap().version, 2);
    let history = scene.at().activations(a, "calc", 10).unwrap();
    assert_eq!(history.iter().map(|was| was.version).collect::<Vec<_>>(), [2, 1, 2, 1]);
    let list = scene.reopen().deployments(a, "calc", Some(3), 10).unwrap();
    assert_eq!(list.iter().map(|d| (d.version, d.active)).collect::<Vec<_>>(), [(2, true), (1, false)]);
    let one = scene.at().deployment(a, "calc", 2).unwrap();
    assert_eq!((one.config.as_deref(), one.report.as_str()), (Some("[limits]\n"), "{}"));
    assert_eq!(one.info.component, Digest::of(b"2"));
}

#[test]
fn an_activation_is_undone_unless_a_later_one_followed() {
    let scene = Scene::new();
    let a = scene.tenant("a");
    scene.push(a, "calc", b"1", true);
    scene.push(a, "calc", b"2", true);
    let active = || scene.at().plugin(a, "calc").unwrap().active;
    let first = scene.at().activate(a, "calc", 1, "k").unwrap();
    scene.at().undo(&first).unwrap();
    assert_eq!(active(), None);
    let first = scene.at().activate(a, "calc", 1, "k").unwrap();
    let second = scene.at().activate(a, "calc", 2, "k").unwrap();
    scene.at().undo(&first).unwrap();
    assert_eq!(active(), Some(2));
    scene.at().undo(&second).unwrap();
    assert_eq!(active(), Some(1));
    assert!(scene.at().rollback(a, "calc", "k").is_err());
}

#[test]
fn plugins_of_the_same_name_in_two_tenants_are_independent() {
    let mut scene = Scene::new();
    let (a, b) = (scene.tenant("a"), scene.tenant("b"));
    scene.push(a, "calc", b"same", true);
    assert!(matches!(scene.at().plugin(b, "calc"), Err(CatalogError::NotFound { .. })));
    assert_eq!(scene.at().component(b, Digest::of(b"same")).unwrap(), None);
    let new = NewDeployment {
        component: Digest::of(b"same"),
        grader: None,
        component_origin: None,
        grader_origin: None,
        config: None,
        passed: true,
        report: "{}".to_owned(),
        created_by: String::new(),
    };
    let error = scene.at().add_deployment(b, &"calc".parse().unwrap(), &new).unwrap_err();
    assert!(matches!(error, CatalogError::UnknownComponent(_)), "{error}");
    // The failed call did not create the plugin either.
    assert!(scene.at().plugins(b, None, 10).unwrap().is_empty());
    scene.push(b, "calc", b"same", true);
    assert_eq!(scene.component_files(), [file_of(b"same")]);
    scene.advance(2 * 60 * 60);
    scene.at().remove_plugin(a, "calc").unwrap();
    assert_eq!(scene.component_files(), [file_of(b"same")]);
    assert_eq!(scene.at().component(a, Digest::of(b"same")).unwrap(), None);
    assert_eq!(scene.reopen().plugin(b, "calc").unwrap().newest, Some(1));
    scene.at().remove_plugin(b, "calc").unwrap();
    assert!(scene.component_files().is_empty());
}

#[test]
fn quotas_of_plugins_and_components_hold_under_concurrent_pushes() {
    let scene = Scene::new();
    let a = scene.tenant_with("a", r#"{"plugins":2,"component-bytes":10}"#);
    let errors: Vec<String> = std::thread::scope(|threads| {
        let scene = &scene;
        let pushes: Vec<_> = (0..8_u8)
            .map(|n| threads.spawn(move || scene.upload(a, &[n; 4]).err().map(|error| error.to_string())))
            .collect();
        pushes.into_iter().filter_map(|push| push.join().unwrap()).collect()
    });
    assert_eq!(errors.len(), 6);
    // An upload arrives in two pieces; concurrent uploads decide which piece is rejected.
    let refused =
        [3, 4].map(|requested| format!("quota component-bytes is 10: 8 in use, {requested} more requested"));
    assert!(errors.iter().all(|error| refused.contains(error)), "{errors:?}");
    assert_eq!(scene.at().component_bytes(a).unwrap(), 8);
    let existing =
        (0..8_u8).map(|n| [n; 4]).find(|bytes| scene.at().component(a, Digest::of(bytes)).unwrap().is_some());
    // A second upload of the same component is not charged.
    let existing = existing.unwrap();
    for plugin in ["p1", "p2", "p1"] {
        scene.push(a, plugin, &existing, true);
    }
    let new = NewDeployment {
        component: Digest::of(&existing),
        grader: None,
        component_origin: None,
        grader_origin: None,
        config: None,
        passed: true,
        report: String::new(),
        created_by: String::new(),
    };
    let error = scene.at().add_deployment(a, &"p3".parse().unwrap(), &new).unwrap_err();
    assert_eq!(error.to_string(), "quota plugins is 2: 2 in use, 1 more requested");
}

#[test]
fn prune_removes_old_versions_and_their_components_unless_they_are_needed() {
    let scene = Scene::new();
    let a = scene.tenant("a");
    for n in 1..=30_u8 {
        assert_eq!(scene.push(a, "calc", &[n], true), u32::from(n));
    }
    for version in [2, 4] {
        scene.at().activate(a, "calc", version, "k").unwrap();
    }
    scene.advance(2 * 60 * 60);
    let removed = scene.at().prune(a, "calc", &[7]).unwrap();
    assert_eq!(removed, [10, 9, 8, 6, 5, 3, 1]);
    assert_eq!(scene.component_files().len(), 23);
    assert_eq!(scene.at().prune(a, "calc", &[7]).unwrap(), [0; 0]);
    assert_eq!(scene.at().rollback(a, "calc", "k").unwrap().version, 2);
    // Version numbers are not reused.
    assert_eq!(scene.push(a, "calc", b"new", true), 31);
}

#[test]
fn the_default_plugin_must_belong_to_the_tenant() {
    let mut scene = Scene::new();
    let (a, b) = (scene.tenant("a"), scene.tenant("b"));
    scene.push(a, "calc", b"1", true);
    assert!(scene.at().set_default_plugin(b, Some("calc")).is_err());
    scene.at().set_default_plugin(a, Some("calc")).unwrap();
    assert_eq!(scene.reopen().tenant(a).unwrap().default_plugin.as_deref(), Some("calc"));
    assert!(scene.at().plugin(a, "calc").unwrap().default);
    scene.at().remove_plugin(a, "calc").unwrap();
    assert_eq!(scene.at().tenant(a).unwrap().default_plugin, None);
    scene.at().set_default_plugin(a, None).unwrap();
}

#[test]
fn the_history_has_the_last_thousand_activations() {
    let scene = Scene::new();
    let a = scene.tenant("a");
    scene.push(a, "calc", b"1", true);
    scene.push(a, "calc", b"2", true);
    for n in 0..1005 {
        scene.at().activate(a, "calc", 1 + n % 2, "k").unwrap();
    }
    let count = "SELECT count(*) FROM activations";
    let count: u32 = scene.at().0.store.read(|t| Ok(t.query_row(count, [], |row| row.get(0))?)).unwrap();
    assert_eq!(count, 1000);
    assert_eq!(scene.at().rollback(a, "calc", "k").unwrap().version, 2);
}

#[test]
fn a_version_is_activated_only_if_a_trusted_key_of_the_tenant_signed_its_components() {
    let mut scene = Scene::new();
    let a = scene.tenant("a");
    let (component, grader) = (scene.upload(a, b"c").unwrap(), scene.upload(a, b"g").unwrap());
    let origin = |signers: &[&str]| Origin {
        reference: "oci://registry.example/a".to_owned(),
        signers: signers.iter().map(|id| (*id).to_owned()).collect(),
    };
    let add = |scene: &Scene, component_origin: Option<Origin>, grader_origin: Option<Origin>| {
        let new = NewDeployment {
            component,
            grader: Some(grader),
            component_origin,
            grader_origin,
            config: None,
            passed: true,
            report: "{}".to_owned(),
            created_by: "rh_tests".to_owned(),
        };
        scene.at().add_deployment(a, &"p".parse().unwrap(), &new).unwrap().version
    };
    let trust = |scene: &Scene, ids: &[&str]| {
        let key = |id: &&str| TrustedKey { id: (*id).to_owned(), pem: String::new() };
        let keys: Vec<_> = ids.iter().map(key).collect();
        scene.at().update_tenant("a", |settings| settings.trusted_keys.clone_from(&keys)).unwrap();
    };
    let unsigned = add(&scene, None, None);
    let half = add(&scene, Some(origin(&["1"])), None);
    let foreign = add(&scene, Some(origin(&["1"])), Some(origin(&[])));
    let signed = add(&scene, Some(origin(&["1"])), Some(origin(&["2", "1"])));
    scene.at().activate(a, "p", unsigned, "k").unwrap();
    trust(&scene, &["1"]);
    for version in [unsigned, half, foreign] {
        let error = scene.at().activate(a, "p", version, "k").unwrap_err().to_string();
        assert!(error.contains("no trusted key of the tenant signed"), "{error}");
    }
    scene.at().activate(a, "p", signed, "k").unwrap();
    let stored = scene.reopen().deployment(a, "p", signed).unwrap().info;
    assert_eq!(stored.grader_origin, Some(origin(&["2", "1"])));
    // A rollback does not activate a version that could not be activated now.
    assert!(matches!(scene.at().rollback(a, "p", "k"), Err(CatalogError::Untrusted { .. })));
    trust(&scene, &["3"]);
    assert!(matches!(scene.at().activate(a, "p", signed, "k"), Err(CatalogError::Untrusted { .. })));
    trust(&scene, &[]);
    scene.at().rollback(a, "p", "k").unwrap();
}
