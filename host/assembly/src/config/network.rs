//! `[network]`: rules for addresses that come from callers.

use rollout_outbound::{NetworkRules, Reach};

use super::access;

/// `[network]` as written by the operator.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawNetwork {
    /// Access to the public network.
    pub public: Option<Reach>,
    /// Access to private networks, including this machine.
    pub private: Option<Reach>,
    /// Permitted names, addresses and ranges where access is `listed`.
    pub allow: Option<Vec<String>>,
}

impl RawNetwork {
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> NetworkRules {
        let Self { public, private, allow } = self;
        let allow = access::all("network.allow", allow, problems).unwrap_or_default();
        let rules =
            NetworkRules { public: public.unwrap_or_default(), private: private.unwrap_or_default(), allow };
        if !rules.allow.is_empty() && rules.public == Reach::Open && rules.private == Reach::Open {
            problems.push(
                "network.allow: has no effect, because no access is \"listed\"; set private = \"listed\" to restrict private networks to the list"
                    .to_owned(),
            );
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::super::RawConfig;
    use super::*;

    #[test]
    fn all_networks_are_reachable_unless_configured_otherwise() {
        let rules = |text: &str| RawConfig::parse(text, "c.toml").resolve().unwrap().network;
        assert_eq!(rules(""), NetworkRules::open());
        let allow = vec!["10.0.0.0/8".parse().unwrap()];
        assert_eq!(
            rules("[network]\nprivate = 'listed'\nallow = ['10.0.0.0/8']"),
            NetworkRules::allow_list(allow)
        );
        let closed = NetworkRules { public: Reach::Listed, ..NetworkRules::open() };
        assert_eq!(rules("[network]\npublic = 'listed'"), closed);
    }

    #[test]
    fn every_mistake_is_reported() {
        let text = "[network]\nprivate = 'listed'\nallow = ['http://h', '169.254.169.254', 'a']";
        let error = RawConfig::parse(text, "c.toml").resolve().unwrap_err().to_string();
        assert!(error.contains("network.allow: 'http://h' is a URL"), "{error}");
        assert!(error.contains("network.allow: '169.254.169.254' is a link-local address"), "{error}");
        let error = RawConfig::parse("[network]\nallow = ['a']", "c.toml").resolve().unwrap_err().to_string();
        assert!(error.contains("no access is \"listed\""), "{error}");
    }
}
