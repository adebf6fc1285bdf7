//! Tests of `view`, which shows the results of evaluations in a browser, over HTTP.

use std::path::Path;

use rollout_tests::{Controller, Evaluation, Process, Start, in_time, rollout_host, sums};
use serde_json::json;

/// A running `view`.
struct Viewer {
    process: Process,
    url: String,
    http: reqwest::Client,
}

impl Viewer {
    async fn of(directories: &[&Path]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let process = rollout_host(["view"]).args(directories).start();
        let url = process.line("listening on ").await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { process, url, http }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = in_time("a page", self.http.get(format!("{}{path}", self.url)).send()).await.unwrap();
        let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'none'"), "{policy}");
        (response.status().as_u16(), response.text().await.unwrap())
    }

    #[track_caller]
    fn shows(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}

/// Returns an evaluation of five sums, of which the last has a wrong label, and a hostile prompt that the model gets wrong.
async fn evaluated(controller: &Controller) -> Evaluation {
    let mut rows = sums(5);
    rows.push(
        json!({"user_prompt": "Calculate 4 + 4. <script>alert(1)</script>\u{202e}", "ground_truth": "8"}),
    );
    let evaluation = Evaluation::of("conform", &rows).model(controller).options(["--n", "2"]);
    let ran = evaluation.run().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let advice = format!("in a browser  rollout-host view {}", evaluation.path("out").display());
    assert!(ran.stdout.contains(&advice), "{}", ran.stdout);
    evaluation
}

#[tokio::test]
async fn an_evaluation_shows_its_results_at_its_end() {
    let controller = Controller::start().await;
    let evaluation = Evaluation::of("conform", &sums(3)).model(&controller).options(["--view"]);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let process = evaluation.start();
    let url = process.line("listening on ").await;
    let home = in_time("a page", reqwest::Client::builder().no_proxy().build().unwrap().get(&url).send())
        .await
        .unwrap();
    let home = in_time("a page in full", home.text()).await.unwrap();
    Viewer::shows(&home, &["mean reward", "row-00002-run-0"]);
    let ran = in_time("the end", process.terminate()).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[tokio::test]
async fn an_evaluation_is_shown_with_its_conversations() {
    let controller = Controller::start().await;
    let evaluation = evaluated(&controller).await;
    let viewer = Viewer::of(&[&evaluation.path("out")]).await;

    let (status, home) = viewer.get("").await;
    assert_eq!(status, 200);
    Viewer::shows(
        &home,
        &["mean reward", "0.6667", "pass@k", "href=\"/rollouts/row-00000-run-0\"", "row-00005-run-1"],
    );
    assert!(!home.contains("<script>") && !home.contains('\u{202e}'), "hostile text is text");
    let rows = |text: &str| text.matches("href=\"/rollouts/").count();
    assert_eq!(rows(&home), 12);
    for (query, count) in [
        ("?outcome=passed", 8),
        ("?outcome=failed", 4),
        ("?outcome=unscored", 0),
        ("?text=4+%2B+4", 2),
        ("?from=0.5", 8),
        ("?to=0.5", 4),
        ("?page=9", 12),
    ] {
        assert_eq!(rows(&viewer.get(query).await.1), count, "{query}");
    }
    let (_, worst) = viewer.get("?sort=reward").await;
    let first = worst.split("href=\"/rollouts/").nth(1).unwrap();
    assert!(first.starts_with("row-00004-run-0"), "{first}");

    let (status, page) = viewer.get("rollouts/row-00001-run-1").await;
    assert_eq!(status, 200);
    Viewer::shows(
        &page,
        &["Calculate 2 + 3.", "The sum is #### 5", "reward <strong>1", "rollout-host replay --journal"],
    );
    let (_, text) = viewer.get("rollouts/row-00001-run-1/text?turn=1&message=0").await;
    Viewer::shows(&text, &["The sum is #### 5"]);
    for (path, reason) in [
        ("rollouts/none", "There is no rollout"),
        ("elsewhere", "There is no page at /elsewhere"),
        ("compare", "one evaluation only"),
    ] {
        let (status, text) = viewer.get(path).await;
        assert_eq!(status, 404, "{path}");
        Viewer::shows(&text, &[reason]);
    }
    let other_name = viewer.http.get(&viewer.url).header("host", "evil.example").send().await.unwrap();
    assert_eq!(other_name.status(), 403, "a web page of another name cannot read it");
    assert_eq!(viewer.process.terminate().await.code, Some(0));
}

#[tokio::test]
async fn without_a_journal_a_rollout_has_its_outcome() {
    let controller = Controller::start().await;
    let evaluation = evaluated(&controller).await;
    std::fs::remove_dir_all(evaluation.path("out/journal")).unwrap();
    let viewer = Viewer::of(&[&evaluation.path("out")]).await;

    let (status, page) = viewer.get("rollouts/row-00001-run-1").await;

    assert_eq!(status, 200);
    Viewer::shows(&page, &["Its reward is 1", "not in a journal"]);
}

#[tokio::test]
async fn two_evaluations_are_compared_row_by_row() {
    let controller = Controller::start().await;
    let (before, after) = (evaluated(&controller).await, evaluated(&controller).await);
    let path = after.path("out/results.jsonl");
    let changed = std::fs::read_to_string(&path).unwrap();
    let changed = changed.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["row"] == 4 {
            line["reward"] = 1.into();
        }
        format!("{line}\n")
    });
    let changed: String = changed.collect();
    std::fs::write(&path, changed).unwrap();
    let viewer = Viewer::of(&[&before.path("out"), &after.path("out")]).await;

