//! Tests of the pages in a real browser: sign-in, live updates, hostile text, narrow windows, the keyboard and colours.
//!
//! With `ROLLOUT_SCREENSHOTS=DIR` each test writes pictures of its pages, see `scripts/screenshots`.

use std::path::PathBuf;

use rollout_tests::{
    Answer, BrowserDriver, Controller, Evaluation, ServeCatalog, Start, TestHost, example, guest,
    rollout_host, sums, until,
};
use serde_json::json;
use thirtyfour::common::capabilities::chromium::ChromiumLikeCapabilities;
use thirtyfour::prelude::*;

const WIDE: [u32; 2] = [1280, 900];
const NARROW: [u32; 2] = [500, 900];

/// A browser with one window.
struct Window {
    driver: WebDriver,
    owner: BrowserDriver,
}

impl Window {
    async fn open(size: [u32; 2], is_dark: bool) -> Self {
        let owner = BrowserDriver::start().await;
        let mut capabilities = DesiredCapabilities::chrome();
        capabilities.set_binary(owner.browser().to_str().unwrap()).unwrap();
        for argument in owner.arguments(size, is_dark) {
            capabilities.add_arg(&argument).unwrap();
        }
        let driver = WebDriver::new(owner.url(), capabilities).await;
        let driver = driver.unwrap_or_else(|error| panic!("{error}\n{}", owner.log()));
        Self { driver, owner }
    }

    async fn goto(&self, url: &str) {
        self.driver.goto(url).await.unwrap();
    }

    /// Returns the value of an expression.
    async fn value(&self, expression: &str) -> serde_json::Value {
        let script = format!("return {expression};");
        self.driver.execute(script, Vec::new()).await.unwrap().json().clone()
    }

    /// Waits until an expression is true.
    async fn holds(&self, expression: &str) {
        until(expression, async || (self.value(expression).await == true).then_some(())).await;
    }

    async fn text(&self) -> String {
        self.value("document.body.innerText").await.as_str().unwrap().to_owned()
    }

    async fn click(&self, selector: &str) {
        self.driver.find(By::Css(selector)).await.unwrap().click().await.unwrap();
    }

    /// Checks that nothing is wider than the window, and that the browser reported no error.
    async fn check_layout(&self) {
        let wide = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > \
                    document.documentElement.clientWidth + 1 && !e.closest('.table') && !e.closest('svg') && \
                    !e.closest('summary') && !e.closest('.hidden')).map(e => e.outerHTML.slice(0, 200))";
        assert_eq!(self.value(wide).await, json!([]), "wider than the window");
        let scrolls = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
        assert_eq!(self.value(scrolls).await, true, "the page scrolls sideways");
    }

    /// Checks that axe-core finds no serious fault of accessibility.
    async fn check_accessibility(&self) {
        self.driver.execute(self.owner.axe(), Vec::new()).await.unwrap();
        let run = "const done = arguments[arguments.length - 1]; axe.run().then(found => done(found.violations \
                   .filter(one => ['serious', 'critical'].includes(one.impact)) \
                   .map(one => [one.id, one.nodes.map(node => node.html + ' ' + node.failureSummary)])), \
                   error => done(String(error)));";
        let found = self.driver.execute_async(run, Vec::new()).await.unwrap();
        assert_eq!(*found.json(), json!([]), "{:#}", found.json());
    }

    /// Writes a picture, if pictures are requested.
    async fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("ROLLOUT_SCREENSHOTS") else { return };
        let path = PathBuf::from(folder).join(format!("{name}.png"));
        std::fs::write(path, self.driver.screenshot_as_png().await.unwrap()).unwrap();
    }

    async fn close(self) {
        self.driver.quit().await.unwrap();
    }
}

fn calculator_reply(expression: &str) -> Answer {
    let arguments = json!({"expression": expression}).to_string();
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": arguments}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let usage = json!({"prompt_tokens": 41, "completion_tokens": 12});
    let token = |(token, logprob): (&str, f64)| json!({"token": token, "logprob": logprob});
    let tokens = [("calculator", -0.01), ("(", -0.2), (expression, -1.7), (")", -3.2)].map(token);
    let choice = json!({"message": message, "finish_reason": "tool_calls", "logprobs": {"content": tokens}});
    Answer::Json(json!({"choices": [choice], "usage": usage}).to_string())
}

