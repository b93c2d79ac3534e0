"""Models of lm-evaluation-harness that an ``LLM`` computes.

``python -m eagleray.lm_eval`` is the harness's command, with one more model::

    python -m eagleray.lm_eval run --model eagleray --model_args pretrained=./model --tasks lambada
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import maybe_truncate, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from .llm import LLM
from .sampling_params import SamplingParams

__all__ = ["EagleRay"]

_Scored = tuple[float, bool]


@register_model("eagleray")
class EagleRay(TemplateLM):  # type: ignore[misc]
    """A model whose arguments are those of ``LLM``, and those that harness's models have.

    Without ``pretrained`` it is the built-in model. All requests of a task are given to the engine
    at once: ``batch_size`` and ``device`` say nothing here.
    """

    def __init__(
        self,
        pretrained: Optional[str] = None,
        batch_size: Union[int, str, None] = None,
        max_batch_size: Optional[int] = None,
        device: Optional[str] = None,
        max_gen_toks: int = 256,
        max_length: Optional[int] = None,
        prefix_token_id: Optional[int] = None,
        **arguments: Any,
    ) -> None:
        """Start the engine; ``max_length`` is its ``max_model_len``."""
        super().__init__()
        if max_length is not None:
            arguments["max_model_len"] = max_length
        self._llm = LLM(pretrained, **arguments)
        self.tokenizer = self._llm.get_tokenizer()
        self._most = max_gen_toks
        self._prefix = prefix_token_id

    @property
    def eot_token_id(self) -> Optional[int]:
        """The token that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> Optional[int]:
        """The token that texts follow which have no context."""
        if self._prefix is not None:
            return self._prefix
        first = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else first

    @property
    def tokenizer_name(self) -> str:
        """The name that answers are cached under."""
        return self.tokenizer.name_or_path.replace("/", "__")

    @property
    def max_length(self) -> int:
        """How many tokens a text may have."""
        return self.tokenizer.model_max_length

    def chat_template(self, chat_template: Union[bool, str] = False) -> Optional[str]:
        """Return nothing: the template is in the engine."""
        return None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation."""
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            tokenize=False,
        )
        return text

    def tok_encode(
        self, string: str, add_special_tokens: Optional[bool] = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text; one that has a first token already gets no second one."""
        if add_special_tokens is None:
            first = self.tokenizer.bos_token
            add_special_tokens = not (first and string.startswith(first))
        return self.tokenizer.encode(string, add_special_tokens)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probabilities of whole texts."""
        windows = [
            [
                (None, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length - 1,
                    context_len=1,
                )
            ]
            for request in requests
        ]
        every = [window for of_one in windows for window in of_one]
        scored = iter(self._loglikelihood_tokens(every, disable_tqdm))
        return [sum(next(scored)[0] for _ in of_one) for of_one in windows]

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[_Scored]:
        """Return of each continuation its log-probability, and whether it is the likeliest."""
        most = self.max_length - 1  # the engine writes a token, too
        prompts = [(context + continuation)[-most:] for _, context, continuation in requests]
        outputs = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0),
            use_tqdm=not disable_tqdm,
        )
        answers: list[_Scored] = []
        for (pair, _context, continuation), ids, output in zip(requests, prompts, outputs):
            likely = output.prompt_logprobs or []
            at = max(len(ids) - len(continuation), 1)
            own = [of[token] for of, token in zip(likely[at:], ids[at:]) if of is not None]
            scored = sum(of.logprob for of in own), all(of.rank == 1 for of in own)
            answers.append(scored)
            if pair is not None:
                self.cache_hook.add_partial("loglikelihood", pair, scored)
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return what the model writes after each text, up to a stop string."""
        prompts, params, stops = [], [], []
        for request in requests:
            context, options = request.args
            options = dict(normalize_gen_kwargs(options, default_max_gen_toks=self._most))
            if not options.pop("do_sample"):
                options["temperature"] = 0.0
            stop = [text for text in options.pop("until") if text]
            tokens, count = maybe_truncate(
                self.tok_encode(context),
                max_gen_toks=options.pop("max_gen_toks"),
                max_model_len=self.max_length,
            )
            prompts.append({"prompt_token_ids": tokens})
            params.append(SamplingParams(max_tokens=count, stop=stop, **options))
            stops.append(stop)
        outputs = self._llm.generate(prompts, params, use_tqdm=not disable_tqdm)
        answers = []
        for request, stop, output in zip(requests, stops, outputs):
            answer = postprocess_generated_text(output.outputs[0].text, stop, None)
            answers.append(answer)
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


if __name__ == "__main__":
    cli_evaluate()
