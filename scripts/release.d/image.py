"""Assembles a container image of the program as a layout of OCI, without a builder and without a base image.

    python3 image.py PROGRAM VERSION DIR

The image has the program, the certificates of public authorities of this machine, and a user. A program that is not
linked statically gets the shared libraries that it needs, also from this machine. The same inputs give the same image.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
HOME = "var/lib/rollout-host"
USER = 10001
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def libraries(program: str) -> list[str]:
    """Returns the shared libraries that a program needs, with its loader; none if it is linked statically."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True)
    if listed.returncode != 0 or "statically linked" in listed.stdout:
        return []
    missing = re.findall(r"^\s*(\S+) => not found", listed.stdout, re.M)
    if missing:
        sys.exit(f"error: {program} needs {', '.join(missing)}, which this machine does not have")
    # `libc.so.6 => /lib/libc.so.6 (0x…)`, and the loader as `/lib64/ld-linux-x86-64.so.2 (0x…)`
    return sorted(set(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed.stdout, re.M)))


def layer(program: str) -> bytes:
    """Returns the image's files as an archive."""
    if not Path(CERTIFICATES).is_file():
        sys.exit(f"error: {CERTIFICATES} does not exist; install the certificates of public authorities (ca-certificates)")
    buffer = io.BytesIO()
    folders: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def entry(name: str, mode: int, content: bytes | None, owner: int = 0) -> None:
            about = tarfile.TarInfo(name)
            about.mode, about.uid, about.gid = mode, owner, owner
            about.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            about.size = len(content or b"")
            tar.addfile(about, None if content is None else io.BytesIO(content))

        def folder(name: str, mode: int = 0o755, owner: int = 0) -> None:
            for parent in reversed(list(Path(name).parents)[:-1]):
                if str(parent) not in folders:
                    folders.add(str(parent))
                    entry(str(parent), 0o755, None)
            if name not in folders:
                folders.add(name)
                entry(name, mode, None, owner)

        def file(name: str, mode: int, content: bytes) -> None:
            folder(os.path.dirname(name))
            entry(name, mode, content)

        folder("tmp", 0o1777)
        folder(HOME, 0o750, USER)
        file("etc/passwd", 0o644, f"root:x:0:0::/root:/sbin/nologin\nrollout-host:x:{USER}:{USER}::/{HOME}:\n".encode())
        file("etc/group", 0o644, f"root:x:0:\nrollout-host:x:{USER}:\n".encode())
        file(CERTIFICATES[1:], 0o644, Path(CERTIFICATES).read_bytes())
        file("usr/local/bin/rollout-host", 0o755, Path(program).read_bytes())
        for library in libraries(program):
            file(library[1:], 0o755, Path(library).read_bytes())
    return buffer.getvalue()


def architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def write(program: str, version: str, out: Path) -> None:
    blobs = out / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(kind: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def document(kind: str, content: dict) -> dict:
        return blob(kind, json.dumps(content, separators=(",", ":")).encode())

    files = layer(program)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as archive:
        archive.write(files)
    config = {
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "User": str(USER),
            "ExposedPorts": {"9000/tcp": {}},
            "Env": ["PATH=/usr/local/bin", f"HOME=/{HOME}"],
            "Entrypoint": ["/usr/local/bin/rollout-host"],
            "Cmd": ["serve", "/plugin.wasm", "--listen", "0.0.0.0:9000"],
            "Volumes": {f"/{HOME}": {}},
            "WorkingDir": f"/{HOME}",
            "StopSignal": "SIGTERM",
            "Labels": {"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(files).hexdigest()}"]},
        "history": [{"created_by": "scripts/release", "created": "1970-01-01T00:00:00Z"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": document(CONFIG, config),
        "layers": [blob(LAYER, packed.getvalue())],
        "annotations": {"org.opencontainers.image.version": version},
    }
    described = document(MANIFEST, manifest)
    described["annotations"] = {"org.opencontainers.image.ref.name": version}
    described["platform"] = {"architecture": architecture(), "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
    (out / "index.json").write_text(json.dumps(index, separators=(",", ":")))
    (out / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
