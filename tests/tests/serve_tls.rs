//! Tests of TLS for callers' connections, and of replaced certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rollout_tests::{Controller, Serve, Start, TestHost, guest, in_time, project_root, rollout_host, until};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

fn certificate(name: &str) -> PathBuf {
    project_root().join("tests/certificates").join(name)
}

/// Copies a certificate and its key to separate files.
fn pair(dir: &Path) -> (PathBuf, PathBuf) {
    let files = (dir.join("tls.pem"), dir.join("tls.key"));
    std::fs::copy(certificate("server.pem"), &files.0).unwrap();
    std::fs::copy(certificate("server.key"), &files.1).unwrap();
    files
}

fn encrypted(serve: Serve, (cert, key): &(PathBuf, PathBuf)) -> Serve {
    serve.option("--tls-cert", cert.display()).option("--tls-key", key.display())
}

/// Opens a connection that trusts the tests' authority and offers these protocols.
async fn shaken(host: &TestHost, protocols: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = host.connect().await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// Returns the number of certificates that the host presents.
async fn shown(host: &TestHost) -> usize {
    let stream = shaken(host, &[]).await.expect("a handshake");
    stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len)
}

#[tokio::test]
async fn callers_are_served_only_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::start().await;
    let host = encrypted(TestHost::of("conform"), &pair(dir.path())).start().await;
    assert!(host.url().starts_with("https://127.0.0.1:"), "{}", host.url());

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");

    let stream = shaken(&host, &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(shaken(&host, &[b"h2"]).await.is_err(), "HTTP/2 is not spoken");

    let mut plain = host.connect().await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = in_time("the end of a plain connection", plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn without_certificates_of_authorities_only_encrypted_requests_fail() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none.pem");
    std::fs::write(&none, "").unwrap();
    let plugin = guest("conform");
    let rows = dir.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"prompt\": \"Calculate 2 + 3.\", \"label\": \"5\"}\n").unwrap();
    let run = async |command: &str, options: &[&str]| {
        let mut program = rollout_host([command]);
        program
            .arg(&plugin)
            .args(options)
            .env("SSL_CERT_FILE", &none)
            .env_remove("SSL_CERT_DIR")
            .current_dir(dir.path());
        program.start().ended().await
    };
    let host = encrypted(TestHost::of("conform"), &pair(dir.path())).start().await;
    let url = format!("{}/v1", host.url());

    let valid = run("validate", &[]).await;
    let evaluated =
        run("eval", &["--data", "rows.jsonl", "--model", "m", "--base-url", &url, "--api-key-env", "HOME"])
            .await;

    assert_eq!(valid.code, Some(0), "{}", valid.stderr);
    let reason = "this system has no certificates of authorities";
    assert_ne!(evaluated.code, Some(0), "{}", evaluated.stderr);
    assert!(evaluated.stderr.contains(reason), "{}{}", evaluated.stderr, evaluated.stdout);
}

#[tokio::test]
async fn unfinished_tls_handshakes_block_no_other_caller() {
    const SILENT: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let serve = encrypted(TestHost::of("conform"), &pair(dir.path()));
    let host = serve.option("--max-concurrent", 1000).open_files(200).start().await;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        let mut stream = host.connect().await.unwrap();
        // The start of a handshake.
        stream.write_all(&[0x16, 3, 1, 2]).await.unwrap();
        silent.push(stream);
    }
    assert_eq!(host.health().await["status"], "ok");
    // They time out even if no other caller needs their place.
    let last = silent.last_mut().unwrap();
    let mut answer = Vec::new();
    let _ = in_time("the end of a silent connection", last.read_to_end(&mut answer)).await;
}

#[tokio::test]
async fn a_certificate_is_replaced_without_a_failed_request() {
    let dir = tempfile::tempdir().unwrap();
    let files = pair(dir.path());
    let host = Arc::new(encrypted(TestHost::of("conform"), &files).start().await);
    assert_eq!(shown(&host).await, 1);
    let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let asking: Vec<_> = (0..8)
        .map(|n| {
            let (host, stop, count) = (host.clone(), stop.clone(), count.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    // Half of the requests use a new connection each.
                    match n % 2 {
                        0 => assert_eq!(host.health().await["status"], "ok"),
                        _ => drop(shaken(&host, &[]).await.expect("a handshake")),
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();

    let text = |name: &str| std::fs::read_to_string(certificate(name)).unwrap();
    for round in 0..10 {
        let with_authority = format!("{}{}", text("server.pem"), text("ca.pem"));
        let chain = if round % 2 == 0 { with_authority } else { text("server.pem") };
        std::fs::write(&files.0, chain).unwrap();
        host.process().signal(Signal::HUP);
        let expected = if round % 2 == 0 { 2 } else { 1 };
        until("the other certificate", async || (shown(&host).await == expected).then_some(())).await;
        let (before, all) = (count.load(Ordering::SeqCst), &count);
        until("more requests", async || (all.load(Ordering::SeqCst) > before + 16).then_some(())).await;
    }

    // Files that do not match are reported, and change nothing.
    std::fs::write(&files.0, text("ca.pem")).unwrap();
    host.process().signal(Signal::HUP);
    let is_reported =
        async || host.process().stderr().contains("the previous one stays in use").then_some(());
    until("the log line about the wrong certificate", is_reported).await;
    assert_eq!(shown(&host).await, 1);
    stop.store(true, Ordering::SeqCst);
    for one in asking {
        one.await.expect("no request failed");
    }
}

#[tokio::test]
async fn an_invalid_pair_of_files_is_reported_at_the_start() {
    let check = async |cert: PathBuf, key: PathBuf, expected: &str| {
        let guest = rollout_tests::guest("conform");
        let mut command = rollout_host(["serve"]);
        command
            .arg(guest)
            .args(["--listen", "127.0.0.1:0", "--tls-cert"])
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        let dir = tempfile::tempdir().unwrap();
        let ran = command.current_dir(dir.path()).start().ended_within(Duration::from_secs(60)).await;
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    };
    check(certificate("ca.pem"), certificate("server.key"), "cannot be used together").await;
    check(certificate("none.pem"), certificate("server.key"), "none.pem cannot be read").await;
    check(certificate("server.pem"), certificate("server.pem"), "holds no private key").await;
}
