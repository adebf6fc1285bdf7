//! Packages with native code, in a component: built by a project that only names them, and what they cannot do is said.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{Controller, Ran, Start, TestHost, native_wheels, python_program, rollout_host};
use tempfile::TempDir;

/// How long a build may take. It installs packages.
const BUILD: Duration = Duration::from_secs(400);

fn project(name: &str, dependencies: &str, entry: &str) -> TempDir {
    let dir = TempDir::new().expect("a temporary directory can be made");
    let about = format!("[project]\nname = \"{name}\"\ndependencies = [{dependencies}]\n");
    std::fs::write(dir.path().join("pyproject.toml"), about).expect("a file can be written");
    std::fs::write(dir.path().join(format!("{name}.py")), entry).expect("a file can be written");
    dir
}

async fn build(dir: &Path) -> (Ran, PathBuf) {
    let made = dir.join("made.wasm");
    let mut command = rollout_host(["build"]);
    command.arg(dir).arg("-o").arg(&made);
    command
        .arg("--componentize-py")
        .arg(python_program("componentize-py"))
        .arg("--wheels")
        .arg(native_wheels());
    let ran = command.start().ended_within(BUILD).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    (ran, made)
}

const NUMPY: &str = r#"
import numpy as np

from rollout_sdk import AgentWorkflow, Grader, message

WEIGHTS = np.array([[2.0, 1.0], [1.0, 3.0]])


def raised(work):
    try:
        return f"nothing: {work()}"
    except Exception as error:
        return type(error).__name__


def found():
    """What numpy's own pages promise, and CPython's numpy gives."""
    with np.errstate(all="ignore"):
        quiet = 1 / np.float64(0)
    return {
        "solve": np.linalg.solve(WEIGHTS, [3.0, 5.0]).round(6).tolist(),
        "eigenvalues": np.linalg.eigvalsh(WEIGHTS).round(6).tolist(),
        "fft": np.abs(np.fft.fft([1, 0, 0, 0])).tolist(),
        "sorted": np.sort(np.array([3, 1, 2])).tolist(),
        "text": np.strings.upper(np.array(["a", "b"])).tolist(),
        "seeded": np.random.default_rng(7).integers(0, 100, 3).tolist(),
        "quiet": str(quiet),
        "singular": raised(lambda: np.linalg.inv(np.zeros((2, 2)))),
        "indefinite": raised(lambda: np.linalg.cholesky(-WEIGHTS)),
        "not seen": raised(lambda: np.errstate(divide="raise")),
        "nor so": raised(lambda: np.seterr(invalid="raise")),
    }


class Computing(AgentWorkflow):
    async def run(self, ctx):
        ctx.sample.push(message.assistant(f"{np.random.random()} {found()}"))


class Right(Grader):
    async def grade(self, ctx):
        return float(np.mean([1.0, 0.0, 0.5]))
"#;

#[tokio::test]
async fn a_grader_computes_with_numpy_and_what_has_no_answer_raises() {
    let project = project("computing", "\"numpy\"", NUMPY);
    let (_, made) = build(project.path()).await;
    let controller = Controller::start().await;
    let host = TestHost::of_component(made).start().await;
    let run = async |id: &str| -> (String, f64) {
        let result = host.run(&controller.rollout("Compute.").id(id).label("0")).await;
        let messages = result["sample"]["messages"].as_array().unwrap_or_else(|| panic!("{result:#}"));
        let text = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
        (text.to_owned(), result["sample"]["reward"].as_f64().unwrap_or_else(|| panic!("{result:#}")))
    };

    let (one, two) = (run("one").await, run("two").await);

    let expected = "{'solve': [0.8, 1.4], 'eigenvalues': [1.381966, 3.618034], 'fft': [1.0, 1.0, 1.0, 1.0], \
                    'sorted': [1, 2, 3], 'text': ['A', 'B'], 'seeded': [94, 62, 68], 'quiet': 'inf', \
                    'singular': 'LinAlgError', 'indefinite': 'LinAlgError', 'not seen': 'NotImplementedError', \
                    'nor so': 'NotImplementedError'}";
    for (text, reward) in [&one, &two] {
        let (_, found) = text.split_once(' ').unwrap_or_default();
        assert_eq!(found, expected);
        assert!((reward - 0.5).abs() < 1e-9, "{reward}");
    }
    // numpy's own generator is the rollout's, too.
    assert_ne!(one.0, two.0);
}
