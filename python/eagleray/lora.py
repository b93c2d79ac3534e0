"""Adapters that requests are answered with."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, Callable, Optional

from . import errors


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """An adapter: a name, and PEFT's folder of it, which the engine loads once.

    Without a folder it is one that the engine has by that name (``lora_modules``,
    ``lora_resolver``). The number, which vLLM needs, says nothing here.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""

    @property
    def name(self) -> str:
        """The name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The folder."""
        return self.lora_path


class Adapters:
    """Which adapters an engine has been asked to load. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, str] = {}

    def missing(self, lora_request: Any) -> Optional[dict[str, Any]]:
        """Return what the engine is to be asked before a request, None for nothing.

        Raises ValueError for what is no LoRARequest.
        """
        if lora_request is None:
            return None
        if not isinstance(lora_request, LoRARequest):
            raise ValueError(f"lora_request: {lora_request!r} is no LoRARequest")
        name, path = lora_request.lora_name, lora_request.lora_path
        with self._lock:
            known = self._paths.get(name)
        if not path or known == path:
            return None
        body: dict[str, Any] = {"lora_name": name, "lora_path": path}
        if known is not None:
            body["load_inplace"] = True
        return body

    def loaded(self, body: dict[str, Any], error: Optional[errors.BadRequestError] = None) -> None:
        """Take note of an answer. Another thread may have loaded the same one meanwhile."""
        if error is not None and "loaded already" not in str(error):
            raise error
        with self._lock:
            self._paths[body["lora_name"]] = body["lora_path"]

    def load(self, lora_requests: Sequence[Any], ask: Callable[[str, dict[str, Any]], Any]) -> None:
        """Load those that are missing."""
        for lora_request in lora_requests:
            body = self.missing(lora_request)
            if body is None:
                continue
            try:
                ask(ROUTE, body)
            except errors.BadRequestError as error:
                self.loaded(body, error)
            else:
                self.loaded(body)


ROUTE = "/v1/load_lora_adapter"
