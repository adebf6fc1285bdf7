//! Tests of HTTP tools, with a server on loopback.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use rollout_tests::{Called, Serve, call, providing};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const SECRET: &str = "k3y/of the api";

/// A server that records its requests.
struct Api {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<SeenRequest>>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct SeenRequest {
    method: String,
    target: String,
    authorization: Option<String>,
    body: Value,
}

impl Api {
    async fn start() -> Self {
        let requests = Arc::<Mutex<Vec<SeenRequest>>>::default();
        let routes = Router::new().fallback(any(answer)).with_state(requests.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { address, requests, task }
    }

    fn requests(&self) -> Vec<SeenRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns options of a host with a tool `ask` at this path, which may reach loopback.
    fn tool(&self, path: &str, lines: &str) -> Serve {
        let lines = format!("url = 'http://{}{path}'\nprivate-addresses = true\n{lines}", self.address);
        tool(&lines)
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn tool(lines: &str) -> Serve {
    providing(&format!("[[tools.http]]\nname = 'ask'\ndescription = 'Asks.'\n{lines}\n"))
        .variable("API_KEY", SECRET)
}

async fn answer(State(requests): State<Arc<Mutex<Vec<SeenRequest>>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let authorization = header(&parts.headers, "authorization");
    requests.lock().unwrap().push(SeenRequest {
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        authorization: authorization.clone(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    });
    respond(&parts.uri, authorization).await
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

async fn respond(uri: &Uri, authorization: Option<String>) -> Response {
    let query = uri.query().unwrap_or_default();
    match uri.path() {
        "/to" => {
            let target =
                query.strip_prefix("where=").unwrap_or_default().replace("%3A", ":").replace("%2F", "/");
            (StatusCode::FOUND, [("location", target)]).into_response()
        }
        "/echo" => format!("{authorization:?} {query}").into_response(),
        "/refuse" => (StatusCode::FORBIDDEN, format!("not with {authorization:?}")).into_response(),
        "/never" => std::future::pending().await,
        "/large" => "x".repeat(5000).into_response(),
        "/bytes" => Bytes::from_static(b"\xff\xfe").into_response(),
        _ => "fine".into_response(),
    }
}

/// Returns the only result of a rollout with one call.
fn only(called: &Called) -> (&str, bool) {
    called.results()[0]
}

async fn check(host: Serve, arguments: Value, expected: &str, is_error: bool) {
    let host = host.start().await;
    let called = call(&host, json!([["ask", arguments]])).await;
    let (text, error) = only(&called);
    assert!(text.contains(expected), "{expected:?} is not in {text:?}");
    assert_eq!(error, is_error, "{text}");
    let kept = called.trajectory.to_string() + host.process().stderr().as_str();
    assert!(!kept.contains(SECRET), "the secret is in a stored file");
}

#[tokio::test]
async fn arguments_fill_placeholders_and_the_rest_goes_into_query_or_body() {
    let api = Api::start().await;
    let parameters = "parameters = { type = 'object', properties = { city = { type = 'string' }, days = { type = 'integer' } }, required = ['city'] }";
    let arguments = json!({"city": "a/b?c", "days": 3});

    check(api.tool("/w/{city}", parameters), arguments.clone(), "fine", false).await;
    let post = format!("method = 'POST'\n{parameters}");
    check(api.tool("/w/{city}", &post), arguments, "fine", false).await;

    let [get, post] = &api.requests()[..] else { panic!("{:?}", api.requests()) };
    assert_eq!((get.method.as_str(), get.target.as_str()), ("GET", "/w/a%2Fb%3Fc?days=3"));
    assert_eq!((post.method.as_str(), post.target.as_str()), ("POST", "/w/a%2Fb%3Fc"));
    assert_eq!(post.body, json!({"days": 3}));
}

#[tokio::test]
async fn invalid_arguments_are_not_sent() {
    let api = Api::start().await;
    check(api.tool("/w/{city}", ""), json!({}), "the arguments do not match the schema", true).await;
    check(
        api.tool("/w/{city}", ""),
        json!({"city": "x", "more": 1}),
        "the arguments do not match the schema",
        true,
    )
    .await;
    check(api.tool("/w/{city}", ""), json!("{no json"), "not valid JSON", true).await;
    check(api.tool("/w/{city}/x", ""), json!({"city": ".."}), "leads elsewhere", true).await;
    assert!(api.requests().is_empty(), "{:?}", api.requests());
}

#[tokio::test]
async fn a_secret_is_sent_and_never_shown() {
    let api = Api::start().await;
    let lines = "headers = { authorization = 'Bearer ${API_KEY}' }";

    check(
        api.tool("/echo?key=${API_KEY}", lines),
        json!({}),
        r#"Some("Bearer (secret)") key=(secret)"#,
        false,
    )
    .await;
    check(
        api.tool("/refuse", lines),
        json!({}),
        r#"answered 403 Forbidden: not with Some("Bearer (secret)")"#,
        true,
    )
    .await;

    let requests = api.requests();
    assert_eq!(requests[0].authorization.as_deref(), Some("Bearer k3y/of the api"));
    assert_eq!(requests[0].target, "/echo?key=k3y%2Fof%20the%20api");
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_unless_the_operator_allows_them() {
    let api = Api::start().await;
    let port = api.address.port();
    // A name that resolves to loopback, forms of the loopback address, and other closed addresses.
    for host in
        ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0.0.0.0", "169.254.169.254"]
    {
        let lines = format!("url = 'http://{host}:{port}/x'");
        check(tool(&lines), json!({}), "no address that may be reached", true).await;
    }
    assert!(api.requests().is_empty(), "{:?}", api.requests());
    let lines = format!("url = 'http://localhost:{port}/x'\nprivate-addresses = true");
    check(tool(&lines), json!({}), "fine", false).await;
}

#[tokio::test]
async fn only_hosts_on_the_list_are_called() {
    let api = Api::start().await;
    let lines = format!("url = '{{url}}'\nprivate-addresses = true\nhosts = ['{}']", api.address);
    let asking = |url: String| check(tool(&lines), json!({"url": url}), "not among the allowed hosts", true);

    check(tool(&lines), json!({"url": format!("http://{}/x", api.address)}), "fine", false).await;
    asking(format!("http://localhost:{}/x", api.address.port())).await;
    asking("http://127.0.0.1:1/".to_owned()).await;
    let user = format!("http://user@{}/x", api.address);
    check(tool(&lines), json!({"url": user}), "only plain http and https", true).await;
    check(tool(&lines), json!({"url": "file:///etc/passwd"}), "only plain http and https", true).await;

    assert_eq!(api.requests().len(), 1, "{:?}", api.requests());
}

#[tokio::test]
async fn a_redirect_is_followed_only_if_the_operator_allows_it() {
    let api = Api::start().await;
    let here = format!("http://{}/echo", api.address);
    let elsewhere = format!("http://localhost:{}/echo", api.address.port());
    let headers = "headers = { authorization = 'Bearer ${API_KEY}' }";
    let hosts = format!("redirects-max = 1\nhosts = ['localhost:{}']\n{headers}", api.address.port());
    let to = |target: &str| json!({"where": target});

    check(api.tool("/to?where={where}", ""), to(&here), "a redirect, which is not followed", true).await;
    check(
        api.tool("/to?where={where}", "redirects-max = 1"),
        to(&elsewhere),
        "not among the allowed hosts",
        true,
    )
    .await;
    check(
        api.tool("/to?where={where}", "redirects-max = 1"),
        to("ftp://h/"),
        "only plain http and https",
        true,
    )
    .await;
    assert!(api.requests().iter().all(|request| request.target.starts_with("/to")), "{:?}", api.requests());
    check(api.tool("/to?where={where}", &hosts), to(&here), "Bearer (secret)", false).await;
    // A key is not sent to another host, even if that is allowed.
    check(api.tool("/to?where={where}", &hosts), to(&elsewhere), "None", false).await;
}

#[tokio::test]
async fn a_redirect_to_a_forbidden_address_is_refused() {
    let api = Api::start().await;
    let lines = "redirects-max = 3\nhosts = ['169.254.169.254', 'localhost:1']";
    let lines = format!("url = 'http://{}/to?where={{where}}'\n{lines}", api.address);
    // Without permission for private addresses, not even the first request is sent.
    check(tool(&lines), json!({"where": "http://169.254.169.254/"}), "no address that may be reached", true)
        .await;
    assert!(api.requests().is_empty());
}

#[tokio::test]
async fn a_late_large_or_binary_answer_is_an_error() {
    let api = Api::start().await;
    check(
        api.tool("/never", "deadline-secs = 0.5"),
        json!({}),
        "no result within deadline-secs, 0.5 s",
        true,
    )
    .await;
    check(
        api.tool("/large", "result-bytes-max = 4999"),
        json!({}),
        "longer than result-bytes-max, 4999 bytes",
        true,
    )
    .await;
    check(api.tool("/large", "result-bytes-max = 5000"), json!({}), "xxx", false).await;
    check(api.tool("/bytes", ""), json!({}), "its answer is not text", true).await;
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_without_its_address() {
    let host = tool("url = 'http://127.0.0.1:9/x'\nprivate-addresses = true").start().await;
    let called = call(&host, json!([["ask", {}]])).await;
    let (text, is_error) = only(&called);
    assert!(is_error && !text.contains("127.0.0.1"), "{text}");
    assert_eq!(
        (&called.observed()[0]["outcome"], &called.observed()[0]["kind"]),
        (&json!("unavailable"), &json!("http"))
    );
}
