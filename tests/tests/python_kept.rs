//! Tests that a stored Python component is reused for later builds with the same inputs, and only for those.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{Controller, Ran, Start, TestHost, python_program, rollout_host, target_dir};
use tempfile::TempDir;

/// The timeout of a build, next to a concurrent one.
const BUILD: Duration = Duration::from_secs(400);

const TAKEN: &str = "using the cached component of an earlier build of the same files";
const BUILT: &str = "importing agent in the component's Python";
const PREPARED: &str = "preparing a component of the interpreter";

/// Returns an entry module that warns when it is imported.
fn entry(reward: &str) -> String {
    format!(
        "import warnings\n\nfrom rollout_sdk import AgentWorkflow, Grader, message\n\nwarnings.warn('mind the gap')\n\n\n\
         class Answering(AgentWorkflow):\n    async def run(self, ctx):\n        ctx.sample.push(message.assistant('5'))\n\n\n\
         class Content(Grader):\n    async def grade(self, ctx):\n        return {reward}\n"
    )
}

struct Builds {
    root: TempDir,
}

impl Builds {
    fn new() -> Self {
        Self { root: TempDir::new().expect("a temporary directory can be made") }
    }

    /// Writes a project with this reward to a directory.
    fn project(&self, name: &str, reward: &str) -> PathBuf {
        let dir = self.root.path().join(name);
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        std::fs::write(dir.join("pyproject.toml"), "[project]\nname = \"agent\"\n")
            .expect("it can be written");
        std::fs::write(dir.join("agent.py"), entry(reward)).expect("it can be written");
        dir
    }

    /// Builds a project with a separate component cache. The cache of compiled code is that of all tests.
    async fn build(&self, dir: &Path, options: &[&str]) -> (Ran, Vec<u8>) {
        let ran = self.run(dir, options).await;
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let bytes = std::fs::read(dir.join("made.wasm")).expect("the component is there");
        (ran, bytes)
    }

    /// Builds a project that cannot be built.
    async fn refused(&self, dir: &Path) -> Ran {
        let ran = self.run(dir, &[]).await;
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        ran
    }

    async fn run(&self, dir: &Path, options: &[&str]) -> Ran {
        let mut command = rollout_host(["build"]);
        command.arg(dir).arg("-o").arg(dir.join("made.wasm"));
        command.arg("--componentize-py").arg(python_program("componentize-py"));
        command.env("XDG_CACHE_HOME", self.root.path().join("cache")).args(options);
        if options.is_empty() {
            command.arg("--cache-dir").arg(target_dir().join("test-cache/rollout-host/compiled"));
        }
        command.start().ended_within(BUILD).await
    }

    /// Returns the files of stored components.
    fn kept(&self) -> Vec<PathBuf> {
        self.stored("built-")
    }

    /// Returns the files of stored bases.
    fn bases(&self) -> Vec<PathBuf> {
        self.stored("base-")
    }

    fn stored(&self, kind: &str) -> Vec<PathBuf> {
        let files =
            std::fs::read_dir(self.root.path().join("cache/rollout-host/python")).expect("it is there");
        let paths = files.map(|file| file.expect("it is there").path());
        paths.filter(|path| path.to_string_lossy().contains(kind)).collect()
    }
}

#[tokio::test]
async fn two_concurrent_builds_store_one_component_that_a_later_build_reuses() {
    let builds = Builds::new();
    let (left, right) = (builds.project("left", "1.0"), builds.project("right", "1.0"));

    let ((first, one), (second, two)) = tokio::join!(builds.build(&left, &[]), builds.build(&right, &[]));
    let elsewhere = builds.project("else/where", "1.0");
    let (third, three) = builds.build(&elsewhere, &[]).await;

    assert!(
        first.stderr.contains(BUILT) && second.stderr.contains(BUILT),
        "{}{}",
        first.stderr,
        second.stderr
    );
    assert!(third.stderr.contains(TAKEN) && !third.stderr.contains(BUILT), "{}", third.stderr);
    assert!(one == two && two == three, "the components differ");
    assert_eq!(builds.kept().len(), 1, "{:?}", builds.kept());
    // The author's warning has the path of the project that is built.
    for (ran, dir) in [(&first, &left), (&third, &elsewhere)] {
        let warning = format!("{}/agent.py:5: UserWarning: mind the gap", dir.display());
        assert!(ran.stderr.contains(&warning), "{warning:?} is not in: {}", ran.stderr);
    }
}

