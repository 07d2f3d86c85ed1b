"""A small SGLang server without a model: the endpoints that the engine uses.

In a test's own event loop (:class:`FakeSGLang`), or as a process of its own (``python fake_sglang.py --port N``), so
that it can be killed and stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import pickle
import signal
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from fake_server import FakeServer
from packaging.version import Version

SUCCESS = {"success": True, "message": "Success"}


@dataclass(eq=False)
class FakeSGLang(FakeServer):
    """See the module's text.

    Args:
        deterministic: Seeds are honoured.
        eos: A token that ends requests besides those they name.
        dp_size: Replicas.
        max_req_input_len: Of prompts.
        outside: New requests wait where an abort does not find them.
        device: Of its workers, as it says.
        version: Of SGLang. Before 0.5.21 updates have no sessions, and waiting requests keep the cache.
    """

    deterministic: bool = True
    eos: int | None = None
    dp_size: int = 1
    max_req_input_len: int = 1000
    outside: bool = False
    device: str = "cpu"
    version: str = "0.5.23"

    generate = "/generate"
    health = "/model_info"
    steps = {  # noqa: RUF012
        "pause": "/pause_generation",
        "open": "/begin_weight_update",
        "take": "/update_weights_from_tensor",
        "close": "/end_weight_update",
        "flush": "/flush_cache",
        "compare": "/weights_checker",
        "resume": "/continue_generation",
    }
    cancels = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sessions = Version(self.version) >= Version("0.5.21")
        if not self._sessions:
            self.missing = (*self.missing, "/begin_weight_update", "/end_weight_update")

    def failure(self, message: str) -> tuple[int, Any]:
        return 400, {"success": False, "message": message}

    async def _model_info(self, _: Any) -> Any:
        return {"model_path": "fake", "weight_version": self.label, "new_field": [1]}

    async def _server_info(self, _: Any) -> Any:
        return {
            "version": self.version,
            "max_req_input_len": self.max_req_input_len,
            "enable_deterministic_inference": self.deterministic,
            "tp_size": 1,
            "dp_size": self.dp_size,
            "dtype": "float32",
            "device": self.device,
        }

    async def _health(self, _: Any) -> web.Response:
        return web.Response(status=503 if self.paused else 200)

    async def _generate(self, body: dict[str, Any]) -> Any:
        while self.outside:
            await asyncio.sleep(0.001)
        sampling = body["sampling_params"]
        stops = frozenset() if sampling["ignore_eos"] else frozenset({*sampling["stop_token_ids"], self.eos})
        request = await self.compute(body["rid"], len(body["input_ids"]), sampling["max_new_tokens"], stops)
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": request.reason, "message": "Aborted"},
            "completion_tokens": len(request.tokens),
            "cached_tokens": 0,
            "weight_version": self.label,
            "output_token_logprobs": [
                [logprob, token, None] for token, logprob in zip(request.tokens, request.logprobs, strict=True)
            ],
            "weight_versions": request.spans,
        }
        return {"text": "", "meta_info": meta, "output_ids": request.tokens}

    async def _abort_request(self, body: dict[str, Any]) -> web.Response:
        for rid, request in self.live.items():
            if body.get("abort_all") or (body["rid"] in self.live and rid.startswith(body["rid"])):
                request.aborted = True
        return web.Response()

    async def _pause_generation(self, body: dict[str, Any]) -> Any:
        self.paused = self.outside = True
        if body.get("mode", "abort") == "abort":
            for request in self.live.values():
                request.aborted = True
            while self.live:
                await asyncio.sleep(0.001)
        return {"message": "paused", "status": "ok"}

    async def _release_memory_occupation(self, body: dict[str, Any]) -> Any:
        assert self.paused, "release_memory_occupation should be called only when server is idle"
        self.released |= set(body["tags"])
        return {}

    async def _resume_memory_occupation(self, body: dict[str, Any]) -> Any:
        for tag in body["tags"]:
            self.released.remove(tag)
        return {}

    async def _continue_generation(self, _: Any) -> Any:
        assert not self.released, "it would compute without memory"
        self.paused = self.outside = False
        return {"message": "on", "status": "ok"}

    async def _begin_weight_update(self, _: Any) -> Any:
        if self.in_session:
            raise RuntimeError("already open")
        self.in_session = True
        return SUCCESS

    async def _end_weight_update(self, _: Any) -> Any:
        self.in_session = False
        return SUCCESS

    async def _update_weights_from_tensor(self, body: dict[str, Any]) -> Any:
        if self._sessions and not self.in_session:
            raise RuntimeError("no session")
        for name, value in pickle.loads(base64.b64decode(body["serialized_named_tensors"][0])):
            if name not in self.lose:
                self.weights[name] = value.clone()  # what is shared changes with the next bucket
        self.label = body.get("weight_version", self.label)
        return SUCCESS

    async def _update_weights_from_disk(self, body: dict[str, Any]) -> Any:
        from safetensors.torch import load_file

        self.weights = dict(load_file(f"{body['model_path']}/model.safetensors"))
        self.label = body["weight_version"]
        return {**SUCCESS, "num_paused_requests": 0}

    async def _flush_cache(self, _: Any) -> Any:
        if not self._sessions and self.live:
            return web.Response(status=400, text="Flush cache failed.")
        return "Cache flushed.\n"

    async def _weights_checker(self, _: Any) -> Any:
        return {"success": True, "ranks": [{"checksums": self.checksums()}]}

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
    parser.add_argument("--token-s", type=float, default=FakeSGLang.token_s)
    given = parser.parse_known_args()[0]
    print(json.dumps({"serving": await FakeSGLang(token_s=given.token_s).start(given.port)}), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(_main())
