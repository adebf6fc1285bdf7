use std::collections::BTreeMap;

use serde_json::json;
use tempfile::TempDir;

use super::super::lines::SampleLine;
use super::super::manifest::tests::manifest;
use super::*;
use rollout_guest::imports::RefusedUses;

/// Returns a scored attempt with invented costs.
pub(in super::super) fn scored(row: usize, run: usize, reward: f64) -> ResultLine {
    ResultLine {
        row,
        run,
        rollout_id: format!("id-{row}-{run}"),
        reward: Some(reward),
        outcome: LineOutcome::Scored,
        stage: None,
        kind: None,
        fault: None,
        reason: None,
        prompt: None,
        label: None,
        answer: None,
        metrics: BTreeMap::new(),
        samples: Vec::new(),
        chat_calls: 1,
        chat_retries: 0,
        prompt_tokens: 100,
        completion_tokens: 10,
        guest_cpu_ms: 1.5,
        waited_ms: 0.0,
        model_ms: 0.0,
        limits_hit: BTreeMap::new(),
        refused_uses: RefusedUses::default(),
        samples_unanswered: 0,
        memory_bytes_peak: 65_536,
        host_calls: 7,
        duration_ms: 250.0,
        queued_ms: 0.0,
        trajectory: None,
    }
}

/// Returns an unscored attempt with invented costs.
pub(in super::super) fn unscored(row: usize, run: usize, kind: &str, fault: &str) -> ResultLine {
    ResultLine {
        reward: None,
        outcome: LineOutcome::Unscored,
        stage: Some("workflow".to_owned()),
        kind: Some(kind.to_owned()),
        fault: Some(fault.to_owned()),
        reason: Some(format!("{kind} on row {row}")),
        ..scored(row, run, 0.0)
    }
}

const RETRY: Resume = Resume { retry_unscored: true, fresh: false };
const FRESH: Resume = Resume { retry_unscored: false, fresh: true };

struct Run {
    parent: TempDir,
    manifest: Manifest,
}

impl Run {
    fn new() -> Self {
        Self { parent: tempfile::tempdir().unwrap(), manifest: manifest(json!({"n": 2, "model": "mock"})) }
    }

    fn dir(&self) -> PathBuf {
        self.parent.path().join("deep").join("out")
    }

    fn open(&self, resume: Resume) -> Result<Opened, ResultsError> {
        ResultsDir::open(&self.dir(), &self.manifest, resume)
    }

    fn resumed(&self) -> Opened {
        self.open(Resume::default()).unwrap()
    }

    fn error(&self, resume: Resume) -> String {
        self.open(resume).unwrap_err().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.dir()).unwrap();
        fs::write(self.dir().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap()
    }

    fn with_results(lines: &[ResultLine]) -> Self {
        let run = Self::new();
        let mut results = run.resumed().results;
        for line in lines {
            results.append(line).unwrap();
        }
        results.sync().unwrap();
        run
    }
}

#[test]
fn a_line_omits_unknown_fields_and_is_read_back_unchanged() {
    let mut line = scored(3, 1, 0.5);
    assert_eq!(
        serde_json::to_string(&line).unwrap(),
        r#"{"row":3,"run":1,"rollout_id":"id-3-1","reward":0.5,"outcome":"scored","metrics":{},"samples":[],"chat_calls":1,"chat_retries":0,"prompt_tokens":100,"completion_tokens":10,"guest_cpu_ms":1.5,"memory_bytes_peak":65536,"host_calls":7,"waited_ms":0.0,"model_ms":0.0,"duration_ms":250.0,"queued_ms":0.0}"#
    );
    line.samples.push(SampleLine {
        id: "main".to_owned(),
        reward: None,
        withdrawn: true,
        answer: Some("4".to_owned()),
        metrics: BTreeMap::from([("turns".to_owned(), 2.0)]),
    });
    line.trajectory = Some("trajectories/row_3_run_1.json".to_owned());
    for line in [line, unscored(0, 0, "deadline", "plugin")] {
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<ResultLine>(&text).unwrap(), line);
    }
}

#[test]
fn a_resumed_run_has_the_earlier_results() {
    let lines = [scored(0, 0, 1.0), unscored(0, 1, "deadline", "plugin")];
    let run = Run::with_results(&lines);
    let mut opened = run.resumed();
    assert_eq!(opened.finished, lines);
    assert_eq!((opened.dropped, opened.torn, &opened.moved_to), (0, false, &None));
    assert!(opened.results.is_finished(0, 1));
    assert!(!opened.results.is_finished(1, 0));

    opened.results.append(&scored(1, 0, 0.0)).unwrap();
    assert!(opened.results.is_finished(1, 0));
    drop(opened);
    assert_eq!(run.resumed().finished.len(), 3);
    assert!(run.resumed().results.dir().is_absolute());
}

#[test]
fn a_line_is_on_disk_as_soon_as_it_is_appended() {
    let run = Run::new();
    let mut results = run.resumed().results;
    results.append(&scored(0, 0, 1.0)).unwrap();
    assert!(run.read(RESULTS_FILE).ends_with("\"queued_ms\":0.0}\n"));
}

