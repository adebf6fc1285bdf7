//! Reward functions of the classic form: solution, ground truth and extra information.

use serde_json::Value;

use crate::message::{Message, last_assistant_text};
use crate::{Error, Result};

/// Calls a reward function on a conversation. The solution is the text of the model's last message, or empty
/// if it wrote none.
///
/// ```
/// use rollout_sdk::*;
///
/// fn exact(solution: &str, truth: &str, _extra: Option<&Value>) -> Result<f64> {
///     Ok(f64::from(u8::from(answer_after(solution, "####") == Some(truth))))
/// }
///
/// let messages = [Message::user("6 * 7?"), Message::assistant("#### 42")];
/// assert_eq!(reward(&messages, "42", None, exact).unwrap(), 1.0);
/// ```
///
/// # Errors
///
/// Returns the function's own error, or an error if the reward is not finite.
pub fn reward(
    messages: &[Message],
    ground_truth: &str,
    extra_info: Option<&Value>,
    function: impl FnOnce(&str, &str, Option<&Value>) -> Result<f64>,
) -> Result<f64> {
    let solution = last_assistant_text(messages).unwrap_or_default();
    match function(&solution, ground_truth, extra_info)? {
        reward if reward.is_finite() => Ok(reward),
        reward => Err(Error::failed(format_args!(
            "the reward function gave {reward}, which is not a finite number"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reward_function_gets_the_last_answer_the_truth_and_the_extra_information() {
        let messages =
            [Message::assistant("first"), Message::assistant("second"), Message::tool("1", "result")];
        let extra = json!({"row": 3});
        let given = reward(&messages, "truth", Some(&extra), |solution, truth, extra| {
            assert_eq!((solution, truth, extra), ("second", "truth", Some(&json!({"row": 3}))));
            Ok(0.5)
        });
        assert_eq!(given.unwrap(), 0.5);
        assert_eq!(reward(&[], "", None, |solution, _, _| Ok(solution.len() as f64)).unwrap(), 0.0);
    }

    #[test]
    fn a_reward_that_is_not_finite_is_an_error() {
        let error = reward(&[], "", None, |_, _, _| Ok(f64::NAN)).unwrap_err();
        assert_eq!(error.to_string(), "the reward function gave NaN, which is not a finite number");
    }
}
