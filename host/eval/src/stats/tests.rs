use super::super::results::tests::{scored, unscored};
use super::*;

#[test]
fn pass_at_k_is_reported_for_powers_of_two_and_n() {
    fn check(n: usize, expected: &[usize]) {
        assert_eq!(ks(n), expected, "n = {n}");
    }
    check(0, &[]);
    check(1, &[1]);
    check(2, &[1, 2]);
    check(3, &[1, 2, 3]);
    check(4, &[1, 2, 4]);
    check(10, &[1, 2, 4, 8, 10]);
}

#[test]
fn pass_at_k_is_the_unbiased_estimate() {
    fn check((attempts, passed, k): (usize, usize, usize), expected: Option<f64>) {
        let got = pass_at_k(attempts, passed, k);
        let close = match (got, expected) {
            (Some(got), Some(expected)) => (got - expected).abs() < 1e-12,
            (got, expected) => got == expected,
        };
        assert!(close, "{attempts}, {passed}, {k}: {got:?}");
    }
    check((1, 0, 1), Some(0.0));
    check((1, 1, 1), Some(1.0));
    check((4, 1, 1), Some(0.25));
    check((4, 1, 2), Some(0.5));
    check((4, 2, 2), Some(1.0 - 1.0 / 6.0));
    check((4, 1, 4), Some(1.0));
    check((4, 0, 4), Some(0.0));
    check((10, 3, 4), Some(1.0 - 35.0 / 210.0));
    check((5, 3, 4), Some(1.0));
    check((3, 1, 4), None);
    check((0, 0, 1), None);
    check((3, 1, 0), None);
    // C(10_000, 5_000) overflows an f64; the estimate does not.
    check((10_000, 1, 5_000), Some(0.5));
    check((10_000, 9_999, 1), Some(0.9999));
}

#[test]
fn percentiles_are_values_by_nearest_rank() {
    fn check(values: &[f64], percent: usize, expected: Option<f64>) {
        assert_eq!(percentile(values, percent), expected, "{percent} of {values:?}");
    }
    let ten: Vec<f64> = (1..=10).map(f64::from).collect();
    let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
    check(&[], 50, None);
    check(&[7.0], 99, Some(7.0));
    check(&[1.0, 2.0], 50, Some(1.0));
    check(&[1.0, 2.0], 51, Some(2.0));
    check(&ten, 0, Some(1.0));
    check(&ten, 50, Some(5.0));
    check(&ten, 90, Some(9.0));
    check(&ten, 99, Some(10.0));
    check(&hundred, 99, Some(99.0));
    check(&hundred, 100, Some(100.0));
}

#[test]
fn rewards_have_a_mean_and_a_population_standard_deviation() {
    fn check(rewards: &[f64], expected: Option<[f64; 5]>) {
        let by_row: Vec<Vec<f64>> = rewards.iter().map(|reward| vec![*reward]).collect();
        let got = reward_stats(&by_row).map(|r| [r.mean, r.std, r.min, r.median, r.max]);
        assert_eq!(got, expected, "{rewards:?}");
    }
    check(&[], None);
    check(&[0.5], Some([0.5, 0.0, 0.5, 0.5, 0.5]));
    check(&[1.0, 0.0, 0.0, 1.0], Some([0.5, 0.5, 0.0, 0.5, 1.0]));
    check(&[9.0, 2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0], Some([5.0, 2.0, 2.0, 4.5, 9.0]));
    check(&[-1.0, 3.0, 4.0], Some([2.0, (14.0_f64 / 3.0).sqrt(), -1.0, 3.0, 4.0]));
    check(&[1.7e308, 1.7e308], Some([1.7e308, 0.0, 1.7e308, 1.7e308, 1.7e308]));
    check(&[f64::MIN, f64::MAX], Some([0.0, f64::MAX, f64::MIN, 0.0, f64::MAX]));
}

