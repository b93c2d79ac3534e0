"""What is answered, in files of a folder that outlives the job.

Each actor appends to a file of its own, a line for an answer, and reads those of the others. The
file system has to show an actor what others wrote before they ended; it needs no locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from typing import Any, Optional

_ENDING = ".jsonl"


class Checkpoint:
    """The answers that are there. Any thread may use it."""

    def __init__(self, folder: str) -> None:
        """Open it, with all that is in it. Raises OSError or ValueError."""
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._own = f"{uuid.uuid4().hex}{_ENDING}"
        self._file = open(os.path.join(folder, self._own), "ab", buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()
        # Where an answer is: a row's id and the digest of its request, to file, offset and length.
        # One folder has the answers of several models, and those to what was asked before.
        self._index: dict[tuple[str, str], tuple[str, int, int]] = {}
        self._read: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take in what others have written since the last time."""
        with self._lock:
            for entry in os.scandir(self._folder):
                if entry.name.endswith(_ENDING) and entry.name != self._own:
                    self._take(entry.name)

    def find(self, key: str, digest: str) -> Optional[dict[str, Any]]:
        """Return the columns of a row that was answered, None for one that was not."""
        with self._lock:
            found = self._index.get((key, digest))
        if found is None:
            return None
        name, offset, length = found
        with open(os.path.join(self._folder, name), "rb") as file:
            file.seek(offset)
            outputs: dict[str, Any] = json.loads(file.read(length))["outputs"]
        return outputs

    def add(self, key: str, digest: str, outputs: dict[str, Any]) -> None:
        """Keep an answer: it is in the file when this returns."""
        line = json.dumps({"id": key, "request": digest, "outputs": outputs}).encode() + b"\n"
        with self._lock:
            offset = self._file.tell()
            # A disk that is full takes a part of it.
            if self._file.write(line) != len(line):
                raise OSError(f"{self._folder}: an answer was not written whole")
            self._index[key, digest] = (self._own, offset, len(line))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _take(self, name: str) -> None:
        with open(os.path.join(self._folder, name), "rb") as file:
            offset = self._read.get(name, 0)
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # its writer is at it, or was when it ended
                try:
                    answer = json.loads(line)
                    self._index[answer["id"], answer["request"]] = (name, offset, len(line))
                except (ValueError, KeyError, TypeError):
                    pass  # of a disk that was full: the row is asked again
                offset += len(line)
            self._read[name] = offset


def key_of(value: Any) -> str:
    """Return the name of a row in a checkpoint. Raises ValueError for what cannot be one."""
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (str, int)):
        raise ValueError(f"{value!r} is neither a text nor a number")
    return json.dumps(value)


def digest_of(model: Optional[str], route: str, body: dict[str, Any]) -> str:
    """Return what differs where an answer would: of another model, of other parameters."""
    text = json.dumps([model, route, body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
