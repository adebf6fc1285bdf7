use super::super::results::tests::{scored, unscored};
use super::super::stats::Summary;
use super::*;

#[test]
fn a_summary_is_rendered_in_sections() {
    let mut lines: Vec<_> =
        (0..28).map(|i| scored(i / 4, i % 4, if i % 3 == 0 { 1.0 } else { 0.25 })).collect();
    lines.push(unscored(7, 0, "deadline", "plugin"));
    lines.push(unscored(7, 1, "deadline", "plugin"));
    lines.push(unscored(7, 2, "model-unavailable", "model"));
    lines.push(unscored(7, 3, "deadline", "host"));
    lines[0].metrics.insert("turns".to_owned(), 3.5);
    lines[1].metrics.insert("tool_calls".to_owned(), 12.0);
    let table = render(&Summary::from_lines(&lines, 4, 1.0), WIDTH);
    assert_eq!(
        table,
        "\
32 rollouts: 8 rows, 4 runs each

  Reward    0.518 mean   ± 0.038 standard error over rows
            0.359 standard deviation
            0.250 min    0.250 median    1.000 max

  Pass@k    k = 1   35.7% ± 5.1    █████████░░░░░░░░░░░░░░░  of 7 rows
                   1 more row has no scored run
            k = 2   64.3% ± 6.7    ███████████████░░░░░░░░░  of 7 rows
                   1 more row has fewer than 2 scored runs
            k = 4  100.0% ± 0.0    ████████████████████████  of 7 rows
                   1 more row has fewer than 4 scored runs
            with the runs without a reward as failures:
            k = 1   31.2% ± 6.2    ████████░░░░░░░░░░░░░░░░  of 8 rows
            k = 2   56.2% ± 9.9    ██████████████░░░░░░░░░░  of 8 rows
            k = 4   87.5% ± 12.5   █████████████████████░░░  of 8 rows
            a pass is a reward of 1 or more

  Outcomes  scored    28   87.5%
            unscored   4   12.5%
              deadline            3  fault of plugin 2, host 1
                e.g. deadline on row 7
              model-unavailable   1  fault of the model
                e.g. model-unavailable on row 7

  Metrics   tool_calls  12.000 mean
            turns        3.500 mean

  Tokens    prompt      3,200  100 a rollout
            completion    320  10.0 a rollout
            chat calls     32  1.0 a rollout

  Time      p50 250 ms    p90 250 ms    p99 250 ms    of a rollout
"
    );
}

#[test]
fn a_table_without_scored_rollouts_has_no_reward() {
    let table = render(&Summary::from_lines(&[unscored(0, 0, "trapped", "plugin")], 4, 1.0), WIDTH);
    assert!(table.contains("Reward    no reward (nothing was scored)"), "{table}");
    assert!(!table.contains("Pass"), "{table}");
    assert!(!table.contains("NaN"), "{table}");
    assert_eq!(render(&Summary::from_lines(&[], 4, 1.0), WIDTH), "no rollouts\n");
}

#[test]
fn text_of_a_guest_has_no_line_breaks_and_no_control_characters() {
    let mut line = unscored(0, 0, &"k\n".repeat(200), &"\u{1b}[2J fault ".repeat(50));
    line.reason = Some("\u{1b}[31mred\n\nlines ".repeat(100));
    line.metrics.insert("m\t".repeat(100), 1e300);
    let mut lines = vec![line];
    lines.extend((1..40).map(|i| unscored(i, 0, &format!("kind-{i}"), "model")));
    for line in &mut lines {
        line.metrics.insert(format!("metric-{}", line.row), f64::MIN);
    }
    lines.push(scored(usize::MAX, 0, f64::MAX));
    lines[0].prompt_tokens = u64::MAX;
    let table = render(&Summary::from_lines(&lines, usize::MAX, -1e-300), WIDTH);
    for line in table.lines() {
        assert!(line.chars().count() <= WIDTH, "{line}");
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    assert!(table.contains("and 28 more kinds"), "{table}");
    assert!(table.contains("and 29 more metrics"), "{table}");
}

#[test]
fn numbers_are_short_and_do_not_mislead() {
    fn check(got: String, expected: &str) {
        assert_eq!(got.trim_start(), expected);
    }
    check(number(0.0), "0.000");
    check(number(-0.0), "0.000");
    check(number(-0.25), "-0.250");
    check(number(1234.5), "1234.500");
    check(number(1e-9), "1.00e-9");
    check(number(-2.5e12), "-2.50e12");
    check(plain(1.0), "1");
    check(plain(0.0), "0");
    check(plain(100.0), "100");
    check(plain(0.75), "0.75");
    check(plain(1e-9), "1.00e-9");
    check(percent(1.0), "100.0%");
    check(percent(0.9999), ">99.9%");
    check(percent(0.0001), "<0.1%");
    check(percent(0.0), "0.0%");
    check(percent(0.656), "65.6%");
    check(duration(0.25), "0.25 ms");
    check(duration(873.4), "873 ms");
    check(duration(999.9), "1.00 s");
    check(duration(59_996.0), "1 min 00 s");
    check(duration(3_725_000.0), "1 h 02 min");
    check(thousands(0), "0");
    check(thousands(999), "999");
    check(thousands(1_234_567), "1,234,567");
}

#[test]
fn a_stopped_run_shows_the_planned_rollouts() {
    let mut tally = super::super::stats::Tally::new(2, 0.5).with_rows_planned(100);
    tally.add(&scored(7, 0, 1.0));
    let mut summary = tally.summary();
    summary.wall_secs = Some(83.4);
    summary.chat_retries = 3;
    assert_eq!(
        render(&summary, WIDTH),
        "\
1 of 200 rollouts: 1 of 100 rows, of up to 2 runs each

  Reward    1.000 mean
            0.000 standard deviation
            1.000 min    1.000 median    1.000 max

  Pass@k    k = 1  100.0%          BAR  of 1 row
            k = 2       –  no row has 2 scored runs
            a pass is a reward of 0.5 or more

  Outcomes  scored    1  100.0%

  Tokens    prompt      100  100 a rollout
            completion   10  10.0 a rollout
            chat calls    1  1.0 a rollout
            retries       3  3.0 a rollout

  Time      p50 250 ms    p90 250 ms    p99 250 ms    of a rollout
            1 min 23 s in all
"
        .replace("BAR", &"█".repeat(BAR_CELLS))
    );
}

#[test]
fn a_long_reason_is_wrapped_and_shows_its_end() {
    fn check(reason: &str, width: usize, expected: &str) {
        let mut line = unscored(0, 0, "model", "model");
        line.reason = Some(reason.to_owned());
        let table = render(&Summary::from_lines(&[line], 1, 1.0), width);
        assert!(table.contains(expected), "{table}");
    }
    let long = format!("first words {}and the last words say why", "of very many more ".repeat(60));
    check(&long, 80, "e.g. first words of very many more");
    check(&long, 80, "… (");
    check(&long, 80, "and the last words\n                     say why\n");
    check("a word and another\u{1b}[2J\n\nline", 80, "                e.g. a word and another [2J line\n");
    let unbroken = "x".repeat(150);
    check(&unbroken, 80, &format!("e.g. {}\n                     {}\n", "x".repeat(59), "x".repeat(59)));
    // The width is clamped to the readable range.
    for width in [0, 40, 72, 100, 10_000] {
        let mut line = unscored(0, 0, "model", "model");
        line.reason = Some(long.clone());
        let table = render(&Summary::from_lines(&[line], 1, 1.0), width);
        assert!(table.lines().all(|line| line.chars().count() <= width.clamp(72, 120)), "{table}");
    }
}
