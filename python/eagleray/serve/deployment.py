"""Deployments as classes, for applications that bind them themselves.

The names are those of ``ray.serve.llm.deployment``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from ._builder import checked_options, server_arguments
from ._config import LLMConfig, read_model
from ._server import LLMServer as _Server


class LLMServer(_Server):
    """The deployment of one model, from its configuration.

    ``serve.deployment(LLMServer).options(**LLMServer.get_deployment_options(config)).bind(config)``
    """

    def __init__(self, llm_config: Union[LLMConfig, Mapping[str, Any]]) -> None:
        """Start the engine. Raises ConfigError or EngineDeadError with the engine's line."""
        super().__init__(*server_arguments(read_model(llm_config)))

    @classmethod
    def get_deployment_options(
        cls, llm_config: Union[LLMConfig, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the options of its deployment.

        Raises ConfigError, with a line for each field that is wrong, with those of the engine.
        """
        return checked_options(read_model(llm_config))


class DPServer(LLMServer):
    """The same: an engine has the ranks of all ``data_parallel_size`` copies of its model."""


__all__ = ["DPServer", "LLMServer"]
