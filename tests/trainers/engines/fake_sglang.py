"""A small SGLang server without a model: the endpoints that the engine uses.

In a test's own event loop (:class:`FakeSGLang`), or as a process of its own (``python fake_sglang.py --port N``), so
that it can be killed and stopped. Tokens are counted up from the prompt's length: what matters is who gets which, and
when.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import pickle
import signal
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

VOCAB = 64


@dataclass
class ServerBehavior:
    """The behaviour of the fake, and its faults.

    Args:
        missing: Endpoints that it does not have.
        deterministic: Seeds are honoured.
        token_s: Seconds a token.
        eos: A token that ends requests besides those they name.
        garbage: What ``/generate`` answers, if anything.
        refuse: Endpoints that fail, with how often they still do and what they then answer.
        lose: Parameters that updates silently leave out.
        dp_size: Replicas.
        max_req_input_len: Of prompts.
    """

    missing: tuple[str, ...] = ()
    deterministic: bool = True
    token_s: float = 0.002
    eos: int | None = None
    garbage: Any = None
    refuse: dict[str, list[Any]] = field(default_factory=dict)
    lose: tuple[str, ...] = ()
    dp_size: int = 1
    max_req_input_len: int = 1000


class Request:
    """One generation."""

    def __init__(self, body: dict[str, Any], version: str) -> None:
        self.body = body
        self.tokens: list[int] = []
        self.spans: list[list[Any]] = [[version, 0]]
        self.aborted = False


class FakeSGLang:
    """See the module's text; ``log`` has every request's path and body, in order."""

    def __init__(self, behavior: ServerBehavior | None = None) -> None:
        self.behavior = behavior or ServerBehavior()
        self.log: list[tuple[str, Any]] = []
        self.weights: dict[str, Any] = {}
        self.weight_version = "default"
        self.live: dict[str, Request] = {}
        self.paused: str | None = None
        self.in_session = False
        self.hung = False
        self._go = asyncio.Event()
        self._go.set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    def paths(self) -> list[str]:
        return [path for path, _ in self.log]

    async def start(self, port: int = 0) -> str:
        app = web.Application(client_max_size=2**30, middlewares=[self._record])
        app.router.add_route("*", "/{path:.*}", self._not_found)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Refuse further connections, and break the open ones."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.hung:
            await asyncio.sleep(3600)
        body = await request.json() if request.can_read_body else None
        self.log.append((request.path, body))
        if (planned := self.behavior.refuse.get(request.path)) and planned[0] > 0:
            planned[0] -= 1
            status, answer = planned[1]
            if isinstance(answer, str):
                return web.Response(text=answer, status=status)
            return web.json_response(answer, status=status)
        endpoint = getattr(self, "_" + request.path.strip("/").replace("/", "_"), None)
        missing = endpoint is None or request.path in self.behavior.missing
        return await (handler(request) if missing else endpoint(body))

    async def _not_found(self, _: web.Request) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    # What it is

    async def _model_info(self, _: Any) -> web.Response:
        return web.json_response({"model_path": "fake", "weight_version": self.weight_version, "new_field": [1]})

    async def _server_info(self, _: Any) -> web.Response:
        m = self.behavior
        return web.json_response(
            {
                "version": "0.5.23",
                "max_req_input_len": m.max_req_input_len,
                "enable_deterministic_inference": m.deterministic,
                "tp_size": 1,
                "dp_size": m.dp_size,
                "dtype": "float32",
                "device": "cpu",
            }
        )

    async def _health(self, _: Any) -> web.Response:
        return web.Response(status=503 if self.paused else 200)

    # Generation

    async def _generate(self, body: dict[str, Any]) -> web.Response:
        m = self.behavior
        if m.garbage is not None:
            return web.Response(text=m.garbage) if isinstance(m.garbage, str) else web.json_response(m.garbage)
        while not self._go.is_set():
            await self._go.wait()
        request = self.live[body["rid"]] = Request(body, self.weight_version)
        sampling = body["sampling_params"]
        reason: dict[str, Any] = {"type": "length"}
        while len(request.tokens) < sampling["max_new_tokens"]:
            await asyncio.sleep(m.token_s)
            while self.paused and not request.aborted:
                await asyncio.sleep(0.002)
            if request.aborted:
                reason = {"type": "abort", "message": "Aborted"}
                break
            if request.spans[-1][0] != self.weight_version:
                request.spans.append([self.weight_version, len(request.tokens)])
            token = (len(body["input_ids"]) + len(request.tokens)) % VOCAB
            request.tokens.append(token)
            if not sampling["ignore_eos"] and token in {*sampling["stop_token_ids"], m.eos}:
                reason = {"type": "stop", "matched": token}
                break
        del self.live[body["rid"]]
        ends = [*(start for _, start in request.spans[1:]), len(request.tokens)]
        meta = {
            "id": body["rid"],
            "finish_reason": reason,
            "completion_tokens": len(request.tokens),
            "cached_tokens": 0,
            "weight_version": self.weight_version,
            "output_token_logprobs": [[-0.5 - token / 100, token, None] for token in request.tokens],
        }
        meta["weight_versions"] = [
            {"version": version, "start": start, "end": end}
            for (version, start), end in zip(request.spans, ends, strict=True)
        ]
        return web.json_response({"text": "", "meta_info": meta, "output_ids": request.tokens})

    async def _abort_request(self, body: dict[str, Any]) -> web.Response:
        for rid, request in self.live.items():
            if body.get("abort_all") or (body["rid"] in self.live and rid.startswith(body["rid"])):
                request.aborted = True
        return web.Response()

    async def _pause_generation(self, body: dict[str, Any]) -> web.Response:
        mode = body.get("mode", "abort")
        self._go.clear()
        if mode == "abort":
            for request in self.live.values():
                request.aborted = True
            while self.live:
                await asyncio.sleep(0.005)
        else:
            self.paused = mode
        return web.json_response({"message": "paused", "status": "ok"})

    async def _continue_generation(self, _: Any) -> web.Response:
        self.paused = None
        self._go.set()
        return web.json_response({"message": "on", "status": "ok"})

    # Weights

    async def _begin_weight_update(self, _: Any) -> web.Response:
        if self.in_session:
            return web.json_response({"success": False, "message": "already open"}, status=400)
        self.in_session = True
        return web.json_response({"success": True, "message": "Success"})

    async def _end_weight_update(self, _: Any) -> web.Response:
        self.in_session = False
        return web.json_response({"success": True, "message": "Success"})

    async def _update_weights_from_tensor(self, body: dict[str, Any]) -> web.Response:
        if not self.in_session:
            return web.json_response({"success": False, "message": "no session"}, status=400)
        for name, value in pickle.loads(base64.b64decode(body["serialized_named_tensors"][0])):
            if name not in self.behavior.lose:
                self.weights[name] = value
        self.weight_version = body.get("weight_version", self.weight_version)
        return web.json_response({"success": True, "message": "Success"})

    async def _update_weights_from_disk(self, body: dict[str, Any]) -> web.Response:
        from safetensors.torch import load_file

        self.weights = dict(load_file(f"{body['model_path']}/model.safetensors"))
        self.weight_version = body["weight_version"]
        return web.json_response({"success": True, "message": "Success", "num_paused_requests": 0})

    async def _flush_cache(self, _: Any) -> web.Response:
        return web.Response(text="Cache flushed.\n")

    async def _weights_checker(self, _: Any) -> web.Response:
        return web.json_response({"success": True, "ranks": [{"checksums": self.checksums()}]})

    def checksums(self) -> dict[str, str]:
        """Return SGLang's checksums: of fused parameters, the first 64 bits of the SHA-256 of their bytes."""
        order = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
        order |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
        fused: dict[str, Any] = {}
        for part in (None, *order):
            for name, value in self.weights.items():
                if (part_name := next((p for p in order if f".{p}." in name), None)) == part:
                    whole = name if part_name is None else name.replace(part_name, order[part_name])
                    fused.setdefault(whole, hashlib.sha256()).update(value.contiguous().numpy().tobytes())
        return {name: digest.digest()[:8].hex() for name, digest in fused.items()}


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_known_args()[0].port
    server = FakeSGLang()
    await server.start(port)
    print(json.dumps({"serving": server.url}), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(_main())
