"""Write a wheel of the Python package with a binary in it, the same bytes from the same files.

    wheel.py VERSION ARCH BINARY FOLDER

A build backend would have to be told that the package is for one platform and yet for any Python,
and would date the files.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import re
import sys
import time
import zipfile

try:
    import tomllib
except ModuleNotFoundError:
    sys.exit("wheel.py: Python 3.11 or later is needed to build a wheel")

ROOT = pathlib.Path(__file__).parent.parent
PLATFORMS = {"amd64": "manylinux_2_17_x86_64", "arm64": "manylinux_2_17_aarch64"}
PRERELEASES = {"alpha": "a", "beta": "b", "rc": "rc"}


def version_of(release: str) -> str:
    """Return the version that Python knows a release by: v1.2.0-rc.1 is 1.2.0rc1."""
    number, _, rest = release.removeprefix("v").partition("-")
    if not rest:
        return number
    if pre := re.fullmatch(r"(alpha|beta|rc)\.?(\d+)", rest):
        return number + PRERELEASES[pre[1]] + pre[2]
    return number + "+" + re.sub(r"[^0-9a-z]+", ".", rest.lower())


def metadata(project: dict[str, object], version: str) -> str:
    """Return the description of the package."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}",
        *(f"Classifier: {name}" for name in project["classifiers"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {need} ; extra == "{extra}"' for need in needs]
    return "\n".join(lines) + "\n"


def files(release: str, arch: str, binary: pathlib.Path) -> tuple[str, dict[str, bytes]]:
    """Return the name of the wheel and its files."""
    config = tomllib.loads((ROOT / "python/pyproject.toml").read_text())
    project, version = config["project"], version_of(release)
    tag = f"py3-none-{PLATFORMS[arch]}"
    info = f"eagleray-{version}.dist-info"
    package = ROOT / "python/eagleray"
    held = {
        path.relative_to(ROOT / "python").as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and not {"bin", "__pycache__"} & set(path.relative_to(package).parts)
    }
    held["eagleray/bin/eagleray"] = binary.read_bytes()
    scripts = "".join(f"{name} = {entry}\n" for name, entry in project["scripts"].items())
    held |= {
        f"{info}/METADATA": metadata(project, version).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: eagleray\nRoot-Is-Purelib: false\nTag: {tag}\n"
        ).encode(),
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    record = f"{info}/RECORD"
    held[record] = (
        "".join(
            f"{name},sha256={digest(content)},{len(content)}\n" for name, content in held.items()
        ).encode()
        + f"{record},,\n".encode()
    )
    return f"eagleray-{version}-{tag}.whl", held


def digest(content: bytes) -> str:
    """Return a SHA-256 as wheels write it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> None:
    """Write the wheel, and print where it is."""
    release, arch, binary, folder = sys.argv[1:]
    name, held = files(release, arch, pathlib.Path(binary))
    date = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))[:6]
    path = pathlib.Path(folder) / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for file, content in held.items():
            entry = zipfile.ZipInfo(file, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # so that the mode counts
            mode = 0o755 if file == "eagleray/bin/eagleray" else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, content)
    print(path)


if __name__ == "__main__":
    main()
