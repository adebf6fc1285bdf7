//! Tests of the pages below `/ui` over HTTP: their contents, their access control, and the resources that they hold.

use reqwest::header::{CONTENT_TYPE, HeaderMap, LOCATION, SET_COOKIE};
use rollout_tests::{
    Answer, Controller, Serve, ServeCatalog, TestCatalog, TestHost, TestTenant, example, guest, in_time,
    until,
};
use serde_json::json;

/// A browser: it keeps one cookie and follows no redirect.
struct Browser {
    http: reqwest::Client,
    url: String,
    cookie: Option<String>,
}

struct Page {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Page {
    fn location(&self) -> &str {
        self.headers[LOCATION].to_str().unwrap()
    }

    #[track_caller]
    fn assert_shows(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.text.contains(text), "{text:?} is not in\n{}", self.text);
        }
    }

    #[track_caller]
    fn assert_lacks(&self, texts: &[&str]) {
        for text in texts {
            assert!(!self.text.contains(text), "{text:?} is in\n{}", self.text);
        }
    }
}

impl Browser {
    fn at(url: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Self { http: http.build().unwrap(), url: url.to_owned(), cookie: None }
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.cookie {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Page {
        let response = in_time("a page", request.send()).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Page { status, headers, text: in_time("a page in full", response.text()).await.unwrap() }
    }

    async fn get(&self, path: &str) -> Page {
        self.send(self.request(reqwest::Method::GET, path)).await
    }

    async fn post(&self, path: &str, form: &str) -> Page {
        let request = self.request(reqwest::Method::POST, path).body(form.to_owned());
        self.send(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded")).await
    }

    /// Signs in and keeps the cookie.
    async fn sign_in(&mut self, key: &str) -> Page {
        let page = self.post("/ui/sign-in", &format!("key={key}&next=%2Fui%2F")).await;
        assert_eq!(page.status, 303, "{}", page.text);
        let cookie = page.headers[SET_COOKIE].to_str().unwrap();
        self.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        page
    }
}

fn kept(guest: &str) -> Serve {
    TestHost::of(guest).option("--journal", "journal")
}

#[tokio::test]
async fn a_host_without_keys_shows_its_rollouts_with_their_conversations() {
    let controller = Controller::start().await;
    let host = kept("conform").start().await;
    let browser = Browser::at(host.url());
    controller.hold();
    let admitted = host.admit(&controller.rollout("What is 1 + 2?").id("first").label("3")).await;
    controller.chats_arrived(1).await;

    let home = browser.get("/ui/").await;
    assert_eq!(home.status, 200, "{}", home.text);
    home.assert_shows(&["conform", "/ui/rollouts/first", "running", "data-events=\"/ui/events\""]);
    let live = browser.get("/ui/rollouts/first").await;
    live.assert_shows(&[
        "What is 1 + 2?",
        "waiting for the model",
        "data-events=\"/ui/rollouts/first/events\"",
    ]);
    controller.release();
    host.result(&admitted).await;
    let page = until("the finished page", async || {
        let page = browser.get("/ui/rollouts/first").await;
        page.text.contains("reward <strong>").then_some(page)
    })
    .await;
    page.assert_shows(&[
        "What is 1 + 2?",
        "The sum is #### 3",
        "id=\"turn-1\"",
        "7 + 3 tokens",
        "rollout-host replay first",
        "rollout-host fork --turn 0 --count 8 --model mock first",
        "chat-calls-max",
    ]);
    page.assert_lacks(&["data-events", "<script>", "style=", "onclick"]);
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("cache-control", "no-store"),
        ("referrer-policy", "same-origin"),
    ] {
        assert_eq!(page.headers[name], value);
    }
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.contains("default-src 'none'")
            && policy.contains("script-src 'self'")
            && !policy.contains("unsafe")
    );
    let home = browser.get("/ui/?outcome=scored").await;
    home.assert_shows(&["/ui/rollouts/first", "<strong>1</strong>"]);
    browser.get("/ui/?outcome=unscored").await.assert_lacks(&["/ui/rollouts/first"]);
    browser.get("/ui/?id=irs").await.assert_shows(&["/ui/rollouts/first"]);
    browser.get("/ui/?id=nothing").await.assert_lacks(&["/ui/rollouts/first"]);
    let text = browser.get("/ui/rollouts/first/text?turn=1&message=0").await;
    assert_eq!(
        (text.status, text.headers[CONTENT_TYPE].to_str().unwrap()),
        (200, "text/plain; charset=utf-8")
    );
    text.assert_shows(&["The sum is #### 3"]);
    for asset in ["style.css", "script.js", "icon.svg"] {
        let asset = browser.get(&format!("/ui/assets/{asset}")).await;
        assert_eq!(asset.status, 200);
        asset.assert_lacks(
            &["http://", "https://"].map(|scheme| if asset.text.contains("w3.org") { "\0" } else { scheme }),
        );
    }
}

#[tokio::test]
async fn what_does_not_exist_gets_a_page_that_says_so() {
    let host = TestHost::start("conform").await;
    let browser = Browser::at(host.url());
    for (path, title, reason) in [
        ("/ui/rollouts/none", "No such rollout", "There is no rollout &#39;none&#39; here"),
        ("/ui/rollouts/%3Cscript%3E%E2%80%AE", "No such rollout", "&#60;script&#62;\\u{202e}"),
        ("/ui/rollouts/a%2Fb", "No such rollout", "no valid id"),
        ("/ui/elsewhere", "No such page", "no page at /ui/elsewhere"),
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 404, "{path}");
        page.assert_shows(&[title, reason]);
        page.assert_lacks(&["<script>"]);
    }
    assert_eq!(browser.get("/ui").await.location(), "/ui/");
    assert_eq!(browser.get("/ui/assets/none").await.status, 404);
}