#[test]
fn a_partial_last_line_is_removed() {
    let lines = [scored(0, 0, 1.0), scored(0, 1, 0.5)];
    let whole = Run::with_results(&lines).read(RESULTS_FILE);
    let first_end = whole.find('\n').unwrap() + 1;
    for end in first_end + 1..whole.len() {
        let run = Run::with_results(&[]);
        run.write(RESULTS_FILE, &whole[..end]);
        let mut opened = run.resumed();
        assert!(opened.torn, "cut at {end}");
        assert_eq!(opened.finished, lines[..1]);
        assert_eq!(run.read(RESULTS_FILE), whole[..first_end]);
        opened.results.append(&lines[1]).unwrap();
        assert_eq!(run.read(RESULTS_FILE), whole);
    }
}

#[test]
fn a_malformed_line_is_reported_and_the_file_stays_unchanged() {
    fn check(bad: &str, expected: &str) {
        let good = serde_json::to_string(&scored(0, 0, 1.0)).unwrap();
        let run = Run::with_results(&[]);
        let text = format!("{good}\n{bad}\n{{\"torn");
        run.write(RESULTS_FILE, &text);
        for resume in [Resume::default(), RETRY] {
            let error = run.error(resume);
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("--fresh"), "{error}");
        }
        assert_eq!(run.read(RESULTS_FILE), text);
    }
    let line = |line: &ResultLine| serde_json::to_string(line).unwrap();
    let without_reward = line(&scored(1, 0, 0.5)).replace(r#""reward":0.5,"#, "");
    let with_reward = line(&unscored(1, 0, "k", "host")).replace("{\"row", "{\"reward\":0,\"row");
    check("", "line 2 of ");
    check("{\"row\":1", "is not a result (EOF");
    check("{\"row\":1}", "missing field `run`");
    check(&without_reward, "(it is scored without a reward)");
    check(&with_reward, "(it is unscored but has a reward)");
    check(&line(&scored(0, 0, 0.0)), "are both of row 0, run 0");
    check(&line(&unscored(0, 0, "k", "host")), "lines 1 and 2 of ");
}

#[test]
fn retrying_drops_unscored_lines_and_keeps_the_bytes_of_the_others() {
    let run = Run::with_results(&[]);
    let line = |line: &ResultLine| serde_json::to_string(line).unwrap();
    let odd = r#"{ "row":0, "run":0, "rollout_id":"x", "reward":0.10, "outcome":"scored", "duration_ms":1, "later":[] }"#;
    let failed = line(&unscored(0, 1, "deadline", "plugin"));
    let last = line(&scored(1, 0, 1.0));
    run.write(RESULTS_FILE, &format!("{odd}\n{failed}\n{last}\n{{\"ro"));
    fs::write(run.dir().join("results.jsonl.tmp"), "left by a kill").unwrap();

    let mut opened = run.open(RETRY).unwrap();
    assert_eq!((opened.dropped, opened.torn), (1, true));
    assert_eq!(opened.finished.len(), 2);
    assert!(!opened.results.is_finished(0, 1));
    assert_eq!(run.read(RESULTS_FILE), format!("{odd}\n{last}\n"));
    let again = scored(0, 1, 0.0);
    opened.results.append(&again).unwrap();
    assert_eq!(run.read(RESULTS_FILE), format!("{odd}\n{last}\n{}\n", line(&again)));
    assert!(!run.dir().join("results.jsonl.tmp").exists());
}

