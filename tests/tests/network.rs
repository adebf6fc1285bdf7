//! Tests of the rules in `[network]` for addresses that callers choose, and of addresses that no rule opens. Each test
//! checks the connections, and not only the messages.

use std::sync::Arc;

use rollout_tests::{
    Controller, InitRequest, RawServer, Reply, RolloutRequest, Sends, Serve, TestHost, call, project_root,
    providing,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

/// Returns options of a host that closes private networks except these.
fn listed(guest: &str, allow: &str) -> Serve {
    TestHost::of(guest).config(&format!("[network]\nprivate = 'listed'\nallow = [{allow}]\n"))
}

fn asking(controller: &Controller) -> RolloutRequest {
    controller.rollout("Calculate 2 + 3.").label("5")
}

/// Returns the URL of the same server with a name that resolves to loopback.
fn by_name(url: &str) -> String {
    assert!(url.contains("127.0.0.1"), "{url}");
    url.replace("127.0.0.1", "localhost")
}

fn check_refused(reply: &Reply, field: &str, rule: &str) {
    assert!((400..500).contains(&reply.status), "{} {}", reply.status, reply.text);
    assert!(reply.text.contains(field) && reply.text.contains(rule), "{}", reply.text);
}

fn acceptor() -> TlsAcceptor {
    let certificates = project_root().join("tests/certificates");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = CertificateDer::pem_file_iter(certificates.join("server.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.join("server.key")).unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()))
}

#[tokio::test]
async fn a_closed_address_is_refused_at_admission_in_every_generation() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let closed = [
        ("169.254.169.254", "link-local"),
        ("2852039166", "169.254.169.254 is a link-local"),
        ("0xa9.0xfe.0251.0376", "link-local"),
        ("[::ffff:169.254.169.254]", "link-local"),
        ("[64:ff9b::a9fe:a9fe]", "link-local"),
        ("[fe80::1]", "link-local"),
        ("[fd00:ec2::254]", "metadata service"),
        ("100.100.100.200", "metadata service"),
        ("168.63.129.16", "metadata service"),
        ("0.0.0.0", "unspecified address"),
        ("[::]", "unspecified address"),
        ("224.0.0.1", "multicast"),
    ];
    for (address, rule) in closed {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{address}/v1");
            let d = asking(&controller).with("chat_completions_url", url.clone());
            check_refused(&host.ask(&d).await, "chat_completions_url", rule);
            let c = asking(&controller).with_callbacks("key");
            check_refused(
                &host.ask(&c.clone().with("chat_completions_url", url.clone())).await,
                "chat_completions_url",
                rule,
            );
            for field in ["completion_callback_url", "grader_callback_url"] {
                check_refused(&host.ask(&c.clone().with(field, url.clone())).await, field, rule);
                check_refused(
                    &host.ask(&asking(&controller).as_b().with(field, url.clone())).await,
                    field,
                    rule,
                );
            }
            let a = InitRequest::new(&controller, "Calculate 2 + 3.").with("server_url", url);
            check_refused(&host.post("/v1/rollout/init", &a.body()).await, "server_url", rule);
        }
    }
    assert!(controller.chats().is_empty() && controller.callbacks().is_empty());
}

#[tokio::test]
async fn a_private_address_is_refused_unless_it_is_listed() {
    let controller = Controller::start().await;
    let host = listed("conform", "'10.0.0.0/8', '127.0.0.1:1'").start().await;
    let request = asking(&controller);
    let reply = host.ask(&request).await;
    check_refused(&reply, "chat_completions_url", "127.0.0.1 is a loopback address, and the operator's list");
    assert!(controller.chats().is_empty());

    for allow in
        ["'127.0.0.0/8'".to_owned(), format!("'{}'", controller.base_url().trim_start_matches("http://"))]
    {
        let host = listed("conform", &allow).start().await;
        assert_eq!(host.run(&asking(&controller)).await["sample"]["reward"], 1.0, "{allow}");
    }
}

#[tokio::test]
async fn a_name_is_checked_by_its_address() {
    let controller = Controller::start().await;
    let url = by_name(&controller.model_url());
    let host = listed("conform", "'10.0.0.0/8'").start().await;

    let result = host.run(&asking(&controller).with("chat_completions_url", url.clone())).await;

    let message = result["err_message"].as_str().unwrap_or_default();
    assert!(message.contains("its name leads to a loopback address, and the operator's list"), "{result:#}");
    // The address of a name is never reported.
    assert!(!message.contains("127.0.0.1") && !message.contains("::1"), "{result:#}");
    assert!(controller.chats().is_empty());
    let metrics = host.metrics().await;
    assert_eq!(metrics.get(r#"rollout_host_model_calls_total{outcome="forbidden"}"#), Some(1.0));
    assert_eq!(metrics.get("rollout_host_model_retries_total"), Some(0.0));
    let ended = metrics.counted("rollout_host_rollouts_ended_total");
    assert_eq!(
        ended.get(r#"fault="caller",kind="model",outcome="unscored",stage="workflow""#),
        Some(&1.0),
        "{ended:?}"
    );

    let host = listed("conform", "'localhost'").start().await;
    let result = host.run(&asking(&controller).with("chat_completions_url", url)).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    // The name is listed, but the address is not.
    check_refused(&host.ask(&asking(&controller)).await, "chat_completions_url", "loopback");
}

#[tokio::test]
async fn a_server_with_tls_is_checked_like_any_other() {
    let server = RawServer::start_with_tls(Sends::completion("#### 5"), acceptor()).await;
    let controller = Controller::start().await;
    let trusting = |serve: Serve| {
        serve.variable("SSL_CERT_FILE", project_root().join("tests/certificates/ca.pem").to_str().unwrap())
    };
    let request = asking(&controller).with("chat_completions_url", by_name(&server.model_url()));

    let host = trusting(listed("conform", "'localhost:1'")).start().await;
    let result = host.run(&request).await;
    assert!(result["err_message"].as_str().unwrap_or_default().contains("loopback address"), "{result:#}");
    let literal = asking(&controller).with("chat_completions_url", server.model_url());
    check_refused(&host.ask(&literal).await, "chat_completions_url", "loopback");
    assert_eq!(server.accepted(), 0);

    let host = trusting(listed("conform", &format!("'localhost:{}'", server.address().port()))).start().await;
    let result = host.run(&request).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_callback_to_a_closed_address_is_neither_sent_nor_retried() {
    let (model, receiver) = (Controller::start().await, Controller::start().await);
    let port = model.base_url().rsplit(':').next().unwrap().to_owned();
    let host = listed("conform", &format!("'127.0.0.1:{port}'")).start().await;
    let to = |kind: &str| by_name(&format!("{}/callbacks/r/{kind}", receiver.base_url()));
    let request = asking(&model).with_callbacks("key");
    let request =
        request.with("completion_callback_url", to("completion")).with("grader_callback_url", to("grader"));

    assert_eq!(host.ask(&request).await.status, 202);
    host.idle().await;

    let metrics = host.metrics().await;
    assert!(
        metrics.get(r#"rollout_host_callbacks_total{outcome="forbidden"}"#) >= Some(1.0),
        "{:?}",
        metrics.counted("rollout_host_callbacks_total")
    );
    assert_eq!(metrics.get("rollout_host_callback_retries_total"), Some(0.0));
    assert!(receiver.callbacks().is_empty());
    assert_eq!(model.chats().len(), 1);
    let stderr = host.stop().await.stderr;
    assert!(stderr.contains("its name leads to a loopback address"), "{stderr}");
}

#[tokio::test]
async fn rules_for_callers_do_not_apply_to_the_operators_addresses() {
    let controller = Controller::start().await;
    let judge = RawServer::start(Sends::completion("SCORE: 1")).await;
    let host = listed("judged", "'localhost'")
        .config(&format!("[judge]\nurl = '{}'\nmodel = 'j'\n", judge.model_url()))
        .start()
        .await;

    let result =
        host.run(&asking(&controller).with("chat_completions_url", by_name(&controller.model_url()))).await;

    assert!(judge.accepted() >= 1, "{result:#}");
}

#[tokio::test]
async fn a_tool_reaches_no_closed_address_even_if_private_ones_are_open() {
    let lines = "[[tools.http]]\nname = 'ask'\nurl = '{url}'\nprivate-addresses = true\n\
        hosts = ['169.254.169.254', '0.0.0.0:1', '[::ffff:169.254.169.254]']\n";
    let host = providing(lines).start().await;
    let urls =
        ["http://169.254.169.254/", "http://0xa9fea9fe/", "http://0.0.0.0:1/", "http://[::ffff:a9fe:a9fe]/"];
    let calls: Vec<Value> = urls.iter().map(|url| json!(["ask", { "url": url }])).collect();

    let called = call(&host, Value::Array(calls)).await;

    for (url, (text, is_error)) in urls.iter().zip(called.results()) {
        assert!(is_error && text.contains("no address that may be reached"), "{url}: {text}");
    }
}
