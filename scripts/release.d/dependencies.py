"""Lists the contents of a release: as a bill of materials in CycloneDX, or with the texts of the licences.

    python3 dependencies.py sbom | licences          # crates of the program
    python3 dependencies.py wheel-sbom WHEEL         # packages and files in the wheel, and packages that it requires
    python3 dependencies.py wheel-licences WHEEL     # texts of the licences of packages in the wheel

The list of crates comes from `cargo metadata` with the program's default features, for Linux, without crates that run only when it is compiled.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
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


# Files in the wheel that are made from other projects' releases, by their names.
ENGINE = re.compile(r"quickjs-(?P<version>[0-9.]+)\.wasm$")


def package_metadata(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    return Parser().parsestr(wheel.read(name).decode())


def python_reference(name: str, version: str | None) -> str:
    """Returns the name of a Python package as a package URL."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    return f"pkg:pypi/{normal}@{version}" if version else f"pkg:pypi/{normal}"


def python_component(about: Message, kind: str, content: bytes | None) -> dict:
    name, version = about["Name"], about["Version"]
    made = {"type": kind, "bom-ref": python_reference(name, version), "name": name, "version": version}
    made["description"] = about["Summary"] or ""
    made["purl"] = python_reference(name, version)
    if about["License-Expression"]:
        made["licenses"] = [{"expression": about["License-Expression"]}]
    elif about["License"]:
        # Older packages write a name, or the whole text, whose first line is its name.
        made["licenses"] = [{"license": {"name": about["License"].strip().splitlines()[0]}}]
    else:
        trove = [one.split(" :: ")[-1] for one in about.get_all("Classifier", []) if one.startswith("License ::")]
        made["licenses"] = [{"license": {"name": one}} for one in trove]
    if content is not None:
        made["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    return made


def bundled(path: str) -> tuple[Message, list[tuple[Message, bytes, zipfile.ZipFile]], list[tuple[str, bytes]]]:
    """Returns the wheel's own metadata, the wheels in it, and its files that are an engine."""
    wheel = zipfile.ZipFile(path)
    names = sorted(wheel.namelist())
    inner = []
    for name in names:
        if name.endswith(".whl"):
            content = wheel.read(name)
            part = zipfile.ZipFile(io.BytesIO(content))
            inner.append((package_metadata(part), content, part))
    engines = [(name, wheel.read(name)) for name in names if ENGINE.search(name)]
    return package_metadata(wheel), inner, engines


def wheel_sbom(path: str) -> str:
    about, inner, engines = bundled(path)
    own = python_component(about, "application", None)
    components = [python_component(metadata, "library", content) for metadata, content, _ in inner]
    for name, content in engines:
        version = ENGINE.search(name)["version"]
        reference = f"pkg:cargo/componentize-qjs@{version}"
        hashes = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
        engine = {"type": "file", "bom-ref": reference, "name": "componentize-qjs", "version": version}
        engine |= {"description": "the engine of components in JavaScript, QuickJS", "purl": reference, "hashes": hashes}
        components.append(engine)
    # The packages that pip installs with the wheel, without those of extras.
    for requirement in about.get_all("Requires-Dist", []):
        if "extra ==" in requirement:
            continue
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        exact = re.search(r"==\s*([0-9][^\s;,]*)", requirement)
        version = exact[1] if exact else None
        required = {"type": "library", "bom-ref": python_reference(name, version), "name": name}
        if version:
            required["version"] = version
        required |= {"description": f"required: {requirement}", "purl": python_reference(name, version), "scope": "required"}
        components.append(required)
    used = sorted({component["bom-ref"] for component in components})
    made = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": used}],
    }
    return json.dumps(made, indent=1) + "\n"


def source_of(about: Message) -> str | None:
    """Returns the address of a package's source, or else of its page."""
    labelled = [url.split(", ", 1) for url in about.get_all("Project-URL", []) if ", " in url]
    by_label = {label.lower(): url for label, url in labelled}
    wanted = ("source", "source code", "repository", "code", "github", "homepage")
    found = (by_label[label] for label in wanted if label in by_label)
    return next(found, None) or about["Home-page"] or next(iter(by_label.values()), None)


def wheel_licences(path: str) -> str:
    about, inner, _ = bundled(path)
    lines = [f"The wheel of {about['Name']} contains these packages, which components of Python projects take.", ""]
    lines += ["Each is built from the source release of its version, with the changes in guest-sdk/python/native.", ""]
    parts = []
    for metadata, _, part in inner:
        title = f"{metadata['Name']} {metadata['Version']}"
        is_licence = lambda name: ".dist-info/" in name and Path(name).name.lower().startswith(LICENCE_FILES)
        found = dict.fromkeys(part.read(name).decode(errors="replace").strip() for name in part.namelist() if is_licence(name))
        stated = python_component(metadata, "library", None)["licenses"]
        if not found and not stated:
            sys.exit(f"error: no licence is known of {title}")
        names = [each.get("expression") or each["license"]["name"] for each in stated]
        source = source_of(metadata)
        if not source:
            sys.exit(f"error: {title} does not say where its source is, which some licences require")
        lines.append(f"{title}: {', '.join(names) or 'see its text'}; source: {source}")
        for text in found:
            parts += ["", "=" * 80, title, "-" * 80, text]
    return "\n".join(lines + parts) + "\n"


if __name__ == "__main__":
    of_program = {"sbom": sbom, "licences": licences}
    of_wheel = {"wheel-sbom": wheel_sbom, "wheel-licences": wheel_licences}
    match sys.argv[1:]:
        case [wanted] if wanted in of_program:
            sys.stdout.write(of_program[wanted](metadata()))
        case [wanted, wheel] if wanted in of_wheel:
            sys.stdout.write(of_wheel[wanted](wheel))
        case _:
            sys.exit(__doc__)
