//! A grader that opens a sample to call the model, which is for workflows only.

use rollout_test_guests::raw_grader::{Failure, GradedSample, Guest, Verdict, samples::Sample};
use rollout_test_guests::{MISBEHAVE, export_raw_grader};

struct GradeWithChat;

impl Guest for GradeWithChat {
    fn grade(label: Option<String>, samples: Vec<GradedSample>) -> Result<Vec<Verdict>, Failure> {
        if label.as_deref() == Some(MISBEHAVE) {
            let opened = Sample::open(Some("judge")).is_ok();
            return Err(Failure::Failed(format!("it was answered: {opened}")));
        }
        let rated = |sample: GradedSample| Verdict {
            sample_id: sample.id,
            reward: Some(1.0),
            metrics: Vec::new(),
            withdraw: false,
        };
        Ok(samples.into_iter().map(rated).collect())
    }
}

export_raw_grader!(GradeWithChat);
