//! `[cluster]`: the role of a server among several machines.

use std::time::Duration;

use rollout_cluster::ClusterSettings;

use super::setting;

/// Role of a server in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Answers callers and runs their rollouts: a server alone.
    #[default]
    Both,
    /// Answers callers and passes their requests to workers.
    Gateway,
    /// Runs rollouts for gateways.
    Worker,
}

/// `[cluster]` as written by the operator.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawCluster {
    /// Role of this server.
    pub role: Option<Role>,
    /// Environment variable with the key that gateways and workers share.
    pub key_env: Option<String>,
    /// Addresses of the workers, for a gateway.
    pub workers: Vec<String>,
    /// Name of this worker.
    pub worker_name: Option<String>,
    /// Seconds after which the rollouts of a worker that does not answer are lost, for a gateway.
    pub lost_after_secs: Option<f64>,
    /// Address under which gateways reach this worker.
    pub advertise: Option<String>,
    /// NATS servers on which the logs of workers are replicated.
    pub nats: Option<ClusterSettings>,
}

/// Role of a server in a cluster, and the cluster's options.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Role of this server.
    pub role: Role,
    /// Environment variable with the key that gateways and workers share. Required for a gateway and for a worker.
    pub key_env: Option<String>,
    /// Addresses of the workers. Not empty for a gateway, unless NATS has them.
    pub workers: Vec<reqwest::Url>,
    /// Name of this worker; by default that of the machine.
    pub worker_name: Option<String>,
    /// Time after which the rollouts of a worker that does not answer are lost. Without it, the gateway waits for them.
    pub lost_after: Option<Duration>,
    /// Address under which gateways reach this worker.
    pub advertise: Option<Advertised>,
    /// NATS servers on which the logs of workers are replicated.
    pub nats: Option<ClusterSettings>,
}

/// Address under which gateways reach a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// The address. A URL does not tell whether the default port of its scheme was written.
    pub url: reqwest::Url,
    /// Whether a port was written. Otherwise it is that of the listener.
    pub has_port: bool,
}

impl Advertised {
    fn of(text: &str, url: reqwest::Url) -> Self {
        let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
        let authority = authority.split('/').next().unwrap_or_default();
        // The address in brackets has colons of its own.
        let after_host = authority.rsplit(']').next().unwrap_or_default();
        let port = after_host.rsplit_once(':').map(|(_, port)| port);
        Self { url, has_port: port.is_some_and(|port| !port.is_empty()) }
    }
}

/// Maximum length of a worker's name in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Returns whether a text can be the name of a worker: a label of a host name.
pub fn is_worker_name(name: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_char)
}

impl RawCluster {
    /// Checks every field, and that each one applies to the role.
    pub(super) fn resolve(self, problems: &mut Vec<String>) -> ClusterOptions {
        let Self { role, key_env, workers, worker_name, lost_after_secs, advertise, nats } = self;
        let role = role.unwrap_or_default();
        if role != Role::Both && key_env.is_none() {
            problems.push(
                "cluster.key-env: gateways and workers need a common key; name an environment variable that has it \
                 (--cluster-key-env)"
                    .to_owned(),
            );
        }
        if role == Role::Gateway && workers.is_empty() && nats.is_none() {
            problems.push(
                "cluster.workers: a gateway needs the address of at least one worker (--worker URL)"
                    .to_owned(),
            );
        }
        for (name, is_given, of) in [
            ("workers", !workers.is_empty(), Role::Gateway),
            ("lost-after-secs", lost_after_secs.is_some(), Role::Gateway),
            ("worker-name", worker_name.is_some(), Role::Worker),
            ("advertise", advertise.is_some(), Role::Worker),
        ] {
            if is_given && role != of {
                let role = if of == Role::Gateway { "gateway" } else { "worker" };
                problems.push(format!("cluster.{name}: is for the role {role} only (--role {role})"));
            }
        }
        if let Some(name) = worker_name.as_ref().filter(|name| !is_worker_name(name)) {
            problems.push(format!(
                "cluster.worker-name: '{name}' is not 1 to {NAME_BYTES_MAX} small letters, digits and hyphens"
            ));
        }
        let mut address = |name: &str, text: String| match text.parse::<reqwest::Url>() {
            Ok(url)
                if matches!(url.scheme(), "http" | "https") && url.path() == "/" && url.query().is_none() =>
            {
                Some(url)
            }
            _ => {
                problems.push(format!(
                    "cluster.{name}: '{text}' is not the address of a server, such as http://worker-1:9000"
                ));
                None
            }
        };
        let workers = workers.into_iter().filter_map(|text| address("workers", text)).collect();
        let advertise = advertise
            .and_then(|text| address("advertise", text.clone()).map(|url| Advertised::of(&text, url)));
        if let Some(nats) = &nats {
            if role == Role::Both {
                problems.push("cluster.nats: is for the roles gateway and worker (--role)".to_owned());
            }
            if let Err(wrong) = nats.check() {
                problems.push(wrong.to_string());
            }
        }
        let lost_after = setting::value(("cluster", "lost-after-secs"), lost_after_secs, None, .., problems);
        ClusterOptions { role, key_env, workers, worker_name, lost_after, advertise, nats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        toml::from_str::<RawCluster>(text).unwrap().resolve(&mut problems);
        problems
    }

    #[test]
    fn a_port_that_is_written_is_advertised_even_if_it_is_the_default_one() {
        let check = |text: &str, has_port| {
            let advertised = Advertised::of(text, text.parse().unwrap());
            assert_eq!(advertised.has_port, has_port, "{text}");
        };
        check("http://10.0.0.1:80", true);
        check("http://10.0.0.1:9000/", true);
        check("https://worker:443", true);
        check("http://10.0.0.1", false);
        check("http://10.0.0.1:", false);
        check("http://[fd00::1]", false);
        check("http://[fd00::1]:80/", true);
    }

    #[test]
    fn each_role_needs_its_own_settings() {
        assert_eq!(problems(""), [""; 0]);
        assert_eq!(problems("role = 'worker'\nkey-env = 'K'\nworker-name = 'w-1'"), [""; 0]);
        assert_eq!(
            problems("role = 'gateway'\nkey-env = 'K'\nworkers = ['http://w:9000']\nlost-after-secs = 30"),
            [""; 0]
        );
        let check = |text: &str, expected: &str| {
            let problems = problems(text);
            assert!(problems.len() == 1 && problems[0].starts_with(expected), "{text}: {problems:?}");
        };
        check("role = 'worker'", "cluster.key-env:");
        check("role = 'gateway'\nkey-env = 'K'", "cluster.workers: a gateway needs");
        check("role = 'gateway'\nkey-env = 'K'\nworkers = ['w:9000']", "cluster.workers: 'w:9000'");
        check("role = 'gateway'\nkey-env = 'K'\nworkers = ['http://w/x']", "cluster.workers: 'http://w/x'");
        check("workers = ['http://w:9000']", "cluster.workers: is for the role gateway");
        check("role = 'worker'\nkey-env = 'K'\nworker-name = 'W 1'", "cluster.worker-name: 'W 1'");
        check("role = 'worker'\nkey-env = 'K'\nadvertise = 'w'", "cluster.advertise: 'w'");
        check("role = 'worker'\nkey-env = 'K'\n[nats]\nurls = []", "cluster.nats.urls:");
        check("[nats]\nurls = ['nats://n:4222']", "cluster.nats: is for the roles");
        assert_eq!(problems("role = 'gateway'\nkey-env = 'K'\n[nats]\nurls = ['nats://n:4222']"), [""; 0]);
    }
}
