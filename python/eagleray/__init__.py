"""Large language models, run by the ``eagleray`` binary, on one machine or a Ray cluster.

The names are vLLM's: :class:`LLM` for batches, :class:`AsyncLLM` for streams. The engine is a
process of its own, which answers over a socket; it ends with this one, however that ends.
"""

from .async_llm import AsyncLLM
from .errors import BadRequestError, ConfigError, EagleRayError, EngineDeadError, RequestError
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = [
    "AsyncLLM",
    "BadRequestError",
    "CompletionOutput",
    "ConfigError",
    "EagleRayError",
    "EngineDeadError",
    "Logprob",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]
