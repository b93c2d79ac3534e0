"""The engine's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

from ._jobs import Message

Ask = Callable[[str, dict[str, Any]], Any]


class Tokenizer:
    """The tokenizer and the chat template of a model, in the engine: each call is a request."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        body = {"prompt": text, "add_special_tokens": add_special_tokens}
        tokens: list[int] = self._ask("/tokenize", body)["tokens"]
        return tokens

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens."""
        body = {"tokens": list(token_ids), "skip_special_tokens": skip_special_tokens}
        return str(self._ask("/detokenize", body)["prompt"])

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Optional[Sequence[dict[str, Any]]] = None,
        chat_template: Optional[str] = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Union[str, list[int]]:
        """Return a conversation as the model reads it: its tokens, or its text."""
        body: dict[str, Any] = {
            "messages": list(conversation),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": kwargs,
            "return_prompt": True,
        }
        if tools is not None:
            body["tools"] = list(tools)
        if chat_template is not None:
            body["chat_template"] = chat_template
        answer = self._ask("/tokenize", body)
        return list(answer["tokens"]) if tokenize else str(answer["prompt"])
