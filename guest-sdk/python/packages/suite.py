"""Runs a package's own tests in a component: pytest collects them while the component is built, and each rollout runs
those of one file. `scripts/python-suites` puts the tests beside this module."""

import collections
import json
from pathlib import Path

import pytest
from _pytest.config import _prepareconfig
from _pytest.main import Session
from _pytest.python import Package

from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, Messages, message

HERE = Path(__file__).parent


def reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """What a report says in the end, in a line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    said = str(crash.message if crash is not None else report.longrepr).strip().splitlines()
    return (said[0] if crash is not None else said[-1]) if said else ""


class Reports:
    """What came of each test. A test that is expected to fail and does counts as passed."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.broken: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}: {reason(report)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail")
        if report.failed:
            self.found[report.nodeid] = "failed"
            self.why[report.nodeid] = reason(report)
        elif report.skipped and not expected:
            self.found.setdefault(report.nodeid, "skipped")
        elif report.when == "call" or expected:
            self.found.setdefault(report.nodeid, "passed")


REPORTS = Reports()

# Nothing is written, and output is the rollout's log.
OPTIONS = ["--import-mode=importlib", "--capture=no", f"--rootdir={HERE}", f"--confcutdir={HERE}"]
WITHOUT = ("cacheprovider", "faulthandler", "inline_snapshot", "junitxml", "logging", "terminal")
OPTIONS += [part for name in WITHOUT for part in ("-p", f"no:{name}")]


def collected() -> Session:
    config = _prepareconfig([*OPTIONS, "-c", str(HERE / "pytest.ini"), str(HERE / "tests")], [REPORTS])
    config._do_configure()
    session = Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    session.perform_collect()
    return session


SESSION = collected()
FILES = collections.Counter(item.nodeid.split("::")[0] for item in SESSION.items)

# It would import the package once more, from files that are no longer there.
Package.setup = lambda self: None  # type: ignore[method-assign]


class Run(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Messages:
        wanted = message.text_of(ctx.prompt[-1])
        if wanted == "files":
            return [*ctx.prompt, message.assistant(json.dumps({"files": FILES, "broken": REPORTS.broken}))]
        file, part, parts = wanted.split(" ")
        items = [item for item in SESSION.items if item.nodeid.split("::")[0] == file][int(part) :: int(parts)]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        counts = {each: list(REPORTS.found.values()).count(each) for each in ("passed", "failed", "skipped")}
        return [*ctx.prompt, message.assistant(json.dumps({**counts, "why": REPORTS.why}))]


class Passed(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return 0.0 if json.loads(ctx.sample.text).get("failed") else 1.0