#[tokio::test]
async fn after_an_edit_the_component_is_that_of_a_build_without_a_cache() {
    let builds = Builds::new();
    let dir = builds.project("agent", "1.0");
    let (_, before) = builds.build(&dir, &[]).await;

    builds.project("agent", "0.5");
    let (edited, after) = builds.build(&dir, &[]).await;
    let (cold, alone) = builds.build(&dir, &["--no-cache"]).await;
    builds.project("agent", "1.0");
    let (reverted, again) = builds.build(&dir, &[]).await;

    for (ran, has_base) in [(&edited, true), (&cold, false)] {
        assert!(ran.stderr.contains(BUILT) && !ran.stderr.contains(TAKEN), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains(PREPARED), !has_base, "{}", ran.stderr);
    }
    assert_eq!(builds.bases().len(), 1, "{:?}", builds.bases());
    assert!(after == alone, "the build with a cache built another component");
    assert!(before != after);
    assert!(reverted.stderr.contains(TAKEN), "{}", reverted.stderr);
    assert!(before == again);
}

#[tokio::test]
async fn a_damaged_component_is_built_again() {
    let builds = Builds::new();
    let dir = builds.project("agent", "1.0");
    let (_, sound) = builds.build(&dir, &[]).await;
    let [kept] = &builds.kept()[..] else { panic!("{:?}", builds.kept()) };
    let mut bytes = std::fs::read(kept).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(kept, bytes).expect("it can be written");

    let (ran, again) = builds.build(&dir, &[]).await;
    let (third, last) = builds.build(&dir, &[]).await;

    assert!(ran.stderr.contains("is damaged; building again"), "{}", ran.stderr);
    assert!(ran.stderr.contains(BUILT), "{}", ran.stderr);
    assert!(third.stderr.contains(TAKEN), "{}", third.stderr);
    assert!(sound == again && again == last);
}

#[tokio::test]
async fn a_damaged_base_is_built_again_and_other_exports_need_another_one() {
    let builds = Builds::new();
    let dir = builds.project("agent", "1.0");
    let (_, sound) = builds.build(&dir, &[]).await;
    let [base] = &builds.bases()[..] else { panic!("{:?}", builds.bases()) };
    let mut bytes = std::fs::read(base).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(base, bytes).expect("it can be written");
    builds.kept().iter().for_each(|kept| std::fs::remove_file(kept).expect("it can be removed"));

    let (ran, again) = builds.build(&dir, &[]).await;
    // The text declares no configuration, and the module has one.
    std::fs::write(
        dir.join("agent.py"),
        entry("1.0").replace("import warnings", "import warnings\nfrom other import *"),
    )
    .expect("it can be written");
    std::fs::write(
        dir.join("other.py"),
        "from rollout_sdk import AgentWorkflowConfig\n\nglobals().update(config=AgentWorkflowConfig(name='x'))\n",
    )
    .expect("it can be written");
    let (others, component) = builds.build(&dir, &[]).await;

    assert!(ran.stderr.contains("is damaged; building again"), "{}", ran.stderr);
    assert!(ran.stderr.contains(PREPARED), "{}", ran.stderr);
    assert!(sound == again, "the component of the new base differs");
    assert!(others.stderr.contains(PREPARED), "{}", others.stderr);
    assert_eq!(builds.bases().len(), 2, "{:?}", builds.bases());
    assert!(sound != component);
}

/// The build backend of a dependency, which is part of it: building it downloads nothing.
const BACKEND: &str = r#"
import zipfile

