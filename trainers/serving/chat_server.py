"""A model of this process as chat completions over HTTP, for simulated users and judges (:mod:`textenvs.chat.local`).

The embedded engine batches the requests of all clients as they arrive. Equal requests with equal seeds have equal
answers, up to rounding (which matters in bfloat16). Only this machine can reach it.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from textenvs.messages import check_conversation

from ..chat_template import RendererError
from ..config.engine import TorchEngineSection
from ..config.model import ModelSection, native_dtype
from ..engines.base import EngineError, RequestError, Sampling
from ..engines.torch_engine import TorchEngine
from ..models.policy import load, resolve_device
from ..rollout.engine_policy import EnginePolicy, NoRoomError, Speaker
from ..rollout.renderer import Renderer

MOST_CONTEXT = 32768  #: maximum tokens of a conversation, if the model has as many positions
SLOTS = 64  #: concurrent replies
_START_S = 600.0  # a large model takes minutes to load


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = ""
    messages: list[dict[str, Any]]
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    max_completion_tokens: int = Field(1024, ge=1)
    max_tokens: int | None = Field(None, ge=1)  # the name in older clients
    seed: int | None = Field(None, ge=0)


class ChatServer:
    """Server of a folder's model at :attr:`base_url`, in its own thread, until :meth:`close` or the process ends.

    Raises ``ValueError``: the model cannot be loaded or served, or its chat template cannot be used; ImportError:
    aiohttp is missing.
    """

    def __init__(self, model: str) -> None:
        try:
            from aiohttp import web
        except ImportError as error:
            raise ImportError(
                "serving a model to users and judges needs aiohttp: pip install 'textenvs[serve]'"
            ) from error
        self._web = web
        self._policy = engine_policy(model, Sampling(), concurrency=SLOTS)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="chat-server", daemon=True).start()
        app = web.Application(client_max_size=2**25)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        self.base_url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_S)

    def close(self) -> None:
        """End the server and its engine; requests in progress fail."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self) -> str:
        await self._runner.setup()
        await self._web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._policy.engine.close()

    async def _answer(self, request: Any) -> Any:
        try:
            body = _Body.model_validate_json(await request.read())
            conversation = check_conversation(body.messages, "messages")
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            name = ".".join(map(str, first["loc"]))
            advice = "; it cannot be held to a schema: give structured='none'" if name == "response_format" else ""
            return self._refused(400, f"{name or 'the body'}: {first['msg']}{advice}")
        except ValueError as error:
            return self._refused(400, str(error))
        sampling = Sampling(
            temperature=body.temperature, top_p=body.top_p, max_new_tokens=body.max_tokens or body.max_completion_tokens
        )
        policy = EnginePolicy(self._policy.engine, self._policy.renderer, sampling)
        seed = secrets.randbits(31) if body.seed is None else body.seed
        try:
            reply = await Speaker(policy, seed).reply(conversation)
        except NoRoomError as error:
            return self._refused(400, f"context length exceeded: {error}")
        except (RendererError, RequestError) as error:
            return self._refused(400, str(error))
        except EngineError as error:
            return self._refused(503, f"{type(error).__name__}: {error}")
        written = len(reply.generation.token_ids)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": reply.text},
            "finish_reason": reply.generation.finish_reason,
        }
        usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": written}
        usage["total_tokens"] = reply.prompt_tokens + written
        return self._web.json_response(
            {"object": "chat.completion", "model": body.model, "choices": [choice], "usage": usage}
        )

    def _refused(self, status: int, message: str) -> Any:
        return self._web.json_response({"error": {"message": message}}, status=status)


def engine_policy(
    model: str,
    sampling: Sampling,
    *,
    concurrency: int = 16,
    device: str = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> EnginePolicy:
    """Return a causal language model in its own embedded engine; arguments and errors are those of `LocalPolicy`."""
    loaded = load(ModelSection(path=model), lambda: (), max_context=0, seed=0)
    renderer = Renderer(loaded.tokenizer, template_kwargs=chat_template_kwargs, stop_token_ids=loaded.end_token_ids)
    engine = TorchEngine(
        loaded.model,
        TorchEngineSection(
            max_slots=concurrency, max_context=min(loaded.model.config.max_position_embeddings, MOST_CONTEXT)
        ),
        device=resolve_device(device),
        dtype=getattr(torch, native_dtype(model, device)),
        stop_token_ids=renderer.stop_token_ids,
        unused_token_ids=loaded.unused_token_ids,
    )
    return EnginePolicy(engine, renderer, sampling)
