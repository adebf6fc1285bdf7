//! Returns verdicts that the host must reject. The label selects one.

use rollout_test_guests::export_raw_grader;
use rollout_test_guests::raw_grader::{Failure, GradedSample, Guest, Verdict, types::Metric};

struct WrongVerdicts;

impl Guest for WrongVerdicts {
    fn grade(label: Option<String>, samples: Vec<GradedSample>) -> Result<Vec<Verdict>, Failure> {
        let Some(sample) = samples.first() else {
            return Err(Failure::Failed("there is no sample".to_owned()));
        };
        let verdict = |reward| Verdict {
            sample_id: sample.id.clone(),
            reward: Some(reward),
            metrics: Vec::new(),
            withdraw: false,
        };
        Ok(match label.as_deref() {
            Some("nan") => vec![verdict(f64::NAN)],
            Some("infinity") => vec![verdict(f64::INFINITY)],
            Some("minus infinity") => vec![verdict(f64::NEG_INFINITY)],
            Some("unknown sample") => vec![Verdict { sample_id: "nobody".to_owned(), ..verdict(1.0) }],
            Some("two verdicts") => vec![verdict(1.0), verdict(0.0)],
            Some("nan metric") => {
                let metric = Metric { name: "height".to_owned(), value: f64::NAN };
                vec![Verdict { metrics: vec![metric], ..verdict(1.0) }]
            }
            Some("no verdict") => Vec::new(),
            _ => vec![verdict(1.0)],
        })
    }
}

export_raw_grader!(WrongVerdicts);