#[tokio::test]
async fn a_person_signs_in_and_watches_a_rollout() {
    let controller = Controller::start().await;
    let serve = TestHost::of_component(example("example-calculator")).option("--journal", "journal");
    let host = serve.variable("SERVER_KEY", "the-key").option("--server-key-env", "SERVER_KEY").start().await;
    let host = host.with_key("the-key");
    let window = Window::open(WIDE, false).await;
    window.goto(&format!("{}/ui/", host.url())).await;
    assert!(window.text().await.contains("This server needs a key"));
    window.check_accessibility().await;
    window.picture("sign-in").await;
    let field = window.driver.find(By::Id("key")).await.unwrap();
    field.send_keys("wrong" + Key::Enter).await.unwrap();
    window.holds("document.body.innerText.includes('not valid')").await;
    // The field has the keyboard, so that a person types the key and presses Enter.
    window.holds("document.activeElement.id === 'key'").await;
    window.driver.active_element().await.unwrap().send_keys("the-key" + Key::Enter).await.unwrap();
    window.holds("document.body.innerText.includes('No rollout runs')").await;
    assert_eq!(window.value("document.cookie").await, "", "no script reads the cookie");
    window.holds("document.getElementById('live').textContent === 'live'").await;

    controller.hold_after(1);
    controller.answer_chats([calculator_reply("12 * 7")]);
    let admitted = host.admit(&controller.rollout("What is 12 * 7?").id("watched").label("84")).await;
    window.holds("document.getElementById('running').innerText.includes('watched')").await;
    window.check_accessibility().await;
    window.picture("host").await;
    window.click("#running a").await;
    window.holds("document.body.innerText.includes('waiting for the model')").await;
    window.holds("document.querySelectorAll('.turn').length === 2").await;
    window.click("#turn-1 details summary").await;
    assert!(window.text().await.contains("\"expression\": \"12 * 7\""));
    window.click("#turn-1 .logprobs summary").await;
    assert_eq!(window.value("document.querySelector('#turn-1 .logprobs .p3').innerText").await, "12 * 7");
    window.picture("rollout-running").await;
    controller.release();
    host.result(&admitted).await;
    window.holds("document.getElementById('head').innerText.includes('reward')").await;
    window.holds("document.getElementById('live').textContent === 'ended'").await;
    assert_eq!(window.value("document.querySelector('#turn-1 details').open").await, true, "it stays open");
    window.holds("!document.body.innerText.includes('waiting for the model')").await;
    window.check_layout().await;
    window.check_accessibility().await;
    window.picture("rollout").await;
    window.goto(&format!("{}/ui/rollouts/watched#turn-2", host.url())).await;
    assert_eq!(window.value("document.querySelector(':target').id").await, "turn-2");

    window.click(".state button").await;
    window.holds("location.pathname === '/ui/sign-in'").await;
    window.goto(&format!("{}/ui/rollouts/watched", host.url())).await;
    assert!(window.text().await.contains("This server needs a key"));
    window.close().await;
}

#[tokio::test]
async fn hostile_text_does_nothing() {
    let controller = Controller::start().await;
    let host = TestHost::of("noisy").option("--journal", "journal").start().await;
    let attack = "</pre></script><script>window.hit=1</script><img src=x onerror='window.hit=2'><a href='javascript:window.hit=3'>x</a>\u{202e}\u{2066}";
    let message = json!({"role": "assistant", "content": format!("{attack}{}", "y".repeat(10 << 20)), "reasoning_content": attack, "tool_calls": [
        {"id": attack, "type": "function", "function": {"name": attack, "arguments": attack}}]});
    controller.answer_chats([Answer::Json(
        json!({"choices": [{"message": message, "finish_reason": attack}]}).to_string(),
    )]);
    let id = "<img src=x onerror='window.hit=4'>\u{202e}";
    host.run(&controller.rollout(&format!("print {attack}")).id(id)).await;
    let window = Window::open(WIDE, false).await;

    window.goto(&format!("{}/ui/", host.url())).await;
    window.holds("document.getElementById('finished-rows').innerText.includes('onerror')").await;
    window.click("#finished-rows td.id a").await;
    window.holds("document.body.innerText.includes('the whole text')").await;
    window.check_layout().await;
    for page in ["document.title", "1"] {
        assert_ne!(window.value(page).await, json!(null));
    }
    assert_eq!(window.value("typeof window.hit").await, "undefined");
    assert_eq!(
        window
            .value("document.querySelectorAll('main img, main script, main a[href^=javascript]').length")
            .await,
        0
    );
    let turned = "/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.documentElement.outerHTML)";
    assert_eq!(window.value(turned).await, false, "characters that turn the text are escapes");
    assert_eq!(window.value("document.documentElement.outerHTML.length < 3000000").await, true);
    // An inline script that a page might contain would not run.
    let inline = "(() => { const s = document.createElement('script'); s.textContent = 'window.hit = 5'; \
                  document.body.append(s); return typeof window.hit; })()";
    assert_eq!(window.value(inline).await, "undefined");
    window.close().await;
}

