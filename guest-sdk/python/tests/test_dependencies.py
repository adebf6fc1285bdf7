"""Tests that dependencies are resolved for the component's Python. There is no index: a test creates the sources."""

import argparse
import contextlib
import hashlib
import importlib
import io
import os
import platform
import sys
import tarfile
import tempfile
import unittest
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from rollout_sdk import _build, _build_late, _modules, _resolve

# The build backend of a package, which is part of the package: building it downloads nothing.
BACKEND = '''
import zipfile

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "late_thing-1.0-@TAG@.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        files = {
            "late_thing/__init__.py": "",
            "late_thing/_quick.so": "native",
            "late_thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: late-thing\\nVersion: 1.0\\n",
            "late_thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: @PURE@\\nTag: @TAG@\\n",
        }
        if "@PURE@" == "true":
            del files["late_thing/_quick.so"]
        files["late_thing-1.0.dist-info/RECORD"] = "".join(f"{each},,\\n" for each in files)
        for each, text in files.items():
            wheel.writestr(each, text)
    return name
'''
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def source(place: Path, tag: str, pure: str) -> None:
    """Creates a package without a wheel."""
    backend = BACKEND.replace("@TAG@", tag).replace("@PURE@", pure)
    files = {"pyproject.toml": PROJECT, "backend.py": backend, "PKG-INFO": "Metadata-Version: 2.1\nName: late-thing\nVersion: 1.0\n"}
    with tarfile.open(place / "late_thing-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"late_thing-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@contextlib.contextmanager
def offline(tag: str, pure: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as held:
        place = Path(held)
        (place / "links").mkdir()
        source(place / "links", tag, pure)
        variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place / "links"), "PIP_CONFIG_FILE": os.devnull}
        with mock.patch.dict(os.environ, variables):
            yield place


HOSTS_OWN = "cp312-cp312-linux_x86_64"


class Dependencies(unittest.TestCase):
    def gathered(self, tag: str, pure: str, without_native: list[str]) -> list[str]:
        with offline(tag, pure) as place, contextlib.redirect_stderr(io.StringIO()):
            project = _build.Project(place, "p", "p", place, ["late-thing"], without_native=without_native)
            found = _build.gather(project, place / "cache", None)
            assert found is not None
            return sorted(str(each.relative_to(found)) for each in found.rglob("late_thing/*"))

    def test_a_wheel_is_built_for_a_package_without_one(self) -> None:
        self.assertEqual(self.gathered("py3-none-any", "true", []), ["late_thing/__init__.py"])

    def test_a_native_package_is_named_unless_it_may_go_without_native_code(self) -> None:
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered(HOSTS_OWN, "false", [])
        self.assertRegex(str(refused.exception), "native code, .*\n  - late-thing 1.0: the project depends on it\n(.|\n)*without-native")
        self.assertEqual(self.gathered(HOSTS_OWN, "false", ["late-thing"]), ["late_thing/__init__.py"])

    def test_a_wheel_is_made_without_its_native_part(self) -> None:
        with tempfile.TemporaryDirectory() as held:
            wheel = Path(held, f"late_thing-1.0-{HOSTS_OWN}.whl")
            with zipfile.ZipFile(wheel, "w") as made:
                made.writestr("late_thing/_quick.cpython-312.so", "native")
                made.writestr("late_thing/__init__.py", "")
                made.writestr("late_thing-1.0.dist-info/WHEEL", "Tag: x\n")
                made.writestr("late_thing-1.0.dist-info/RECORD", "late_thing/_quick.cpython-312.so,,\nlate_thing/__init__.py,,\n")
            _build._without_native(wheel)
            [pure] = Path(held).iterdir()
            self.assertEqual(pure.name, "late_thing-1.0-py3-none-any.whl")
            with zipfile.ZipFile(pure) as kept:
                self.assertNotIn("late_thing/_quick.cpython-312.so", kept.namelist())
                self.assertEqual(kept.read("late_thing-1.0.dist-info/RECORD"), b"late_thing/__init__.py,,\n")


