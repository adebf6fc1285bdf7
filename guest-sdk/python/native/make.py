"""Makes wheels of the packages in `packages.toml` for the component's Python.

    make.py TOOLCHAIN WHEELS [PACKAGE...]

Run by `scripts/native-wheels`, in an environment with what `requirements.txt` has. The same sources give the same
wheels.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import with_cargo
import with_meson
import with_setuptools
from pip._internal.commands.download import DownloadCommand

RECIPES = Path(__file__).resolve().parent
TAG = "cp314-cp314-wasi_wasm32"
SUFFIX = ".cpython-314-wasm32-wasi.so"

BUILDS = {"cargo": with_cargo.build, "meson": with_meson.build, "setuptools": with_setuptools.build}

# The first moment that an archive can name.
TIME = (1980, 1, 1, 0, 0, 0)


class Sources(DownloadCommand):
    """pip's download, of an archive of sources as it is. pip itself would begin to build it, to see what it
    depends on."""

    def run(self, options: Any, args: list[str]) -> int:
        name, version = args[0].split("==")
        session = self.get_default_session(options)
        finder = self._build_package_finder(options=options, session=session)
        links = (each.link for each in finder.find_all_candidates(name) if str(each.version) == version)
        link = next(each for each in links if each.filename.endswith(".tar.gz"))
        answer = session.get(link.url_without_fragment)
        answer.raise_for_status()
        Path(options.download_dir, f"{name}-{version}.tar.gz").write_bytes(answer.content)
        return 0


def main() -> None:
    toolchain, wheels = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    wheels.mkdir(parents=True, exist_ok=True)
    packages = tomllib.loads((RECIPES / "packages.toml").read_text())["package"]
    for package in packages:
        if package["name"] in (sys.argv[3:] or [each["name"] for each in packages]):
            make(package, toolchain, wheels)


def make(package: dict[str, Any], toolchain: Path, wheels: Path) -> None:
    name = package["name"]
    stem = re.sub(r"[-.]+", "_", name)
    wheel = wheels / f"{stem}-{package['version']}-{TAG}.whl"
    recipe = [json.dumps(package).encode(), *(file.read_bytes() for file in made_of(package))]
    if package["build"] == "cargo":
        recipe.append(with_cargo.compiler())
    stamp = hashlib.sha256(b"".join(recipe)).hexdigest()
    kept = wheels / f"{stem}-{package['version']}.stamp"
    if wheel.is_file() and kept.is_file() and kept.read_text() == stamp:
        print(f"{wheel.name} is there")
        return
    print(f"making {wheel.name}", flush=True)
    source = unpack(package, toolchain)
    # What assertions name is no path of this machine.
    flags = f"-ffile-prefix-map={source}=. -ffile-prefix-map={toolchain}=."
    environment = {
        **os.environ,
        "WASI_NATIVE": str(toolchain),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "SOURCE_DATE_EPOCH": "315532800",
        "PYTHONHASHSEED": "0",
    }
    tree = BUILDS[package["build"]](package, source, toolchain, environment)
    # numpy writes down what it was made with.
    places = [str(toolchain), str(Path(sys.executable).parent)]
    write_wheel(wheel, tree, source / "PKG-INFO", f"{stem}-{package['version']}.dist-info", places)
    kept.write_text(stamp)


def made_of(package: dict[str, Any]) -> list[Path]:
    """What a wheel is made with, besides what is said of its package."""
    shared = ["cc.py", "debian.py", "debian.txt", "make.py", "throw.c", "toolchain.py", "requirements.txt"]
    own = [f"with_{package['build']}.py", f"{package['name']}.patch"]
    own += ["arity.py"] if package["build"] == "meson" else []
    own += ["float_status.c", "include/fenv.h"] if "float-status" in package else []
    files = [RECIPES / file for file in (*shared, *own)]
    return [file for file in files if file.is_file()]


def unpack(package: dict[str, Any], toolchain: Path) -> Path:
    """Fetches the sources, checks them, and changes what is to be changed."""
    name, version = package["name"], package["version"]
    kept = toolchain / "sources"
    kept.mkdir(exist_ok=True)
    archive = kept / f"{name}-{version}.tar.gz"
    if not archive.is_file() or digest_of(archive) != package["sha256"]:
        Sources("download", "").main(["--quiet", "--no-binary", ":all:", "--dest", str(kept), f"{name}=={version}"])
    if digest_of(archive) != package["sha256"]:
        sys.exit(f"what was fetched as {name} {version} is not what the recipe was tried with")
    place = toolchain / "work" / name
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as files:
        files.extractall(place, filter="data")
    source = next(each for each in place.iterdir() if each.is_dir())
    change = RECIPES / f"{name}.patch"
    if change.is_file():
        subprocess.run(["patch", "-p1", "--quiet", "-i", str(change)], cwd=source, check=True)
    return source


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_wheel(wheel: Path, tree: Path, about: Path, info: str, places: list[str]) -> None:
    """Packs a tree, in order, without times and without these places of this machine."""
    files = {file.relative_to(tree).as_posix(): file.read_bytes() for file in tree.rglob("*") if file.is_file()}
    files = {name: content for name, content in files.items() if is_wanted(name)}
    for name in [each for each in files if each.endswith(".py")]:
        for place in sorted(places, key=len, reverse=True):
            files[name] = files[name].replace(place.encode(), b".")
    files[f"{info}/METADATA"] = about.read_bytes()
    files |= {f"{info}/licenses/{name}": file.read_bytes() for name, file in licences(about.parent).items()}
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: rollout-host\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for name, content in sorted(files.items())
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, TIME), content, zipfile.ZIP_DEFLATED)


def licences(source: Path) -> dict[str, Path]:
    """What the sources say of how they may be used, and what those of a library say that was linked in."""
    library = source.parent / "library"
    places = [source, *(library.iterdir() if library.is_dir() else [])]
    files = [each for place in places for each in place.iterdir() if re.match(r"(?i)(licen[cs]e|copying)", each.name)]
    return {str(file.relative_to(source.parent)): file for file in files if file.is_file()}


def is_wanted(name: str) -> bool:
    """Whether a file is of use where it is installed."""
    return not re.search(r"(^|/)(__pycache__|tests)/|\.(pyc|a|c|cpp|cxx|h|pyx|pxd|hpp)$", name) and ".dist-info/" not in name


if __name__ == "__main__":
    main()
