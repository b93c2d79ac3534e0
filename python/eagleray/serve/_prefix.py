"""How prompts begin, as a request router compares them.

The engines of one server compare blocks of token ids (internal/engine/replicas). A router of
Serve's runs in the ingress, where there is no tokenizer; characters are compared there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

# Characters in a block. An engine's own blocks have 16 tokens, some 60 characters of English.
BLOCK_CHARS = 256

# Blocks of a prompt that are looked at.
MAX_BLOCKS = 64


def blocks_of(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a number for each full block of a prompt: a hash of it and of all before it.

    Prompts that begin alike begin with the same numbers, on every machine.
    """
    text = _text(fields)[: BLOCK_CHARS * MAX_BLOCKS]
    numbers = []
    digest = hashlib.blake2b(digest_size=8)
    for end in range(BLOCK_CHARS, len(text) + 1, BLOCK_CHARS):
        digest.update(text[end - BLOCK_CHARS : end].encode("utf-8", "surrogatepass"))
        numbers.append(int.from_bytes(digest.digest(), "little"))
    return tuple(numbers)


def _text(fields: Mapping[str, Any]) -> str:
    """Return what a request's prompt begins with."""
    prompt = fields.get("prompt", fields.get("input"))
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt:
        return prompt[0] if isinstance(prompt[0], str) else str(prompt)
    # Anthropic's API has the system prompt beside the messages, the Responses API the instructions.
    parts = [str(fields[k]) for k in ("tools", "system", "instructions") if k in fields]
    messages = fields.get("messages")
    if isinstance(messages, list):
        for m in messages:
            if isinstance(m, dict):
                parts.append(f"{m.get('role')}\0{m.get('content')}\0")
    return "".join(parts)
