use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn an_upload_must_match_its_announced_digest_and_size() {
    let scene = Scene::new();
    let a = scene.tenant("a");
    let mut upload = scene.at().upload(a, Digest::of(b"announced"), 1000).unwrap();
    upload.write(b"something else").unwrap();
    let error = upload.finish().unwrap_err().to_string();
    assert!(error.contains(&Digest::of(b"something else").to_string()), "{error}");
    let mut upload = scene.at().upload(a, Digest::of(b"12345"), 4).unwrap();
    let error = upload.write(b"12345").unwrap_err().to_string();
    assert_eq!(error, "the component is larger than 4 bytes");
    drop(upload);
    drop(scene.at().upload(a, Digest::of(b""), 4).unwrap());
    assert!(scene.component_files().is_empty());
    let digest = scene.upload(a, b"12345").unwrap();
    assert_eq!(std::fs::read(scene.at().component_path(digest).unwrap()).unwrap(), b"12345");
    assert_eq!(scene.at().component(a, digest).unwrap().unwrap().bytes, 5);
    assert_eq!(scene.component_files(), [file_of(b"12345")]);
}

#[test]
fn a_digest_is_64_lower_case_hex_digits() {
    let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let digest: Digest = text.parse().unwrap();
    assert_eq!((digest, digest.to_string().as_str()), (Digest::of(b"abc"), text));
    for wrong in ["", &text[1..], &text.to_uppercase(), &text.replace('b', "g"), &format!("{text}00")] {
        assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
    }
}

#[test]
fn the_next_start_removes_files_that_a_crash_left_behind() {
    let mut scene = Scene::new();
    let a = scene.tenant("a");
    scene.push(a, "calc", b"used", true);
    scene.upload(a, b"uploaded").unwrap();
    let components = scene.at().path().join("components");
    std::fs::write(components.join("7.part"), b"half").unwrap();
    std::fs::create_dir_all(components.join("ab")).unwrap();
    std::fs::write(components.join("ab").join(format!("ab{}.wasm", "0".repeat(62))), b"nobody's").unwrap();
    std::fs::create_dir_all(scene.at().path().join("tenants/99/journal")).unwrap();
    let before_sharing = scene.at().path().join("journals-before-sharing");
    for id in ["99".to_owned(), a.to_string()] {
        std::fs::create_dir_all(before_sharing.join(id)).unwrap();
    }
    std::fs::remove_dir(scene.at().tenant_folder(a)).unwrap();
    scene.reopen();
    let mut expected = [file_of(b"used"), file_of(b"uploaded")];
    expected.sort();
    assert_eq!(scene.component_files(), expected);
    assert!(!scene.at().path().join("tenants/99").exists());
    assert!(!before_sharing.join("99").exists() && before_sharing.join(a.to_string()).exists());
    assert!(scene.at().tenant_folder(a).is_dir());
    // An unused upload is removed once its time to be deployed is over.
    scene.advance(2 * 60 * 60);
    scene.reopen();
    assert_eq!(scene.component_files(), [file_of(b"used")]);
}

#[test]
fn only_one_process_can_open_a_catalog() {
    let scene = Scene::new();
    let error = scene.open().err().unwrap();
    assert!(matches!(error, OpenError::Locked(_)));
    let message = error.to_string();
    assert!(
        message.contains(&scene.at().path().display().to_string()) && message.contains("another process")
    );
}

#[test]
fn only_the_owner_can_read_a_catalog() {
    let scene = Scene::new();
    let mode = std::fs::metadata(scene.at().path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// Returns the texts of an error and its sources.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(|e| format!("{e}; ")).collect()
}

#[test]
fn an_unusable_path_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let message = chain(&Catalog::open(CatalogSettings::new(file.join("catalog"))).err().unwrap());
    assert!(
        message.contains(&file.display().to_string()) && message.contains("Not a directory"),
        "{message}"
    );
    let text = folder.path().join("text");
    std::fs::create_dir(&text).unwrap();
    std::fs::write(text.join("catalog.db"), "this is no database, as everybody can see").unwrap();
    let message = chain(&Catalog::open(CatalogSettings::new(&text)).err().unwrap());
    assert!(message.contains("catalog.db") && message.contains("not a database"), "{message}");
}

#[test]
fn a_full_disk_is_reported_with_its_path_and_changes_nothing() {
    let mut scene = Scene::new();
    let a = scene.tenant("a");
    let key = scene.key(Some(a), Rights::Caller);
    // SQLite's own limit of pages stands for a full disk.
    scene.at().0.store.read(|t| Ok(t.pragma_update(None, "max_page_count", 1)?)).unwrap();
    let mut failed = None;
    for n in 0..2000 {
        let name = format!("t{n}").parse().unwrap();
        let settings = TenantSettings::default();
        if let Err(error) = scene.at().create_tenant(&name, &settings) {
            failed = Some((name, error));
            break;
        }
    }
    let (name, error) = failed.unwrap();
    let message = chain(&error);
    assert!(
        message.contains("catalog.db cannot be read or written") && message.contains("full"),
        "{message}"
    );
    assert!(scene.at().tenant_named(&name).is_err());
    assert!(scene.at().authenticate(&key.key).is_some());
    // After reopening, SQLite's limit no longer applies.
    scene.reopen();
    assert!(scene.at().tenant_named(&name).is_err());
    scene.tenant(&name);
}
