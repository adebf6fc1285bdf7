"""Runs a package's own tests in a component: each rollout collects the tests of one file with pytest and runs a part of them.
The result of each is an event in its log, which is stored even if the instance ends. `scripts/python-suites` puts the tests
beside this module."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.config import Config, _prepareconfig
from _pytest.main import Session

from rollout_sdk import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    Messages,
    _archive,
    log,
    message,
)

HERE = Path(__file__).parent
TESTS = HERE / "tests"
SUITE = json.loads((HERE / "suite.json").read_text())

# A reason is one line; for a comparison of arrays it is among the first lines.
LINES = 4
REASON_CHARS = 300


def reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Returns the reason of a report, in one line."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")[:REASON_CHARS]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).split("\n")
    lines = [line.strip() for line in text if line.strip()]
    return " ".join(lines[:LINES] if crash is not None else lines[-1:])[:REASON_CHARS]


class Reports:
    """The result of one test. A test that fails as expected counts as passed."""

    def __init__(self) -> None:
        self.found = ""
        self.why = ""
        self.broken: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(reason(report))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail")
        if report.failed:
            self.found, self.why = "failed", reason(report)
        elif report.skipped and not expected:
            if not self.found:
                self.found, self.why = "skipped", reason(report)
        elif report.when == "call" or expected:
            self.found = self.found or "passed"


class Kept(type(Path())):
    """A path in a test's own directory, which a component does not have: files that are written in one call are stored
    in memory, where they can be read and imported. Any other operation fails as in a component."""

    def write_bytes(self, data: bytes) -> int:
        _archive.add("/kept", {str(self): data})
        return len(data)

    def write_text(self, data: str, *_: object, **__: object) -> int:
        return self.write_bytes(data.encode())


class Places:
    """Replaces pytest's own fixture."""

    @pytest.fixture
    def tmp_path(self, request: pytest.FixtureRequest) -> Path:
        return Kept(f"/kept/{abs(hash(request.node.nodeid))}")


REPORTS = Reports()

# No files are written, and output goes to the rollout's log.
OPTIONS = ["--import-mode=importlib", "--capture=no", f"--rootdir={HERE}", f"--confcutdir={HERE}"]
WITHOUT = ("cacheprovider", "faulthandler", "inline_snapshot", "junitxml", "logging", "terminal")
OPTIONS += [part for name in WITHOUT for part in ("-p", f"no:{name}")]


def beside_their_packages() -> None:
    """Makes tests that are a part of their package, and their helpers, importable as such."""
    for place in TESTS.rglob("tests"):
        package = importlib.import_module(".".join(place.parent.relative_to(TESTS).parts))
        package.__path__.append(str(place.parent))


def add_vocabularies() -> None:
    """Adds tiktoken's vocabularies where it caches them. They are too large for data files of a component."""
    os.environ["TIKTOKEN_CACHE_DIR"] = "/kept/vocabularies"
    files = importlib.import_module("vocabularies").FILES
    _archive.add("/kept", {f"/kept/vocabularies/{name}": content for name, content in files.items()})


def configured() -> Config:
    os.environ.update(SUITE["environment"])
    for name in SUITE["stand-ins"]:
        sys.modules[name] = ModuleType(name, "Not in a component: only tests that use it fail.")
    if SUITE["within"]:
        beside_their_packages()
    for place, value in SUITE["set"].items():
        module, _, name = place.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    if "hypothesis" in SUITE["imports"]:
        # Fewer random cases, and the same ones each time.
        hypothesis = importlib.import_module("hypothesis")
        checks = list(hypothesis.HealthCheck)
        hypothesis.settings.register_profile(
            "suite", database=None, deadline=None, derandomize=True, max_examples=20, suppress_health_check=checks
        )
        hypothesis.settings.load_profile("suite")
    names = " or ".join(SUITE["deselect"])
    chosen = ["-k", f"not ({names})"] if names else []
    plugins = [REPORTS, Places()] if SUITE["kept"] else [REPORTS]
    config = _prepareconfig([*OPTIONS, *chosen, "-c", str(HERE / "pytest.ini"), str(TESTS)], plugins)
    config._do_configure()
    return config


CONFIG = configured()


class Run(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Messages:
        wanted = json.loads(message.text_of(ctx.prompt[-1]))
        if SUITE["vocabularies"]:
            add_vocabularies()
        session = Session.from_config(CONFIG)
        CONFIG.hook.pytest_sessionstart(session=session)
        try:
            session.perform_collect([str(HERE / wanted["file"])])
        except session.Failed as failed:
            REPORTS.broken.append(str(failed))
        except pytest.UsageError as error:
            REPORTS.broken.append(str(error))
        log.event("collected", {"count": len(session.items), "broken": REPORTS.broken})
        items = session.items[wanted["start"] : wanted["stop"]]
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=False), wanted["start"]):
            log.event("begins", [number, item.nodeid])
            REPORTS.found = REPORTS.why = ""
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            log.event("ends", [number, item.nodeid, REPORTS.found, REPORTS.why])
        return [*ctx.prompt, message.assistant("done")]


class Passed(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return 1.0
