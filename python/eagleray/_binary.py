"""Where the binary is."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import sys


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
    if _executable(packed):
        return packed
    on_path = shutil.which("eagleray")
    if on_path and not _is_script(on_path):
        return pathlib.Path(on_path)
    here = f"{sys.platform} on {platform.machine()}"
    raise FileNotFoundError(
        f"no eagleray binary for {here}: {packed} is not in this package, whose wheels are for "
        "linux on x86_64 and aarch64, and no directory of PATH has one (EAGLERAY_BINARY names one)"
    )


def _executable(path: pathlib.Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_script(path: str) -> bool:
    """Say whether a file is a script, such as this package's own entry point."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"