#[tokio::test]
async fn hostile_text_is_text() {
    let controller = Controller::start().await;
    let host = kept("noisy").start().await;
    let browser = Browser::at(host.url());
    let id = "<img src=x onerror=alert(1)>\u{202e}";
    let reply = json!({"choices": [{"finish_reason": "</pre><script>alert(2)</script>", "message": {
        "role": "assistant", "content": format!("</pre><script>alert(3)</script>\u{2066}{}", "x".repeat(10 << 20)),
        "tool_calls": [{"id": "\"><b>", "type": "function",
            "function": {"name": "<b>", "arguments": "<script>alert(4)</script>"}}]}}]});
    controller.answer_chats([Answer::Json(reply.to_string())]);
    let prompt = "print </pre><script>alert(5)</script>";
    let result = host.run(&controller.rollout(prompt).id(id)).await;
    assert!(result["status"].is_string(), "{result}");

    let home = browser.get("/ui/").await;
    home.assert_lacks(&["<img src=x", "\u{202e}", "<script>"]);
    let path = "/ui/rollouts/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%E2%80%AE";
    home.assert_shows(&[path]);
    let page = browser.get(path).await;
    page.assert_lacks(&["<img src=x", "\u{202e}", "\u{2066}", "<script>"]);
    page.assert_shows(&["&#60;/pre&#62;", "\\u{2066}", "the whole text"]);
    assert!(page.text.len() < 2 << 20, "{}", page.text.len());
    let whole = browser.get(&format!("{path}/text?turn=1&message=0")).await;
    assert!(whole.text.len() > 10 << 20, "{}", whole.text.len());
    assert_eq!(whole.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn a_keyed_host_needs_a_sign_in_whose_cookie_ends_with_the_session() {
    let controller = Controller::start().await;
    let serve = kept("conform").variable("SERVER_KEY", "the-key+x").option("--server-key-env", "SERVER_KEY");
    let host = serve.start().await.with_key("the-key+x");
    let mut browser = Browser::at(host.url());
    host.run(&controller.rollout("What is 1 + 2?").id("first").label("3")).await;

    let page = browser.get("/ui/rollouts/first?page=1").await;
    assert_eq!((page.status, page.location()), (303, "/ui/sign-in?next=%2Fui%2Frollouts%2Ffirst%3Fpage%3D1"));
    let form = browser.get(page.location()).await;
    form.assert_shows(&["type=\"password\"", "value=\"/ui/rollouts/first?page=1\""]);
    assert_eq!(browser.get("/ui/events").await.status, 401);
    let wrong = browser.post("/ui/sign-in", "key=wrong").await;
    assert_eq!(wrong.status, 401);
    wrong.assert_shows(&["not valid"]);
    assert!(!wrong.headers.contains_key(SET_COOKIE));
    let foreign =
        browser.request(reqwest::Method::POST, "/ui/sign-in").header("origin", "https://evil.example");
    assert_eq!(browser.send(foreign.body("key=the-key%2Bx")).await.status, 403);

    let signed_in = browser.sign_in("the-key%2Bx").await;
    let cookie = signed_in.headers[SET_COOKIE].to_str().unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Max-Age=43200", "Path=/ui"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    browser.get("/ui/rollouts/first").await.assert_shows(&["The sum is #### 3", "Sign out"]);
    // The cookie is for pages only.
    assert_eq!(browser.get("/health").await.status, 401);
    let out = browser.post("/ui/sign-out", "").await;
    assert!(out.headers[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get("/ui/").await.status, 303, "the session is over, whatever the browser kept");
}

async fn served(catalog: &TestCatalog, name: &str) -> TestTenant {
    let tenant = catalog.tenant(name, json!({"running": 4})).await;
    catalog.serve(&tenant, "calc", "conform", "").await;
    tenant
}

#[tokio::test]
async fn a_tenant_sees_only_what_is_its_own_and_a_revoked_key_nothing() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default().start().await;
    let (one, two) = (served(&catalog, "one").await, served(&catalog, "two").await);
    for (tenant, id) in [(&one, "of-one"), (&two, "of-two")] {
        let host = catalog.plugin(tenant, "calc");
        host.run(&controller.rollout("What is 1 + 2?").id(id).label("3")).await;
    }
    let url = catalog.url();
    let mut browser = Browser::at(&url);
    browser.sign_in(&one.viewer).await;

    let home = browser.get("/ui/").await;
    home.assert_shows(&["of-one", "calc", "viewer", "of 4<"]);
    home.assert_lacks(&["of-two", "two", "memory"]);
    home.assert_shows(&["id=\"quotas\"", "of 4</span>", "<polyline class=\"curve\"", "tokens per minute"]);
    // The name of another tenant in the address has no effect.
    browser.get("/ui/?tenant=two").await.assert_lacks(&["of-two"]);
    assert_eq!(browser.get("/ui/rollouts/of-two").await.status, 404);
    assert_eq!(browser.get("/ui/rollouts/of-two?tenant=two").await.status, 404);
    assert_eq!(browser.get("/ui/rollouts/of-two/text?tenant=two&turn=1").await.status, 404);
    browser.get("/ui/rollouts/of-one").await.assert_shows(&["The sum is #### 3", "plugin calc"]);

    let mut operator = Browser::at(&url);
    operator.sign_in("rh_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").await;
    operator.get("/ui/").await.assert_shows(&["one", "two", "memory", "/ui/?tenant=two"]);
    operator.get("/ui/?tenant=two").await.assert_shows(&["of-two", "/ui/rollouts/of-two?tenant=two"]);
    operator.get("/ui/rollouts/of-two?tenant=two").await.assert_shows(&["The sum is #### 3"]);
    assert_eq!(operator.get("/ui/?tenant=none").await.status, 404);
    assert_eq!(operator.get("/ui/rollouts/of-two").await.status, 404);

    let keys = catalog.operate(reqwest::Method::GET, "/keys?tenant=one", json!(null)).await;
    let viewer = keys["items"].as_array().unwrap().iter().find(|key| key["rights"] == "viewer").unwrap();
    catalog.operate(reqwest::Method::DELETE, &format!("/keys/{}", viewer["id"]), json!(null)).await;
    assert_eq!(browser.get("/ui/").await.status, 303, "the key was revoked");
}

#[tokio::test]
async fn a_version_is_activated_by_a_key_that_may_and_by_no_other_site() {
    let catalog = ServeCatalog::default().start().await;
    let tenant = served(&catalog, "one").await;
    let second = catalog.push(&tenant, "calc", &guest("conform"), "", false).await;
    assert!(second.status < 300, "{}", second.text);
    let broken = catalog.push(&tenant, "calc", &guest("wrong_settings"), "", false).await;
    assert_eq!(broken.body["passed"], false, "{}", broken.text);
    let url = catalog.url();
    let (mut viewer, mut author) = (Browser::at(&url), Browser::at(&url));
    viewer.sign_in(&tenant.viewer).await;
    author.sign_in(&tenant.author).await;
    let active = async || {
        let path = "/admin/v1/plugins/calc";
        catalog.ask(&tenant.viewer, reqwest::Method::GET, path, json!(null)).await.body["active"].clone()
    };
    let activate = async |browser: &Browser, origin: Option<&str>, form: &'static str| {
        let request = browser.request(reqwest::Method::POST, "/ui/plugins/calc/activate").body(form);
        let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
        browser.send(request).await
    };

    viewer.get("/ui/").await.assert_shows(&["href=\"/ui/plugins/calc\""]);
    let page = viewer.get("/ui/plugins/calc").await;
    page.assert_shows(&["Version 1", "Version 2", "Validation report", "passed"]);
    page.assert_lacks(&["Activate version", "Roll back"]);
    let page = author.get("/ui/plugins/calc").await;
    page.assert_shows(&["Activate version 2", "Roll back"]);
    page.assert_shows(&["failed its checks"]);
    page.assert_lacks(&["Activate version 3"]);
    let refused = activate(&author, Some(&url), "version=3").await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    refused.assert_shows(&["Not activated"]);
    assert_eq!(activate(&viewer, Some(&url), "version=2").await.status, 403);
    assert_eq!(activate(&author, Some("https://evil.example"), "version=2").await.status, 403);
    let unknown = activate(&author, None, "version=2").await;
    assert_eq!(unknown.status, 403, "a form of an unknown origin");
    assert_eq!(active().await, 1);

    let activated = activate(&author, Some(&url), "version=2").await;
    assert_eq!((activated.status, activated.location()), (303, "/ui/plugins/calc"));
    assert_eq!(active().await, 2);
    assert_eq!(activate(&author, Some(&url), "").await.status, 303);
    assert_eq!(active().await, 1, "rolled back");
    assert_eq!(activate(&author, Some(&url), "version=x").await.status, 409);
    assert_eq!(activate(&author, Some(&url), "version=9").await.status, 404);
    assert_eq!(author.get("/ui/plugins/none").await.status, 404);
}

#[tokio::test]
async fn artifacts_are_shown_or_offered_with_headers_that_run_nothing() {
    let controller = Controller::start().await;
    let host =
        TestHost::of_component(example("example-calculator")).option("--journal", "journal").start().await;
    let browser = Browser::at(host.url());
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "calculator", "arguments": "{\"expression\":\"2 * 3\"}"}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    controller.answer_chats([Answer::Json(json!({"choices": [{"message": message}]}).to_string())]);
    host.run(&controller.rollout("What is 2 * 3?").id("first").label("6")).await;

    let page = browser.get("/ui/rollouts/first").await;
    let address = "/ui/rollouts/first/artifact?name=calculations.txt";
    page.assert_shows(&["Artifacts", address, "2 * 3 = 6"]);
    let artifact = browser.get(address).await;
    assert_eq!(artifact.status, 200);
    for (name, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-disposition", "inline; filename*=UTF-8''calculations%2Etxt"),
        ("content-security-policy", "default-src 'none'; sandbox; frame-ancestors 'none'"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(artifact.headers[name], value);
    }
    artifact.assert_shows(&["2 * 3 = 6"]);
    let none = browser.get("/ui/rollouts/first/artifact?name=..%2F%3Cb%3E").await;
    assert_eq!(none.status, 404);
    none.assert_shows(&["no artifact &#39;../&#60;b&#62;&#39;"]);
}

#[tokio::test]
async fn open_pages_learn_of_changes_and_are_limited_in_number() {
    let controller = Controller::start().await;
    let host = kept("conform").start().await;
    let browser = Browser::at(host.url());
    controller.hold();
    let admitted = host.admit(&controller.rollout("What is 1 + 2?").id("first").label("3")).await;
    controller.chats_arrived(1).await;
    let open = async |path: &str| {
        let stream = in_time("a stream", browser.request(reqwest::Method::GET, path).send()).await.unwrap();
        assert_eq!(stream.headers()[CONTENT_TYPE], "text/event-stream");
        stream
    };
    let mut stream = open("/ui/rollouts/first/events").await;
    let first = in_time("the first event", stream.chunk()).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("event: change"), "{first:?}");

    controller.release();
    let rest = in_time("the end of the stream", stream.text()).await.unwrap();
    assert!(rest.ends_with("event: over\ndata:\n\n"), "{rest}");
    host.result(&admitted).await;

    let mut streams = Vec::new();
    let refused = loop {
        let mut stream = open("/ui/events").await;
        let first = in_time("an event", stream.chunk()).await.unwrap().unwrap();
        let first = String::from_utf8_lossy(&first).into_owned();
        if first.contains("event: full") {
            break first;
        }
        streams.push(stream);
        assert!(streams.len() < 1000, "there is no limit");
    };
    assert!(refused.contains("too many pages are open"), "{refused}");
    assert_eq!(streams.len(), 32);
    // Open pages do not delay the end of the server.
    let ran = in_time("the end of the server", host.stop()).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn without_a_journal_a_finished_rollout_has_a_summary() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--journal", "off").start().await;
    let browser = Browser::at(host.url());
    host.run(&controller.rollout("What is 1 + 2?").id("first").label("4")).await;

    browser.get("/ui/").await.assert_shows(&["first", "no journal"]);
    browser
        .get("/ui/rollouts/first")
        .await
        .assert_shows(&["reward <strong>0", "the conversation is not kept"]);
}

