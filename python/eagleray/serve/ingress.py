"""The ingress as a class, for applications that bind it themselves (``ray.serve.llm.ingress``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from ray import serve

from ._asgi import Front
from ._builder import INGRESS_DEFAULTS
from ._ingress import OpenAIIngress


class OpenAiIngress(OpenAIIngress):
    """The deployment in front of models: it finds the model of a request, and a replica.

    ``serve.deployment(make_fastapi_ingress(OpenAiIngress)).bind([deployment, …])``
    """

    def __init__(
        self,
        llm_deployments: Union[Sequence[Any], Mapping[str, Any]],
        model_cards: Optional[Mapping[str, Any]] = None,
        *,
        lora_paths: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Take deployments, by the names of their models or as a list.

        The names of a list are asked for with the first request. ``model_cards`` are made here,
        whatever is given. ``lora_paths`` are accepted, without effect: replicas know from
        ``lora_config`` where adapters are.
        """
        if isinstance(llm_deployments, Mapping):
            super().__init__(list(llm_deployments), list(llm_deployments.values()), True)
        else:
            super().__init__([], [], True)
            self.unnamed = list(llm_deployments)

    @classmethod
    def get_deployment_options(cls, llm_configs: Optional[Sequence[Any]] = None) -> dict[str, Any]:
        """Return the options of its deployment."""
        return dict(INGRESS_DEFAULTS)


def make_fastapi_ingress(cls: type[OpenAIIngress]) -> Any:
    """Return the class of a deployment that answers HTTP requests. There is no FastAPI in it."""
    return serve.ingress(Front())(cls)


__all__ = ["OpenAiIngress", "make_fastapi_ingress"]
