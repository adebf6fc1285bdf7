//! Environment variables by which an evaluator configures a server that it starts.

/// Values of those variables. There are no command line options for them; people use `--listen`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluatorEnvironment {
    /// Port of 127.0.0.1 to listen on.
    pub port: Option<u16>,
    /// Identifier that `/health` returns, by which the evaluator recognises its own server.
    pub instance_id: Option<String>,
    /// Whether the evaluator names a directory from which it reads the files of rollouts.
    pub reads_files: bool,
    /// Mistakes in the variables.
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
                mistakes.push(format!("{PORT}: '{}' is not a port", rollout_wire::text::printable(&text)));
            }
            port
        });
        let instance_id = get("_OSMOSIS_ROLLOUT_INSTANCE_ID");
        let reads_files = get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT").is_some();
        Self { port, instance_id, reads_files, mistakes }
    }

    /// Returns whether the evaluator reads files of rollouts.
    pub fn wants_files(&self) -> bool {
        self.is_there() || self.reads_files
    }

    /// Returns whether an evaluator started this process.
    pub fn is_there(&self) -> bool {
        self.port.is_some() || self.instance_id.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_port_is_reported() {
        let read =
            |port: &str| EvaluatorEnvironment::read(|name| name.ends_with("PORT").then(|| port.to_owned()));
        assert_eq!(read("8123").port, Some(8123));
        assert_eq!(read("http").mistakes, ["_OSMOSIS_ROLLOUT_PORT: 'http' is not a port"]);
        assert_eq!(EvaluatorEnvironment::read(|_| None), EvaluatorEnvironment::default());
    }
}