    let (_, home) = viewer.get("").await;
    Viewer::shows(&home, &["href=\"/compare\""]);
    let (_, better) = viewer.get("compare?show=better").await;
    Viewer::shows(&better, &["href=\"/compare/4\"", "+1<"]);
    assert_eq!(better.matches("href=\"/compare/").count(), 1);
    let (_, sides) = viewer.get("compare/4").await;
    Viewer::shows(&sides, &["id=\"first-turn-1\"", "id=\"second-turn-1\"", "reward 0", "reward 1"]);
    assert_eq!(viewer.get("other/").await.0, 200);
    assert_eq!(viewer.get("other/assets/style.css").await.0, 200);
    assert_eq!(viewer.get("other/rollouts/row-00004-run-0").await.0, 200);
}

#[tokio::test]
async fn a_directory_without_an_evaluation_is_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let check = async |path: &Path, more: &[&str], says: &str| {
        let ran = rollout_host(["view"]).arg(path).args(more).start().ended().await;
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    };
    check(&dir.path().join("none"), &[], "there is no directory").await;
    check(dir.path(), &[], "has no manifest.json").await;
    check(dir.path(), &["--listen", "0.0.0.0:0"], "not an address of this machine only").await;
    std::fs::write(dir.path().join("manifest.json"), "{}").unwrap();
    check(dir.path(), &[], "cannot parse").await;
}

/// Writes an evaluation of this many rows into a directory: those of a small one, repeated.
fn repeat(from: &Path, to: &Path, rows: usize) {
    std::fs::create_dir(to).unwrap();
    std::fs::copy(from.join("manifest.json"), to.join("manifest.json")).unwrap();
    let lines = std::fs::read_to_string(from.join("results.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut text = String::new();
    for (row, line) in lines.iter().cycle().take(rows).enumerate() {
        let mut line = line.clone();
        (line["row"], line["run"]) = (row.into(), 0.into());
        line["rollout_id"] = format!("row-{row:05}-run-0").into();
        line["reward"] = (((row * 37) % 100) as f64 / 100.0).into();
        line["prompt"] =
            format!("{} {}", line["prompt"], "A longer prompt, as those of data sets are. ".repeat(20))
                .into();
        text.push_str(&format!("{line}\n"));
    }
    std::fs::write(to.join("results.jsonl"), text).unwrap();
}

#[tokio::test]
async fn ten_thousand_rows_are_a_page_of_limited_size() {
    let controller = Controller::start().await;
    let evaluation = evaluated(&controller).await;
    let measured = async |rows: usize| {
        let dir = evaluation.path(&format!("repeated-{rows}"));
        repeat(&evaluation.path("out"), &dir, rows);
        let viewer = Viewer::of(&[&dir]).await;
        let mut times = Vec::new();
        for path in ["", "", "?sort=reward", "?text=longer+prompt&from=0.5", "?text=nothing"] {
            let began = std::time::Instant::now();
            let (status, page) = viewer.get(path).await;
            times.push(began.elapsed());
            assert_eq!(status, 200);
            assert!(page.len() < 300_000, "{}", page.len());
        }
        let (_, page) = viewer.get("?sort=reward").await;
        let first = page.split("href=\"/rollouts/").nth(1).unwrap();
        assert!(first.starts_with("row-00000-run-0"), "{first}");
        let (_, page) = viewer.get("?page=1000000").await;
        let last = format!("row-{:05}-run-0", rows - 1);
        assert!(page.contains(&last), "{last}");
        let (status, _) = viewer.get(&format!("rollouts/{last}")).await;
        assert_eq!(status, 200);
        times
    };

    let (many, few) = (measured(10_000).await, measured(100).await);

    println!("view of 10,000 rows; baseline: 100 rows");
    for (name, (many, few)) in
        ["first page", "again", "sorted", "filtered", "nothing found"].iter().zip(many.iter().zip(&few))
    {
        let [many, few] = [many, few].map(|time| time.as_secs_f64() * 1e3);
        println!("{name:14} {many:8.2} ms   baseline {few:8.2} ms   ratio {:.1}", many / few);
    }
}
