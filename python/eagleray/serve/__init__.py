"""Models on Ray Serve: deployments whose replicas are engines, behind OpenAI's API.

The names are those of ``ray.serve.llm``. Building an application needs Ray and its Serve
(``pip install 'eagleray[ray]'``); the configuration does not.
"""

from __future__ import annotations

from ._builder import build_llm_deployment, build_openai_app, build_pd_openai_app
from ._config import LLMConfig, LLMServingArgs, ModelLoadingConfig
from ._handover import PDServingArgs

__all__ = [
    "LLMConfig",
    "LLMServingArgs",
    "ModelLoadingConfig",
    "PDServingArgs",
    "build_llm_deployment",
    "build_openai_app",
    "build_pd_openai_app",
]
