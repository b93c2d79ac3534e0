"""Bodies of answers: JSON, a text, or events of a stream that are JSON."""

from __future__ import annotations

import json
from typing import Any

from ._http import Headers


class Decoder:
    """Takes the body of an answer as it comes."""

    def __init__(self, headers: Headers) -> None:
        self._kind = dict(headers).get(b"content-type", b"")
        self._streamed = self._kind.startswith(b"text/event-stream")
        self._parts: list[bytes] = []

    def events(self, part: bytes) -> list[dict[str, Any]]:
        """Take some of the body, and return the events that are whole now."""
        if not self._streamed:
            self._parts.append(part)
            return []
        *texts, rest = b"".join((*self._parts, part)).split(b"\n\n")
        self._parts = [rest] if rest else []
        # OpenAI's mark of the end of a stream is none.
        return [
            json.loads(line[6:].decode())  # quicker than of bytes
            for text in texts
            for line in text.split(b"\n")
            if line.startswith(b"data: {")
        ]

    def body(self) -> Any:
        """Return the body of an answer that is complete, None for none and for a stream."""
        text = b"" if self._streamed else b"".join(self._parts).strip()
        if not text:
            return None
        if self._kind.startswith(b"application/json"):
            return json.loads(text)
        return text.decode(errors="replace")
