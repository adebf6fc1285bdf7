"""Lists the crates that are in the program: as a bill of materials in CycloneDX, or with the texts of their licences.

    python3 dependencies.py sbom | licences

The list comes from `cargo metadata` with the program's default features, for Linux, without crates that run only when it is compiled.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

PROGRAM = "rollout-host"
LICENCE_FILES = ("license", "licence", "copying", "notice", "unlicense")


def metadata() -> dict:
    machine = subprocess.check_output(["uname", "-m"], text=True).strip()
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += ["--filter-platform", f"{machine}-unknown-linux-gnu"]
    return json.loads(subprocess.check_output(command))


def crates(data: dict) -> tuple[dict, list[dict], dict[str, list[str]]]:
    """Returns the program, all crates that it is linked from, and the crates that each one uses."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    program = next(package for package in packages.values() if package["name"] == PROGRAM)
    uses: dict[str, list[str]] = {}
    waiting = [program["id"]]
    while waiting:
        one = waiting.pop()
        if one in uses:
            continue
        # `null` is an ordinary dependency; those for tests, builds and macros are in no program.
        linked = [
            each["pkg"]
            for each in nodes[one]["deps"]
            if any(kind["kind"] is None for kind in each["dep_kinds"]) and not is_macro(packages[each["pkg"]])
        ]
        uses[one] = sorted(linked)
        waiting += linked
    others = [packages[one] for one in uses if one != program["id"]]
    return program, sorted(others, key=lambda each: (each["name"], each["version"])), uses


def is_macro(package: dict) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def reference(package: dict) -> str:
    """Returns the name of a crate as a package URL."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def checksums() -> dict[tuple[str, str], str]:
    """Returns the SHA-256 of each crate that comes from a registry, from Cargo.lock."""
    found, name, version = {}, "", ""
    for line in Path("Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        value = value.strip('"')
        if key == "name":
            name = value
        elif key == "version":
            version = value
        elif key == "checksum":
            found[name, version] = value
    return found


def component(package: dict, kind: str, sums: dict[tuple[str, str], str]) -> dict:
    licence = package["license"]
    made = {
        "type": kind,
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "description": " ".join((package["description"] or "").split()),
        "purl": reference(package),
    }
    if licence:
        # Older crates write MIT/Apache-2.0, which is no expression of SPDX.
        made["licenses"] = [{"expression": " OR ".join(part.strip() for part in licence.split("/"))}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return made


def sbom(data: dict) -> str:
    program, others, uses = crates(data)
    packages = {package["id"]: package for package in data["packages"]}
    sums = checksums()
    dependencies = [
        {"ref": reference(packages[one]), "dependsOn": sorted({reference(packages[each]) for each in uses[one]})}
        for one in sorted(uses, key=lambda one: reference(packages[one]))
    ]
    made = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(program, "application", sums)},
        "components": [component(each, "library", sums) for each in others],
        "dependencies": dependencies,
    }
    return json.dumps(made, indent=1) + "\n"


def texts(package: dict) -> list[str]:
    """Returns the texts of a crate's licences, each once."""
    folder = Path(package["manifest_path"]).parent
    is_licence = lambda path: path.is_file() and path.name.lower().startswith(LICENCE_FILES)
    files = sorted(path for path in folder.iterdir() if is_licence(path))
    found = [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]
    if package["license_file"]:
        found.append((folder / package["license_file"]).read_text(encoding="utf-8", errors="replace").strip())
    return list(dict.fromkeys(found))


def licences(data: dict) -> str:
    _, others, _ = crates(data)
    others = [each for each in others if each["source"]]
    nameless = [reference(each) for each in others if not each["license"] and not texts(each)]
    if nameless:
        sys.exit(f"error: no licence is known of {', '.join(nameless)}")
    lines = [f"{PROGRAM} contains these crates.", ""]
    lines += [f"{each['name']} {each['version']}: {each['license'] or 'see its text'}" for each in others]
    # One text may be that of hundreds of crates.
    by_text: dict[str, list[str]] = {}
    for each in others:
        for text in texts(each):
            by_text.setdefault(text, []).append(f"{each['name']} {each['version']}")
    for text, names in sorted(by_text.items(), key=lambda item: hashlib.sha256(item[0].encode()).digest()):
        lines += ["", "=" * 80, ", ".join(names), "-" * 80, text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    wanted = {"sbom": sbom, "licences": licences}.get(sys.argv[1] if len(sys.argv) == 2 else "")
    if not wanted:
        sys.exit(__doc__)
    sys.stdout.write(wanted(metadata()))