#[test]
fn a_run_with_another_plugin_data_set_or_setting_is_not_resumed_and_every_change_is_listed() {
    let lines = [scored(0, 0, 1.0)];
    let mut run = Run::with_results(&lines);
    run.manifest.plugin_file = "moved.wasm".to_owned();
    assert_eq!(run.resumed().finished, lines);

    run.manifest = manifest(json!({"n": 1, "model": "mock", "limit": 10}));
    run.manifest.data_digest = "ee".to_owned();
    let error = run.error(Resume::default());
    for expected in [
        "use another --out or --fresh\n",
        "\n  data_digest: was \"dd\", is now \"ee\"",
        "\n  settings.n: was 2, is now 1; it may only be raised",
        "\n  settings.limit: was (absent), is now 10",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(!error.contains("model"), "{error}");

    run.write(MANIFEST_FILE, "{\"format\": 0}");
    let error = run.error(Resume::default());
    assert!(error.contains("another version of this program may have written it"), "{error}");
}

#[test]
fn permitted_changes_are_stored_in_the_manifest() {
    let lines = [scored(0, 0, 1.0)];
    let mut run = Run::with_results(&lines);
    run.manifest = manifest(json!({"n": 4, "model": "mock"}));
    assert_eq!(run.resumed().finished, lines);
    assert!(run.read(MANIFEST_FILE).contains("\"n\": 4"));

    run.manifest = manifest(json!({"n": 2, "model": "mock"}));
    assert!(run.error(Resume::default()).contains("settings.n: was 4, is now 2; it may only be raised"));
}

#[test]
fn a_fresh_run_moves_the_old_directory_aside() {
    let lines = [scored(0, 0, 1.0)];
    let mut run = Run::with_results(&lines);
    run.manifest = manifest(json!({"n": 3}));
    let first = run.open(FRESH).unwrap();
    assert!(first.finished.is_empty());
    let moved = first.moved_to.unwrap();
    assert!(moved.ends_with("deep/out.old-1"), "{}", moved.display());
    let old = fs::read_to_string(moved.join(RESULTS_FILE)).unwrap();
    assert_eq!(old.lines().count(), 1);
    drop(first.results);

    let second = run.open(FRESH).unwrap();
    assert!(second.moved_to.unwrap().ends_with("deep/out.old-2"));
    assert!(Run::new().open(FRESH).unwrap().moved_to.is_none());
}

#[test]
fn a_directory_of_another_program_stays_unchanged() {
    let run = Run::new();
    run.write("thesis.tex", "…");
    for resume in [Resume::default(), FRESH, RETRY] {
        let error = run.error(resume);
        assert!(error.contains("is not the output of an evaluation"), "{error}");
    }
    assert_eq!(run.read("thesis.tex"), "…");
    assert_eq!(fs::read_dir(run.dir()).unwrap().count(), 1, "no file was added");

    let killed_at_once = Run::new();
    killed_at_once.write(LOCK_FILE, "1\n");
    killed_at_once.write("manifest.json.tmp", "{");
    assert!(killed_at_once.open(Resume::default()).is_ok());

    let file = Run::new();
    fs::create_dir_all(file.dir().parent().unwrap()).unwrap();
    fs::write(file.dir(), "").unwrap();
    let error = file.error(Resume::default());
    assert!(error.starts_with("cannot create directory "), "{error}");
}

#[test]
fn two_evaluations_cannot_write_to_one_directory() {
    let run = Run::new();
    let open = run.resumed();
    let expected = format!("another evaluation (process {}) is writing", std::process::id());
    for resume in [Resume::default(), FRESH, RETRY] {
        let error = run.error(resume);
        assert!(error.starts_with(&expected), "{error}");
    }
    drop(open);

    let fresh = run.open(FRESH).unwrap();
    // The old lock stays locked for a process that opened its file before the move.
    let moved = ResultsDir::open(&fresh.moved_to.unwrap(), &run.manifest, Resume::default());
    assert!(matches!(moved, Err(ResultsError::Locked { .. })));
    assert!(run.error(Resume::default()).starts_with(&expected));
    drop(fresh.results);
    assert!(run.open(Resume::default()).is_ok());
}

#[test]
fn a_result_that_cannot_be_read_back_is_refused() {
    fn check(change: fn(&mut ResultLine), expected: &str) {
        let run = Run::with_results(&[scored(0, 0, 1.0)]);
        let mut results = run.resumed().results;
        let before = run.read(RESULTS_FILE);
        let mut line = scored(7, 1, 1.0);
        line.samples.push(SampleLine {
            id: "main".to_owned(),
            reward: None,
            withdrawn: false,
            answer: None,
            metrics: BTreeMap::new(),
        });
        change(&mut line);
        let error = results.append(&line).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(run.read(RESULTS_FILE), before);
    }
    check(|line| line.reward = Some(f64::NAN), "row 7, run 1: reward is NaN");
    check(|line| line.reward = None, "scored without a reward");
    check(|line| line.outcome = LineOutcome::Unscored, "unscored but has a reward");
    check(|line| line.duration_ms = f64::INFINITY, "duration_ms is inf");
    check(|line| line.samples[0].reward = Some(f64::NAN), "sample reward is NaN");
    check(
        |line| {
            line.metrics.insert("m".to_owned(), f64::NAN);
        },
        "m is NaN",
    );
    check(
        |line| {
            let metrics = &mut line.samples[0].metrics;
            metrics.insert("s".to_owned(), f64::NEG_INFINITY);
        },
        "s is -inf",
    );
    check(|line| (line.row, line.run) = (0, 0), "it has a result already");
}

#[test]
fn the_partial_line_of_a_failed_write_is_removed_before_the_next_line() {
    let run = Run::with_results(&[scored(0, 0, 1.0)]);
    let mut results = run.resumed().results;
    let before = run.read(RESULTS_FILE);
    run.write(RESULTS_FILE, &format!("{before}{{\"row\":1,\"ru"));
    results.append(&scored(1, 0, 0.0)).unwrap();
    drop(results);
    assert_eq!(run.resumed().finished.len(), 2);
}

#[test]
fn the_summary_is_replaced_atomically() {
    let run = Run::new();
    let results = run.resumed().results;
    for lines in [vec![scored(0, 0, 1.0)], vec![scored(0, 0, 1.0), scored(0, 1, 0.0)]] {
        let summary = Summary::from_lines(&lines, 2, 1.0);
        results.write_summary(&summary).unwrap();
        let read: Summary = serde_json::from_str(&run.read(SUMMARY_FILE)).unwrap();
        assert_eq!(read, summary);
    }
    assert!(!run.dir().join("summary.json.tmp").exists());
}
