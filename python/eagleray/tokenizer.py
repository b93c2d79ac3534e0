"""The engine's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

from ._jobs import Message

Ask = Callable[[str, dict[str, Any]], Any]


class BatchEncoding(dict[str, Any]):
    """What calling a tokenizer returns: ``input_ids`` and ``attention_mask``, also as attributes.

    Each is a list of numbers for one text, and a list of such lists for several.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Tokenizer:
    """The tokenizer and the chat template of a model, in the engine: each call is a request.

    It has what scripts use of a tokenizer of transformers.
    """

    def __init__(self, ask: Ask, ready: Mapping[str, Any]) -> None:
        """Take what asks the engine, and what the engine has said of itself."""
        self._ask = ask
        self.name_or_path = str(ready.get("model", ""))
        self.model_max_length = int(ready.get("max_model_len", 0))
        info = ready.get("tokenizer") or {}
        self.vocab_size = int(info.get("vocab_size", 0))
        """The highest token id plus one."""
        self._special: Mapping[str, Mapping[str, Any]] = info.get("special", {})

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(
        self,
        text: Union[str, Sequence[str]],
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: Optional[int] = None,
        return_attention_mask: bool = True,
    ) -> BatchEncoding:
        """Return the tokens of a text, or of each of several; ``truncation`` cuts their ends."""
        texts = [text] if isinstance(text, str) else list(text)
        ids = [self.encode(one, add_special_tokens) for one in texts]
        if truncation:
            most = self.model_max_length if max_length is None else max_length
            ids = [tokens[:most] for tokens in ids]
        encoding = BatchEncoding(input_ids=ids)
        if return_attention_mask:
            encoding["attention_mask"] = [[1] * len(tokens) for tokens in ids]
        if isinstance(text, str):
            return BatchEncoding({name: values[0] for name, values in encoding.items()})
        return encoding

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        body = {"prompt": text, "add_special_tokens": add_special_tokens}
        tokens: list[int] = self._ask("/tokenize", body)["tokens"]
        return tokens

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """Return the tokens of a text as the tokenizer's file spells them."""
        body = {
            "prompt": text,
            "add_special_tokens": add_special_tokens,
            "return_token_strs": True,
        }
        spelled: list[str] = self._ask("/tokenize", body)["token_strs"]
        return spelled

    def decode(
        self, token_ids: Union[int, Sequence[int]], skip_special_tokens: bool = False
    ) -> str:
        """Return the text of tokens."""
        tokens = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        body = {"tokens": tokens, "skip_special_tokens": skip_special_tokens}
        return str(self._ask("/detokenize", body)["prompt"])

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Return the texts of several sequences of tokens."""
        return [self.decode(tokens, skip_special_tokens) for tokens in sequences]

    def apply_chat_template(
        self,
        conversation: Union[Sequence[Message], Sequence[Sequence[Message]]],
        tools: Optional[Sequence[dict[str, Any]]] = None,
        chat_template: Optional[str] = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return a conversation as the model reads it: its tokens, or its text.

        Of several conversations it is a list of those.
        """
        if conversation and not isinstance(conversation[0], Mapping):
            return [
                self.apply_chat_template(
                    one,  # type: ignore[arg-type]
                    tools,
                    chat_template,
                    add_generation_prompt,
                    continue_final_message,
                    tokenize,
                    **kwargs,
                )
                for one in conversation
            ]
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

    @property
    def bos_token(self) -> Optional[str]:
        """The text of the token with which sequences begin, None for none."""
        return self._text("bos_token")

    @property
    def bos_token_id(self) -> Optional[int]:
        """Its id."""
        return self._id("bos_token")

    @property
    def eos_token(self) -> Optional[str]:
        """The text of the end-of-sequence token, None for none."""
        return self._text("eos_token")

    @property
    def eos_token_id(self) -> Optional[int]:
        """Its id."""
        return self._id("eos_token")

    @property
    def pad_token(self) -> Optional[str]:
        """The text of the token that fills rows of a batch up, None for none."""
        return self._text("pad_token")

    @property
    def pad_token_id(self) -> Optional[int]:
        """Its id."""
        return self._id("pad_token")

    @property
    def unk_token_id(self) -> Optional[int]:
        """The id of the token for what is none, None for none."""
        return self._id("unk_token")

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the tokens that the model's tokenizer_config.json names."""
        return sorted({int(token["id"]) for token in self._special.values()})

    def _id(self, name: str) -> Optional[int]:
        token = self._special.get(name)
        return None if token is None else int(token["id"])

    def _text(self, name: str) -> Optional[str]:
        token = self._special.get(name)
        return None if token is None else str(token["text"])