FILES = {
    "thing/__init__.py": "from importlib.resources import files\n\nTEXT = files(__name__).joinpath('data.txt').read_text()\n"
    "with open(__file__.replace('__init__.py', 'large.bin'), 'rb') as file:\n    LARGE = len(file.read())\n",
    "thing/data.txt": "of the package",
    "thing/large.bin": "x" * (2 << 20),
    "thing/late.py": "VALUE = 7\n",
    "thing/extra/inner.py": "VALUE = 8\n",
    "beside.txt": "belongs to no package",
    "thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
    "thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        record = "".join(f"{each},,\n" for each in FILES)
        for each, text in {**FILES, "thing-1.0.dist-info/RECORD": record}.items():
            wheel.writestr(each, text)
    return name
"#;

#[tokio::test]
async fn projects_with_other_dependencies_share_the_base() {
    let builds = Builds::new();
    let (alone, _) = builds.build(&builds.project("alone", "1.0"), &[]).await;
    let thing = builds.root.path().join("thing");
    std::fs::create_dir(&thing).expect("it can be made");
    let backend = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n\
                   [project]\nname = \"thing\"\nversion = \"1.0\"\n";
    std::fs::write(thing.join("pyproject.toml"), backend).expect("it can be written");
    std::fs::write(thing.join("backend.py"), BACKEND).expect("it can be written");
    let dir = builds.project("agent", "graded()");
    let settings =
        format!("[project]\nname = \"agent\"\ndependencies = [\"thing @ file://{}\"]\n", thing.display());
    std::fs::write(dir.join("pyproject.toml"), settings).expect("it can be written");
    let grading = "import os\nfrom importlib import metadata\n\nimport thing\n\n\ndef graded():\n    from thing import late\n    \
                   from thing.extra import inner\n\n    place = os.path.dirname(thing.__file__)\n    \
                   here = sorted(os.listdir(place)), os.path.exists(f'{place}/../beside.txt')\n    \
                   assert here == (['__init__.py', 'data.txt', 'extra', 'late.py'], False), here\n    \
                   assert metadata.version('thing') == '1.0'\n    assert thing.TEXT == 'of the package'\n    \
                   return float(late.VALUE + inner.VALUE + thing.LARGE / (2 << 20))\n\n\n";
    std::fs::write(dir.join("agent.py"), format!("{grading}{}", entry("graded()")))
        .expect("it can be written");

    let (with, component) = builds.build(&dir, &[]).await;
    let (_, without_cache) = builds.build(&dir, &["--no-cache"]).await;

    assert!(alone.stderr.contains(PREPARED), "{}", alone.stderr);
    assert!(!with.stderr.contains(PREPARED), "{}", with.stderr);
    assert_eq!(builds.bases().len(), 1, "{:?}", builds.bases());
    assert!(component == without_cache, "the build with a cache built another component");
    let controller = Controller::start().await;
    let host = TestHost::of_component(dir.join("made.wasm")).start().await;
    let result = host.run(&controller.rollout("Add.").id("with").label("5")).await;
    assert_eq!(result["sample"]["reward"], 16.0, "{result:#}");
}

#[tokio::test]
async fn an_edit_of_the_authors_file_compiles_no_code_again() {
    let builds = Builds::new();
    let compiled = builds.root.path().join("compiled");
    let options = ["--cache-dir", compiled.to_str().expect("a path of text")];
    let code = || {
        let files =
            std::fs::read_dir(&compiled).expect("it is there").map(|file| file.expect("it is there").path());
        files.filter(|path| path.extension().is_some_and(|end| end == "code")).collect::<Vec<_>>()
    };
    let (_, first) = builds.build(&builds.project("agent", "1.0"), &options).await;
    let before = code();
    // The base runs while components are built, and each of them runs in rollouts.
    assert_eq!(before.len(), 2, "{before:?}");

    let edited = builds.project("agent", "float(len('a longer expression than before') > 3)");
    let (_, second) = builds.build(&edited, &options).await;

    assert_ne!(first, second);
    assert_eq!(code(), before, "the code of both components was compiled once");
}

#[tokio::test]
async fn modules_may_open_large_files_while_they_are_imported_and_set_variables_before_an_import() {
    let builds = Builds::new();
    let dir = builds.project("agent", "float(READ == 2 * (1 << 21) and len(SEEN) == 4)");
    let text = std::fs::read_to_string(dir.join("agent.py")).expect("it can be read");
    let reading = "import os\n\nPLACE = os.path.dirname(__file__)\nREAD = 0\n\
                   for name in ('one', 'two'):\n    with open(f'{PLACE}/data/{name}.bin', 'rb') as file:\n        \
                   READ += len(file.read())\nSEEN = [f'{each.name} {each.stat().st_size}' for each in \
                   os.scandir(f'{PLACE}/data')]\nprint(READ, sorted(SEEN))\n";
    std::fs::write(dir.join("agent.py"), format!("{reading}{text}")).expect("it can be written");
    std::fs::create_dir(dir.join("data")).expect("it can be made");
    for (name, bytes) in
        [("one.bin", 1 << 21), ("two.bin", 1 << 21), ("unread.bin", 80 << 20), ("small.txt", 3)]
    {
        std::fs::File::create(dir.join("data").join(name))
            .and_then(|file| file.set_len(bytes))
            .expect("a file");
    }

    let (ran, component) = builds.build(&dir, &[]).await;
    std::fs::File::options()
        .write(true)
        .open(dir.join("data/one.bin"))
        .and_then(|file| file.set_len(80 << 20))
        .expect("a file");
    let refused = builds.refused(&dir).await;

    let seen = "4194304 ['one.bin 2097152', 'small.txt 3', 'two.bin 2097152', 'unread.bin 83886080']";
    assert!(ran.stderr.contains(seen), "{}", ran.stderr);
    assert!(component.len() < 40 << 20, "{} bytes", component.len());
    let reason =
        "its modules open files of 80 MiB while they are imported, and 64 MiB is the limit; data/one.bin";
    assert!(refused.stderr.contains(reason), "{}", refused.stderr);
}
