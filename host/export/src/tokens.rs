//! The conversation as one sequence of tokens, if the turns align.
//!
//! The prompt of each turn must begin with the prompt and completion of the previous turn. The tokens that a prompt
//! adds come from other parties, such as tools; the completion comes from the model. If a server tokenizes its own text
//! differently in a later prompt, there is no sequence, and the row has the reason instead.

use crate::reply::Tokens;

/// The sequence, or the reason why it is missing.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Sequence {
    pub ids: Option<Vec<i64>>,
    /// For each token, 1 if the model wrote it, else 0.
    pub mask: Option<Vec<i64>>,
    /// Log-probabilities of the model's tokens; 0 for other tokens.
    pub logprobs: Option<Vec<f64>>,
    /// Reason why `ids` or `logprobs` is missing.
    pub missing: Option<String>,
}

impl Sequence {
    fn missing(reason: String) -> Self {
        Self { missing: Some(reason), ..Self::default() }
    }

    /// Joins turns, each with the index of its request, into one sequence.
    pub(crate) fn join<'t>(turns: impl Iterator<Item = (usize, &'t Tokens)>) -> Self {
        let (mut ids, mut mask, mut logprobs) = (Vec::new(), Vec::new(), Some(Vec::new()));
        let mut without_logprobs = None;
        for (request, turn) in turns {
            let Some(prompt) = &turn.prompt_ids else {
                return Self::missing(format!("request {request}: no token ids of the prompt"));
            };
            let Some(completion) = &turn.completion_ids else {
                return Self::missing(format!("request {request}: no token ids of the completion"));
            };
            if let Some(at) = first_difference(&ids, prompt) {
                return Self::missing(format!(
                    "request {request}: its prompt does not begin with the {} tokens before it, from token {at} on",
                    ids.len()
                ));
            }
            mask.resize(prompt.len(), 0);
            ids.clone_from(prompt);
            ids.extend(completion);
            mask.resize(ids.len(), 1);
            match (&mut logprobs, &turn.logprobs) {
                (Some(all), Some(own)) if own.len() == completion.len() => {
                    all.resize(prompt.len(), 0.0);
                    all.extend(own);
                }
                (Some(_), own) => {
                    without_logprobs = Some(match own {
                        Some(own) => format!(
                            "request {request}: {} log-probabilities of {} tokens",
                            own.len(),
                            completion.len()
                        ),
                        None => format!("request {request}: no log-probabilities"),
                    });
                    logprobs = None;
                }
                (None, _) => {}
            }
        }
        if ids.is_empty() {
            return Self::missing("no message of the conversation is known to be the model's".to_owned());
        }
        Self { ids: Some(ids), mask: Some(mask), logprobs, missing: without_logprobs }
    }
}

/// Returns the first index at which `prompt` differs from `before`, or `None` if `prompt` begins with `before`.
fn first_difference(before: &[i64], prompt: &[i64]) -> Option<usize> {
    if prompt.starts_with(before) {
        return None;
    }
    let common = before.iter().zip(prompt).take_while(|(one, other)| one == other).count();
    Some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(prompt: &[i64], completion: &[i64], logprobs: Option<&[f64]>) -> Tokens {
        Tokens {
            prompt_ids: Some(prompt.to_vec()),
            completion_ids: Some(completion.to_vec()),
            logprobs: logprobs.map(<[f64]>::to_vec),
        }
    }

    fn sequence(turns: &[Tokens]) -> Sequence {
        Sequence::join(turns.iter().enumerate())
    }

    #[test]
    fn aligned_turns_are_one_sequence_with_a_mask_of_the_models_tokens() {
        let first = turn(&[1, 2], &[3], Some(&[-0.5]));
        let second = turn(&[1, 2, 3, 4, 5], &[6, 7], Some(&[-0.25, -1.0]));
        let whole = sequence(&[first, second]);
        assert_eq!(whole.ids.unwrap(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(whole.mask.unwrap(), [0, 0, 1, 0, 0, 1, 1]);
        assert_eq!(whole.logprobs.unwrap(), [0.0, 0.0, -0.5, 0.0, 0.0, -0.25, -1.0]);
        assert_eq!(whole.missing, None);
    }

    #[test]
    fn turns_that_do_not_align_have_no_sequence_but_a_reason() {
        let check = |turns: &[Tokens], reason: &str| {
            assert_eq!(sequence(turns), Sequence { missing: Some(reason.to_owned()), ..Sequence::default() });
        };
        let first = || turn(&[1, 2], &[3, 4], None);
        let rest = "its prompt does not begin with the 4 tokens before it, from token";
        check(&[first(), turn(&[1, 2, 3, 9, 5], &[6], None)], &format!("request 1: {rest} 3 on"));
        check(&[first(), turn(&[1, 2], &[6], None)], &format!("request 1: {rest} 2 on"));
        check(&[Tokens::default()], "request 0: no token ids of the prompt");
        let without = Tokens { completion_ids: None, ..first() };
        check(&[without], "request 0: no token ids of the completion");
        check(&[], "no message of the conversation is known to be the model's");
    }

    #[test]
    fn a_turn_without_log_probabilities_removes_all_of_them_but_keeps_the_ids() {
        let whole = sequence(&[turn(&[1], &[2], Some(&[-1.0])), turn(&[1, 2, 3], &[4], None)]);
        assert_eq!((whole.ids.unwrap(), whole.logprobs), (vec![1, 2, 3, 4], None));
        assert_eq!(whole.missing.unwrap(), "request 1: no log-probabilities");
        let whole = sequence(&[turn(&[1], &[2, 3], Some(&[-1.0]))]);
        assert_eq!(whole.logprobs, None);
        assert_eq!(whole.missing.unwrap(), "request 0: 1 log-probabilities of 2 tokens");
    }
}