#[tokio::test]
async fn failures_are_counted_by_cause_with_examples() {
    let controller = Controller::start().await;
    let host = kept("trap").start().await;
    let browser = Browser::at(host.url());
    for id in ["bad-1", "bad-2"] {
        host.run(&controller.rollout("misbehave").id(id)).await;
    }

    let home = browser.get("/ui/").await;
    home.assert_shows(&["outcome=workflow.trap.plugin", "/ui/rollouts/bad-2", "fault-plugin"]);
    browser.get("/ui/?outcome=workflow.trap.plugin").await.assert_shows(&["bad-1"]);
    browser
        .get("/ui/?outcome=grader.trap.plugin")
        .await
        .assert_shows(&["No finished rollout is listed for this choice"]);
    browser
        .get("/ui/rollouts/bad-1")
        .await
        .assert_shows(&["<strong>trap</strong>", "at fault: <strong>plugin</strong>"]);
}

#[tokio::test]
async fn forks_are_a_tree_with_rewards_on_the_page_of_each() {
    let controller = Controller::start().await;
    let host = kept("conform").start().await;
    let browser = Browser::at(host.url());
    let rollout = |id: &str, label: &str| controller.rollout("What is 1 + 2?").id(id).label(label);
    let of = |id: &str, turn: u32| json!({"rollout_id": id, "turn": turn});
    host.run(&rollout("root", "3")).await;
    let alone = browser.get("/ui/rollouts/root").await;
    alone.assert_lacks(&["<h2>Forks</h2>"]);
    alone.assert_shows(&["aria-label=\"guest: ", "aria-label=\"grader: "]);

    host.run(&rollout("fork-1", "3").with("fork_of", of("root", 0))).await;
    host.run(&rollout("fork-2", "4").with("fork_of", of("root", 1))).await;
    host.run(&rollout("fork-of-fork", "3").with("fork_of", of("fork-2", 1))).await;
    controller.hold();
    let held = host.admit(&rollout("fork-held", "3").with("fork_of", of("fork-1", 0))).await;
    controller.chats_arrived(3).await;

    for id in ["root", "fork-1", "fork-2", "fork-of-fork", "fork-held"] {
        let page = browser.get(&format!("/ui/rollouts/{id}")).await;
        let tree =
            page.text.split("<ul class=\"forks\"").nth(1).expect("a tree").split("</ul>").next().unwrap();
        let shown: Vec<&str> =
            tree.split("<bdi>").skip(1).map(|rest| rest.split("</bdi>").next().unwrap()).collect();
        assert_eq!(shown, ["root", "fork-1", "fork-held", "fork-2", "fork-of-fork"], "{tree}");
        let own = tree.split("class=\"chosen\"").nth(1).expect("its own line");
        assert!(own.split("</li>").next().unwrap().contains(&format!("<bdi>{id}</bdi>")), "{own}");
        for text in ["<strong>1</strong>", "<strong>0</strong>", "mean of forks 0.5", "turn 1", "running"] {
            assert!(tree.contains(text), "{text}: {tree}");
        }
    }
    controller.release();
    host.result(&held).await;
}

