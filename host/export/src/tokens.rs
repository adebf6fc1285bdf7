//! A conversation as one sequence of tokens, where the turns line up.
//!
//! The prompt of each turn has to begin with all tokens before it, prompt and completion of the turn before;
//! what it adds was said by others, and its completion by the model. Where a server tokenizes what it wrote
//! differently when it reads it again, nothing can be said of the whole but why.

use crate::reply::Tokens;

/// The sequence, or why there is none.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Sequence {
    pub ids: Option<Vec<i64>>,
    /// 1 for each token that the model wrote.
    pub mask: Option<Vec<i64>>,
    /// Of the tokens that the model wrote; 0 for the others.
    pub logprobs: Option<Vec<f64>>,
    /// Why something of it is not there.
    pub missing: Option<String>,
}

impl Sequence {
    fn missing(why: String) -> Self {
        Self { missing: Some(why), ..Self::default() }
    }

    /// Puts the turns together. Each comes with the number of its request.
    pub(crate) fn of<'t>(turns: impl Iterator<Item = (usize, &'t Tokens)>) -> Self {
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

/// Where the second list does not go on with the first.
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
        Sequence::of(turns.iter().enumerate())
    }

    #[test]
    fn turns_that_line_up_are_one_sequence_in_which_the_models_tokens_are_marked() {
        let first = turn(&[1, 2], &[3], Some(&[-0.5]));
        let second = turn(&[1, 2, 3, 4, 5], &[6, 7], Some(&[-0.25, -1.0]));
        let whole = sequence(&[first, second]);
        assert_eq!(whole.ids.unwrap(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(whole.mask.unwrap(), [0, 0, 1, 0, 0, 1, 1]);
        assert_eq!(whole.logprobs.unwrap(), [0.0, 0.0, -0.5, 0.0, 0.0, -0.25, -1.0]);
        assert_eq!(whole.missing, None);
    }

    #[test]
    fn turns_that_do_not_line_up_are_none_and_it_is_said_where() {
        let check = |turns: &[Tokens], why: &str| {
            assert_eq!(sequence(turns), Sequence { missing: Some(why.to_owned()), ..Sequence::default() });
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
    fn without_the_log_probabilities_of_one_turn_there_are_none_but_the_ids_stay() {
        let whole = sequence(&[turn(&[1], &[2], Some(&[-1.0])), turn(&[1, 2, 3], &[4], None)]);
        assert_eq!((whole.ids.unwrap(), whole.logprobs), (vec![1, 2, 3, 4], None));
        assert_eq!(whole.missing.unwrap(), "request 1: no log-probabilities");
        let whole = sequence(&[turn(&[1], &[2, 3], Some(&[-1.0]))]);
        assert_eq!(whole.logprobs, None);
        assert_eq!(whole.missing.unwrap(), "request 0: 1 log-probabilities of 2 tokens");
    }
}
