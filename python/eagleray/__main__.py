"""``python -m eagleray …`` is the binary."""

from __future__ import annotations

import os
import sys

from ._binary import find


def main() -> None:
    """Become the binary, with the arguments of this program."""
    try:
        binary = find()
    except FileNotFoundError as err:
        sys.exit(f"eagleray: {err}")
    os.execv(binary, [os.fspath(binary), *sys.argv[1:]])


if __name__ == "__main__":
    main()
