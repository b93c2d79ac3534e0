"""Ray Data: rows of a dataset are answered by engines in a pool of actors.

The shape is that of ``ray.data.llm``: a config, ``build_processor``, and a processor that makes a
dataset of a dataset. It runs on every Ray from 2.35.0 on, also where ``ray.data.llm`` is not.
"""

from ._config import EngineProcessorConfig
from ._processor import Processor, build_processor

__all__ = ["EngineProcessorConfig", "Processor", "build_processor"]
