//! The parts of a release that need no optimised build, as `scripts/release` makes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollout_registry::artifact::Descriptor;
use rollout_registry::{Options, Reference, Registry};
use rollout_tests::{TestRegistry, rollout_host};
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn release(out: &Path, parts: &[&str]) -> Output {
    let program = PathBuf::from(rollout_host::<&str>([]).as_std().get_program());
    let mut command = Command::new(root().join("scripts/release"));
    command.arg("--out").arg(out).arg("--program").arg(program).args(parts);
    command.output().expect("the script can be started")
}

#[track_caller]
fn made(out: &Path, parts: &[&str]) {
    let output = release(out, parts);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stdout));
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

#[test]
fn documents_bill_of_materials_and_licences_are_made_and_have_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let (out, again) = (folder.path().join("out"), folder.path().join("again"));
    let parts = ["documents", "sbom", "licences", "checksums"];

    made(&out, &parts);
    made(&again, &parts);

    let sums = read(&out.join("SHA256SUMS"));
    assert_eq!(sums, read(&again.join("SHA256SUMS")), "the same inputs give the same files");
    assert_eq!(sums.lines().count(), 3, "{sums}");
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));

    let archive = out.join(format!("rollout-host-{VERSION}-documents.tar.gz"));
    let names = run(Command::new("tar").arg("-tzf").arg(archive));
    for name in
        ["man/man1/rollout-host-serve.1", "completions/_rollout-host", "completions/rollout-host.fish"]
    {
        assert!(names.contains(name), "{names}");
    }

    let sbom = json(&out.join(format!("rollout-host-{VERSION}.cdx.json")));
    assert_eq!(sbom["metadata"]["component"]["version"], VERSION);
    let components = sbom["components"].as_array().unwrap();
    let known: BTreeSet<&str> = components.iter().map(|each| each["bom-ref"].as_str().unwrap()).collect();
    assert_eq!(known.len(), components.len(), "each is listed once");
    for each in sbom["dependencies"].as_array().unwrap() {
        for used in each["dependsOn"].as_array().unwrap() {
            assert!(known.contains(used.as_str().unwrap()), "{used} is used and not listed");
        }
    }
    let engine = components.iter().find(|each| each["name"] == "wasmtime").unwrap();
    assert_eq!(engine["hashes"][0]["content"].as_str().map(str::len), Some(64), "{engine:#}");
    assert!(!components.iter().any(|each| each["name"] == "insta"), "tests are in no program");

    let licences = read(&out.join(format!("rollout-host-{VERSION}-licences.txt")));
    assert!(licences.contains("\nwasmtime "), "each crate is listed");
    assert!(licences.contains("Permission is hereby granted, free of charge"), "the texts are there");
}

#[tokio::test]
async fn the_image_is_taken_by_a_registry_and_its_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path(), &["image"]);
    let layout = folder.path().join(format!("rollout-host-{VERSION}-image"));
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        layout.join("blobs/sha256").join(digest)
    };
    assert_eq!(json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = json(&layout.join("index.json"));
    let manifest_file = blob(&index["manifests"][0]);
    let manifest = json(&manifest_file);

    let server = TestRegistry::start().await;
    let reference: Reference = server.reference(&format!("rollout-host:{VERSION}")).parse().unwrap();
    let options = Options { plain_http: true, ..Options::default() };
    let registry = Registry::new(&reference, options).unwrap();
    for part in [&manifest["config"], &manifest["layers"][0]] {
        let descriptor: Descriptor = serde_json::from_value(part.clone()).unwrap();
        let bytes = std::fs::read(blob(part)).unwrap();
        registry.push_blob(&descriptor, bytes.into(), &|_| {}).await.unwrap();
    }
    registry.push_manifest(VERSION, std::fs::read(&manifest_file).unwrap()).await.unwrap();
    let (_, pulled) = registry.manifest(VERSION).await.unwrap();
    assert_eq!(pulled, read(&manifest_file));
    let config: Descriptor = serde_json::from_value(manifest["config"].clone()).unwrap();
    let config: Value = serde_json::from_slice(&registry.blob(&config, |_| {}).await.unwrap()).unwrap();
    let entry = config["config"]["Entrypoint"][0].as_str().unwrap();

    // The files of the image suffice to run the program.
    let files = folder.path().join("files");
    std::fs::create_dir(&files).unwrap();
    run(Command::new("tar").arg("-xzf").arg(blob(&manifest["layers"][0])).arg("-C").arg(&files));
    assert!(files.join("etc/ssl/certs/ca-certificates.crt").is_file());
    let program = files.join(entry.trim_start_matches('/'));
    let list = run(Command::new("find").arg(&files).args(["-name", "*.so*"]));
    let libraries: Vec<&Path> = list.lines().map(Path::new).collect();
    let is_loader = |path: &&&Path| path.file_name().unwrap().to_str().unwrap().starts_with("ld-linux");
    let mut command = match libraries.iter().find(is_loader) {
        Some(loader) => {
            let folders: BTreeSet<&str> =
                libraries.iter().map(|path| path.parent().unwrap().to_str().unwrap()).collect();
            let mut command = Command::new(loader);
            command.arg("--library-path").arg(Vec::from_iter(folders).join(":")).arg(&program);
            command
        }
        None => Command::new(&program),
    };
    assert!(run(command.arg("--version")).contains(VERSION));
}

#[test]
fn an_unknown_part_is_refused_with_the_parts_that_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = release(folder.path(), &["everything"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no part 'everything'; parts are: program static wheel"), "{text}");
}