def wheel(directory: Path, name: str, version: str, *requires: str, tag: str = "py3-none-any") -> None:
    """Creates a wheel of one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires)
        + "".join("Provides-Extra: x\n" for each in requires if 'extra == "x"' in each),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(directory / f"{name}-{version}-{tag}.whl", "w") as made:
        for each, text in files.items():
            made.writestr(each, text)


HERE = f"cp{sys.version_info.major}{sys.version_info.minor}-abi3-linux_{platform.machine()}"


class Releases(unittest.TestCase):
    """Tests which releases are taken from an index, which is a directory."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.index, self.project, self.cache, self.made = (Path(place.name, each) for each in ("index", "project", "cache", "made"))
        for each in (self.index, self.project, self.cache, self.made):
            each.mkdir()
        index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            index[name] = ""
        patched = mock.patch.dict(os.environ, index)
        patched.start()
        self.addCleanup(patched.stop)

    def gathered(self, *wanted: str, leave_out: Sequence[str] = ()) -> dict[str, str]:
        """Returns the installed releases of a project with these dependencies."""
        project = _build.Project(self.project, "p", "p", self.project, list(wanted), leave_out=list(leave_out))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            kept = _build.gather(project, self.cache, self.made)
        self.said = said.getvalue()
        assert kept is not None
        return dict(info.name.removesuffix(".dist-info").rsplit("-", 1) for info in kept.glob("*.dist-info"))

    def test_a_native_release_is_an_error_and_not_replaced_by_an_old_pure_one(self) -> None:
        wheel(self.index, "top", "1.0", "middle")
        wheel(self.index, "middle", "3.0", "thing>=1")
        wheel(self.index, "thing", "1.0")
        wheel(self.index, "thing", "2.0", tag=HERE)
        wheel(self.index, "fast", "1.0", tag=HERE)
        wheel(self.made, "fast", "1.0", tag="cp314-cp314-wasi_wasm32")
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("top", "fast")
        text = str(refused.exception)
        self.assertIn("thing 2.0: top 1.0 requires middle 3.0 requires thing 2.0", text)
        # A package that was built for components is not named.
        self.assertNotIn("fast", text)
        # An author can ask for the old release.
        self.assertEqual(self.gathered("top", "thing<2"), {"top": "1.0", "middle": "3.0", "thing": "1.0"})

    def test_no_release_is_newer_than_the_one_built_for_components(self) -> None:
        wheel(self.index, "fast", "1.0", tag=HERE)
        wheel(self.index, "fast", "2.0", tag=HERE)
        wheel(self.made, "fast", "1.0", tag="cp314-cp314-wasi_wasm32")
        self.assertEqual(self.gathered("fast"), {"fast": "1.0"})
        self.assertIn("fast 1.0 in place of 2.0: ", self.said)

    def test_a_package_of_one_native_release_is_as_old_as_that_and_the_build_says_so(self) -> None:
        for version, native in (("1.0", "5.0"), ("1.1", "5.1")):
            wheel(self.index, "top", version, f"fast=={native}")
            wheel(self.index, "fast", native, tag=HERE)
        wheel(self.made, "fast", "5.0", tag="cp314-cp314-wasi_wasm32")
        self.assertEqual(self.gathered("top"), {"top": "1.0", "fast": "5.0"})
        self.assertIn("top 1.0 in place of 1.1: ", self.said)

    def test_a_package_that_falls_behind_because_of_another_is_an_error_with_the_chain(self) -> None:
        wheel(self.index, "top", "1.0")
        wheel(self.index, "top", "2.0", "middle")
        wheel(self.index, "middle", "3.0", "fast>=2")
        wheel(self.index, "fast", "1.0", tag=HERE)
        wheel(self.index, "fast", "2.0", tag=HERE)
        wheel(self.made, "fast", "1.0", tag="cp314-cp314-wasi_wasm32")
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("top")
        text = str(refused.exception)
        chain = "top 2.0 requires middle 3.0 requires fast 2.0, which was made for components up to 1.0"
        self.assertIn(f"top 1.0 in place of 2.0: {chain}", text)
        self.assertIn('such as "top<=1.0"', text)
        # An author who asks for the older one has it.
        self.assertEqual(self.gathered("top<=1.0"), {"top": "1.0"})
        # Where no release goes with what was made, the chain is the error, too.
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("middle")
        text = str(refused.exception)
        self.assertIn("fast 2.0, made for components up to 1.0: middle 3.0 requires fast 2.0", text)

    def test_a_package_that_only_an_extra_requires_is_named_with_its_chain(self) -> None:
        wheel(self.index, "top", "1.0", 'fast>=1; extra == "x"')
        wheel(self.index, "fast", "1.0", tag=HERE)
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("top[x]")
        self.assertIn("fast 1.0: top 1.0 requires fast 1.0", str(refused.exception))

    def test_a_package_that_cannot_be_imported_in_a_component_ends_the_build_with_the_reason_and_the_chain(self) -> None:
        wheel(self.index, "top", "1.0", "litellm")
        wheel(self.index, "litellm", "2.0", tag=HERE)
        for wanted, chain in (
            (["litellm"], "litellm: the project depends on it"),
            (["top"], "litellm 2.0: top 1.0 requires litellm 2.0"),
        ):
            with self.assertRaises(_build.BuildError) as refused:
                self.gathered(*wanted)
            text = str(refused.exception)
            self.assertIn(f"  - {chain}; its import needs its native part", text)
            self.assertIn("HostClient", text)
            self.assertIn("leave-out", text)
            self.assertFalse((self.project / _resolve.LOCK).exists())
        self.assertEqual(self.gathered("top", leave_out=["litellm"]), {"top": "1.0"})
        # One that works without it may require it.
        wheel(self.index, "dspy", "3.0", "litellm")
        # An extra that was not asked for is no reason.
        wheel(self.index, "other", "1.0", 'litellm; extra == "x"')
        self.assertEqual(self.gathered("dspy", "other"), {"dspy": "3.0", "litellm": "2.0", "other": "1.0"})
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("other[x]")
        self.assertIn("litellm 2.0: other 1.0 requires litellm 2.0; ", str(refused.exception))
        # One that was asked for is, although dspy requires the same package and works without it.
        wheel(self.index, "outer", "1.0", "other[X]")
        for wanted, chain in (("other[x]", "other 1.0"), ("outer", "outer 1.0 requires other 1.0")):
            with self.assertRaises(_build.BuildError) as refused:
                self.gathered("dspy", wanted)
            self.assertIn(f"litellm 2.0: {chain} requires litellm 2.0; ", str(refused.exception))

    def test_a_lock_file_with_a_package_that_cannot_be_imported_ends_the_build_with_the_chain(self) -> None:
        wheel(self.index, "top", "1.0", "middle")
        wheel(self.index, "middle", "1.0", "litellm")
        wheel(self.index, "litellm", "2.0")
        wheel(self.index, "dspy", "3.0", "litellm")
        lock = self.project / _resolve.LOCK
        for wanted in (["top"], ["dspy"]):
            with mock.patch.dict(_build.CANNOT_WORK, clear=True):
                self.gathered(*wanted)
            self.assertIn("litellm==2.0", lock.read_text())
            if wanted == ["dspy"]:
                self.assertEqual(self.gathered(*wanted), {"dspy": "3.0", "litellm": "2.0"})
                continue
            with self.assertRaises(_build.BuildError) as refused:
                self.gathered(*wanted)
            text = str(refused.exception)
            self.assertIn("litellm 2.0: top 1.0 requires middle 1.0 requires litellm 2.0; its import needs", text)
            self.assertIn(f"those of {_resolve.LOCK}", text)

    def test_the_error_about_a_known_native_package_says_what_to_use_in_its_place(self) -> None:
        wheel(self.index, "pandas", "3.0", tag=HERE)
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("pandas")
        self.assertIn("pandas 3.0: the project depends on it; it was not made for components; numpy was", str(refused.exception))

    def test_a_package_that_works_in_part_is_installed_with_a_note(self) -> None:
        wheel(self.index, "anthropic", "1.0")
        wheel(self.index, "top", "1.0", "anthropic")
        self.assertEqual(self.gathered("anthropic"), {"anthropic": "1.0"})
        self.assertIn("note: anthropic: its types work, and its clients find no network; ask the host's model", self.said)
        # An author who does not depend on it calls none of it.
        self.gathered("top")
        self.assertNotIn("note: anthropic", self.said)

    def test_every_package_that_works_without_another_is_of_one_that_cannot_work(self) -> None:
        self.assertLessEqual({name for names in _build.WORK_WITHOUT.values() for name in names}, set(_build.CANNOT_WORK))

    def test_a_later_build_takes_the_releases_of_the_lock_file_until_the_dependencies_change(self) -> None:
        wheel(self.index, "thing", "1.0")
        self.assertEqual(self.gathered("thing"), {"thing": "1.0"})
        self.assertIn("resolved: thing 1.0", self.said)
        lock = self.project / _resolve.LOCK
        wheel(self.index, "thing", "2.0")
        self.cache = self.cache / "another"
        self.assertEqual(self.gathered("thing"), {"thing": "1.0"})
        self.assertIn(_resolve.LOCK, self.said)
        self.assertEqual(self.gathered("thing>=1"), {"thing": "2.0"})
        lock.unlink()
        self.assertEqual(self.gathered("thing"), {"thing": "2.0"})
        self.assertIn("thing==2.0", lock.read_text())

    def test_a_file_that_differs_from_its_digest_in_the_lock_file_is_an_error_that_names_its_package(self) -> None:
        wheel(self.index, "thing", "1.0")
        wheel(self.index, "other", "1.0")
        self.gathered("thing", "other")
        lock = self.project / _resolve.LOCK
        file = self.index / "thing-1.0-py3-none-any.whl"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        self.assertIn(f"thing==1.0 --hash=sha256:{digest}\n", lock.read_text())
        with zipfile.ZipFile(file, "a") as changed:
            changed.writestr("thing/more.py", "")
        # The installation of the original file is reused.
        self.assertEqual(self.gathered("thing", "other"), {"thing": "1.0", "other": "1.0"})
        self.cache = self.cache / "another"
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered("thing", "other")
        text = str(refused.exception)
        self.assertRegex(text, f"thing==1.0: the lock file has SHA-256 {digest}, thing-1.0-py3-none-any.whl has ")
        self.assertNotIn("other", text)
        # A line without a digest gets one again.
        lock.write_text(lock.read_text().replace(f" --hash=sha256:{digest}", ""))
        self.assertEqual(self.gathered("thing", "other"), {"thing": "1.0", "other": "1.0"})
        now = hashlib.sha256(file.read_bytes()).hexdigest()
        self.assertIn(f"thing==1.0 --hash=sha256:{now}\n", lock.read_text())


