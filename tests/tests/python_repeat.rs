//! Tests that Python builds are reproducible, at any time and in any place, and that random numbers nevertheless differ
//! between rollouts.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rollout_tests::{Controller, Ran, Start, TestHost, python_program, rollout_host, target_dir};
use tempfile::TempDir;

/// The timeout of a build, next to a concurrent one.
const BUILD: Duration = Duration::from_secs(400);

/// Draws random numbers during the import, in the usual ways of modules, and again in the rollout.
const ENTRY: &str = r#"
import random
import secrets
import uuid

from rollout_sdk import AgentWorkflow, Grader, message

NAMES = {"one", "two", "three", uuid.uuid4().hex, secrets.token_hex(4)}
UNSEEDED = random.Random()
SEEDED = random.Random(7)
ORDER = random.sample(range(100), 10)


class Drawing(AgentWorkflow):
    async def run(self, ctx):
        drawn = [each.random() for each in (random, UNSEEDED, SEEDED, random.Random())]
        text = " ".join(map(str, [*drawn, uuid.uuid4(), len(NAMES), ORDER]))
        ctx.sample.push(message.assistant(text))


class Content(Grader):
    async def grade(self, ctx):
        return 1.0
"#;

/// Creates the project in a directory with this name, with files of this age.
fn project(root: &Path, name: &str, age: Duration) -> PathBuf {
    let dir = root.join(name);
    std::fs::create_dir_all(&dir).expect("a directory can be made");
    let files = [
        ("pyproject.toml", "[project]\nname = \"drawing\"\n"),
        ("drawing.py", ENTRY),
        ("unused.py", "import this\n"),
    ];
    for (file, text) in files {
        let path = dir.join(file);
        std::fs::write(&path, text).expect("a file can be written");
        let file = std::fs::File::options().append(true).open(&path).expect("the file is there");
        file.set_modified(SystemTime::now() - age).expect("a file's time can be set");
    }
    dir
}

async fn build(dir: PathBuf) -> (Ran, Vec<u8>) {
    // The last build finds the output of an earlier one beside the sources.
    let made = dir.join("made.wasm");
    let mut command = rollout_host(["build"]);
    command.arg(&dir).arg("-o").arg(&made).arg("--componentize-py").arg(python_program("componentize-py"));
    // No build reuses the component of another. The cache of compiled code is that of all tests.
    let caches = TempDir::new().expect("a temporary directory can be made");
    command.env("XDG_CACHE_HOME", caches.path());
    command.arg("--cache-dir").arg(target_dir().join("test-cache/rollout-host/compiled"));
    let ran = command.start().ended_within(BUILD).await;
    let bytes = std::fs::read(&made).unwrap_or_default();
    (ran, bytes)
}

#[tokio::test]
async fn six_builds_of_the_same_source_make_the_same_component() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let places = ["a", "b", "much/longer/way/to/it", "with space", "ä", "a"];
    let mut first = Vec::new();
    // Two builds run concurrently, because concurrency must not change the result either.
    for pair in places.chunks(2) {
        let project = |name: &&str| {
            let age = Duration::from_secs(60 * 60 * 24 * name.len() as u64);
            project(root.path(), name, age)
        };
        let (left, right) = tokio::join!(build(project(&pair[0])), build(project(&pair[1])));
        for (ran, bytes) in [left, right] {
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            if first.is_empty() {
                first.clone_from(&bytes);
            }
            let differing = first.iter().zip(&bytes).filter(|(a, b)| a != b).count();
            assert!(
                first == bytes,
                "{pair:?}: {differing} bytes differ, {} and {}",
                first.len(),
                bytes.len()
            );
        }
    }
    draws_its_own_in_every_rollout(&root.path().join("a/made.wasm")).await;
}

/// Checks that random numbers differ between rollouts, unless a module sets a seed.
async fn draws_its_own_in_every_rollout(component: &Path) {
    let controller = Controller::start().await;
    let draw = async |id: &str| -> Vec<String> {
        let host = TestHost::of_component(component.to_owned()).start().await;
        let result = host.run(&controller.rollout("Draw.").id(id).label("0")).await;
        let messages = result["sample"]["messages"].as_array().unwrap_or_else(|| panic!("{result:#}"));
        let text = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
        text.split(' ').map(str::to_owned).collect()
    };
    let (one, two, again) = (draw("one").await, draw("two").await, draw("one").await);

    assert_eq!(one, again, "a rollout's numbers are another each time");
    for (drawn, kind) in
        [(0, "the module's"), (1, "an unseeded generator's"), (3, "a new one's"), (4, "the system's")]
    {
        assert_ne!(one[drawn], two[drawn], "{kind} numbers are the same in every rollout");
    }
    assert_eq!(one[2], two[2], "a seed was not heeded");
    assert_eq!(one[5..], two[5..]);
}
