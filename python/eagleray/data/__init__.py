"""Ray Data: rows of a dataset are answered by engines in a pool of actors.

The shape and the names are those of ``ray.data.llm``: a config, ``build_processor``, and a
processor that makes a dataset of a dataset. It runs on every Ray from 2.35.0 on, also where
``ray.data.llm`` is not.
"""

from __future__ import annotations

from ._config import (
    EngineProcessorConfig,
    HttpRequestProcessorConfig,
    ProcessorConfig,
    ServeDeploymentProcessorConfig,
)
from ._processor import Processor, build_processor
from ._stages import (
    ChatTemplateStageConfig,
    DetokenizeStageConfig,
    HttpRequestStageConfig,
    PrepareMultimodalStageConfig,
    TokenizerStageConfig,
)

vLLMEngineProcessorConfig = EngineProcessorConfig
"""Its name in ``ray.data.llm``."""

build_llm_processor = build_processor
"""Its former name there."""

__all__ = [
    "ChatTemplateStageConfig",
    "DetokenizeStageConfig",
    "EngineProcessorConfig",
    "HttpRequestProcessorConfig",
    "HttpRequestStageConfig",
    "PrepareMultimodalStageConfig",
    "Processor",
    "ProcessorConfig",
    "ServeDeploymentProcessorConfig",
    "TokenizerStageConfig",
    "build_llm_processor",
    "build_processor",
    "vLLMEngineProcessorConfig",
]
