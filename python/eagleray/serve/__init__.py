"""Models on Ray Serve: deployments whose replicas are engines, behind OpenAI's API.

The names are those of ``ray.serve.llm``, also those of its modules ``deployment``, ``ingress``,
``request_router`` and ``openai_api_models``. Building an application needs Ray and its Serve
(``pip install 'eagleray[ray]'``); the configuration does not.
"""

from __future__ import annotations

from ._builder import (
    build_dp_deployment,
    build_dp_openai_app,
    build_llm_deployment,
    build_openai_app,
    build_pd_openai_app,
)
from ._config import CloudMirrorConfig, LLMConfig, LLMServingArgs, LoraConfig, ModelLoadingConfig
from ._handover import PDServingArgs

__all__ = [
    "CloudMirrorConfig",
    "LLMConfig",
    "LLMServingArgs",
    "LoraConfig",
    "ModelLoadingConfig",
    "PDServingArgs",
    "build_dp_deployment",
    "build_dp_openai_app",
    "build_llm_deployment",
    "build_openai_app",
    "build_pd_openai_app",
]