#[tokio::test]
async fn a_million_log_lines_are_read_page_by_page() {
    let controller = Controller::start().await;
    let serve = TestHost::of("noisy").option("--journal", "journal");
    let serve = serve.option("--limit-log-lines-max", 1_000_000).option("--limit-log-bytes-max", 256 << 20);
    let host = serve.start().await;
    host.run(&controller.rollout("print 1000000 lines").id("long")).await;
    let window = Window::open(WIDE, false).await;

    window.goto(&format!("{}/ui/rollouts/long", host.url())).await;
    window.holds("document.querySelector('#log .count').innerText === '1000000'").await;
    window.holds("document.querySelectorAll('#log li').length === 200").await;
    assert_eq!(window.value("document.documentElement.outerHTML.length < 300000").await, true);
    assert_eq!(window.value("document.querySelectorAll('*').length < 3000").await, true);
    window.check_layout().await;
    window.click("#log a[rel=next]").await;
    window.holds("document.querySelector('#log ol')?.start === 201").await;
    assert!(window.text().await.contains("line 200 <script>window.hit=1</script>"));
    window.goto(&format!("{}/ui/rollouts/long?log=5000#log", host.url())).await;
    window.holds("document.querySelector('#log ol')?.start === 999801").await;
    assert!(window.text().await.contains("line 999999 "));
    assert_eq!(window.value("typeof window.hit").await, "undefined");
    window.close().await;
}

#[tokio::test]
async fn forks_are_reached_by_their_tree() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--journal", "journal").start().await;
    let rollout = |id: &str, label: &str| controller.rollout("What is 1 + 2?").id(id).label(label);
    host.run(&rollout("root", "3")).await;
    for number in 0..4 {
        let of = json!({"rollout_id": if number == 3 { "fork-1" } else { "root" }, "turn": number % 2});
        let label = if number == 1 { "4" } else { "3" };
        host.run(&rollout(&format!("fork-{number}"), label).with("fork_of", of)).await;
    }
    let window = Window::open(WIDE, false).await;
    window.goto(&format!("{}/ui/rollouts/root", host.url())).await;
    window.holds("document.querySelectorAll('#forks li').length === 5").await;
    window.check_layout().await;
    window.check_accessibility().await;
    window.picture("rollout-forks").await;
    window.click("#forks li:nth-child(4) a").await;
    window
        .holds(
            "document.querySelector('#forks .chosen a').innerText === document.querySelector('h1').innerText",
        )
        .await;
    assert!(window.text().await.contains("a fork of"));
    window.close().await;
}

#[tokio::test]
async fn a_narrow_dark_window_shows_everything() {
    let controller = Controller::start().await;
    let host =
        TestHost::of_component(example("example-calculator")).option("--journal", "journal").start().await;
    controller.answer_chats([calculator_reply("2 + 3")]);
    let long = format!("a-{}", "long-id-".repeat(20));
    host.run(&controller.rollout(&format!("What is 2 + 3? {}", "word".repeat(200))).id(&long).label("5"))
        .await;
    let window = Window::open(NARROW, true).await;
    window.goto(&format!("{}/ui/", host.url())).await;
    window.check_layout().await;
    let ground = window.value("getComputedStyle(document.body).backgroundColor").await;
    assert_eq!(ground, "rgb(18, 22, 29)", "the dark colours");
    window.check_accessibility().await;
    window.picture("host-narrow-dark").await;
    window.goto(&format!("{}/ui/rollouts/{long}", host.url())).await;
    window.check_layout().await;
    window.check_accessibility().await;
    window.picture("rollout-narrow-dark").await;
    // The keyboard alone reaches a call of a tool and opens it.
    window.value("document.querySelector('details summary').focus()").await;
    window.driver.active_element().await.unwrap().send_keys(Key::Enter).await.unwrap();
    window.holds("document.querySelector('details').open").await;
    window.close().await;
}

