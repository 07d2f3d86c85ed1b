"""What an SGLang server says about itself, and whether an engine can work with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainers.engines.base import EngineError
from trainers.engines.http import Client, error_text

_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ServerInfo:
    """A server.

    Args:
        version: SGLang's, or ``unknown``.
        weight_version: What it calls the weights it has.
        longest: Prompts must be shorter than this many tokens; ``None`` where it does not say.
        deterministic: Whether it honours seeds.
        ranks: Tensor-parallel ranks, each of which takes its own copy of an update.
        replicas: Data-parallel replicas.
        dtype: Of its weights; ``None`` where it does not say.
        device: ``cpu``, ``cuda``, ...
    """

    version: str
    weight_version: str
    longest: int | None
    deterministic: bool
    ranks: int
    replicas: int
    dtype: torch.dtype | None
    device: str

    def check(self, *, max_context: int) -> None:
        """Refuse a server that cannot do what is wanted.

        Raises:
            EngineError: Its context is too short, or it has data-parallel replicas, which take no updates.
        """
        if self.longest is not None and max_context > self.longest:
            raise EngineError(
                f"it takes prompts below {self.longest} tokens, and max_context is {max_context}; start it with "
                f"--context-length {max_context + 8} or more, and room for as many tokens of KV, or lower max_context"
            )
        if self.replicas != 1:
            raise EngineError(
                f"it has {self.replicas} data-parallel replicas, which SGLang does not give new weights; start so many "
                "servers instead"
            )


async def read_server_info(client: Client, model_info: Any) -> ServerInfo:
    """Ask the server.

    Args:
        client: Of the server.
        model_info: What ``/model_info`` answered.

    Raises:
        EngineError: It does not say.
    """
    for path in ("/server_info", "/get_server_info"):
        answer = await client.request("GET", path, timeout=_TIMEOUT_S)
        if answer.status == 200 and isinstance(answer.body, Mapping) and isinstance(model_info, Mapping):
            said = answer.body
            return ServerInfo(
                version=str(said.get("version", "unknown")),
                weight_version=str(model_info.get("weight_version", "default")),
                longest=_whole(said.get("max_req_input_len")),
                deterministic=bool(said.get("enable_deterministic_inference")),
                ranks=_whole(said.get("tp_size")) or 1,
                replicas=_whole(said.get("dp_size")) or 1,
                dtype=_DTYPES.get(str(said.get("dtype"))),
                device=str(said.get("device")),
            )
    answered = f"{path} answers {answer.status}: {error_text(answer.body)}"
    raise EngineError(f"it is no SGLang server of version 0.5.8 or newer: {answered}")


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