#[test]
fn unscored_attempts_are_counted_and_excluded_from_pass_at_k() {
    let mut lines = vec![
        scored(0, 0, 1.0),
        scored(0, 1, 0.0),
        scored(1, 0, 0.25),
        unscored(1, 1, "deadline", "plugin"),
        unscored(2, 0, "model-refused", "model"),
        unscored(2, 1, "deadline", "host"),
    ];
    lines[0].metrics.insert("turns".to_owned(), 2.0);
    lines[5].metrics.insert("turns".to_owned(), 4.0);
    lines[4].kind = None;
    let summary = Summary::from_lines(&lines, 2, 1.0);

    assert_eq!((summary.rows, summary.n, summary.rollouts), (3, 2, 6));
    assert_eq!((summary.scored, summary.passed, summary.unscored), (3, 1, 3));
    let deadline = &summary.unscored_by_kind["deadline"];
    assert_eq!(deadline.rollouts, 2);
    assert_eq!(deadline.faults["plugin"], 1);
    assert_eq!(deadline.faults["host"], 1);
    assert_eq!(summary.unscored_by_kind[KIND_UNKNOWN].rollouts, 1);
    // k = 1: rows 0 and 1 have a scored attempt; k = 2: row 0 alone has two.
    let as_failed = |estimate, error| Some(Estimate { estimate, standard_error: Some(error), rows: 3 });
    assert_eq!(
        summary.pass_at_k[&1],
        PassAtK {
            estimate: Some(0.25),
            standard_error: Some(0.25),
            rows: 2,
            rows_left_out: 1,
            unscored_as_failed: as_failed(1.0 / 6.0, 1.0 / 6.0),
        }
    );
    assert_eq!(
        summary.pass_at_k[&2],
        PassAtK {
            estimate: Some(1.0),
            standard_error: None,
            rows: 1,
            rows_left_out: 2,
            unscored_as_failed: as_failed(1.0 / 3.0, 1.0 / 3.0),
        }
    );
    assert_eq!(summary.reward.unwrap().max, 1.0);
    assert_eq!(summary.metrics["turns"], 3.0);
    assert_eq!(summary.chat_calls, 6);
    assert_eq!(summary.prompt_tokens, 600);
    assert_eq!(summary.completion_tokens, 60);
    assert_eq!(summary.latency_ms.unwrap().p50, 250.0);
}

#[test]
fn a_tally_does_not_depend_on_the_order_of_results() {
    let lines: Vec<_> = (0..8).map(|i| scored(i / 2, i % 2, (i % 3) as f64)).collect();
    let mut tally = Tally::new(2, 1.0);
    assert_eq!(tally.reward_mean(), None);
    for line in lines.iter().rev() {
        tally.add(line);
    }
    assert!((tally.reward_mean().unwrap() - 7.0 / 8.0).abs() < 1e-12);
    assert_eq!(tally.summary(), Summary::from_lines(&lines, 2, 1.0));
}

#[test]
fn figures_of_extreme_rewards_are_finite() {
    let mut lines: Vec<_> =
        (0..4).map(|i| scored(i / 2, i % 2, if i == 0 { f64::MIN } else { 1.7e308 })).collect();
    for line in &mut lines {
        line.metrics.insert("m".to_owned(), 1.7e308);
    }
    let summary = Summary::from_lines(&lines, 2, 1.0);
    let json = serde_json::to_string(&summary).unwrap();
    assert!(!json.contains("null"), "{json}");
    assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);
    assert_eq!(summary.metrics["m"], 1.7e308);
}

#[test]
fn the_standard_error_is_clustered_by_row() {
    let summary = |n: usize| {
        let lines: Vec<_> = (0..4 * n).map(|i| scored(i / n, i % n, (i / n % 2) as f64)).collect();
        Summary::from_lines(&lines, n, 1.0).reward.unwrap()
    };
    let once = summary(1);
    assert_eq!((once.mean, once.standard_error), (0.5, Some((1.0_f64 / 12.0).sqrt())));
    assert!((summary(8).standard_error.unwrap() - once.standard_error.unwrap()).abs() < 1e-12);
}

#[test]
fn rows_that_were_not_run_count_only_as_planned() {
    let mut tally = Tally::new(2, 1.0).with_rows_planned(10);
    tally.add(&scored(0, 0, 1.0));
    tally.add(&scored(3, 0, 0.0));
    let summary = tally.summary();
    assert_eq!((summary.rows, summary.rows_planned), (2, 10));
    assert_eq!((summary.rollouts, summary.rollouts_planned), (2, 20));
    assert_eq!((summary.pass_at_k[&1].rows, summary.pass_at_k[&1].rows_left_out), (2, 0));
    assert_eq!((summary.pass_at_k[&2].rows, summary.pass_at_k[&2].rows_left_out), (0, 2));
}

#[test]
fn without_a_score_there_is_no_reward_and_no_pass_at_k() {
    let summary = Summary::from_lines(&[unscored(0, 0, "deadline", "plugin")], 4, 1.0);
    assert_eq!(summary.reward, None);
    assert!(summary.pass_at_k.values().all(|pass| (pass.estimate, pass.rows) == (None, 0)));
    let json = serde_json::to_string(&summary).unwrap();
    assert!(!json.contains("\"reward\""), "{json}");
    assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);

    let empty = Summary::from_lines(&[], 1, 1.0);
    assert_eq!((empty.rollouts, empty.latency_ms), (0, None));
}
