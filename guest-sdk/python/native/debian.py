"""Debian's archive, under lists of its own: what unstable has is fetched on any machine that has packages of Debian."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def fetch(place: Path, kind: str, command: list[str], packages: list[str], target: Path) -> None:
    """Has apt-get fetch packages, of programs (`deb`) or of sources (`deb-src`), to a directory. Its lists are kept in
    `place`."""
    apt = place / kind
    for directory in (target, apt / "lists/partial", apt / "cache/archives/partial"):
        directory.mkdir(parents=True, exist_ok=True)
    sources = apt / "sources.list"
    sources.write_text(f"{kind} [signed-by={KEYS}] {_archive()} sid main\n")
    settings = {
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
    subprocess.run(["apt-get", *options, "-qq", *command, *packages], check=True, cwd=target)


def kept(directory: Path, pattern: str, digest: str) -> Path | None:
    """The file with this hash, where there is one."""
    files = directory.glob(pattern)
    return next((file for file in files if hashlib.sha256(file.read_bytes()).hexdigest() == digest), None)


def _archive() -> str:
    """Where this machine has Debian's packages from."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    )
    places = [line.split() for line in said.stdout.splitlines() if line]
    # Without lists, which an image may have left out, nothing has a label.
    named = [place[0] for place in places if place[1:] == ["Debian"] or place[0].rstrip("/").endswith("/debian")]
    if not named:
        sys.exit("this machine's package sources name no archive of Debian; make the wheels on a Debian, which has one")
    return named[0]
