//! Tests of untrusted components: they are compiled in a separate process under limits, cached for the next start, and
//! never loaded from a cache that other users can write.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rollout_tests::{Controller, Ran, Start, TestHost, guest, rollout_host};
use tempfile::TempDir;

/// The size of a cache entry's header, before the code.
const HEADER_BYTES: usize = 104;

const COMPILED: &str = "component compiled";
const FROM_CACHE: &str = "compiled code loaded from cache";

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Serves a guest with this cache, checks that a rollout succeeds, and returns the server's log.
async fn serve_once(guest: &str, cache: &Path) -> String {
    let controller = Controller::start().await;
    let host = TestHost::of(guest).option("--cache-dir", cache.display()).start().await;
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    host.stop().await.stderr
}

/// Returns the only entry of a cache.
fn entry(cache: &Path) -> PathBuf {
    let files = std::fs::read_dir(cache).expect("it is there").map(|file| file.expect("it is there").path());
    let entries: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "code")).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

/// Tries to serve a file, which must fail.
async fn refused(plugin: &Path, config: &str, more: &[&str]) -> Ran {
    let dir = temporary();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, config).expect("it can be written");
    let mut command = rollout_host(["serve"]);
    command.arg(plugin).args(["--listen", "127.0.0.1:0", "--config"]).arg(&file).args(more);
    let ran = command.current_dir(dir.path()).start().ended().await;
    assert_eq!(ran.stdout, "", "nothing listens");
    ran
}

