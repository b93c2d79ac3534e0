"""Large language models, run by the ``eagleray`` binary, on one machine or a Ray cluster.

The names are vLLM's: :class:`LLM` for batches, :class:`AsyncLLM` for streams. The engine is a
process of its own, which answers over a socket; it ends with this one, however that ends.

Programs import modules without an underscore; the others, here and in ``data`` and ``serve``, may
change with each version.
"""

from __future__ import annotations

from .async_llm import AsyncLLM
from .engine_args import AsyncEngineArgs, EngineArgs
from .errors import BadRequestError, ConfigError, EagleRayError, EngineDeadError, RequestError
from .llm import LLM
from .lora import LoRARequest
from .outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .sampling_params import (
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from .tokenizer import Tokenizer

AsyncLLMEngine = AsyncLLM
"""Its name in vLLM's own package."""

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BadRequestError",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "ConfigError",
    "EagleRayError",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineDeadError",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RepetitionDetectionParams",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "Tokenizer",
    "__version__",
]


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is looked for when it is asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._binary import version

    return version()
