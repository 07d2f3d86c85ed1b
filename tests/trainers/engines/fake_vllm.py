"""A small vLLM without a model: the HTTP endpoints that the engine uses, as 0.32 answers them.

Tokens are counted up from the prompt's length: what matters is who gets which, and when.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from safetensors.torch import load, load_file

from trainers.engines.weights import FUSED, bits

VOCAB = 64
DESCRIBED = {
    "vllm": "0.32.0",
    "vocab_size": VOCAB,
    "max_context": 768,
    "dtype": "float32",
    "device": "cpu",
    "sampler": True,
    "transfer": True,
    "reads_prompts": True,
}


@dataclass
class ServerBehavior:
    """The options and faults of the fake.

    Args:
        described: Changes of the worker's description.
        dev_mode: Whether there are endpoints for weights.
        extension: Whether the worker has this project's extension.
        details: Whether answers say what was cached.
        world: Workers.
        token_s: Seconds a token.
        refuse: Endpoints that fail, with their messages, in order.
        lose: Parameters that updates silently leave out.
        fused: Modules that it has under other names.
        well: What ``/health`` answers.
        hung: Nothing is computed any more.
    """

    described: dict[str, Any] = field(default_factory=dict)
    dev_mode: bool = True
    extension: bool = True
    details: bool = True
    world: int = 1
    token_s: float = 0.001
    refuse: dict[str, list[str]] = field(default_factory=dict)
    lose: tuple[str, ...] = ()
    fused: dict[str, str] = field(default_factory=dict)
    well: int = 200
    hung: bool = False


class FakeVLLM:
    """See the module's text; ``log`` has the path of every request that changes something, in order."""

    def __init__(self, behavior: ServerBehavior | None = None) -> None:
        self.behavior = behavior or ServerBehavior()
        self.log: list[str] = []
        self.label = "default"
        self.weights: dict[str, Any] = {}
        self.base: dict[str, Any] = {}
        self.adapter: dict[str, Any] = {}
        self.left_out: list[list[int]] | None = None  # spans of ids
        self.kinds: list[str] = []  # of the buckets that came
        self.active = self.paused = self.asleep = False
        self.running = 0
        self.made = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Refuse further connections, and break the open ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        path, behavior = request.path, self.behavior
        if path == "/health":
            return web.Response(status=behavior.well)
        if path == "/metrics":
            return web.Response(text=f'# HELP x\nvllm:generation_tokens_total{{engine="0"}} {self.made}.0\nother 3\n')
        if path == "/inference/v1/generate":
            return await self._generate(await request.json())
        if not behavior.dev_mode:
            return web.json_response({"error": {"message": "Not Found"}}, status=404)
        self.log.append(path)
        if messages := behavior.refuse.get(path):
            self.active = False
            return _failed(messages.pop(0))
        body = await request.json() if request.can_read_body else {}
        handler = getattr(self, "_" + path.strip("/"), None)
        if handler is None:
            return web.json_response({"error": {"message": "Not Found"}}, status=404)
        try:
            return web.json_response(handler(body) or {})
        except RuntimeError as error:
            return _failed(str(error))

    async def _generate(self, body: dict[str, Any]) -> web.Response:
        sampling, size, tokens, spans = body["sampling_params"], len(body["token_ids"]), [], []
        self.running += 1
        try:
            while len(tokens) < sampling["max_tokens"]:
                await asyncio.sleep(self.behavior.token_s)
                while self.paused or self.asleep or self.behavior.hung:
                    await asyncio.sleep(0.001)
                if not spans or spans[-1]["version"] != self.label:
                    spans.append({"version": self.label, "start": len(tokens), "end": len(tokens)})
                tokens.append((size + len(tokens)) % VOCAB)
                spans[-1]["end"] = len(tokens)
                self.made += 1
        finally:
            self.running -= 1
        choice = {
            "token_ids": tokens,
            "finish_reason": "length",
            "weight_versions": spans,
            "logprobs": {"content": [{"token_id": token, "logprob": -1.0} for token in tokens]},
        }
        details = {"cached_tokens": 0} if self.behavior.details else None
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens_details": details}})

    # Each is the endpoint of its name

    def _collective_rpc(self, body: dict[str, Any]) -> Any:
        if not self.behavior.extension:
            raise RuntimeError(f"'CPUWorker' object has no attribute '{body['method']}'")
        if body["method"] == "leave_out":
            (self.left_out,) = body["args"]
            return {"results": [None] * self.behavior.world}
        if body["method"] == "weight_checksums":
            sums = {name: sum(map(bits, parts)) % 2**64 for name, parts in self._fused().items()}
            return {"results": [sums] * self.behavior.world}
        return {"results": [{**DESCRIBED, **self.behavior.described}] * self.behavior.world}

    def _fused(self) -> dict[str, list[Any]]:
        fused: dict[str, list[Any]] = {}
        for name, value in self.weights.items():
            parent, _, last = name.rpartition(".")[0].rpartition(".")
            whole = next(
                (whole for whole, parts in FUSED.items() if last in parts), self.behavior.fused.get(last, last)
            )
            fused.setdefault(f"{parent}.{whole}.{name.rpartition('.')[2]}", []).append(value)
        return fused

    def _get_world_size(self, body: Any) -> Any:
        return {"world_size": self.behavior.world}

    def _weight_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    def _is_sleeping(self, body: Any) -> Any:
        return {"is_sleeping": self.asleep}

    def _start_weight_update(self, body: Any) -> None:
        if self.active:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.active = True

    def _update_weights(self, body: Any) -> None:
        assert self.active
        info = body["update_info"]
        self.kinds.append(info["kind"])
        if info["kind"] == "merge":
            return
        got = load(base64.b64decode(info["data"])) if "data" in info else load_file(info["path"])
        target = {"weights": self.weights, "base": self.base, "adapter": self.adapter}[info["kind"]]
        target.update((name, value) for name, value in got.items() if name not in self.behavior.lose)

    def _finish_weight_update(self, body: Any) -> None:
        assert self.active
        self.active = False
        self.label = body.get("weight_version", self.label)

    def _pause(self, body: Any) -> None:
        self.paused = True

    def _resume(self, body: Any) -> None:
        self.paused = False

    def _sleep(self, body: Any) -> None:
        self.asleep = True

    def _wake_up(self, body: Any) -> None:
        self.asleep = False


def _failed(message: str) -> web.Response:
    text = f"Call to collective_rpc method failed: Worker failed with error '{message}', please check the stack trace"
    return web.json_response({"error": {"message": text, "code": 500}}, status=500)
