"""Finds the likely exports and imports of a project by parsing its modules: they are not imported on the author's
machine. Part of `_build.py`, and like it not run as part of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Exports by the name of the base class.
_EXPORT_OF = {
    "AgentWorkflow": "workflow",
    "RolloutAgentLoop": "agent-loop",
    "Environment": "environment",
    "Grader": "grader",
    "GroupGrader": "group-grader",
}


@dataclass
class Text:
    """The facts about a project's modules that can be read without importing any."""

    files: list[Path] = field(default_factory=list[Path])
    """The entry module and the project's modules that it imports."""
    exports: list[str] = field(default_factory=list[str])
    """The likely exports of the entry module. Discovery in the component decides."""
    imports: list[str] = field(default_factory=list[str])
    """Imported modules of other packages."""
    late: dict[str, str] = field(default_factory=dict[str, str])
    """Modules of other packages that only functions import, with the first location."""
    with_run: list[str] = field(default_factory=list[str])
    """Classes of the entry module with a `run`, whatever their base."""


def read(source: Path, entry: str, exports: Iterable[str]) -> Text:
    """Reads the entry module in this directory, and the project's modules that it imports. Its exports have the order
    of `exports`."""
    text = Text()
    found: set[str] = set()
    others: set[str] = set()
    todo = [entry]
    seen: set[str] = set()
    at_once: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        file = _file_of(source, name)
        if file is None:
            others.add(name)
            continue
        text.files.append(file)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        todo += [".".join(name.split(".")[:end]) for end in range(1, name.count(".") + 1)]
        try:
            tree = ast.parse(file.read_text())
        except (OSError, ValueError, SyntaxError):
            continue
        for name_of_import, line, is_late in _imports(tree, late=False):
            if is_late:
                text.late.setdefault(name_of_import, f"{file.relative_to(source).as_posix()}:{line}")
            else:
                at_once.add(name_of_import.partition(".")[0])
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                inner = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                if name == entry and "run" in inner:
                    text.with_run.append(node.name)
                found.update(_EXPORT_OF.get(_name_of(base), "") for base in node.bases)
                # A class that names its configuration.
                named = [_name_of(base) for base in node.bases if isinstance(base, ast.Subscript)]
                found.update("settings" for name in named if name in _EXPORT_OF)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.update("grader" for each in node.decorator_list if _name_of(each) in ("osmosis_reward", "osmosis_rubric"))
            elif isinstance(node, ast.Import):
                todo += [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = _imported_from(node, package)
                todo += [base, *(f"{base}.{each.name}" for each in node.names)]
        made = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
        found.update("settings" for call in made if _name_of(call.func).endswith(("Config", "create_app")))
    text.exports = [export for export in exports if export in found] or ["workflow"]
    text.imports = sorted(others)
    text.late = {
        name: place
        for name, place in text.late.items()
        if name.partition(".")[0] not in at_once and _file_of(source, name.partition(".")[0]) is None
    }
    return text


def _imports(node: ast.AST, *, late: bool) -> Iterator[tuple[str, int, bool]]:
    """Yields each imported module by its full name, with the line and whether a function imports it."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Import):
            yield from ((one.name, each.lineno, late) for one in each.names)
        elif isinstance(each, ast.ImportFrom):
            if each.level == 0 and each.module:
                yield each.module, each.lineno, late
        elif not (isinstance(each, ast.If) and _name_of(each.test) == "TYPE_CHECKING"):
            is_function = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(each, late=late or is_function)


def _file_of(source: Path, name: str) -> Path | None:
    path = source / Path(*name.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    """Returns the full name of the module that names are imported from."""
    parts = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
    return ".".join([*parts, *([node.module] if node.module else [])])


def _name_of(what: ast.expr) -> str:
    if isinstance(what, ast.Subscript):
        what = what.value
    return what.attr if isinstance(what, ast.Attribute) else what.id if isinstance(what, ast.Name) else ""