#[tokio::test]
async fn programs_read_the_data_of_pages_with_a_key() {
    let controller = Controller::start().await;
    let serve = kept("conform").variable("SERVER_KEY", "the-key").option("--server-key-env", "SERVER_KEY");
    let host = serve.start().await.with_key("the-key");
    let mut browser = Browser::at(host.url());
    host.run(&controller.rollout("What is 1 + 2?").id("first").label("3")).await;
    let with_key = async |path: &str, key: &str| {
        browser.send(browser.request(reqwest::Method::GET, path).header("authorization", key)).await
    };

    for key in ["Bearer wrong", "Basic OnRoZS1rZXk=", "the-key"] {
        let refused = with_key("/ui/data", key).await;
        assert_eq!(refused.status, 401, "{key}");
        refused.assert_shows(&["\"detail\""]);
    }
    assert_eq!(browser.get("/ui/data").await.status, 401);
    assert_eq!(with_key("/ui/", "Bearer the-key").await.status, 303, "a page needs a sign-in");
    let read = |page: &Page| serde_json::from_str::<serde_json::Value>(&page.text).unwrap();
    let home = with_key("/ui/data", "Bearer the-key").await;
    let data = read(&home);
    assert_eq!((&data["name"], &data["counts"]["scored"]), (&json!("conform"), &json!(1)), "{data:#}");
    assert_eq!(data["ended"]["items"][0]["id"], "first");
    assert_eq!(home.headers["cache-control"], "no-store");
    let rollout = read(&with_key("/ui/rollouts/first/data", "Bearer the-key").await);
    assert_eq!(rollout["reward"], 1.0);
    assert_eq!(rollout["turns"][0]["messages"][1]["text"]["shown"], "The sum is #### 3", "{rollout:#}");
    assert_eq!(with_key("/ui/rollouts/none/data", "Bearer the-key").await.status, 404);

    browser.sign_in("the-key").await;
    assert_eq!(browser.get("/ui/data").await.status, 200, "a browser that is signed in");
}
