"""Dependencies are resolved for the component's Python, with no index: from sources that a test makes."""

import contextlib
import io
import os
import tarfile
import tempfile
import unittest
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from rollout_sdk import _build

# What builds a package, which is the package's own: nothing is to be fetched for it.
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
    """A package that has no wheel."""
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

    def test_of_a_package_without_a_wheel_one_is_made(self) -> None:
        self.assertEqual(self.gathered("py3-none-any", "true", []), ["late_thing/__init__.py"])

    def test_one_that_is_native_is_named_and_goes_without_where_it_may(self) -> None:
        with self.assertRaises(_build.BuildError) as refused:
            self.gathered(HOSTS_OWN, "false", [])
        self.assertRegex(str(refused.exception), "native code, .*\n  - late-thing\n(.|\n)*without-native")
        self.assertEqual(self.gathered(HOSTS_OWN, "false", ["late-thing"]), ["late_thing/__init__.py"])

    def test_a_wheel_goes_without_its_native_part(self) -> None:
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


if __name__ == "__main__":
    unittest.main()
