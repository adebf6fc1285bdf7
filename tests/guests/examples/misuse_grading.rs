//! A grader that misbehaves. The label selects the case.

use rollout_test_guests::raw_grader::types::Metric;
use rollout_test_guests::raw_grader::{Failure, GradedSample, Guest, Verdict, observations};
use rollout_test_guests::{export_raw_grader, spin};

struct MisuseGrading;

impl Guest for MisuseGrading {
    fn grade(label: Option<String>, samples: Vec<GradedSample>) -> Result<Vec<Verdict>, Failure> {
        let verdict = || Verdict {
            sample_id: samples.first().map(|sample| sample.id.clone()).unwrap_or_default(),
            reward: Some(1.0),
            metrics: Vec::new(),
            withdraw: false,
        };
        let label = label.unwrap_or_default();
        if let Some(other) = label.strip_prefix("observe ") {
            let own = observations::exchanges(&verdict().sample_id).len();
            let theirs = observations::exchanges(other).len();
            return Err(Failure::Failed(format!("{} saw {own} and {theirs}", verdict().sample_id)));
        }
        match label.as_str() {
            "spin" => spin(),
            "exit" => std::process::exit(0),
            "panic" => panic!("this grader traps"),
            "many verdicts" => Ok((0..1_000_000).map(|_| verdict()).collect()),
            "large id" => Ok(vec![Verdict { sample_id: "x".repeat(2 << 20), ..verdict() }]),
            "large metric name" => {
                let metrics = vec![Metric { name: "x".repeat(2 << 20), value: 1.0 }];
                Ok(vec![Verdict { metrics, ..verdict() }])
            }
            "large failure" => Err(Failure::Failed("x".repeat(2 << 20))),
            _ => Ok(vec![verdict()]),
        }
    }
}

export_raw_grader!(MisuseGrading);
