"""A small vLLM without a model: the HTTP endpoints that the engine uses, as a version of it answers them."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_server import VOCAB, FakeServer
from packaging.version import Version
from safetensors.torch import load, load_file

from trainers.engines.shared_memory import place_of, tensors_of
from trainers.engines.weights import FUSED, bits

DESCRIBED = {
    "vocab_size": VOCAB,
    "max_context": 768,
    "dtype": "float32",
    "device": "cpu",
    "sampler": True,
    "in_place": True,
    "transfer": True,
    "place": place_of("cpu"),
    "reads_prompts": True,
}


@dataclass(eq=False)
class FakeVLLM(FakeServer):
    """See the module's text.

    Args:
        described: Changes of the worker's description.
        extension: Whether the worker has this project's extension.
        details: Whether answers say what was cached.
        fused: Modules that it has under other names.
        ranks: Workers that share the model.
        version: Of vLLM. Before 0.32 the workers' sampler counts updates, and answers have no ``weight_versions``.
        late: The status and body for requests for tokens, once the server was paused.
        connection_problem: Why its last worker cannot connect to the learner.
        sees_files: Whether the workers read the learner's files.
    """

    described: dict[str, Any] = field(default_factory=dict)
    extension: bool = True
    details: bool = True
    fused: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    version: str = "0.32.0"
    late: tuple[int, Any] | None = None
    connection_problem: str | None = None
    sees_files: bool = True

    generate = "/inference/v1/generate"
    health = "/health"
    steps = {  # noqa: RUF012
        "pause": "/pause",
        "open": "/start_weight_update",
        "take": "/update_weights",
        "close": "/finish_weight_update",
        "compare": "/collective_rpc",
        "resume": "/resume",
    }
    cancels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.base: dict[str, Any] = {}
        self.adapter: dict[str, Any] = {}
        self.left_out: list[list[int]] | None = None  # spans of ids
        self.kinds: list[str] = []  # of the buckets that came
        self._requests = 0
        self._old = Version(self.version) < Version("0.32")
        self._updates: dict[str, int] = {self.label: 0}  # how many there were, by label
        if self._old:
            self.missing = (*self.missing, "/weight_info")

    def _planned(self, fault: Any) -> tuple[int, Any]:
        self.in_session &= not isinstance(fault, str)  # a failed update is over
        return super()._planned(fault)

    def failure(self, message: str) -> tuple[int, Any]:
        text = (
            f"Call to collective_rpc method failed: Worker failed with error '{message}', please check the stack trace"
        )
        return 500, {"error": {"message": text, "code": 500}}

    async def _health(self, body: Any) -> web.Response:
        return web.Response()

    async def _metrics(self, body: Any) -> str:
        return f'# HELP x\nvllm:generation_tokens_total{{engine="0"}} {self.made}.0\nother 3\n'

    async def _inference_v1_generate(self, body: dict[str, Any]) -> Any:
        if self.late is not None:
            while not self.paused:
                await asyncio.sleep(0.001)
            status, answer = self.late
            return web.json_response(answer, status=status)
        self._requests += 1
        size, room = len(body["token_ids"]), body["sampling_params"]["max_tokens"]
        request = await self.compute(str(self._requests), size, room)
        choice = {
            "token_ids": request.tokens,
            "finish_reason": request.reason,
            "weight_versions": request.spans,
            "logprobs": {"content": [{"logprob": logprob} for logprob in request.logprobs]},
        }
        if self._old:
            labels = [
                span["version"] for span in choice.pop("weight_versions") for _ in range(span["start"], span["end"])
            ]
            for entry, label in zip(choice["logprobs"]["content"], labels, strict=True):
                counts = [{"logprob": float(self._updates[label])}][: body["sampling_params"]["logprobs"] // 2]
                entry["top_logprobs"] = [dict(entry), *counts]
        details = {"cached_tokens": 0} if self.details else None
        return {"choices": [choice], "usage": {"prompt_tokens_details": details}}

    async def _collective_rpc(self, body: dict[str, Any]) -> Any:
        if not self.extension:
            raise RuntimeError(f"'CPUWorker' object has no attribute '{body['method']}'")
        if body["method"] == "leave_out":
            (self.left_out,) = body["args"]
            return {"results": [None]}
        if body["method"] == "count_update":
            self._updates[self.label] = len(self._updates)
            return {"results": [self._updates[self.label]] * self.ranks}
        if body["method"] == "connection_problem":
            return {"results": [None, self.connection_problem][-self.ranks :]}
        if body["method"] == "reads":
            path, content = body["args"]
            return {"results": [self.sees_files and Path(path).read_text() == content] * self.ranks}
        if body["method"] == "weight_checksums":
            return {"results": [self._checksums(rank) for rank in range(self.ranks)]}
        return {"results": [{**DESCRIBED, "updates": self._updates.get(self.label, 0), **self.described}] * self.ranks}

    def _checksums(self, rank: int) -> dict[str, int]:
        sums: dict[str, int] = {}
        for name, parts in self._fused().items():
            columns = name.endswith(("o_proj.weight", "down_proj.weight"))
            own = parts if "norm" in name else [part.chunk(self.ranks, int(columns))[rank] for part in parts]
            sums[name] = sum(map(bits, own)) % 2**64
        return sums

    def _fused(self) -> dict[str, list[Any]]:
        fused: dict[str, list[Any]] = {}
        for name, value in self.weights.items():
            parent, _, last = name.rpartition(".")[0].rpartition(".")
            whole = next((whole for whole, parts in FUSED.items() if last in parts), self.fused.get(last, last))
            fused.setdefault(f"{parent}.{whole}.{name.rpartition('.')[2]}", []).append(value)
        return fused

    async def _version(self, body: Any) -> Any:
        return {"version": self.version}

    async def _get_world_size(self, body: Any) -> Any:
        return {"world_size": self.ranks}

    async def _weight_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    async def _is_sleeping(self, body: Any) -> Any:
        return {"is_sleeping": self.asleep}

    async def _start_weight_update(self, body: Any) -> Any:
        if self.in_session:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.in_session = True
        return {}

    async def _update_weights(self, body: Any) -> Any:
        assert self.in_session
        info = body["update_info"]
        self.kinds.append(info["kind"])
        if info["kind"] != "merge":
            if "shared" in info:
                by_rank = [{name: value.clone() for name, value in tensors_of(own)} for own in info["shared"]]
                got = by_rank[0]  # all have the same
            else:
                got = load(base64.b64decode(info["data"])) if "data" in info else load_file(info["path"])
            target = {"weights": self.weights, "base": self.base, "adapter": self.adapter}[info["kind"]]
            target.update((name, value) for name, value in got.items() if name not in self.lose)
        return {}

    async def _finish_weight_update(self, body: Any) -> Any:
        assert self.in_session
        self.in_session = False
        self.label = body.get("weight_version", self.label)
        return {}

    async def _pause(self, body: Any) -> Any:
        self.paused = True
        return {}

    async def _resume(self, body: Any) -> Any:
        assert not self.released, "it would compute without memory"
        self.paused = False
        return {}

    async def _sleep(self, body: Any) -> Any:
        self.asleep = True
        if body["level"] != "0":
            self.released = {"weights", "kv_cache"}
        return {}

    async def _wake_up(self, body: Any) -> Any:
        self.released -= {body["tags"]} if "tags" in body else self.released
        self.asleep = self.paused = bool(self.released)
        return {}
