"""Prompts that one deployment computes and another goes on from: what is configured and sent."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import ssl
from collections.abc import Mapping
from typing import Any, Optional, Union

from ..errors import ConfigError
from ._config import LLMConfig, read_model, read_or_raise

_ROLES = {
    "prefill_config": ("kv_producer", "kv_both"),
    "decode_config": ("kv_consumer", "kv_both"),
}

# Fields that have no meaning for the one token that a prefill replica is asked for, or that it
# would do work for in vain; those of `eagleray route` (internal/api/pdproxy).
_DROPPED = frozenset(
    (
        "stream stream_options n best_of logprobs top_logprobs logprob_token_ids prompt_logprobs "
        "min_tokens max_completion_tokens echo stop stop_token_ids response_format "
        "structured_outputs guided_json guided_regex guided_choice guided_grammar "
        "return_token_ids return_metrics thinking_token_budget repetition_detection"
    ).split()
)

# How long the word to a prefill replica whose blocks are not needed may take.
_PARTING_SECONDS = 5.0

_ROUTES = (b"/v1/completions", b"/v1/chat/completions")


@dataclasses.dataclass(frozen=True)
class PDServingArgs:
    """The arguments of :func:`eagleray.serve.build_pd_openai_app`."""

    prefill_config: Union[LLMConfig, Mapping[str, Any], str]
    """The model as it computes prompts; a string is a YAML file with it."""
    decode_config: Union[LLMConfig, Mapping[str, Any], str]
    """The same model as it goes on from them, with a deployment of its own."""
    ingress_deployment_config: Optional[Mapping[str, Any]] = None
    """Options of the ingress."""

    def __post_init__(self) -> None:
        """Check everything. Raises ConfigError, with a line for each field that is wrong."""
        wrong: list[str] = []
        for name in _ROLES:
            try:
                model = _with_role(read_model(getattr(self, name)), _ROLES[name])
                object.__setattr__(self, name, model)
            except ConfigError as e:
                wrong += [f"{name}.{line}" for line in str(e).splitlines()]
        options = self.ingress_deployment_config
        if options is not None and not isinstance(options, Mapping):
            wrong.append(f"ingress_deployment_config: {options!r} is not an object")
        if not wrong and self.prefill.model_id != self.decode.model_id:
            wrong.append(
                f"decode_config.model_loading_config.model_id: {self.decode.model_id!r} is not "
                f"that of prefill_config, {self.prefill.model_id!r}"
            )
        if wrong:
            raise ConfigError("\n".join(wrong))

    @property
    def prefill(self) -> LLMConfig:
        """``prefill_config``, read, with its role."""
        assert isinstance(self.prefill_config, LLMConfig)
        return self.prefill_config

    @property
    def decode(self) -> LLMConfig:
        """``decode_config``, read, with its role."""
        assert isinstance(self.decode_config, LLMConfig)
        return self.decode_config


def read_pd_args(given: Any) -> PDServingArgs:
    """Read the arguments of a split application. Raises ConfigError."""
    return given if isinstance(given, PDServingArgs) else read_or_raise(PDServingArgs, given)


def _with_role(model: LLMConfig, roles: tuple[str, ...]) -> LLMConfig:
    """Return the model with a kv_transfer_config of the first of the roles, or of one of them."""
    at = "engine_kwargs.kv_transfer_config"
    given = model.engine_kwargs.get("kv_transfer_config") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{at}: {given!r} is not an object")
    config = {"kv_connector": "EagleRayConnector", "kv_role": roles[0], **given}
    if config["kv_role"] not in roles:
        raise ConfigError(f"{at}.kv_role: {config['kv_role']!r} is not {' or '.join(roles)}")
    kwargs = {**model.engine_kwargs, "kv_transfer_config": config}
    return dataclasses.replace(model, engine_kwargs=kwargs)


def transfer_flag(config: Mapping[str, Any], node: str) -> str:
    """Return the flag of an engine whose ranks are processes of this node: they listen there."""
    return "--kv-transfer-config=" + json.dumps({"kv_ip": node, **config})


def prefill_body(target: bytes, body: bytes) -> Optional[bytes]:
    """Return what a prefill replica is asked, None for what is not split."""
    if target.partition(b"?")[0] not in _ROUTES:
        return None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the decode replica says what is wrong
    if not isinstance(fields, dict) or not fields:
        return None
    if fields.get("kv_transfer_params") is not None or fields.get("use_beam_search"):
        return None
    asked = {k: v for k, v in fields.items() if k not in _DROPPED}
    asked["max_tokens"] = 1
    asked["kv_transfer_params"] = {"do_remote_decode": True}
    return json.dumps(asked).encode()


def transfer_params(status: int, answer: bytes) -> Optional[dict[str, Any]]:
    """Return the parameters of a prefill replica's answer, None without."""
    try:
        params = json.loads(answer).get("kv_transfer_params") if status == 200 else None
    except (ValueError, AttributeError):
        return None
    return params if isinstance(params, dict) else None


def decode_body(body: bytes, params: Mapping[str, Any]) -> bytes:
    """Return a client's body with the parameters of a prefill replica's answer.

    The client's own text stays as it is: the engine checks it as if it had come from there.
    """
    at = body.index(b"{") + 1
    added = b'"kv_transfer_params":' + json.dumps(params).encode() + b","
    return body[:at] + added + body[at:]


def refuses_transfer(status: int, answer: bytes) -> bool:
    """Say whether an answer refuses the parameters, and not what the client asks for."""
    if status != 400:
        return False
    try:
        param = json.loads(answer)["error"]["param"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(param, str) and param.partition(".")[0] == "kv_transfer_params"


async def renounce(params: Mapping[str, Any]) -> None:
    """Tell the prefill replica that made the parameters that its blocks are not needed any more.

    It is what internal/rank/kvtransfer/renounce.go says. Raises OSError, ValueError,
    asyncio.TimeoutError and asyncio.IncompleteReadError where no replica hears it: the replica then
    waits as long as it is configured.
    """
    await asyncio.wait_for(_renounce(params), _PARTING_SECONDS)


async def _renounce(params: Mapping[str, Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate itself is known, and checked below.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    message = json.dumps({"op": "done", "secret": params.get("remote_secret"), "ranks": 1}).encode()
    reader, writer = await asyncio.open_connection(
        str(params.get("remote_host")), params.get("remote_port"), ssl=context
    )
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if hashlib.sha256(shown).hexdigest() != params.get("remote_fingerprint"):
            raise ValueError("it has another certificate")
        writer.write(len(message).to_bytes(4, "big") + message)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    finally:
        writer.close()
