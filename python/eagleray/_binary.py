"""Where the binary is."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import Optional


def find() -> pathlib.Path:
    """Return the binary: that of ``EAGLERAY_BINARY``, of this package, or of ``PATH``.

    Raises FileNotFoundError, which names the file that is missing and the platform it is for.
    """
    named = os.environ.get("EAGLERAY_BINARY")
    if named:
        path = pathlib.Path(named)
        if not _executable(path):
            raise FileNotFoundError(f"EAGLERAY_BINARY: {path} is not an executable file")
        return path
    packed = pathlib.Path(__file__).parent / "bin" / "eagleray"
    there = f"{packed} is not in this package"
    if _executable(packed):
        machine = _machine(packed)
        if machine in (None, platform.machine()):
            return packed
        there = f"{packed} is for {machine}: this package is another platform's"
    on_path = shutil.which("eagleray")
    if on_path and not _is_script(on_path):
        return pathlib.Path(on_path)
    here = f"{sys.platform} on {platform.machine()}"
    raise FileNotFoundError(
        f"no eagleray binary for {here}: {there}, and no directory of PATH has one. Wheels are for "
        "linux on x86_64 and aarch64; EAGLERAY_BINARY names another binary"
    )


def version() -> str:
    """Return the version of this package; of one that is not installed, that of its binary.

    Raises FileNotFoundError as :func:`find` does, and what subprocess does.
    """
    try:
        return importlib.metadata.version("eagleray")
    except importlib.metadata.PackageNotFoundError:
        command = [os.fspath(find()), "--version"]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        words = said.split()[1:]
        # A binary of no release tells its commit, or that it does not know it.
        return words[0] if words[0][0].isdigit() else f"0.0.0+{words[words[0] == 'commit']}"


def _executable(path: pathlib.Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF


def _machine(path: pathlib.Path) -> Optional[str]:
    """Return what a program runs on, as ``platform.machine``; None for one that is not known."""
    with open(path, "rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF":
        return None
    return _MACHINES.get(int.from_bytes(head[18:20], "little"))


def _is_script(path: str) -> bool:
    """Say whether a file is a script, such as this package's own entry point."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"
