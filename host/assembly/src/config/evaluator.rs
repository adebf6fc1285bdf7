//! What an evaluator that starts a server gives it, by its environment.

/// Read from the environment alone: options of these names would be completed, suggested and
/// documented to people, who have `--listen`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluatorEnvironment {
    /// The port of 127.0.0.1 that it wants the server at.
    pub port: Option<u16>,
    /// What `/health` is to repeat, by which it knows its own server.
    pub instance_id: Option<String>,
    /// Whether it says where files of rollouts are to be, which it reads there.
    pub reads_files: bool,
    /// What is wrong with it.
    pub mistakes: Vec<String>,
}

impl EvaluatorEnvironment {
    /// Reads the variables through `get`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        const PORT: &str = "_OSMOSIS_ROLLOUT_PORT";
        let mut mistakes = Vec::new();
        let port = get(PORT).and_then(|text| {
            let port = text.trim().parse().ok();
            if port.is_none() {
                mistakes.push(format!("{PORT}: '{}' is not a port", rollout_core::text::printable(&text)));
            }
            port
        });
        let instance_id = get("_OSMOSIS_ROLLOUT_INSTANCE_ID");
        let reads_files = get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT").is_some();
        Self { port, instance_id, reads_files, mistakes }
    }

    /// Whether it looks for files of rollouts.
    pub fn wants_files(&self) -> bool {
        self.is_there() || self.reads_files
    }

    /// Whether one started this process.
    pub fn is_there(&self) -> bool {
        self.port.is_some() || self.instance_id.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_port_is_a_mistake() {
        let read =
            |port: &str| EvaluatorEnvironment::read(|name| name.ends_with("PORT").then(|| port.to_owned()));
        assert_eq!(read("8123").port, Some(8123));
        assert_eq!(read("http").mistakes, ["_OSMOSIS_ROLLOUT_PORT: 'http' is not a port"]);
        assert_eq!(EvaluatorEnvironment::read(|_| None), EvaluatorEnvironment::default());
    }
}
