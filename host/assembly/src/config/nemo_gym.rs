//! `[nemo-gym]`: the NeMo Gym protocol, whose requests name no model.

use reqwest::Url;
use rollout_rollout::GROUP_SIZE_MAX;

/// Name that Gym gives the model that is trained.
const MODEL: &str = "policy_model";

/// `[nemo-gym]` as written by the operator.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawNemoGym {
    /// Address of the model's server without `/chat/completions`.
    pub model_url: Option<String>,
    /// Name of the model at its server.
    pub model: Option<String>,
    /// Environment variable with the key of its server.
    pub model_key_env: Option<String>,
    /// Field of a row with the label.
    pub label_field: Option<String>,
    /// Number of repetitions of each task, which are a group.
    pub group_size: Option<u32>,
}

/// Checked settings of the NeMo Gym protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NemoGymConfig {
    /// Address of the model's server without `/chat/completions`. Without it, conversations are only graded.
    pub model_url: Option<String>,
    /// Name of the model at its server.
    pub model: String,
    /// Environment variable with the key of its server.
    pub model_key_env: Option<String>,
    /// Field of a row with the label; without it, the usual fields are tried.
    pub label_field: Option<String>,
    /// Number of repetitions of each task, which are a group; without it, each row is a rollout by itself.
    pub group_size: Option<u32>,
}

impl RawNemoGym {
    /// Returns the settings if the table has any.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> Option<NemoGymConfig> {
        let Self { model_url, model, model_key_env, label_field, group_size } = self;
        let is_empty = [&model_url, &model, &model_key_env, &label_field].iter().all(|value| value.is_none());
        if is_empty && group_size.is_none() {
            return None;
        }
        if label_field.as_deref().is_some_and(|path| path.split('.').any(str::is_empty)) {
            problems
                .push("nemo-gym.label-field: must be a path such as 'verifier_metadata.answer'".to_owned());
        }
        if group_size.is_some_and(|size| !(1..=GROUP_SIZE_MAX).contains(&size)) {
            problems.push(format!("nemo-gym.group-size: must be a number from 1 to {GROUP_SIZE_MAX}"));
        }
        match &model_url {
            Some(url) => {
                let is_http = Url::parse(url)
                    .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
                if !is_http {
                    problems.push(format!("nemo-gym.model-url: '{url}' is not an http or https URL"));
                }
            }
            None if model.is_some() || model_key_env.is_some() => {
                let why = "nemo-gym.model-url: missing; give the address of the policy model's server";
                problems.push(why.to_owned());
            }
            None => {}
        }
        let model = model.unwrap_or_else(|| MODEL.to_owned());
        Some(NemoGymConfig { model_url, model, model_key_env, label_field, group_size })
    }
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;

    #[test]
    fn the_protocol_is_enabled_by_its_table() {
        let config = |text: &str| RawConfig::parse(text, "c.toml").resolve();
        assert_eq!(config("").unwrap().nemo_gym, None);
        let gym = config("[nemo-gym]\nmodel-url = 'http://h/v1'").unwrap().nemo_gym.unwrap();
        assert_eq!((gym.model_url.as_deref(), &*gym.model), (Some("http://h/v1"), "policy_model"));
        let grader = config("[nemo-gym]\nlabel-field = 'a.b'").unwrap().nemo_gym.unwrap();
        assert_eq!((grader.model_url, grader.label_field.as_deref()), (None, Some("a.b")));
        let check = |text: &str, expected: &str| {
            let error = config(&format!("[nemo-gym]\n{text}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("model = 'm'", "nemo-gym.model-url: missing");
        check("model-url = 'h'", "is not an http or https URL");
        check("group-size = 0", "nemo-gym.group-size: must be a number from 1 to 128");
        check("model-url = 'http://h'\nlabel-field = 'a..b'", "nemo-gym.label-field");
    }
}