async fn check_refused(component: &[u8], config: &str, named: &[&str]) {
    let dir = temporary();
    let path = dir.path().join("hostile.wasm");
    std::fs::write(&path, component).expect("it can be written");
    let ran = refused(&path, config, &["--no-cache"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for named in named {
        assert!(ran.stderr.contains(named), "{named:?} is not in: {}", ran.stderr);
    }
}

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("the text can be encoded")
}

/// Returns a small component that is slow to compile, with many functions of many statements.
fn laborious(functions: usize, statements: usize) -> Vec<u8> {
    let body = "(local.set 0 (i32.add (local.get 0) (i32.load (local.get 0))))".repeat(statements);
    let functions = format!("(func (param i32) {body})").repeat(functions);
    component(&format!("(component (core module (memory 1) {functions}))"))
}

#[tokio::test]
async fn the_second_start_finds_the_code_compiled() {
    let cache = temporary();

    let first = serve_once("conform", cache.path()).await;
    let second = serve_once("conform", cache.path()).await;

    assert!(first.contains(COMPILED) && !first.contains(FROM_CACHE), "{first}");
    assert!(second.contains(FROM_CACHE) && !second.contains(COMPILED), "{second}");
}

#[tokio::test]
async fn code_for_few_instances_is_not_used_for_many() {
    let cache = temporary();
    serve_once("conform", cache.path()).await;
    for message in [COMPILED, FROM_CACHE] {
        let host = TestHost::of("conform").option("--cache-dir", cache.path().display());

        let host = host.option("--max-concurrent", 9000).start().await;

        let stderr = host.stop().await.stderr;
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[tokio::test]
async fn without_a_cache_nothing_is_stored() {
    let home = temporary();
    let host = TestHost::of("conform").variable("XDG_CACHE_HOME", &home.path().display().to_string());

    let host = host.flag("--no-cache").start().await;

    assert!(host.stop().await.stderr.contains(COMPILED));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn code_that_was_changed_is_compiled_again_and_served() {
    let cache = temporary();
    serve_once("conform", cache.path()).await;
    let entry = entry(cache.path());
    let good = std::fs::read(&entry).unwrap();
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 0x40;
    for bytes in [bad, good[..middle].to_vec(), Vec::new(), good[HEADER_BYTES..].to_vec()] {
        std::fs::write(&entry, bytes).unwrap();

        let log = serve_once("conform", cache.path()).await;

        assert!(log.contains("WARN") && log.contains("cannot be used; compiling again"), "{log}");
        assert!(log.contains(COMPILED), "{log}");
        assert!(serve_once("conform", cache.path()).await.contains(FROM_CACHE), "it was put right");
    }
}

#[tokio::test]
async fn code_that_another_host_compiled_is_not_loaded() {
    let (ours, theirs) = (temporary(), temporary());
    serve_once("conform", ours.path()).await;
    serve_once("conform", theirs.path()).await;
    std::fs::copy(entry(theirs.path()), entry(ours.path())).unwrap();

    let log = serve_once("conform", ours.path()).await;

    assert!(log.contains("another host wrote it") && log.contains(COMPILED), "{log}");
}

#[tokio::test]
async fn a_cache_that_others_can_write_is_refused_with_what_to_do() {
    let cache = temporary();
    std::fs::set_permissions(cache.path(), std::fs::Permissions::from_mode(0o777)).unwrap();

    let ran = refused(&guest("conform"), "", &["--cache-dir", &cache.path().display().to_string()]).await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let command = format!("chmod go-w {}", cache.path().display());
    assert!(ran.stderr.contains(&command) && ran.stderr.contains("--no-cache"), "{}", ran.stderr);
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn compiled_code_of_an_author_is_not_accepted() {
    let cache = temporary();
    serve_once("conform", cache.path()).await;
    let code = std::fs::read(entry(cache.path())).unwrap()[HEADER_BYTES..].to_vec();
    assert!(code.starts_with(b"\x7fELF"));

    check_refused(&code, "", &["not a WebAssembly file"]).await;
}

#[tokio::test]
async fn a_component_that_takes_too_long_to_compile_is_abandoned() {
    let limits = "[limits]\ncompile-secs-max = 0.05\n";
    check_refused(&laborious(400, 1000), limits, &["compile-secs-max of 0.05 s", "can raise"]).await;
}

#[tokio::test]
async fn a_component_that_takes_too_much_memory_to_compile_is_abandoned() {
    let limits = "[limits]\ncompile-memory-bytes-max = 67108864\n";
    // The compiler has a whole function in memory.
    check_refused(
        &laborious(1, 400_000),
        limits,
        &["compile-memory-bytes-max of 67108864 bytes", "can raise"],
    )
    .await;
}

#[tokio::test]
async fn a_component_that_is_too_large_is_not_even_compiled() {
    let limits = "[limits]\ncomponent-bytes-max = 1000\n";
    check_refused(&laborious(1, 1000), limits, &["component-bytes-max of 1000 bytes", "can raise"]).await;
}

#[tokio::test]
async fn endlessly_nested_components_harm_only_their_compiler() {
    let mut nested = b"\0asm\x0d\0\x01\0".to_vec();
    for _ in 0..5_000 {
        // Section 4 is a component.
        let mut around = b"\0asm\x0d\0\x01\0\x04".to_vec();
        let mut length = nested.len();
        while length > 0x7f {
            around.push(length as u8 | 0x80);
            length >>= 7;
        }
        around.push(length as u8);
        around.append(&mut nested);
        nested = around;
    }
    check_refused(&nested, "", &["error: "]).await;

    let depth = 20_000;
    let blocks =
        format!("(component (core module (func {} {})))", "block ".repeat(depth), "end ".repeat(depth));
    check_refused(&component(&blocks), "", &["error: "]).await;
}

#[tokio::test]
async fn features_that_no_guest_toolchain_emits_are_refused() {
    for part in [
        "(memory i64 1)",
        "(memory 1 1 shared)",
        "(tag)",
        "(type (struct))",
        "(func (param externref))",
        "(func (result v128) v128.const i32x4 0 0 0 0 v128.const i32x4 0 0 0 0 i8x16.relaxed_swizzle)",
        "(memory 1 (pagesize 1))",
    ] {
        let component = component(&format!("(component (core module {part}))"));
        check_refused(&component, "", &["not a valid component"]).await;
    }
}