class LateImports(unittest.TestCase):
    """Tests of imports that a rollout would pay for."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.place = Path(held.name)
        self.source = self.place / "source"
        self.bundled = self.place / "bundled"
        for each in (self.source, self.bundled):
            each.mkdir()

    def tools(self) -> _build.Tools:
        return _build.Tools("", self.place, self.place / "work", self.place / "made.wasm", self.bundled)

    def test_modules_that_only_functions_import_are_found_with_the_first_location(self) -> None:
        with tempfile.TemporaryDirectory() as held:
            source = Path(held)
            (source / "agent.py").write_text(
                "import json, early.part\nfrom typing import TYPE_CHECKING\nimport helper\n"
                "if TYPE_CHECKING:\n    import typed\n"
                "def grade():\n    import slow.part\n    from early import x\n    from helper import y\n    import typed\n"
            )
            (source / "helper.py").write_text("class A:\n    async def f(self):\n        from other import z\n        import slow.part\n")
            late = _modules.read(source, "agent", ["workflow"]).late
        self.assertEqual(late, {"slow.part": "agent.py:7", "typed": "agent.py:10", "other": "helper.py:3"})

    def test_a_measurement_is_stored_atomically_and_a_damaged_one_is_measured_again(self) -> None:
        with tempfile.TemporaryDirectory() as held:
            file = Path(held, "python", "late-1.json")
            self.assertIsNone(_build_late._read(file, ["slow"]))
            _build_late._keep(file, {"slow": 2.5})
            self.assertEqual(_build_late._read(file, ["slow", "failed"]), {"slow": 2.5})
            for damaged in (file.read_text()[:-3], "[]", '{"slow": "x"}', '{"slow": null}'):
                file.write_text(damaged)
                self.assertIsNone(_build_late._read(file, ["slow"]) or None, damaged)
            for number in range(_build_late.KEPT_MAX + 5):
                _build_late._keep(file.with_name(f"late-{number}.json"), {})
            self.assertEqual(len(list(file.parent.iterdir())), _build_late.KEPT_MAX)

    def test_slow_imports_of_dependencies_are_named_with_what_to_write_and_measured_once(self) -> None:
        (self.source / "agent.py").write_text(
            "def grade():\n    import slow_one.part\n    import quick_one\n    import named\n    import json\n    import helper\n"
        )
        (self.source / "helper.py").write_text("")
        for name in ("slow_one.py", "quick_one.py", "named.py"):
            (self.bundled / name).write_text("")
        project = _build.Project(self.place, "p", "agent", self.source, ["slow-one"], imports=["named"])
        arguments = argparse.Namespace(cache=self.place / "cache", wheels=None)
        said = io.StringIO()
        seconds = {"slow_one.part": 4.25, "quick_one": _build_late.SLOW_SECS / 2}
        with mock.patch.object(_build_late, "_measured", return_value=seconds) as measured:
            for _ in range(2):
                with contextlib.redirect_stderr(said):
                    _build_late.offer(_build, project, arguments, self.tools(), ["grader"], self.source)
        measured.assert_called_once()
        # Neither the standard library nor the author's modules cost anything late, and `named` is imported at the build.
        self.assertEqual(measured.call_args.args[-1], ["quick_one", "slow_one.part"])
        lines = said.getvalue().splitlines()
        offered = [
            "source/agent.py:2 imports `slow_one.part` in a function: each rollout that calls it spends some 4.2 s on it",
            "to have that done at the build, write in pyproject.toml: "
            '[tool.rollout-host] imports = ["named", "slow_one.part"]',
        ]
        measuring = f"{_build.SAID}measuring the imports of quick_one, slow_one.part in a rollout"
        self.assertEqual(lines, [measuring, *offered, *offered])

    def test_the_measurement_imports_the_authors_module_first_and_leaves_out_what_fails(self) -> None:
        (self.source / "made_up_agent.py").write_text("import made_up_early\n")
        waits = "import time\ntime.sleep(0.05)\n"
        for name, text in (("made_up_early", waits), ("made_up_late", waits), ("made_up_failing", "raise ImportError")):
            (self.source / f"{name}.py").write_text(text)
        project = _build.Project(self.place, "p", "made_up_agent", self.source, [])
        outputs: list[Path] = []

        def componentize(_: _build.Project, exports: list[str], code: str, source: Path, tools: _build.Tools) -> list[str]:
            """Runs the code here, and fails as a component does that is left before its end."""
            outputs.append(tools.output)
            entry = tools.work / "-".join(exports) / "entry"
            entry.mkdir(parents=True)
            with self.assertRaises(SystemExit), mock.patch.object(sys, "path", [str(source), *sys.path]):
                exec(code.replace("/1/", f"{entry}/"), {"importlib": importlib})
            raise _build.BuildError(_build.AT_FAULT, "measured")

        names = ["made_up_early", "made_up_failing", "made_up_late"]
        with (
            mock.patch.object(_build, "entry_code", lambda _, measuring: measuring),
            mock.patch.object(_build, "componentize", componentize),
        ):
            taken = _build_late._measured(_build, project, self.tools(), ["grader"], self.source, names)
        self.assertEqual(sorted(taken), ["made_up_early", "made_up_late"])
        self.assertLess(taken["made_up_early"], 0.05)
        self.assertGreaterEqual(taken["made_up_late"], 0.05)
        self.assertNotIn(self.tools().output, outputs)


if __name__ == "__main__":
    unittest.main()