#[tokio::test]
async fn an_author_activates_a_version_by_a_click() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default().start().await;
    let tenant = catalog.tenant("lab", json!({"running": 4, "model-tokens-per-day": 1_000_000})).await;
    catalog.serve(&tenant, "sums", "conform", "").await;
    for (component, passed) in [("conform", true), ("wrong_settings", false)] {
        let pushed = catalog.push(&tenant, "sums", &guest(component), "", false).await;
        assert_eq!(pushed.body["passed"], passed, "{}", pushed.text);
    }
    let host = catalog.plugin(&tenant, "sums");
    for number in 0..8 {
        let rollout = controller.rollout(&format!("What is {number} + 2?"));
        let prompt_fails = number % 4 == 3;
        let rollout = if prompt_fails { controller.rollout("please trap") } else { rollout };
        host.run(&rollout.id(&format!("sum-{number}")).label("3")).await;
    }
    let window = Window::open(WIDE, false).await;
    window.goto(&format!("{}/ui/plugins/sums", catalog.url())).await;
    let field = window.driver.find(By::Id("key")).await.unwrap();
    field.send_keys(tenant.author.clone() + Key::Enter).await.unwrap();
    window.holds("location.pathname === '/ui/plugins/sums'").await;
    window.check_accessibility().await;
    window.picture("plugin").await;
    window.check_layout().await;
    window.click("#version-2 button").await;
    window.holds("document.querySelector('#version-2 h2').innerText.includes('active')").await;
    window.click(".head button").await;
    window.holds("document.querySelector('#version-1 h2').innerText.includes('active')").await;
    window.goto(&format!("{}/ui/", catalog.url())).await;
    window.check_layout().await;
    assert_eq!(window.value("document.querySelectorAll('#load svg').length").await, 3);
    window.check_accessibility().await;
    window.picture("host-tenant").await;
    window.click("#failures td.id a").await;
    window.holds("document.body.innerText.includes('at fault: plugin')").await;
    window.close().await;
}

#[tokio::test]
async fn two_evaluations_are_sorted_filtered_and_compared() {
    let controller = Controller::start().await;
    let evaluations = [sums(12), sums(12)].map(|rows| Evaluation::of("conform", &rows).model(&controller));
    for (at, evaluation) in evaluations.iter().enumerate() {
        let ran = evaluation.run().await;
        assert!(ran.stdout.contains("rollout-host view "), "{}{}", ran.stdout, ran.stderr);
        std::fs::rename(evaluation.path("out"), evaluation.path(["before", "after"][at])).unwrap();
    }
    let view =
        rollout_host(["view"]).arg(evaluations[0].path("before")).arg(evaluations[1].path("after")).start();
    let url = view.line("listening on ").await;
    let window = Window::open(WIDE, false).await;

    window.goto(&url).await;
    assert_eq!(window.value("document.querySelectorAll('#rows tbody tr').length").await, 12);
    window.check_layout().await;
    window.check_accessibility().await;
    window.picture("evaluation").await;
    window.click("th:nth-child(2) a").await;
    assert_eq!(
        window.value("document.querySelector('#rows tbody strong').innerText").await,
        "0",
        "the worst first"
    );
    window
        .driver
        .find(By::Css("input[name=text]"))
        .await
        .unwrap()
        .send_keys("Calculate 7 +" + Key::Enter)
        .await
        .unwrap();
    window.holds("document.querySelectorAll('#rows tbody tr').length === 1").await;
    window.click("#rows tbody a").await;
    window.holds("document.body.innerText.includes('The sum is #### 10')").await;
    assert!(window.text().await.contains("rollout-host replay --journal"));
    window.goto(&format!("{url}compare")).await;
    assert!(window.text().await.contains("same rows"));
    window.check_accessibility().await;
    window.picture("comparison").await;
    window.click("tbody a").await;
    window.holds("document.querySelectorAll('.sides .turn').length === 2").await;
    window.check_layout().await;
    window.check_accessibility().await;
    window.picture("side-by-side").await;
    window.goto(&format!("{url}rollouts/none")).await;
    assert!(window.text().await.contains("There is no rollout 'none'"));
    window.close().await;
}
